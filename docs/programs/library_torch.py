"""Products of PyTorch's tensors with a library of sgemm NN: in place, and as an operator that torch.compile keeps.

python library_torch.py sgemm_nn
"""

import sys

import torch

import mltune

lib = mltune.load_library(sys.argv[1])
a, b = torch.rand(300, 4000, device="cuda"), torch.rand(4000, 200, device="cuda")
wanted = (a.double() @ b.double()).float()

with torch.cuda.stream(torch.cuda.Stream()):
    torch.cuda.synchronize()
    out = torch.empty(300, 200, device="cuda")
    lib.sgemm(a, b, out=out)  # on the current stream
    torch.testing.assert_close(out, wanted, rtol=1e-3, atol=1e-3)

    graph = torch.cuda.CUDAGraph()  # after the call above, which has allocated the workspace of the stream
    graph.capture_begin()
    lib.sgemm(a, b, out=out, alpha=2.0)
    graph.capture_end()
    graph.replay()
    torch.testing.assert_close(out, 2 * wanted, rtol=1e-3, atol=1e-3)

sgemm = lib.to_torch_operator()
model = torch.compile(lambda a, b: torch.relu(sgemm(a, b) - 990.0), fullgraph=True)
torch.testing.assert_close(model(a, b), torch.relu(wanted - 990.0), rtol=1e-3, atol=1e-2)
torch.library.opcheck(torch.ops.mltune.sgemm_nn.default, (a, b))  # what torch_operator has registered
print("right")
