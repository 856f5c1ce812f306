"""Kernels of any kind on a GPU: tuned from Python and from folders; hostile ones end in their state."""

import numpy as np
import pytest

import mltune
from mltune.errors import BundleError

pytestmark = pytest.mark.gpu

ADD = """
__global__ void vector_add(float *c, float *a, float *b, int n) {
  int i = blockIdx.x * block_size_x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
"""
SCALE = """
template <typename T, int COUNT> __global__ void scale(T* out, const T* in, T factor, int n) {
  for (int i = blockIdx.x * block_size_x * COUNT + threadIdx.x, k = 0; k < COUNT; ++k, i += block_size_x)
    if (i < n) out[i] = FACTOR * factor * in[i];
}
"""
N = 1_000_000
RNG = np.random.default_rng(1)
A, B = (RNG.standard_normal(N).astype(np.float32) for _ in "ab")
COPY = """
extern "C" __global__ void copy(float* out, float* in, int n) {{
  int i = blockIdx.x * block_size_x + threadIdx.x;
  if (i < n) out[i] = in[i];
  {deed}
}}
"""
DEEDS = {
    "writes past an array": ("if (MODE && i < 32) out[n + i] = 1.0f;", "wrong_result"),
    "changes an input": ("if (MODE && i == n / 2) in[i] = 7.0f;", "wrong_result"),
    "is wrong in one element": ("if (MODE && i == n - 3) out[i] += 1.0f;", "wrong_result"),
    "never ends": ("if (MODE) while (true) __nanosleep(100);", "timeout"),
    "reads anywhere": ("if (MODE) out[i] = *(float*)(8ull * i);", "crashed"),
    "asks for too much": (
        "__shared__ volatile float tile[MODE ? 20000 : 64]; tile[threadIdx.x % 64] = 0;",
        "compile_error",
    ),
}


def test_kernel_tuners_vector_add():
    arguments = [np.zeros(N, np.float32), A, B, np.int32(N)]

    results, env = result = mltune.tune_kernel(
        "vector_add", ADD, N, arguments, {"block_size_x": [128 + 64 * i for i in range(15)]},
        answer=[A + B, None, None, None], metrics={"GB/s": lambda p: 12e-6 * N / p["time"]}, stop=False,
    )  # fmt: skip

    assert len(results) == 15
    assert result.best_config["block_size_x"] in [entry["block_size_x"] for entry in results]
    assert all(entry["GB/s"] > 100 for entry in results)
    assert "H" in env["device_name"]
    assert (arguments[0] == 0).all()


def test_templates_and_values_of_any_type():
    result = mltune.tune_kernel(
        "scale<float, UNROLL>", SCALE, (N,), [np.zeros(N, "f4"), A, np.float32(2), np.int32(N)],
        {"block_size_x": [64, 256], "UNROLL": [1, 2, 4], "FACTOR": [0.5, 1.5], "KIND": ["plain", "other"]},
        grid_div_x=["block_size_x", "UNROLL"],
        restrictions=["KIND == 'plain' or UNROLL > 1", lambda p: p["FACTOR"] < 1],
        answer=[A, None, None, None], bytes=8 * N, stop=False,
    )  # fmt: skip

    assert result.counts["ok"] == 10
    assert result.best_config["FACTOR"] == 0.5
    assert result.best_config["KIND"] in ("plain", "other")
    assert set(result.to_dataframe()["KIND"]) == {"plain", "other"}


def test_a_tuned_kernel_is_called(tmp_path):
    cupy = pytest.importorskip("cupy")
    n = np.int32(N)
    result = mltune.tune_kernel(
        "vector_add",
        ADD,
        N,
        [A, A, B, n],
        {"block_size_x": [128, 256]},
        run=tmp_path / "run",
        answer=[A + B] + [None] * 3,
    )
    a, b, c = cupy.asarray(A), cupy.asarray(B), cupy.zeros(N, cupy.float32)

    result.compile()(c, a, b, n)

    assert np.allclose(c.get(), A + B)
    mltune.load_run(tmp_path / "run").compile()(c, a, b, n)


@pytest.mark.parametrize("deed", DEEDS)
def test_a_hostile_kernel_ends_in_its_state(deed):
    source, state = DEEDS[deed]
    result = mltune.tune_kernel(
        "copy", COPY.format(deed=source), N, [np.zeros(N, np.float32), A, np.int32(N)],
        {"block_size_x": [64, 128], "MODE": [0, 1]}, default={"block_size_x": 64, "MODE": 0}, stop=False,
    )  # fmt: skip

    assert result.counts[state] == 2
    assert result.counts["ok"] + result.counts["unstable"] == 2
    assert result.best_config["MODE"] == 0


def test_a_wrong_default_is_refused():
    with pytest.raises(BundleError, match="must give the right answer"):
        mltune.tune_kernel(
            "vector_add", ADD, N, [A, A, B, np.int32(N)], {"block_size_x": [64]}, answer=[A - B, None, None, None]
        )


@pytest.mark.parametrize("kernel", ["transpose", "reduction", "softmax", "stencil", "convolution_cuda"])
def test_every_built_in_kernel_is_tuned(kernel, tmp_path):
    result = mltune.tune(kernel, trials=48, run=tmp_path / "run")

    assert result.counts["ok"] > 30, [record.detail for record in result.records if record.state != "ok"][:3]
    assert result.counts["wrong_result"] == 0
    assert result.declaration is not None
    assert result.declaration.verified
    assert (tmp_path / "run" / "winner" / "kernel.cubin").exists()
