"""Libraries of FP8 products for linear layers beside PyTorch's `_scaled_mm`, which calls cuBLASLt.

    python benchmarks/fp8.py build blocks --time 90s --library FOLDER
    python benchmarks/fp8.py compare blocks=FOLDER rows=FOLDER --shapes 40 --output FILE

KINDS are: sums added in FP32 every 128 steps of k, fast sums, the first with a factor for each row and column, and the
first with factors of blocks, 128 x 128 of the weight and 1 x 128 of the tokens, as in DeepSeek's checkpoints. Results
are in BF16. Shapes, their order and the timing are those of linear_layers.py. The library is called by its operator.
Errors are relative to the product in FP32 of the same numbers, in the norm of Frobenius.
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
from linear_layers import LAYERS, ROUNDS, flush_of, in_turns, shapes_of

from mltune.problem.array_values import FP8_BLOCK, block_shapes

KINDS = {
    "promoted": ("ebgemm", ""),
    "fast": ("ebfgemm", ""),
    "rows": ("ebgemm", "scales"),
    "blocks": ("ebgemm", "block_scales"),
}
"""Operation and epilogue of a library."""


def build(arguments: Namespace) -> None:
    """Build a library."""
    import mltune

    (kind,) = arguments.subjects
    operation, epilogue = KINDS[kind]
    library = {"operation": operation, "trans": "TN", "time": arguments.time}
    library |= {"epilogue": epilogue} if epilogue else {}
    spec = {"library": library, "sizes": {"linear_layers": [[*layer] for layer in LAYERS], "tokens": [1, 4096]}}
    document = mltune.build_library(spec, arguments.library, wisdom="none")
    print({key: document["report"].get(key) for key in ("portfolio", "tuned")}, flush=True)


def compare(arguments: Namespace) -> list[dict[str, Any]]:
    """Return the seconds of libraries and of PyTorch at shapes, as long as there are seconds."""
    import mltune

    operators = {}
    for kind, _, folder in (text.partition("=") for text in arguments.subjects):
        operators[kind] = mltune.load_library(folder).to_torch_operator()
    flush, begun, rows = flush_of("read"), time.perf_counter(), list[dict[str, Any]]()
    for shape in shapes_of("0/1", arguments.shapes):
        if time.perf_counter() - begun > arguments.seconds:
            break
        for kind, operator in operators.items():
            row = {**shape, "kind": kind, **_compared(shape, kind, operator, flush)}
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


def _compared(
    shape: Mapping[str, Any], kind: str, operator: Callable[..., Any], flush: Callable[[], Any]
) -> dict[str, Any]:
    import torch

    m, n, k = shape["m"], shape["n"], shape["k"]
    torch.manual_seed(m + n + k)
    weight, tokens = (torch.randn(rows, k, device="cuda").to(torch.float8_e4m3fn) for rows in (m, n))
    of_m, of_n, one = _factors(kind, m, n, k)
    scales = () if kind in ("promoted", "fast") else (of_m, of_n)
    theirs = {
        "promoted": (one, one),
        "fast": (one, one),
        "rows": (of_n[:, None], of_m[None]),
        "blocks": (of_n.T, of_m.T),
    }
    scale_a, scale_b = theirs[kind]

    def ours() -> Any:
        return operator(tokens, weight.T, *scales)

    def torchs() -> Any:
        return torch._scaled_mm(
            tokens, weight.T, scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=kind == "fast"
        )

    wide_m, wide_n = (_wide(factors, rows, k) for factors, rows in ((of_m, m), (of_n.T, n)))
    exact = (tokens.float() * wide_n) @ (weight.float() * wide_m).T if scales else tokens.float() @ weight.float().T
    errors = {"error": _error(ours, exact)}
    try:
        errors["torch_error"] = _error(torchs, exact)
    except RuntimeError as error:
        return {**errors, "torch": str(error).split("\n")[0][:200]}
    ours_s, torch_s = in_turns([ours, torchs], ROUNDS, flush)
    return {**errors, "library_s": ours_s, "torch_s": torch_s, "of_torch": torch_s / ours_s}


def _factors(kind: str, m: int, n: int, k: int) -> tuple[Any, Any, Any]:
    """Return random factors of weight and tokens, in the shapes of the operator, and 1."""
    import torch

    shapes = block_shapes(m, n, k) if kind == "blocks" else ((m,), (n,))
    of_m, of_n = (torch.rand(*of_side, device="cuda") + 0.5 for of_side in shapes)
    return of_m, of_n, torch.ones((), device="cuda")


def _wide(factors: Any, rows: int, k: int) -> Any:
    """Return a factor for each element of a matrix of so many rows, from one for each row or each block."""
    if factors.dim() == 1:
        return factors[:, None]
    tall = factors.repeat_interleave(FP8_BLOCK if len(factors) < rows else 1, 0)[:rows]
    return tall.repeat_interleave(FP8_BLOCK, 1)[:, :k]


def _error(call: Callable[[], Any], exact: Any) -> float:
    return float((call().float() - exact).norm() / exact.norm())


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return geometric mean and least of PyTorch's seconds over the library's, by kind and origin of the shape."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(f"{row['kind']}_{row['of']}", []).append(row)
    return {
        name: {
            "shapes": len(group),
            "most_error": max(row["error"] for row in group),
            "mean": statistics.geometric_mean(shares),
            "least": min(shares),
        }
        for name, group in sorted(groups.items())
        if (shares := [row["of_torch"] for row in group if "of_torch" in row])
    }


def main() -> None:
    """Run one of the measurements."""
    parser = harness.parser_of(__doc__)
    parser.add_argument("what", choices=("build", "compare"))
    parser.add_argument("subjects", nargs="+", help="a kind; KIND=FOLDER")
    parser.add_argument("--time", default="90s")
    parser.add_argument("--library", type=Path)
    parser.add_argument("--shapes", type=int, help="so many of the shuffled shapes")
    parser.add_argument("--seconds", type=float, default=math.inf)
    arguments = parser.parse_args()
    if arguments.what == "build":
        return build(arguments)
    import torch

    rows = compare(arguments)
    document = {**harness.gpu_provenance(torch=torch.__version__), "summary": summary(rows), "rows": rows}
    harness.write(arguments.output, document)
    print(json.dumps(document["summary"], indent=1))


if __name__ == "__main__":
    main()
