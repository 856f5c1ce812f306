"""Run the commands whose figures README, index and tutorial show: benchmarks/results/commands.json. Needs no GPU.

python benchmarks/commands.py [--output benchmarks/results/commands.json]
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import harness

FIRST = "replay:h200-sgemm-nt-4096-complete"
COMMANDS = {
    **{
        f"space {precision}": f"space {kernel} --precision {precision}"
        for precision, kernel in zip("scdz", ["gemm_simt", "gemm_simt", "gemm_mma64", "gemm_mma64"], strict=True)
    },
    "first": f"tune sgemm --device {FIRST} --run runs/first",
    "sweep": f"sweep sgemm --complete --prune --device {FIRST} --run runs/sweep",
    "rehearsal": "run rehearsal --run runs/rehearsal",
    "compare": "compare --strategies mltune,random --datasets h200-sgemm-nt-4096-random --seeds 3 --evaluations 100 "
    "--out runs/compare",
}
KEPT = {
    "space": ("kernel", "label", "combinations", "valid"),
    "first": ("label", "trials", "counts", "stopped", "funnel", "skips", "optimum", "best"),
    "sweep": ("pruning",),
    "rehearsal": ("distinct", "with_winner", "funnel", "problems"),
    "compare": ("evaluations", "strategies"),
}
"""The keys of the documents that are kept, by the first word of the name of a command."""
OF_A_PROBLEM = ("slug", "state", "best", "counts", "trials")


def outcome(name: str, command: str, folder: Path) -> dict[str, Any]:
    """Run a command with ``--json``; return what is kept of its document, and its seconds."""
    begun = time.perf_counter()
    argv = [sys.executable, "-m", "mltune", *shlex.split(command), "--json"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "XDG_CACHE_HOME": str(folder)}
    done = subprocess.run(argv, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    document = json.loads(done.stdout)
    kept = {key: document[key] for key in KEPT[name.split()[0]]}
    if "problems" in kept:
        kept["problems"] = {row["slug"]: {key: row.get(key) for key in OF_A_PROBLEM} for row in kept["problems"]}
    return {"command": f"mltune {command}", "seconds": round(time.perf_counter() - begun, 1), **kept}


def main() -> None:
    """Run all commands in a new folder."""
    parser = harness.parser_of(__doc__, harness.RESULTS / "commands.json")
    arguments = parser.parse_args()
    head = harness.provenance(*harness.SEARCHING, of="wall time")
    with tempfile.TemporaryDirectory() as folder:
        outcomes = {name: outcome(name, command, Path(folder)) for name, command in COMMANDS.items()}
    harness.write(arguments.output, {**head, "commands": outcomes})


if __name__ == "__main__":
    main()
