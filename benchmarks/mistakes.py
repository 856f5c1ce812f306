"""Record what the mistakes of the tests are answered, before and now, and the first commands of somebody with a kernel.

python benchmarks/mistakes.py [--before TREE] [--output benchmarks/results/mistakes.json]

The mistakes are those of tests/cli/test_mistakes.py and of tests/api/test_python_mistakes.py. TREE is a checkout of an
older version; without it the older answers of the file are kept. Needs NVRTC, and no GPU.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import harness

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.api.test_python_mistakes import MISTAKES as IN_PYTHON  # noqa: E402
from tests.api.test_python_mistakes import PREAMBLE  # noqa: E402
from tests.cli.test_mistakes import MISTAKES as AT_THE_COMMAND_LINE  # noqa: E402
from tests.cli.test_mistakes import make_files  # noqa: E402

KERNEL = """#ifndef BLOCK
#define BLOCK 128
#endif
extern "C" __global__ void scale(float* out, const float* in, float factor, int n) {
  int i = blockIdx.x * BLOCK + threadIdx.x;
  if (i < n) out[i] = factor * in[i];
}
"""
FIRST = [
    "tune kernel.cu",
    "gate kernel.cu new.cu",
    "check kernel.cu",
    "space sgemm",
    "init --from kernel.cu scale",
    "check scale",
]
"""What somebody with a kernel types first, in this order."""
LONGEST_S = 60
TRIED = """
try:
    print(eval({mistake!r}))
except Exception as error:
    print(f"{{type(error).__name__}}: {{error}}")
"""


def answer(words: list[str], folder: Path, tree: Path) -> str:
    """Return what Python prints with some words, in a folder, with the package of a checkout."""
    environment = os.environ | {"PYTHONPATH": str(tree), "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "100"}
    environment |= {"MLTUNE_WISDOM": "none"}
    try:
        done = subprocess.run(
            [sys.executable, "-P", *words],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=LONGEST_S,
        )
    except subprocess.TimeoutExpired:
        return f"(ran for more than {LONGEST_S} s)"
    lines = done.stdout.strip().splitlines()
    return (
        "\n".join(line for line in lines if not line.startswith("run directory: ")) or f"(exit code {done.returncode})"
    )


def answers(tree: Path) -> dict[str, str]:
    """Return what a checkout answers to each mistake, and to the first commands."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_files(folder)
        calls = {
            f"mltune {command}".strip(): ["-m", "mltune", *shlex.split(command)] for command, *_ in AT_THE_COMMAND_LINE
        }
        calls |= {mistake: ["-c", PREAMBLE + TRIED.format(mistake=mistake)] for mistake, *_ in IN_PYTHON}
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            said = dict(zip(calls, pool.map(partial(answer, folder=folder, tree=tree), calls.values()), strict=True))
        (folder / "kernel.cu").write_text(KERNEL)
        (folder / "new.cu").write_text(KERNEL.replace("factor * in[i]", "in[i] * factor"))
        first = {f"mltune {words}": answer(["-m", "mltune", *words.split()], folder, tree) for words in FIRST}
        return {typed: text.replace(f"{folder}/", "").replace(f"{tree}/", "") for typed, text in (first | said).items()}


def page(rows: list[dict[str, str]]) -> str:
    """Return the answers as a page."""
    lines = [
        "# Mistakes, and what mltune answers",
        "",
        "`benchmarks/mistakes.py` wrote this page: what was typed, the answer",
    ]
    lines += [
        "before (of version d861ccb1) and the answer now. The first six are what somebody with a kernel types first."
    ]
    for row in rows:
        lines += [
            "",
            f"`{row['typed'][:200]}`",
            "",
            "```text",
            f"before: {row['before'][:1500]}",
            f"now:    {row['now'][:1500]}",
            "```",
        ]
    return "\n".join(lines)


def main() -> None:
    """Record."""
    parser = harness.parser_of(__doc__, harness.RESULTS / "mistakes.json")
    parser.add_argument("--before", type=Path)
    arguments = parser.parse_args()
    head = harness.provenance("typer", "pydantic", of="texts")
    if arguments.before:
        before = answers(arguments.before.resolve())
    else:
        before = {row["typed"]: row["before"] for row in json.loads(arguments.output.read_text())["mistakes"]}
    rows = [{"typed": typed, "before": before.get(typed, "-"), "now": now} for typed, now in answers(ROOT).items()]
    harness.write(arguments.output, {**head, "mistakes": rows}, page(rows))


if __name__ == "__main__":
    main()
