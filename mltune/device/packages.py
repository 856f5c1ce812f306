"""Python packages through which a GPU is used, and their problems. They are looked up, not imported."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

DISTRIBUTION = "mltune-gpu"
"""The name of mltune on the package index, where ``mltune`` is another project."""

_CUPY = re.compile(r"(?:amd-)?cupy|cupy-rocm.*|cupy-cuda(?P<cuda>\d\d).*")
_MODULES = {"CuPy": "cupy", "cuda-bindings": "cuda.bindings"}


def cupy_packages() -> dict[str, str]:
    """Return the version of each distribution of CuPy where Python finds ``cupy``; there should be one."""
    from importlib.metadata import Distribution

    spec = find_spec("cupy")
    folders = map(Path, sys.path) if spec is None or spec.origin is None else [Path(spec.origin).parent.parent]
    named = [Distribution.at(path) for folder in folders for path in folder.glob("*cupy*-info")]  # all others take .1 s
    versions = {package.name: package.version for package in named if _CUPY.fullmatch(package.name)}
    return dict(sorted(versions.items()))


def find_module(name: str) -> ModuleSpec | None:
    """Find a module without importing it; None where it, or its package, is not installed."""
    try:
        return find_spec(name)
    except ModuleNotFoundError:
        return None


def cuda_of_cupy() -> int | None:
    """Return the major version of CUDA that CuPy is for; None where its name does not contain it."""
    majors = [match["cuda"] for name in cupy_packages() if (match := _CUPY.fullmatch(name)) and match["cuda"]]
    return int(majors[0]) if majors else None


def major(version: str) -> int:
    """Return the first number of a version, such as 13 of ``"13.0.88"``; 0 where there is none."""
    number = version.partition(".")[0]
    return int(number) if number.isdecimal() else 0


def extra(cuda: int | None) -> str:
    """Return the argument of ``pip install`` for the packages of a GPU, for a major version of CUDA."""
    return f"'{DISTRIBUTION}[cuda{12 if cuda == 12 else 13}]'"


def package_problems(cuda: str | None) -> Iterator[str]:
    """Yield problems of the use of a GPU: missing packages, two CuPys, packages for a newer CUDA than the driver's.

    ``cuda`` is the newest version that the driver supports, such as ``"13.0"``; without a driver missing packages are
    no problem. Each is the mistake and the next step, without a full stop.
    """
    cupys = cupy_packages()
    remove = f"`pip uninstall {' '.join(cupys)}`"
    install = f"`pip install {extra(None if cuda is None else major(cuda))}`"
    missing = [name for name, module in _MODULES.items() if find_module(module) is None]
    if len(cupys) > 1:
        yield (
            f"{' and '.join(cupys)} are in one folder, where each overwrote files of the other; run {remove}, then "
            f"{install}"
        )
    if "CuPy" in missing and cupys:
        yield (
            f"the files of {' and '.join(cupys)} are gone, which happens when another CuPy is uninstalled; run "
            f"{remove}, then {install}"
        )
    elif missing and cuda is not None:
        yield f"not installed: {', '.join(missing)}, through which a GPU is used; run {install}"
    for name, needed in ((" ".join(cupys), cuda_of_cupy()), ("cuda-bindings", major(_version("cuda-bindings")))):
        if cuda is not None and needed is not None and needed > major(cuda):
            yield (
                f"{name} is for CUDA {needed}, newer than {cuda} of the driver; install a newer driver, or run "
                f"`pip uninstall {name}`, then {install}"
            )


def mixed_installation() -> str:
    """Return why the files of mltune may be mixed with those of another distribution; empty if they are not.

    ``mltune`` on the package index is another project with the same folder, and this one's name before 0.2.
    """
    from importlib.metadata import distributions

    package = Path(__file__).parent.parent
    if not any(True for _ in distributions(name="mltune", path=[str(package.parent)])):
        return ""
    return (
        f"another distribution, mltune, is installed into the folder of {DISTRIBUTION}, {package}, and may have mixed "
        f"its files with it; run `pip uninstall mltune {DISTRIBUTION}`, then install {DISTRIBUTION} again"
    )


def _version(distribution: str) -> str:
    """Return the version of a distribution; empty where it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""
