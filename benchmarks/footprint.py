"""Add up the bytes of the installed packages that mltune needs, and of those that they need.

python benchmarks/footprint.py [--output benchmarks/results/footprint.json]

Bytes are those of the files that a package lists. `compiled` are those of the modules that pip compiles of them. Run it
with the Python of a fresh environment into which mltune alone was installed.
"""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import harness
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def footprint() -> tuple[dict[str, int], int]:
    """Return the bytes of each package, the largest first, and those of all compiled modules."""
    requirements = [Requirement(text) for text in tomllib.loads(PROJECT.read_text())["project"]["dependencies"]]
    sizes: dict[str, int] = {}
    compiled = 0
    while requirements:
        requirement = requirements.pop()
        name = canonicalize_name(requirement.name)
        if name in sizes or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        package = metadata.distribution(name)
        modules = [Path(str(file.locate())) for file in package.files or () if file.suffix == ".pyc"]
        compiled += sum(module.stat().st_size for module in modules if module.exists())
        sizes[name] = sum(file.size or 0 for file in package.files or () if file.suffix != ".pyc")
        requirements += map(Requirement, package.requires or ())
    return dict(sorted(sizes.items(), key=lambda entry: -entry[1])), compiled


def main() -> None:
    """Measure."""
    arguments = harness.parser_of(__doc__, harness.RESULTS / "footprint.json").parse_args()
    sizes, compiled = footprint()
    head = harness.provenance(*sizes, of="bytes of files")
    harness.write(arguments.output, {**head, "total": sum(sizes.values()), "compiled": compiled, "packages": sizes})


if __name__ == "__main__":
    main()
