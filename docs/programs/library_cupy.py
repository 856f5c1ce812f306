"""Products of CuPy's arrays with a library of sgemm NN: on a stream, in a graph, and at many sizes.

python library_cupy.py sgemm_nn
"""

import sys

import cupy

import mltune

lib = mltune.load_library(sys.argv[1])
stream = cupy.cuda.Stream(non_blocking=True)

with stream:
    for m, n, k in [(100, 200, 300), (1, 7, 4096), (1000, 1000, 1000)]:
        a, b = cupy.random.random((m, k), dtype="float32"), cupy.random.random((k, n), dtype="float32")
        c = cupy.empty((m, n), dtype="float32")
        lib.sgemm(a, b, out=c)  # on the current stream
        cupy.testing.assert_allclose(c, a @ b, rtol=1e-3)

        stream.begin_capture()  # after the call above, which has allocated the workspace of the stream
        lib.sgemm(a, b, out=c, alpha=2.0)
        graph = stream.end_capture()
        a[:] = 1
        graph.launch(stream)
        cupy.testing.assert_allclose(c, 2 * (a @ b), rtol=1e-3)
        print(m, n, k, "right")
