"""A library at shapes that its build has not seen, against cuBLAS and against tuning each size; and what a call costs.

    python benchmarks/library.py build "sgemm NN" --time 5m --library FOLDER --run DIR --output FILE
    python benchmarks/library.py compare "sgemm NN" --library FOLDER --shapes 200 --tuned 30 --output FILE
    python benchmarks/library.py build softmax --time 5m --library FOLDER --output FILE
    python benchmarks/library.py calls "sgemm NN" --library FOLDER --output FILE
    python benchmarks/library.py dispatch --library FOLDER --output FILE

Shapes are log-uniform in 64 to 8192 for each extent of a product and in RANGES of another kernel, those of a comparison
by another seed than those of the build. A kernel that is no product is compared with its default configuration in place
of cuBLAS. libraries.sh does both for several cases side by side. The file has what is compared so far after each shape.
The summary has the shapes apart of which every column begins at a multiple of 16 bytes, as cuBLAS wants them.
With `--layers` the shapes are those of linear layers of public models at 1 to 4,096 tokens, in place of random ones.
Kernels are timed in turns, each run behind a write of 256 MiB, which empties the L2 cache and hides the launch.
`dispatch` needs no GPU: a driver that does nothing takes the launches.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import harness
import numpy as np

RANGES = {
    "reduction": {"n": [2**10, 2**28]},
    "softmax": {"rows": [16, 2**14], "columns": [64, 2**13]},
    "matmul": {"rows": [64, 4096], "columns": [64, 4096], "depth": [64, 4096]},
}
"""Sizes of kernels that are no products of cuBLAS, by the name of their folder."""

LAYERS = {
    "Llama 3 8B": [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)],
    "Llama 3 70B": [(10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)],
    "Qwen 2.5 7B": [(4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944)],
}
"""Outputs and inputs of linear layers, from the models' published config.json: QKV, output, gate and up, down."""

TOKENS = [2**power for power in range(13)]
ALIGNED_BYTES = 16
PRODUCT = {extent: [64, 8192] for extent in "mnk"}
SEED_OF_SHAPES = 1000
_FLUSH_BYTES = 1 << 28
_SIZE_OF_CALLS = 64


def ranges_of(case: str) -> dict[str, list[int]]:
    """Return the lowest and the highest value of each size of a case."""
    return PRODUCT if " " in case else RANGES[Path(case).name]


def shapes(case: str, count: int, seed: int = SEED_OF_SHAPES) -> list[dict[str, int]]:
    """Return shapes that are log-uniform in each extent."""
    ranges = ranges_of(case)
    low, high = np.log(np.array([*ranges.values()], dtype=float)).T
    drawn = np.exp(np.random.default_rng(seed).uniform(low, high, (count, len(ranges))))
    return [dict(zip(ranges, map(int, np.rint(one)), strict=True)) for one in drawn]


def shapes_of_layers() -> list[dict[str, int]]:
    """Return the shapes of linear layers: C has a column of outputs for each token, as hgemm TN computes it."""
    layers = sorted({layer for model in LAYERS.values() for layer in model})
    return [{"m": outputs, "n": tokens, "k": inputs} for outputs, inputs in layers for tokens in TOKENS]


def is_aligned(case: str, shape: Mapping[str, Any]) -> bool:
    """Return whether every column of the matrices begins at a multiple of 16 bytes."""
    problem: Any = at_shape(case, {extent: shape[extent] for extent in PRODUCT})[1]
    leading_bytes = [problem.lda * problem.element_bytes, problem.ldb * problem.element_bytes]
    leading_bytes.append(problem.ldc * problem.result_dtype.itemsize)
    return all(length % ALIGNED_BYTES == 0 for length in leading_bytes)


def build(case: str, folder: Path, budget: str, run: Path | None, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Build the library of a case; return its report, the seconds, and the bytes of its folder."""
    import mltune

    name, _, trans = case.partition(" ")
    asked = {"operation": name, "time": budget, **({"trans": trans} if trans else {}), **sizes}
    begun = time.perf_counter()
    spec = {"library": asked, "sizes": {"ranges": ranges_of(case)}}
    document = mltune.build_library(spec, folder, run=run, wisdom="none")
    report = document["report"]
    return {
        "case": case,
        "build_s": time.perf_counter() - begun,
        "folder_bytes": sum(one.stat().st_size for one in folder.iterdir()),
        "configurations": len(document["configurations"]),
        "tuned": report["tuned"],
        "timed": len(report["sizes"]),
        "report": report,
    }


def in_turns(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each call, which are run in turns with an empty L2 cache."""
    import cupy

    flush = cupy.empty(_FLUSH_BYTES, dtype="uint8")
    events = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in sorted(calls.items(), key=lambda one: (hash((one[0], number)), one[0])):
            flush.fill(number)
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            begin.record()
            call()
            end.record()
            if number:  # the first round warms up
                events[name].append((begin, end))
    cupy.cuda.Device().synchronize()
    return {
        name: statistics.median(cupy.cuda.get_elapsed_time(*pair) / 1e3 for pair in pairs)
        for name, pairs in events.items()
    }


def compare(
    case: str,
    folder: Path,
    drawn: Sequence[dict[str, int]],
    tuned: int,
    tune_s: float,
    rounds: int,
    keep: Callable[[Any], None],
) -> list[dict[str, Any]]:
    """Time a library beside cuBLAS or the default at shapes, and at some of them beside the winner of a tune."""
    import cupy

    import mltune

    library, rows = mltune.load_library(folder), []
    for number, shape in enumerate(drawn):
        tune, problem = at_shape(case, shape)
        operands = problem.operands(cupy, 0)
        arguments = problem.kernel_arguments(operands)
        sizes = {one: dict(problem.variables)[one] for one in library.document["sizes"]}
        given = [(arguments | sizes)[one] for one in library.parameters]
        other, baseline = baseline_of(problem, operands, tune)
        calls: dict[str, Callable[[], object]] = {"library": lambda given=given: library(*given), other: baseline}
        found: dict[str, Any] = {**shape}
        if number < tuned:
            calls["tuned"], found["tuned_choice"] = compiled(tune, arguments, time=tune_s)
        found |= in_turns(calls, rounds)
        found[f"of_{other}"] = found[other] / found["library"]
        found["of_tuned"] = found["tuned"] / found["library"] if "tuned" in found else None
        found["right"] = right(problem, operands, [calls[other], calls["library"]])
        rows.append(found | {"choice": library.choice(**sizes)})
        print(number, shape, {one: found[one] for one in (f"of_{other}", "of_tuned", "right")}, flush=True)
        keep(rows)
    return rows


def at_shape(case: str, shape: Mapping[str, int]) -> tuple[Callable[..., Any], Any]:
    """Return a function that tunes a case at a shape, and its problem there."""
    import mltune
    from mltune.kernel.reader import load_kernel
    from mltune.problem.kinds import problem_from_name

    name, _, trans = case.partition(" ")
    if trans:
        problem = problem_from_name(name, trans=trans, **shape)
        return partial(mltune.tune, problem), problem
    return partial(mltune.tune, name, size=shape), load_kernel(name).arrays.problem(shape)


def compiled(
    tune: Callable[..., Any], arguments: Mapping[str, Any], **budget: Any
) -> tuple[Callable[[], object], dict[str, Any]]:
    """Return a function that runs the winner of a tune, and its configuration."""
    with tempfile.TemporaryDirectory() as run:
        tuned = tune(run=f"{run}/run", wisdom="none", stop=False, progress=None, **budget)
        winner, best = tuned.compile(), tuned.best_config
    return lambda: winner(*arguments.values()), best


def baseline_of(
    problem: Any, operands: Mapping[str, Any], tune: Callable[..., Any]
) -> tuple[str, Callable[[], object]]:
    """Return the name of what a library is compared with, and a function that runs it."""
    from mltune.measure.libraries import bind_reference

    if problem.needs_baseline:  # the first trial is the default configuration
        return "default", compiled(tune, problem.kernel_arguments(operands), trials=1, prior="none")[0]
    return "cublas", bind_reference(problem, {one: array.data.ptr for one, array in operands.items()})


def right(problem: Any, operands: Mapping[str, Any], calls: Sequence[Callable[[], object]]) -> bool:
    """Return whether two calls have the same results, but for rounding: gross mistakes are seen."""
    import cupy

    results: list[list[Any]] = []
    outputs = [one for one in problem.buffers if one.role != "in"]
    for call in calls:
        for one in outputs:
            operands[one.name].fill(0 if one.role == "inout" else float("nan"))
        call()
        read = getattr(problem, "result", lambda array: array)
        results.append([read(operands[one.name]).astype("float64").copy() for one in outputs])
    return all(
        bool(cupy.abs(ours - theirs).max() <= 1e-2 * (1 + cupy.abs(theirs).max()))
        for theirs, ours in zip(*results, strict=True)
    )


def calls(case: str, folder: Path, count: int = 200) -> dict[str, float]:
    """Return the host's seconds of a call: of CuPy's launch, of a library, of a tuned kernel, and of their parts.

    ``library`` is a call as in C, ``product`` one of arrays, and ``other_sizes`` one of other sizes than the one
    before, for which the dispatcher is asked. ``in_c`` is the part of ``product`` in C: its launch by the driver; the
    rest is ``packing``. ``cupy_launch`` is a kernel of two arguments, ``cupy_launch_of_tuned`` one of those of the
    tuned kernel, if these are no tensor maps. Launches wait in the queue of the GPU, which holds more than those that
    are timed at once.
    """
    import cupy

    import mltune
    from mltune.problem.kinds import problem_from_name

    library, (name, trans) = mltune.load_library(folder), case.split()
    problem = problem_from_name(name, trans=trans, size=_SIZE_OF_CALLS)
    arguments = tuple(problem.kernel_arguments(problem.operands(cupy, 0)).values())
    types = problem.dtype, problem.dtype, problem.result_dtype

    def matrices(n: int) -> list[Any]:
        found = [cupy.zeros((_SIZE_OF_CALLS, n if one else _SIZE_OF_CALLS), dtype=t) for one, t in enumerate(types)]
        return [one.T.copy().T if op != "N" else one for one, op in zip(found, (*trans[::-1], "N"), strict=True)]

    (a, b, c), (_, wide, out) = matrices(_SIZE_OF_CALLS), matrices(2 * _SIZE_OF_CALLS)
    product = getattr(library, name)
    with tempfile.TemporaryDirectory() as run:
        tuned = mltune.tune(problem, trials=8, run=f"{run}/run", wisdom="none", progress=None).compile()
    memory = () if tuned.workspace is None else (tuned.workspace,)
    all_of_it = tuned.grid, tuned.block, (*arguments, *map(np.int64, tuned.arguments), *memory)
    bare = cupy.RawKernel('extern "C" __global__ void f(long long m, float* c) {}', "f")
    recorded = _recorded(library, lambda: product(a, b, out=c))
    kinds: dict[str, Callable[[], object]] = {
        "cupy_launch": lambda: bare((1,), (32,), (64, c)),
        "library": lambda: library(*arguments),
        "product": lambda: product(a, b, out=c),
        "other_sizes": lambda: (product(a, b, out=c), product(a, wide, out=out)),
        "in_c": lambda: recorded[0](*recorded[1:]),
        "tuned": lambda: tuned(*arguments),
    }
    if not tuned.tensor_maps:  # CuPy passes none
        kinds["cupy_launch_of_tuned"] = lambda: tuned.function(*all_of_it, shared_mem=tuned.shared_bytes)
    found = _host_s(kinds, count)
    found["other_sizes"] /= 2
    return found | {"packing": found["product"] - found["in_c"], "dispatch": found["other_sizes"] - found["product"]}


def _recorded(library: Any, call: Callable[[], object]) -> tuple[Any, ...]:
    """Return the function in C that a call ends with, and its arguments."""
    call()
    functions, seen = library._functions, []
    library._functions = functions._replace(packed=lambda *words: seen.append(words) or functions.packed(*words))
    call()
    library._functions = functions
    return functions.packed, *seen[-1]


def _host_s(calls: Mapping[str, Callable[[], object]], count: int, rounds: int = 100) -> dict[str, float]:
    """Return the median seconds of each call, of rounds in turns that begin with an empty queue.

    What disturbs some of the rounds, such as processes of a tune that still end, disturbs all calls alike.
    """
    import cupy

    found: dict[str, list[float]] = {kind: [] for kind in calls}
    for _ in range(rounds):
        for kind, call in calls.items():
            cupy.cuda.Device().synchronize()
            begun = time.perf_counter()
            for _ in range(count):
                call()
            found[kind].append((time.perf_counter() - begun) / count)
    return {kind: statistics.median(seconds[rounds // 4 :]) for kind, seconds in found.items()}


DISPATCH = """
#include "NAME.h"
#include <stdio.h>
#include <time.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }
int main(void) {
  NAME_library *library;
  int status = NAME_create(&library, UPPER_ABI), failed = 0;
  if (status) { fprintf(stderr, "%s\\n", NAME_error(status)); return 1; }
  double least = 1;
  for (int round = 0; round < 1000; round++) {
    double begun = now();
    for (long i = 0; i < 1000; i++) {
      const long long m = 64 + i * 7919 % 8000, n = 64 + i * 104729 % 8000, k = 64 + i * 1299709 % 8000;
      failed += NAME(library, m, n, k, 1, 0, 8192, 0, 8192, 0, 0, 8192, (void *)256, (size_t)1 << 40, NULL) != 0;
    }
    double call = (now() - begun) / 1000;
    if (call < least) least = call;
  }
  printf("%.9f %d\\n", least, failed);
  return 0;
}
"""


def dispatch(folder: Path) -> dict[str, Any]:
    """Return the seconds of a call in C of a library of a matrix product, with a driver that does nothing.

    It is the least of 1,000 rounds, each of the same 1,000 sizes: what else runs on the machine disturbs some of them.
    """
    name = json.loads((folder / "library.json").read_text())["name"]
    driver = Path(__file__).parents[1] / "tests/library/fake_cuda.c"
    with tempfile.TemporaryDirectory() as scratch:
        main = Path(scratch) / "main.c"
        main.write_text(DISPATCH.replace("NAME", name).replace("UPPER", name.upper()))
        shared = ["gcc", "-O2", "-w", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", driver, "-o", "libcuda.so.1"]
        subprocess.run(shared, cwd=scratch, check=True)
        command = ["gcc", "-O2", main, f"-I{folder.resolve()}", f"-L{folder.resolve()}", f"-l{name}", "-o", "main"]
        subprocess.run(command, cwd=scratch, check=True)
        environment = {"LD_LIBRARY_PATH": f"{scratch}:{folder.resolve()}"}
        done = subprocess.run(["./main"], cwd=scratch, env=environment, capture_output=True, text=True, check=True)
    call_s, failed = done.stdout.split()
    return {"call_s": float(call_s), "failed": int(failed)}


def opponent(case: str) -> dict[str, Any]:
    """Return what a library is compared with: its function, and the type of its results."""
    if " " not in case:
        return {"name": "default configuration"}
    problem: Any = at_shape(case, dict.fromkeys(PRODUCT, ALIGNED_BYTES))[1]
    call = problem.reference_call(dict.fromkeys("ABC", 0))
    return {"name": "cuBLAS", "function": call.function, "output": str(problem.result_dtype)}


def apart(rows: list[dict[str, Any]], case: str) -> dict[str, Any]:
    """Return the summary of all rows; of a product also of the aligned shapes and of the others."""
    if " " not in case:
        return summary(rows)
    groups: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for row in rows:
        groups[is_aligned(case, row)].append(row)
    return summary(rows) | {"aligned": summary(groups[True]), "unaligned": summary(groups[False])}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return geometric mean and least share of both comparisons."""
    found: dict[str, Any] = {"shapes": len(rows), "wrong": sum(not row["right"] for row in rows)}
    for of in ("of_cublas", "of_default", "of_tuned"):
        known = [row[of] for row in rows if row.get(of) is not None]
        if known:
            found[of] = {"shapes": len(known), "mean": statistics.geometric_mean(known), "least": min(known)}
    return found


def main() -> None:
    """Run one of the measurements."""
    parser = harness.parser_of(__doc__)
    parser.add_argument("what", choices=("build", "compare", "calls", "dispatch"))
    parser.add_argument("case", nargs="?", default="sgemm NN")
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--time", default="5m")
    parser.add_argument("--sizes-tuned", type=int, default=60)
    parser.add_argument("--sizes-timed", type=int, default=400)
    parser.add_argument("--most", type=int, default=10)
    parser.add_argument("--shapes", type=int, default=200)
    parser.add_argument("--layers", action="store_true")
    parser.add_argument("--tuned", type=int, default=30)
    parser.add_argument("--tune-time", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    if given.what == "dispatch":
        head, found = harness.provenance(of="wall time"), dispatch(given.library)
    else:
        head = harness.gpu_provenance()
        if given.what == "build":
            sizes = {"tuned": given.sizes_tuned, "timed": given.sizes_timed, "most": given.most}
            found = build(given.case, given.library, given.time, given.run, sizes)
        elif given.what == "calls":
            found = calls(given.case, given.library)
        else:

            def keep(rows: list[dict[str, Any]]) -> None:
                harness.write(given.output, {**head, "summary": apart(rows, given.case), "rows": rows})

            head |= {"opponent": opponent(given.case)}
            drawn = shapes_of_layers() if given.layers else shapes(given.case, given.shapes)
            counts = drawn, given.tuned, given.tune_time, given.rounds
            rows = compare(given.case, given.library, *counts, keep)
            found = {"summary": apart(rows, given.case), "rows": rows}
    harness.write(given.output, {**head, **found})
    print(json.dumps(found.get("summary", {one: value for one, value in found.items() if one != "report"}), indent=1))


if __name__ == "__main__":
    main()
