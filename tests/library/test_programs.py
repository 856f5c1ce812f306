"""The programs in docs/programs, as far as they go without a GPU; on one they are in tests/gpu."""

import ast
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from c_library import build_driver, content_of
from winners import cuda_include

from mltune.library.folder import write_library
from mltune.library.loaded import Library
from mltune.problem.gemm import parse_problem

PROGRAMS = Path(__file__).parents[2] / "docs" / "programs"


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_program_in_cpp_is_built_without_a_warning_launches_and_sees_a_wrong_result(tmp_path):
    """The driver does nothing, so that every product is wrong."""
    build_driver(tmp_path)
    problem = parse_problem("sgemm", trans="NN", size=1000)
    write_library(tmp_path / "sgemm_nn", content_of("gemm_simt", problem, ("m", "n", "k"), count=20))
    folders = ["-Isgemm_nn", f"-isystem{cuda_include()}", "-Lsgemm_nn"]
    strict = ["-std=c++17", "-Wall", "-Wextra", "-Wno-old-style-cast", "-Werror"]
    command = ["g++", *strict, PROGRAMS / "library.cpp", *folders, "-lsgemm_nn", "-L.", "-l:libcuda.so.1", "-pthread"]
    subprocess.run([*command, "-o", "it"], cwd=tmp_path, check=True)

    def run(**environment):
        environment = os.environ | {"LD_LIBRARY_PATH": f"{tmp_path}:{tmp_path / 'sgemm_nn'}"} | environment
        done = subprocess.run(["./it"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    assert run() == (1, "wrong\n")
    status, text = run(FAKE_MAJOR="8")
    assert status == 2
    assert "built for NVIDIA H200" in text


@pytest.mark.parametrize("name", ["library_cupy.py", "library_torch.py"])
def test_programs_in_python_use_what_a_library_has(name):
    tree = ast.parse((PROGRAMS / name).read_text())
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "lib"
    }
    assert used - {"sgemm"} <= {*dir(Library)}
    assert "sgemm" in used


TWO = """
#include "sgemm_nn.h"
#include "sgemm_nt.h"
#include <stdio.h>
int main(void) {
  sgemm_nn_library *nn;
  sgemm_nt_library *nt;
  if (sgemm_nn_create(&nn, SGEMM_NN_ABI) || sgemm_nt_create(&nt, SGEMM_NT_ABI)) return 1;
  if (sgemm_nn(nn, 64, 32, 16, 1, 0, 64, 0, 16, 0, 0, 64, NULL, 0, NULL)) return 2;
  if (sgemm_nt(nt, 64, 32, 16, 1, 0, 64, 0, 32, 0, 0, 64, NULL, 0, NULL)) return 3;
  sgemm_nn_destroy(nn);
  sgemm_nt_destroy(nt);
  puts("both");
  return 0;
}
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_a_program_has_libraries_of_several_cases(tmp_path):
    build_driver(tmp_path)
    (tmp_path / "main.c").write_text(TWO)
    for trans in ("NN", "NT"):
        problem = parse_problem("sgemm", trans=trans, size=1000)
        write_library(tmp_path / f"sgemm_{trans.lower()}", content_of("gemm_simt", problem, ("m", "n", "k"), count=3))
    sources = ["main.c", "sgemm_nn/sgemm_nn.c", "sgemm_nt/sgemm_nt.c", "-Isgemm_nn", "-Isgemm_nt"]
    command = ["gcc", "-Wall", "-Wextra", "-Werror", *sources, "-ldl", "-lm", "-o", "it"]
    subprocess.run(command, cwd=tmp_path, check=True)
    environment = {"LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(["./it"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "both\n")


CMAKE = """
cmake_minimum_required(VERSION 3.16)
project(it LANGUAGES C)
add_executable(it main.c)
foreach(name sgemm_nn sgemm_nt)
  add_subdirectory(${name})
  target_link_libraries(it ${name})
endforeach()
"""


@pytest.mark.parametrize(
    ("tool", "command"),
    [
        ("cmake", "cmake -S . -B . && cmake --build ."),
        ("pkg-config", "gcc main.c $(pkg-config --cflags --libs sgemm_nn sgemm_nt) -o it"),
    ],
)
def test_a_program_finds_libraries_by_cmake_and_pkg_config(tmp_path, tool, command):
    if shutil.which(tool) is None or shutil.which("gcc") is None:
        pytest.skip(f"needs gcc and {tool}")
    build_driver(tmp_path)
    (tmp_path / "main.c").write_text(TWO)
    (tmp_path / "CMakeLists.txt").write_text(CMAKE)
    folders = [str(tmp_path / "sgemm_nn"), str(tmp_path / "sgemm_nt")]
    for folder, trans in zip(folders, ("NN", "NT"), strict=True):
        problem = parse_problem("sgemm", trans=trans, size=1000)
        write_library(Path(folder), content_of("gemm_simt", problem, ("m", "n", "k"), count=3))
    found = os.environ | {"PKG_CONFIG_PATH": ":".join(folders), "LD_LIBRARY_PATH": ":".join([str(tmp_path), *folders])}
    subprocess.run(["sh", "-ec", command], cwd=tmp_path, env=found, check=True)
    done = subprocess.run(["./it"], cwd=tmp_path, env=found, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "both\n")


STRANGE = """
#include "sgemm_nn.h"
#include <pthread.h>
#include <stdio.h>
static sgemm_nn_library *library;
static uint64_t drawn(uint64_t *state) {
  *state = *state * 6364136223846793005ull + 1442695040888963407ull;
  return *state >> 20;
}
static int64_t extent(uint64_t *state) {
  const int64_t edges[] = {0, 1, -1, INT32_MAX, (int64_t)INT32_MAX + 1, INT64_MAX, INT64_MIN, 8192};
  uint64_t one = drawn(state);
  return one % 3 ? (int64_t)(one / 3 % 9000) : edges[one / 3 % 8];
}
static void *run(void *number) {
  uint64_t state = (uintptr_t)number + 1, launched = 0;
  for (int i = 0; i < 20000; i++) {
    int64_t m = extent(&state), n = extent(&state), k = extent(&state), strange = extent(&state);
    int64_t lda = drawn(&state) % 4 ? m : strange, ldb = drawn(&state) % 4 ? k : strange;
    size_t bytes = 0;
    sgemm_nn_choice(m, n, k, lda, ldb, m, drawn(&state) % 2 ? SIZE_MAX : drawn(&state) % 100000, &bytes);
    float *A = (float *)(uintptr_t)(4096 + 4 * (drawn(&state) % 8)), *B = (float *)8192, *C = (float *)16384;
    launched += !sgemm_nn(library, m, n, k, 1, A, lda, B, ldb, 0, C, m, (void *)65536, bytes, NULL);
  }
  return (void *)(uintptr_t)launched;
}
int main(void) {
  pthread_t threads[3];
  if (sgemm_nn_create(&library, SGEMM_NN_ABI)) return 1;
  for (uintptr_t i = 0; i < 3; i++) pthread_create(&threads[i], NULL, run, (void *)i);
  for (int i = 0; i < 3; i++) {
    void *launched;
    pthread_join(threads[i], &launched);
    printf("%d ", 5000 < (uintptr_t)launched && (uintptr_t)launched < 20000);
  }
  sgemm_nn_destroy(library);
  return 0;
}
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
@pytest.mark.sampled(1, nightly=99)
def test_strange_sizes_from_three_threads_are_clean_under_sanitizers(tmp_path, sanitizer):
    build_driver(tmp_path)
    (tmp_path / "main.c").write_text(STRANGE)
    problem = parse_problem("sgemm", trans="NN", size=1000)
    write_library(tmp_path / "nn", content_of("gemm_simt", problem, ("m", "n", "k"), count=5))
    checked = ["-g", "-O1", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=undefined"]
    command = ["gcc", *checked, "main.c", "nn/sgemm_nn.c", "-Inn", "-ldl", "-lm", "-lpthread", "-o", "it"]
    subprocess.run(command, cwd=tmp_path, check=True)
    environment = {"LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(["./it"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("this sanitizer does not run on this kernel of Linux")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 1 1 ", "")
