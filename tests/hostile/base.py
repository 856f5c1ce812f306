"""Honest inputs of every kind, from which hostile ones are made."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.environment import importing
from tests.hostile.messages import MESSAGE, honest_message

ROOT = Path(__file__).resolve().parents[2]

PLAN = """
[plan]
title = "Two problems"
budget = "32 trials"
minimum = "16 trials"

[[problems]]
datasets = ["convolution_w6600", "xgemm_titan_rtx"]
"""

GPU_PLAN = """
[plan]
title = "Measured problems"
budget = "2h"
minimum = "10m"
maximum = "1h"
devices = ["cuda:0"]
seed = 3
produce = ["report", "winners", "datasets"]

[[problems]]
kernel = "gemm_simt"
precision = ["s", "d"]
trans = ["NN", "NT"]
size = [512, 1024]
priority = 2.0
minimum = "12m"
"""

SOURCE = """extern "C" __global__ void k(long long m, long long n, long long depth, float alpha, const float *A,
    long long lda, const float *B, long long ldb, float beta, float *out, long long ldc, int group) { out[threadIdx.x] = TILE; }
"""
BUNDLE = """
[kernel]
name = "small"
problem = "gemm"
precisions = ["s"]
source = "small.cu"
entry = "k"

[parameters]
TILE = [8, 16, 32]
WIDE = [1, 2]

[launch.parameters]
GROUP = [1, 2]

[derived]
threads = "TILE * WIDE"
rows = "ceil_div(m, TILE)"

[restrictions]
"threads <= 32" = "a small block"
"rows % GROUP == 0" = "whole groups"

[resources]
threads = "threads"
shared_bytes = "TILE * 4"

[access.loads]
memory = "global"
count = "TILE"
bytes = "4"
lanes = [["warp_size", "4"]]

[launch]
block = ["threads"]
grid = ["rows", "ceil_div(n, TILE)"]
arguments = ["GROUP"]
"""

ARRAYS_SOURCE = """__global__ void scale(float *out, const float *in, int n) {
  const float a = 1, b = 2;
  out[threadIdx.x] = TILE * in[n - 1] * WIDTH * KIND;
}
extern "C" __global__ void simple(float *out, const float *in, int n) { out[0] = in[n - 1]; }
"""
ARRAYS_BUNDLE = """
[kernel]
name = "scale"
problem = "arrays"
source = "scale.cu"
entry = "scale"

[sizes]
n = 1000
width = 3

[arguments]
out = { dtype = "float32", shape = ['n'], role = "out", tolerance = 1e-5 }
in = { dtype = "float32", shape = ['n'], initial = "values.npy" }
n = { dtype = "int32", value = 'n' }

[macros]
WIDTH = "width + 1"

[work]
flops = 'n'
bytes = "8 * n"

[parameters]
TILE = [1, 2, 4]
KIND = ["a", "b"]

[default]
TILE = 2
KIND = "a"

[reference]
answer = { out = "answer.npy" }

[launch]
block = ["32 * TILE"]
grid = ['1']

[[verify]]
width = 7
"""
INCLUDES = {
    "kernel.toml": BUNDLE.replace("[parameters]", 'include = ["include", "more"]\n\n[parameters]', 1),
    "small.cu": "#include <a.h>\n#include <deep/b.cuh>\n" + SOURCE,
    "include/a.h": '#pragma once\n#include "deep/b.cuh"\n',
    "include/deep/b.cuh": '#pragma once\n#include "../a.h"\n#include <c.inl>\n',
    "more/c.inl": "#define C 1\n",
}

CACHE = {
    "device_name": "A GPU",
    "kernel_name": "k",
    "problem_size": [16, 16],
    "tune_params_keys": ["a", "b"],
    "tune_params": {"a": [1, 2, 4], "b": [1, 2]},
    "objective": "time",
    "cache": {
        f"{a},{b}": {
            "a": a,
            "b": b,
            "time": 1.5 + a / (1 + b),
            "times": [1.5, 1.6],
            "compile_time": 300.0,
            "GFLOP/s": 5.0,
        }
        for a in (1, 2, 4, 8, 16, 32)
        for b in (1, 2)
    },
}
T4 = {
    "schema_version": "1.0.0",
    "results": [
        {
            "timestamp": "2024-01-01",
            "configuration": {"a": a, "b": b},
            "objectives": ["time"],
            "times": {"compilation_time": 12.0, "runtimes": [1.0, 1.1]},
            "invalidity": "correct",
            "correctness": 1,
            "measurements": [{"name": "time", "value": 1.0 + a * b, "unit": "ms"}],
        }
        for a in (1, 2, 4, 8)
        for b in (1, 2)
    ],
}


def make_base(folder: Path) -> Path:
    """Make the honest inputs in a folder that does not exist yet; return it."""
    import numpy as np
    from threadpoolctl import threadpool_limits

    import mltune
    from mltune.dataset.dataset import export_run
    from mltune.measure.cubin_cache import CubinCache
    from mltune.records.trial import Build, TrialState
    from mltune.results.winner_folder import winner_files, write_folder

    record_run(folder, "recorded")
    with threadpool_limits(1):
        for name in ("convolution_w6600", "xgemm_titan_rtx"):
            _tune(folder / "campaign" / "problems" / name.replace("_", "-"), name, search="random", trials=16)
    export_run(folder / "recorded", folder / "dataset")
    shutil.move(folder / "recorded", folder / "store")
    (folder / "campaign" / "plan.toml").write_text(PLAN)
    winner = folder / "campaign" / "problems" / "convolution-w6600" / "winner"
    winner.mkdir()  # as a run on a GPU leaves it
    (winner / "winner.json").write_text(
        json.dumps({"kernel": "convolution", "configuration": {"a": 1}, "files": ["kernel.cu"]})
    )
    (winner / "kernel.cu").write_text(SOURCE)
    (winner / "kernel.cubin").write_bytes(b"\x7fELF" + bytes(1000))
    for name, target in (("run-format-3", "golden-run"), ("campaign", "golden-campaign")):
        shutil.copytree(ROOT / "tests" / "golden" / name, folder / target)
    (folder / "plan.toml").write_text(PLAN)
    (folder / "gpu_plan.toml").write_text(GPU_PLAN)
    (folder / "bundle").mkdir()
    (folder / "bundle" / "kernel.toml").write_text(BUNDLE)
    (folder / "bundle" / "small.cu").write_text(SOURCE)
    shutil.copytree(ROOT / "kernels" / "convolution", folder / "convolution")
    _write(folder / "arrays", {"kernel.toml": ARRAYS_BUNDLE, "scale.cu": ARRAYS_SOURCE})
    for name in ("values", "answer"):
        np.save(folder / "arrays" / f"{name}.npy", np.ones(1000, np.float32))
    _write(folder / "includes", INCLUDES)
    write_folder(folder / "winner", winner_files(_winner(), "2026-01-01T00:00:00+00:00"))
    (folder / "cache.json").write_text(json.dumps(CACHE, indent=1))
    (folder / "t4.json").write_text(json.dumps(T4))
    rows = [f"{a},{b},{1 + a * b / 7},ok,{'first' if a else 'none'}" for a in range(8) for b in range(5)]
    (folder / "table.csv").write_text("\n".join(["a,b,time_ms,status,note", *rows]) + "\n")
    for suffix in ("json", "npy"):
        shutil.copy(ROOT / "models" / f"clblast_xgemm.{suffix}", folder / f"model.{suffix}")
    (folder / MESSAGE).write_bytes(pickle.dumps(honest_message(folder / "store")))
    CubinCache(folder / "cubins").put("ab" * 32, Build(TrialState.OK, cubin=bytes(1000), registers=32))
    mltune.compare("random", "convolution_w6600", evaluations=10, seeds=1, jobs=1, out=folder / "comparison")
    _make_library(folder)
    (folder / "tuned").mkdir()
    words = [ROOT / "tests" / "tuned_functions.py", folder / "tuned" / "add.json", "1000", ""]
    cache = importing(ROOT / "tests", XDG_CACHE_HOME=str(folder / "cache"), MLTUNE_IMAGINARY_GPU=str(folder / "tuned"))
    subprocess.run([sys.executable, *words], env=cache, check=True, stdout=subprocess.DEVNULL)
    make_winners(folder)
    return folder


def make_winners(folder: Path) -> None:
    """Make a wisdom with winners of Triton's kernels and the calls of programs, and the folder in which they are carried."""
    from mltune.device.known import H200
    from mltune.known.entry import Entry, Gpu
    from mltune.known.triton_calls import write_program
    from mltune.known.triton_winners import export_winners
    from mltune.known.wisdom import Wisdom

    problem = {"kind": "recorded", "flops": 1, "arithmetic": "fp32", "values": {}, "name": "triton-softmax"}
    times = {"median_s": 2e-3, "low_s": 1.9e-3, "high_s": 2.1e-3, "default_s": 3e-3, "verified": False, "trials": 25}
    Wisdom(
        Entry(
            kernel="library.softmax",
            source_hash="ab" * 32,
            problem={**problem, "size": f"[{size}] 0123456789abcdef"},
            device=Gpu.of(H200),
            driver="13.0",
            configuration={"BLOCK": 128, "num_warps": 4, "num_stages": 3},
            measured_at="2026-11-22T01:00:00Z",
            versions={"triton": "3.6.0"},
            **times,
        )
        for size in (1024, 4096)
    ).add_to(folder / "triton.json")
    for kernel in ("softmax", "layer_norm"):
        call = {"x": {"dtype": "torch.bfloat16"}, "rows": 4096, "eps": 1e-5, "MASKED": True, "bias": None}
        write_program(folder / "triton.json", [(f"library:{kernel}", call), ("library:sum", {**call, "rows": 1})])
    export_winners(folder / "triton.json", folder / "winners")


def _make_library(folder: Path) -> None:
    """Make a library of machine code that a driver takes, which records launches and is made, too, if there is a compiler."""
    from c_library import build_driver, content_of

    from mltune.library.folder import write_library
    from mltune.problem.gemm import parse_problem

    problem = parse_problem("sgemm", trans="NT", m=300, n=300, k=4096)
    content = content_of("gemm_simt", problem, ("m", "n", "k"), count=3)
    (folder / "content.pickle").write_bytes(pickle.dumps(content))
    write_library(folder / "library", content)
    if shutil.which("gcc"):
        build_driver(folder)
    else:
        (folder / "libcuda.so.1").write_bytes(b"")


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def _winner() -> Any:
    """Return a winner of a kernel with arguments of any kind, as a run on a GPU finds it."""
    from mltune.device.known import H200
    from mltune.kernel.placed import PlacedKernel
    from mltune.kernel.reader import load_kernel
    from mltune.records.declaration import Declaration, Finalist
    from mltune.records.trial import Build, Measurement, TrialRecord, TrialState
    from mltune.results.winner import Winner

    kernel = load_kernel("transpose")
    build = Build(TrialState.OK, cubin=b"\x7fELF" + bytes(1000), registers=32, spill_bytes=0)
    measured = Measurement(TrialState.OK, samples_s=(2e-6,), median_s=2e-6, sm_clock_hz=1.98e9)
    record = TrialRecord(1, 1, 1, dict(kernel.space.default), TrialState.OK, build=build, measurement=measured)
    declared = Declaration(1, (Finalist(1, 2e-6, 1.9e-6, 2.1e-6),), None, rounds=20, as_of=4, verified=True)
    return Winner(PlacedKernel(kernel, kernel.arrays.problem(), H200), record, declared, build, {"nvrtc": "13.0.88"})


def record_run(folder: Path, name: str) -> Path:
    """Record an honest run in a folder, and a wisdom beside it; return the folder."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        wisdom = folder / "wisdom.json"
        _tune(folder / name, "convolution_w6600", search="random", trials=24, wisdom=wisdom)
    return folder


def _tune(run: Path, dataset: str, **options: object) -> None:
    import mltune

    mltune.tune(device=f"replay:{dataset}", run=run, progress=None, **options)
