"""A bundle of one small kernel with compiler parameters."""

from __future__ import annotations

from pathlib import Path


def write_bundle(folder: Path, source: str, compiler: str) -> Path:
    """Write the bundle of a kernel ``entry(float* out)`` with a macro ``WIDTH``; return its folder."""
    (folder / "own.cu").write_text(source)
    (folder / "kernel.toml").write_text(f"""
[kernel]
name = "own"
source = "own.cu"
entry = "entry"
problem = "arrays"
[arguments]
out = {{dtype = "float32", shape = ["32"], role = "inout"}}
[parameters]
WIDTH = [1, 2]
[compiler]
{compiler}
[launch]
block = ["32"]
grid = ["1"]
""")
    return folder
