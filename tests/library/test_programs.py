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
