"""Record the exhaustive sweeps of the Triton kernels in ``triton_kernels/`` on a GPU as datasets.

A case is a kernel at a size. Worker processes compile all configurations of all cases ahead into Triton's cache, then
this process verifies and times them, one case after the other and in a random order: ``triton.testing.do_bench`` with
``--rep`` milliseconds. Beside the parameters a dataset has what the compiler says: registers, spills and shared memory
of a configuration, warps and stages are among the parameters. Several launches with one configuration are timed
together.

A case whose ``--time`` is over has a dataset of what was measured until then, a random sample. The same command goes
on: it measures what the datasets in ``--out`` lack.

    python benchmarks/record_triton.py [--kernels matmul,softmax] [--out datasets] [--time 60] [--compilers 15]
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import importlib
import math
import os
import re
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from mltune.dataset.dataset import load_dataset, make_dataset, write_dataset
from mltune.dataset.parquet import arrow_table, schema
from mltune.device.query import driver_version, query_device
from mltune.problem.kinds import timed_problem
from mltune.records.versions import installed_versions

KERNELS = {
    "matmul": "tensor_fp16",
    "flash_attention": "tensor_fp16",
    "layer_norm": "fp32",
    "softmax": "fp32",
    "grouped_gemm": "tensor_fp16",
    "fused_moe": "tensor_fp16",
    "fp8_matmul": "",
}
"""The arithmetic whose peak bounds each kernel; none for FP8, of which no peak is known."""

MOST_SAMPLES = 15
"""Samples of a configuration that are kept."""

MOST_DETAIL = 200

Row = dict[str, Any]


def module_of(kernel: str) -> Any:
    """Return the module of a kernel."""
    return importlib.import_module(f"triton_kernels.{kernel}")


def launches_of(found: Any) -> list[tuple[Any, ...]]:
    """Return the launches that the arguments of a size describe: the grid and the arguments of each."""
    return found if isinstance(found, list) else [found]


def compile_ahead(kernel: str, signature: tuple[Any, ...], at: int) -> tuple[str, float]:
    """Compile a configuration in a worker process; return the hash of the result, empty if it failed, and seconds."""
    tuned = getattr(module_of(kernel), kernel)
    begun = time.perf_counter()
    try:
        compiled = tuned.fn.warmup(*signature, grid=(1,), **tuned.configs[at].all_kwargs())
    except Exception:  # the process that measures compiles it again, and records the error
        return "", 0.0
    return compiled.hash, time.perf_counter() - begun


@dataclass
class Case:
    """A kernel at a size."""

    kernel: str
    size: dict[str, int]
    out: Path
    rows: dict[tuple[int, ...], Row] = field(default_factory=dict)

    @cached_property
    def module(self) -> Any:
        """The module of the kernel."""
        return module_of(self.kernel)

    @cached_property
    def configs(self) -> list[Any]:
        """The configurations of the kernel."""
        return list(getattr(self.module, self.kernel).configs)

    def values(self, config: Any) -> tuple[int, ...]:
        """Return a configuration as a row of the dataset."""
        return tuple({**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}.values())

    @cached_property
    def parameters(self) -> dict[str, tuple[int, ...]]:
        """The values of each parameter."""
        names = [*self.configs[0].kwargs, "num_warps", "num_stages"]
        columns = zip(*map(self.values, self.configs), strict=True)
        return {name: tuple(sorted(set(column))) for name, column in zip(names, columns, strict=True)}

    @cached_property
    def name(self) -> str:
        """The name of the dataset."""
        gpu = re.search(r"\b([A-Z]+\d+\w*)\b", query_device(0).name)
        size = "-".join(map(str, self.size.values()))
        return f"{gpu[1] if gpu else 'gpu'}-{self.kernel.replace('_', '-')}-{size}".lower()

    def load(self) -> None:
        """Take over what an existing dataset of the case has."""
        path = self.out / f"{self.name}.json"
        if not path.exists():
            return
        found = load_dataset(path)
        if found.manifest.source_hash != self.source_hash:
            raise SystemExit(f"{path} is of another version of the kernel; remove it, or choose another --out.")
        self.rows = {tuple(row[name] for name in self.parameters): row for row in found.table.to_pylist()}

    @cached_property
    def source_hash(self) -> str:
        """The hash of the file of the kernel."""
        return hashlib.sha256(Path(self.module.__file__).read_bytes()).hexdigest()

    def signatures(self) -> Iterator[tuple[Any, ...]]:
        """Yield the arguments of each launch with types in place of tensors."""
        for _, *arguments in launches_of(self.module.arguments(**self.size)):
            yield tuple(getattr(one, "dtype", one) for one in arguments)

    def write(self, created: str) -> None:
        """Write the dataset."""
        columns = {name: [row[name] for row in self.rows.values()] for name in schema(tuple(self.parameters)).names}
        arithmetic = KERNELS[self.kernel]
        write_dataset(
            make_dataset(
                arrow_table(columns, tuple(self.parameters)),
                self.parameters,
                name=self.name,
                kind="complete" if len(self.rows) == len(self.configs) else "random",
                kernel=f"triton_{self.kernel}",
                source_hash=self.source_hash,
                problem=timed_problem(
                    self.kernel,
                    "x".join(map(str, self.size.values())),
                    self.module.operations(**self.size) if arithmetic else 1,
                    arithmetic or "tensor_fp16",
                    self.size,
                ),
                device=query_device(0),
                created=created,
                versions={**installed_versions("triton", "torch"), "driver": driver_version()},
            ),
            self.out,
            overwrite=True,
        )


def error_of(module: Any, launches: list[tuple[Any, ...]], expected: list[Any]) -> float:
    """Return the largest error of the outputs of launches, as a share of what rounding explains."""
    import torch

    worst = 0.0
    for (_, *arguments), references in zip(launches, expected, strict=True):
        for found, right in zip(module.outputs(*arguments), references, strict=True):
            rounding = max(torch.finfo(found.dtype).eps, torch.finfo(torch.float16).eps)
            error = float((found.float() - right).abs().max() / (4 * rounding * right.abs().max()))
            worst = max(worst, math.inf if math.isnan(error) else error)
    return worst


def measure(case: Case, launches: list[tuple[Any, ...]], expected: list[Any], config: Any, rep: int) -> Row:
    """Verify and time a configuration."""
    import torch
    from triton.runtime.errors import OutOfResources
    from triton.testing import do_bench

    fn, meta = getattr(case.module, case.kernel).fn, config.all_kwargs()
    row: Row = dict.fromkeys(schema(tuple(case.parameters)).names)
    row |= dict(zip(case.parameters, case.values(config), strict=True))
    row |= {"state": "compile_error", "build_state": "compile_error", "detail": "", "compile_s": 0.0}
    row |= {"samples_s": [], "stopped_early": False, "verify_s": 0.0, "time_s": 0.0}
    begun = time.perf_counter()
    try:
        built = [fn.warmup(*arguments, grid=(1,), **meta) for _, *arguments in launches]
        row |= {"compile_s": time.perf_counter() - begun, "hashes": [one.hash for one in built]}
        row |= {"build_state": "ok", "shared_bytes": max(one.metadata.shared for one in built), "state": "launch_error"}
        for one in built:
            one._init_handles()
        row["registers"] = max(one.n_regs for one in built)
        row["spill_bytes"] = max(4 * one.n_spills for one in built)
        begun = time.perf_counter()
        for grid, *arguments in launches:
            for output in case.module.outputs(*arguments):
                output.fill_(math.nan)
            fn[grid](*arguments, **meta)
        row["error"] = error_of(case.module, launches, expected)
        row["verify_s"] = time.perf_counter() - begun
        if not row["error"] <= 1:
            return row | {"error": row["error"] if math.isfinite(row["error"]) else None, "state": "wrong_result"}
        begun = time.perf_counter()
        calls = [(fn[grid], arguments) for grid, *arguments in launches]
        times_ms = do_bench(
            lambda: [call(*arguments, **meta) for call, arguments in calls], warmup=5, rep=rep, return_mode="all"
        )
        samples = [one / 1e3 for one in times_ms]
        row |= {"time_s": time.perf_counter() - begun, "state": "ok", "median_s": float(np.median(samples))}
        row["samples_s"] = samples[:MOST_SAMPLES]
    except OutOfResources as error:
        row["detail"] = str(error)[:MOST_DETAIL]
    except Exception as error:
        row["detail"] = f"{type(error).__name__}: {error}"[:MOST_DETAIL].encode("ascii", "replace").decode()
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            row["state"] = "crashed"
    return row


def record(case: Case, compile_s: dict[str, float], time_s: float, rep: int) -> None:
    """Measure what a case lacks, and write its dataset."""
    import torch

    begun, created = time.perf_counter(), datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    left = [config for config in case.configs if case.values(config) not in case.rows]
    np.random.default_rng(0).shuffle(left)
    torch.manual_seed(0)
    launches = launches_of(case.module.arguments(**case.size))
    expected = [case.module.reference(*arguments) for _, *arguments in launches]
    for config in left:
        if time.perf_counter() - begun > time_s:
            break
        row = measure(case, launches, expected, config, rep)
        ahead = sum(compile_s.get(one, 0.0) for one in row.pop("hashes", ()))
        case.rows[case.values(config)] = row | {"compile_s": ahead or row["compile_s"]}
        if row["state"] == "crashed":
            case.write(created)
            raise SystemExit(f"{case.name}: the GPU has failed with {config}; the same command goes on after it.")
    if left:
        case.write(created)
    counts = [sum(row["state"] == state for row in case.rows.values()) for state in ("ok", "wrong_result")]
    best = min((row["median_s"] for row in case.rows.values() if row["state"] == "ok"), default=math.nan)
    print(
        f"{case.name}: {len(case.rows)} of {len(case.configs)}, {counts[0]} ok, {counts[1]} wrong, "
        f"best {1e6 * best:.1f} us, {time.perf_counter() - begun:.1f} s",
        flush=True,
    )


def alike(fn: Any, signature: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what Triton tells apart of arguments: of a number that is not compiled in, 1 and multiples of 16."""
    return tuple(
        (one == 1, one % 16 == 0, one < 2**31) if type(one) is int and not parameter.is_constexpr else one
        for one, parameter in zip(signature, fn.params, strict=False)
    )


def compiled_ahead(cases: list[Case], compilers: int) -> dict[str, float]:
    """Compile what all cases lack in worker processes; return the seconds of each result by its hash."""
    tasks: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for case in cases:
        fn = getattr(case.module, case.kernel).fn
        lacking = [at for at, config in enumerate(case.configs) if case.values(config) not in case.rows]
        for signature in case.signatures() if lacking else ():
            for at in lacking:
                tasks[case.kernel, alike(fn, signature), at] = case.kernel, signature, at
    found: dict[str, float] = {}
    with ProcessPoolExecutor(compilers, mp_context=get_context("spawn")) as pool:
        for job in [pool.submit(compile_ahead, *task) for task in tasks.values()]:
            name, seconds = job.result()
            found[name] = seconds
    return found


def main() -> None:
    """Record the chosen cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", default=",".join(KERNELS), help="names, all by default")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "datasets")
    parser.add_argument("--time", type=float, default=60.0, help="seconds of measuring of a case")
    parser.add_argument("--rep", type=int, default=20, help="milliseconds of timing of a configuration")
    parser.add_argument("--compilers", type=int, default=max(1, (os.cpu_count() or 1) - 1))
    given = parser.parse_args()
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache  # what is compiled has its own seconds
        cases = [
            Case(kernel, size, given.out / f"triton_{kernel}")
            for kernel in given.kernels.split(",")
            for size in module_of(kernel).SIZES
        ]
        for case in cases:
            case.load()
        compile_s = compiled_ahead(cases, given.compilers)
        print(f"{len(compile_s)} compiled in {time.perf_counter() - begun:.1f} s", flush=True)
        for case in cases:
            record(case, compile_s, given.time, given.rep)
    print(f"{len(cases)} cases in {time.perf_counter() - begun:.1f} s")


if __name__ == "__main__":
    main()
