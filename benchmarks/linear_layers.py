"""Libraries built for linear layers beside cuBLAS: half precision in and out, plain, with a bias, with bias and GELU.

    python benchmarks/linear_layers.py build plain --time 10m --library FOLDER --output FILE
    python benchmarks/linear_layers.py compare plain=FOLDER gelu=FOLDER --shapes 60 --seconds 100 --output FILE
    python benchmarks/linear_layers.py compare plain=FOLDER --shard 0/4 --output FILE       # one of four GPUs
    python benchmarks/linear_layers.py merge FILE FILE FILE FILE --output FILE
    python benchmarks/linear_layers.py limits FILE --output FILE       # needs no GPU

`build` builds one library by the preset `linear_layers` of LAYERS and 1 to 4,096 tokens. `compare` needs none that is
built here: any library of TN with half-precision results does. It measures

- 143 listed shapes: LAYERS at TOKENS;
- 100 others by this rule, fixed before any was measured: NumPy's default_rng(2055); m is a multiple of 128, log-uniform
  from 1,024 to 28,672, k a multiple of 64, log-uniform from 1,024 to 18,944, and n log-uniform from 1 to 4,096, nine of
  ten of those above 8 rounded to a multiple of 8. No layer of the rule is among those that the libraries are built for.

The order is shuffled, the same in every process, so that the first shapes are of all kinds. Operands are normal random
numbers. The opponents are cuBLAS's default (`cublasGemmEx` without an epilogue, the first candidate of cuBLASLt's
heuristic with one) and the fastest of its first eight candidates, by five rounds in turns, with a workspace of 64 MiB;
then all three are timed in 15 rounds in turns. Each run is behind a read of 256 MiB, which empties the L2 cache and
hides the launch; behind a write (`--flush write`) the cache has to be written back while the product runs. GELU is the
approximation by tanh, which cuBLASLt has. Results are compared element by element.

`limits` compares the times of the listed shapes, by tokens, with the least that memory and tensor cores allow: A, B and
C cross the bus once, at the rate of the data sheet, or the products run at the highest clock.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import harness
import numpy as np
from cublaslt import CublasLt

LAYERS = [
    *((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (3584, 3584), (18944, 3584), (3584, 18944)),
    *((4608, 3584), (2112, 7168), (24576, 1536), (7168, 16384), (4096, 7168), (7168, 2048)),
]
"""Out and in features of layers of public models."""

TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1000, 2048, 4096)
EPILOGUES = {"plain": None, "bias": "bias_m", "gelu": "bias_m+gelu_tanh"}
OTHERS, SEED, SEED_OF_ORDER = 100, 2055, 7
FLUSH_BYTES = 1 << 28
ROUNDS_OF_CANDIDATES, ROUNDS = 5, 15


def listed() -> list[dict[str, Any]]:
    """Return the shapes of public layers."""
    return [{"m": m, "n": n, "k": k, "of": "listed"} for m, k in LAYERS for n in TOKENS]


def others() -> list[dict[str, Any]]:
    """Return the shapes of the rule in the module's docstring."""
    rng, shapes = np.random.default_rng(SEED), list[dict[str, Any]]()
    while len(shapes) < OTHERS:
        low, high = np.log([[1024, 28672], [1024, 18944], [1, 4096]]).T
        m, k, n = np.exp(rng.uniform(low, high))
        aligned = rng.uniform() < 0.9
        tokens = 8 * round(n / 8) if aligned and n > 8 else round(n)
        shape = {"m": 128 * round(m / 128), "n": tokens, "k": 64 * round(k / 64), "of": "others"}
        if (shape["m"], shape["k"]) not in LAYERS:
            shapes.append(shape)
    return shapes


def shapes_of(shard: str, count: int | None) -> list[dict[str, Any]]:
    """Return the shapes of one of several processes, at most `count`."""
    shapes = listed() + others()
    shapes = [shapes[place] for place in np.random.default_rng(SEED_OF_ORDER).permutation(len(shapes))]
    number, of = map(int, shard.split("/"))
    return shapes[:count][number::of]


def build(arguments: Namespace) -> dict[str, Any]:
    """Build a library; return its report and the seconds."""
    import mltune

    (epilogue,) = arguments.subjects
    library = {"operation": arguments.operation, "trans": "TN", "time": arguments.time}
    library |= {"epilogue": EPILOGUES[epilogue]} if EPILOGUES[epilogue] else {}
    spec = {"library": library, "sizes": {"linear_layers": [[*layer] for layer in LAYERS], "tokens": [1, 4096]}}
    begun = time.perf_counter()
    document = mltune.build_library(spec, arguments.library, run=arguments.run, wisdom="none")
    report = document["report"]
    print({key: report.get(key) for key in ("portfolio", "dispatched", "held_out", "opponent", "tuned")}, flush=True)
    facts = {"build_s": time.perf_counter() - begun, "configurations": len(document["configurations"])}
    return {"description": spec, **facts, "timed": len(report["sizes"]), "report": report}


def compare(arguments: Namespace, keep: Callable[[list[dict[str, Any]]], None]) -> None:
    """Time libraries beside cuBLAS at shapes, as long as there are seconds."""
    import mltune
    from mltune.device.query import Nvml, pci_bus_id

    flush = flush_of(arguments.flush)
    libraries = {
        name: mltune.load_library(folder) for name, _, folder in (text.partition("=") for text in arguments.subjects)
    }
    lt, nvml = CublasLt(), Nvml(pci_bus_id(0))
    begun, rows = time.perf_counter(), list[dict[str, Any]]()
    for shape in shapes_of(arguments.shard, arguments.shapes):
        if time.perf_counter() - begun > arguments.seconds:
            break
        operands = _operands(shape, arguments.operation[0])
        for epilogue, library in libraries.items():
            row = {**shape, "epilogue": epilogue, **_compared(library, shape, operands, epilogue, lt, flush)}
            state = nvml.read()
            rows.append(row | {"clock_hz": state.sm_clock_hz, "power_w": state.power_w})
            print(json.dumps({key: value for key, value in row.items() if key != "choice"}), flush=True)
        keep(rows)


def _operands(shape: Mapping[str, Any], precision: str) -> dict[str, Any]:
    """Return normal random A (m, k), B (n, k), a bias, and room for C (n, m), all stored by rows."""
    import cupy

    rng = cupy.random.default_rng(shape["m"] + shape["n"] + shape["k"])

    def normal(*extents: int) -> Any:
        values = rng.standard_normal(extents, dtype=cupy.float32)
        return values.astype("float16") if precision == "h" else (values.view("uint32") >> 16).astype("uint16")

    m, n, k = shape["m"], shape["n"], shape["k"]
    a, b, bias = normal(m, k), normal(n, k), normal(m)
    return {"A": a, "B": b, "bias": bias, "C": cupy.empty((n, m), dtype=a.dtype)}


def _compared(
    library: Any,
    shape: Mapping[str, Any],
    operands: Mapping[str, Any],
    epilogue: str,
    lt: CublasLt,
    flush: Callable[[], Any],
) -> dict[str, Any]:
    """Return the seconds of a library, of cuBLAS's default and of its fastest candidate, and whether results agree."""
    addresses = {name: array.data.ptr for name, array in operands.items()}
    a, b, c = operands["A"], operands["B"].T, operands["C"].T
    bias = operands["bias"] if library.has_bias else None
    precision = library.document["problem"]["precision"]
    candidates = lt.candidates(precision, shape, addresses, epilogue)
    default = _gemm_ex(precision, shape, addresses) if epilogue == "plain" else candidates[0]

    def ours() -> None:
        library.multiply(a, b, out=c, bias=bias)

    ours(), default()
    of_candidates = in_turns(candidates, ROUNDS_OF_CANDIDATES, flush)
    fastest = int(np.argmin(of_candidates))
    ours_s, default_s, fastest_s = in_turns([ours, default, candidates[fastest]], ROUNDS, flush)
    return {
        "library_s": ours_s,
        "default_s": default_s,
        "fastest_s": fastest_s,
        "of_default": default_s / ours_s,
        "of_fastest": fastest_s / ours_s,
        "candidates": len(candidates),
        "fastest": fastest,
        "error": _difference(operands["C"], [ours, default], precision),
        "choice": library.choice(**{key: shape[key] for key in "mnk"}, lda=shape["k"], ldb=shape["k"], ldc=shape["m"]),
    }


def _gemm_ex(precision: str, shape: Mapping[str, Any], addresses: Mapping[str, int]) -> Callable[[], None]:
    from mltune.measure.libraries import bind_reference
    from mltune.problem.kinds import problem_from_name

    extents = {name: shape[name] for name in "mnk"}
    return bind_reference(problem_from_name(f"{precision}gemm", trans="TN", **extents), addresses)


def _difference(c: Any, calls: Sequence[Callable[[], None]], precision: str) -> float:
    """Return the largest difference of the results of two calls, relative to the largest number."""
    import cupy

    results = []
    for call in calls:
        c.fill(0)
        call()
        values = c if precision == "h" else (c.astype("uint32") << 16).view("float32")
        results.append(values.astype("float32"))
    ours, theirs = results
    return float(cupy.abs(ours - theirs).max() / cupy.abs(theirs).max())


def flush_of(kind: str) -> Callable[[], Any]:
    """Return a call that empties the L2 cache by a `read` or a `write` of 256 MiB."""
    import cupy

    room = cupy.zeros(FLUSH_BYTES // 8, dtype="int64")
    return room.max if kind == "read" else lambda: room.fill(0)


def in_turns(calls: Sequence[Callable[[], None]], rounds: int, flush: Callable[[], Any]) -> list[float]:
    """Return the median seconds of calls in turns, each with an empty L2 cache; the first round warms up."""
    import cupy

    pairs: list[list[tuple[Any, Any]]] = [[] for _ in calls]
    for number in range(rounds + 1):
        for place in np.random.default_rng(number).permutation(len(calls)):
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            flush()
            begin.record()
            calls[place]()
            end.record()
            if number:
                pairs[place].append((begin, end))
    cupy.cuda.Device().synchronize()
    return [statistics.median(cupy.cuda.get_elapsed_time(*pair) / 1e3 for pair in of_call) for of_call in pairs]


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return geometric mean and least of both comparisons, by epilogue and origin of the shape, and by tokens."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(f"{row['epilogue']}_{row['of']}", []).append(row)
        octave = row["n"] if row["of"] == "listed" else f"{2 ** int(math.log2(row['n']))}+"
        groups.setdefault(f"{row['epilogue']}_{row['of']}_{octave}_tokens", []).append(row)
    return {
        name: {
            "shapes": len(group),
            "most_error": max(row["error"] for row in group),
            **{
                of: {
                    "mean": statistics.geometric_mean(row[of] for row in group),
                    "least": min(row[of] for row in group),
                }
                for of in ("of_default", "of_fastest")
            },
        }
        for name, group in sorted(groups.items())
    }


def limits(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return for each number of tokens how near the listed shapes come to the least time that the GPU allows."""
    from mltune.device.facts import Device
    from mltune.device.peaks import peak_flops

    device = Device.from_json(document["device"])
    flops_per_s = peak_flops(device, "tensor_fp16")
    tokens: dict[str, dict[str, Any]] = {}
    for count in TOKENS:
        rows = [row for row in document["rows"] if row["of"] == "listed" and row["n"] == count]
        m, n, k = np.array([[row[name] for name in "mnk"] for row in rows], dtype=float).T
        memory_s = 2 * (m * k + k * n + m * n) / device.memory_bytes_per_s
        least_s = np.maximum(memory_s, 2 * m * n * k / flops_per_s)
        times_s = {of: np.array([row[f"{of}_s"] for row in rows]) for of in ("library", "default", "fastest")}
        tokens[str(count)] = {
            "by_memory": int((memory_s == least_s).sum()),
            "least_us": 1e6 * float(least_s.mean()),
            **{of: statistics.geometric_mean(least_s / of_s) for of, of_s in times_s.items()},
            **{f"{of}_beyond_us": 1e6 * float(np.median(of_s - least_s)) for of, of_s in times_s.items()},
            "of_default": statistics.geometric_mean(times_s["default"] / times_s["library"]),
        }
    return {"flops_per_s": flops_per_s, "tokens": tokens}


def main() -> None:
    """Run one of the measurements."""
    parser = harness.parser_of(__doc__)
    parser.add_argument("what", choices=("build", "compare", "merge", "limits"))
    parser.add_argument("subjects", nargs="+", help="an epilogue; EPILOGUE=FOLDER; files of `compare`")
    parser.add_argument("--operation", default="hgemm", choices=("hgemm", "bgemm"))
    parser.add_argument("--time", default="10m")
    parser.add_argument("--library", type=Path)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--shapes", type=int, help="so many of the shuffled shapes")
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--flush", default="read", choices=("read", "write"))
    parser.add_argument("--shard", default="0/1", metavar="I/N", help="each N-th shape from the I-th on")
    arguments = parser.parse_args()
    if arguments.what == "merge":
        parts = [json.loads(Path(part).read_text(encoding="utf-8")) for part in arguments.subjects]
        rows = [row for part in parts for row in part["rows"]]
        commands = "; ".join(part["command"] for part in parts)
        document = {**parts[0], "command": commands, "summary": summary(rows), "rows": rows}
        harness.write(arguments.output, document)
    elif arguments.what == "limits":
        document = json.loads(Path(arguments.subjects[0]).read_text(encoding="utf-8"))
        kept = {name: document[name] for name in ("date", "machine", "versions", "device")}
        harness.write(
            arguments.output,
            {**kept, "command": f"{document['command']}; {harness.provenance()['command']}", **limits(document)},
        )
        return
    elif arguments.what == "build":
        harness.write(arguments.output, {**harness.gpu_provenance(), **build(arguments)})
        return
    else:
        document = {
            **harness.gpu_provenance(cublaslt=CublasLt().version),
            "seeds": [SEED, SEED_OF_ORDER],
            "flush": arguments.flush,
            "summary": {},
        }

        def keep(rows: list[dict[str, Any]]) -> None:
            harness.write(arguments.output, {**document, "summary": summary(rows), "rows": rows})
            document["summary"] = summary(rows)

        compare(arguments, keep)
    for name, group in document["summary"].items():
        values = " ".join(
            f"{of} {group[of]['mean']:.3f} ({group[of]['least']:.3f})" for of in ("of_default", "of_fastest")
        )
        print(f"{name}: {group['shapes']} shapes, {values}, most error {group['most_error']:.1e}")


if __name__ == "__main__":
    main()
