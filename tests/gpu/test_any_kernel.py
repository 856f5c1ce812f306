"""Kernels of any kind on a GPU: tuned from Python and from folders; hostile ones end in their state."""

import json

import numpy as np
import pytest

import mltune
from mltune.errors import BundleError, MltuneWarning, RunError

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
ACCUMULATE = """
[kernel]
name = "copy"
problem = "arrays"
source = "kernel.cu"
entry = "copy"

[sizes]
n = 100_000_000

[arguments]
out = { dtype = "float32", shape = ["n"], role = "out" }
in = { dtype = "float32", shape = ["n"] }
n = { dtype = "int32", value = "n" }

[parameters]
block_size_x = [128, 256]
MODE = [0, 1, 2]

[default]
block_size_x = 128
MODE = 0

[launch]
block = ["block_size_x"]
grid = ["ceil_div(n, block_size_x)"]
"""
DEEDS = {
    "writes past an array": ("if (MODE && i < 32) out[n + i] = 1.0f;", "wrong_result"),
    "changes an input": ("if (MODE && i == n / 2) in[i] = 7.0f;", "wrong_result"),
    "is wrong in one element": ("if (MODE && i == n - 3) out[i] += 1.0f;", "wrong_result"),
    "never ends": ("if (MODE) while (true) __nanosleep(100);", "timeout"),
    "reads anywhere": ("if (MODE) out[i] = *(float*)(8ull * i);", "crashed"),
    "gives another result each time": ("if (MODE) out[i] += (clock64() >> 4) % 1000;", "wrong_result"),
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

    assert {one["block_size_x"] for one in results} == {128 + 64 * i for i in range(15)}
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

    tried = {
        tuple(one.configuration[name] for name in ("block_size_x", "UNROLL", "FACTOR", "KIND"))
        for one in result.records
    }
    assert len(tried) == 10
    assert result.counts["ok"] == len(result.records)
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

    ended = {mode: {one.state for one in result.records if one.configuration["MODE"] == mode} for mode in (0, 1)}
    assert ended[1] == {state}
    assert ended[0] <= {"ok", "unstable"}
    assert result.best_config["MODE"] == 0


def test_an_unwritten_output_and_one_wrong_element_of_many_are_found(tmp_path):
    (tmp_path / "kernel.toml").write_text(ACCUMULATE)
    (tmp_path / "kernel.cu").write_text(
        'extern "C" __global__ void copy(float* out, const float* in, int n) {\n'
        "  int i = blockIdx.x * block_size_x + threadIdx.x;\n"
        "  if (i < n) out[i] = in[i] + (MODE == 1 ? out[i] : MODE == 2 && i == n / 3 ? 1 : 0);\n}\n"
    )
    result = mltune.tune(tmp_path, stop=False, run=tmp_path / "run")

    assert {(record.configuration["MODE"], record.state) for record in result.records} == {
        (0, "ok"), (1, "wrong_result"), (2, "wrong_result")
    }  # fmt: skip


def test_a_kernel_is_run_once():
    arguments = [np.zeros(N, np.float32), A, B, np.int32(N)]
    c, a, b, n = mltune.run_kernel("vector_add", ADD, N, arguments, {"block_size_x": 512})

    assert np.allclose(c, A + B)
    assert (a == A).all()
    assert (b == B).all()
    assert n == N
    assert (arguments[0] == 0).all()
    with pytest.raises(RunError, match="ends with crashed"):
        mltune.run_kernel("f", "__global__ void f(float* a) { a[1ll << 40] = 1; }", 1, [A], {"block_size_x": 1})
    with pytest.raises(RunError, match="ends with compile_error"):
        mltune.run_kernel("f", "__global__ void f(float* a) { a = b; }", 1, [A], {"block_size_x": 1})


PARTIAL_SUMS = """
#include <cub/cub.cuh>
#include <stdio.h>
__global__ void sums(float *sum, const float *in, int n) {
  __shared__ typename cub::BlockReduce<float, block_size_x>::TempStorage room;
  float mine = WRONG;
  for (int i = blockIdx.x * block_size_x + threadIdx.x; i < n; i += block_size_x * blocks) mine += in[i];
  mine = cub::BlockReduce<float, block_size_x>(room).Sum(mine);
  if (threadIdx.x == 0) sum[blockIdx.x] = mine;
}
"""


def test_a_function_decides_where_right_outputs_differ():
    arguments = [np.zeros(256, np.float32), A * A, np.int32(N)]
    parameters = {"block_size_x": [128, 256], "blocks": [64, 128, 256], "WRONG": [0, 1]}
    total = np.sum(A * A, dtype=np.float64)

    def verify(answer, outputs, atol):
        assert outputs[1:] == [None, None]
        return np.isclose(outputs[0].sum(dtype=np.float64), answer[0], rtol=1e-5)

    result = mltune.tune_kernel(
        "sums", lambda values: f"// {values}\n{PARTIAL_SUMS}", "blocks", arguments, parameters, grid_div_x=[],
        answer=[total, None, None], verify=verify, stop=False, metrics={"GB/s": f"4e-6 * {N} / time"},
    )  # fmt: skip

    assert {(one.configuration["WRONG"], one.state) for one in result.records} == {(0, "ok"), (1, "wrong_result")}
    assert json.loads(json.dumps(result))[0][0]["GB/s"] > 10
    with pytest.warns(MltuneWarning, match="disagree with the default configuration"):
        mltune.tune_kernel("sums", PARTIAL_SUMS, "blocks", arguments, parameters, grid_div_x=[], stop=False)


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
