"""The kernel of a dataset: its bundle, or where there is none, a kernel that has only its parameters."""

from __future__ import annotations

from typing import cast

from mltune.dataset.manifest import Manifest
from mltune.kernel.bundle import Kernel
from mltune.kernel.reader import is_bundle, load_kernel


def recorded_kernel(manifest: Manifest) -> tuple[Kernel, str]:
    """Return the kernel of a dataset, and a notice if it has no bundle here.

    Without a bundle the kernel has no source, restrictions and resources: it can be replayed, and a search knows its
    parameters only.
    """
    if is_bundle(manifest.kernel):
        return load_kernel(manifest.kernel), ""
    notice = f"there is no kernel {manifest.kernel!r} here: of {manifest.name}, only the parameters are known"
    return bare_kernel(manifest), notice


def bare_kernel(manifest: Manifest) -> Kernel:
    """Return a kernel that has only the parameters of a dataset: no source, restrictions and resources."""
    return Kernel(
        name=manifest.kernel,
        problem=manifest.problem.kind,
        parameters=manifest.parameters,
        precisions=(manifest.problem.precision,) if manifest.problem.precision else (),
        labels=cast("dict[str, tuple[float | str, ...]]", manifest.labels),
        source_hash=manifest.source_hash,
    )
