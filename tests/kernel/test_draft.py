"""Bundles from CUDA sources: what is read from a source, and what is left to be filled in."""

import pytest

from mltune.errors import BundleError, UsageError
from mltune.kernel.reader import load_kernel, new_bundle

SCALE = """#include "half.cuh"
#ifndef BLOCK
#define BLOCK 128
#endif
#define ITEMS 2
#define TILE (BLOCK * ITEMS)
#define PI 3.14159f
#define ROWS 5
#define TABLE 65536

extern "C" __global__ void __launch_bounds__(BLOCK) scale(real* out, const real* __restrict__ in, float by, int n) {
  const int first = blockIdx.x * TILE + threadIdx.x;
  for (int k = 0; k < ITEMS; k++) {
    const int i = first + k * BLOCK;
    if (i < n) out[i] = by * ROWS * PI * in[i];
  }
}
"""
PRODUCT = """#define TILE 16
typedef float real;
__global__ void product(const real* A, const real* B, real* C, int M, int N, int K) {
  int row = blockIdx.y * TILE + threadIdx.y;
  int col = blockIdx.x * TILE + threadIdx.x;
  if (row < M && col < N) {
    real sum = 0;
    for (int k = 0; k < K; k++) sum += A[row * K + k] * B[(size_t)k * N + col];
    C[row * N + col] = sum;
  }
}
"""


def _bundle(tmp_path, text, entry=None, header="typedef float real;\n"):
    (tmp_path / "source.cu").write_text(text)
    (tmp_path / "half.cuh").write_text(header)
    new_bundle(tmp_path / "new", tmp_path / "source.cu", entry)
    return tmp_path / "new"


def _line(folder, start):
    return next(line for line in (folder / "kernel.toml").read_text().splitlines() if line.startswith(start))


def test_macros_with_whole_numbers_are_parameters(tmp_path):
    folder = _bundle(tmp_path, SCALE.replace("real*", "float*"))
    kernel = load_kernel(folder)
    assert {name: sorted(values) for name, values in kernel.space.parameters.items()} == {
        "BLOCK": [32, 64, 128, 256, 512],
        "ITEMS": [1, 2, 4, 8],
    }
    assert "#ifndef ITEMS\n#define ITEMS 2\n#endif" in (folder / "kernel.cu").read_text()
    assert (folder / "half.cuh").read_text() == "typedef float real;\n"


def test_arguments_sizes_and_the_launch_are_read(tmp_path):
    kernel = load_kernel(_bundle(tmp_path, SCALE.replace("real*", "float*")))
    arguments = {argument.name: argument for argument in kernel.own_problem({"n": 1000}).arguments}
    assert list(arguments) == ["out", "in", "by", "n"]
    assert (arguments["out"].role, arguments["in"].role) == ("out", "in")
    launch = kernel.launch({"BLOCK": 64, "ITEMS": 4}, {"n": 1000})
    assert (launch.grid, launch.block) == ((4, 1, 1), (64, 1, 1))


def test_a_product_has_three_sizes_and_shapes_of_two(tmp_path):
    folder = _bundle(tmp_path, PRODUCT)
    assert 'shape = ["M", "K"]' in _line(folder, "A =")
    assert 'shape = ["K", "N"]' in _line(folder, "B =")
    assert 'shape = ["M", "N"], role = "out"' in _line(folder, "C =")
    launch = load_kernel(folder).launch({"TILE": 8}, {"M": 100, "N": 30, "K": 7})
    assert (launch.grid, launch.block) == ((4, 13, 1), (8, 8, 1))


def test_what_cannot_be_read_is_named_with_its_line(tmp_path):
    text = PRODUCT.replace("int M,", "thing T, int flags, int M,").replace("A[row * K + k]", "A[f(row)]")
    folder = _bundle(tmp_path, text.replace("blockIdx.y * TILE", "g(blockIdx.y)"))
    with pytest.raises(BundleError) as refusal:
        load_kernel(folder)
    message = str(refusal.value)
    assert "is to be filled in at 5 lines" in message
    for key in ("A = ", "T = ", "flags = ", "block = ", "grid = "):
        assert key in message
    filled = (folder / "kernel.toml").read_text().replace('dtype = "FILL IN"', 'dtype = "int32"')
    filled = filled.replace('["FILL IN"]', '["16"]').replace('"FILL IN"', '"1"')
    (folder / "kernel.toml").write_text(filled)
    load_kernel(folder)


def test_a_function_of_several_is_named(tmp_path):
    two = PRODUCT + PRODUCT.replace("product", "reference").partition("typedef float real;")[2]
    with pytest.raises(UsageError, match=r"2 __global__ functions, product, reference; .* --entry product"):
        _bundle(tmp_path, two)
    with pytest.raises(UsageError, match=r"no __global__ function refrence.*did you mean 'reference'\?"):
        _bundle(tmp_path, two, "refrence")
    assert load_kernel(_bundle(tmp_path, two, "reference")).source.entry == "reference"


def test_a_namespace_and_a_template_are_in_the_entry(tmp_path):
    text = SCALE.replace('extern "C"', "template <int WIDTH = 4>").replace("real*", "float*").replace("ITEMS + ", "")
    text = text.replace("template", "namespace math {\ntemplate") + "}\n"
    kernel = load_kernel(_bundle(tmp_path, text))
    assert kernel.source.entry == "math::scale<WIDTH_>"
    assert sorted(kernel.space.parameters["WIDTH_"]) == [1, 2, 4, 8, 16]


def test_threads_that_the_launch_decides_are_a_parameter(tmp_path):
    text = """__global__ void add(double *x, const double *y, unsigned n) {
      for (unsigned i = blockDim.x * blockIdx.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) x[i] += y[i];
    }"""
    kernel = load_kernel(_bundle(tmp_path, text))
    launch = kernel.launch({"block_size_x": 64}, {"n": 1000})
    assert (launch.grid, launch.block) == ((16, 1, 1), (64, 1, 1))
    assert [argument.role for argument in kernel.own_problem().arguments][:2] == ["inout", "in"]


@pytest.mark.parametrize("value", ["PI 3.1f", "TABLE 65536", "ROWS 5", "UNUSED 8", "TWICE(x) 4"])
def test_other_macros_stay_constants(tmp_path, value):
    text = SCALE.replace("real*", "float*").replace("#define PI 3.14159f", f"#define {value}\n#define PI 3.14159f")
    assert load_kernel(_bundle(tmp_path, text)).space.parameters.keys() == {"BLOCK", "ITEMS"}
