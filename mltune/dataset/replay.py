"""Replay: a builder and a runner that return the results of a dataset, and the kernel that was recorded."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Self, cast

from mltune.dataset.dataset import Dataset
from mltune.dataset.manifest import Manifest
from mltune.errors import DatasetError
from mltune.kernel.bundle import Kernel
from mltune.kernel.coding import code_values, spanned
from mltune.kernel.compiler_parameters import BUILT_IN
from mltune.kernel.parts import CompilerSpace, KernelSource, KernelSpace
from mltune.kernel.reader import is_bundle, load_kernel
from mltune.kernel.space import find
from mltune.process.child import fulfilled
from mltune.records.trial import Build, Measurement


def recorded_kernel(manifest: Manifest) -> tuple[Kernel, str]:
    """Return the kernel of a dataset, and a notice if it has no bundle here: then it is a :func:`bare_kernel`."""
    if is_bundle(manifest.kernel):
        return load_kernel(manifest.kernel), ""
    notice = f"there is no kernel {manifest.kernel!r} here: of {manifest.name}, only the parameters are known"
    return bare_kernel(manifest), notice


def bare_kernel(manifest: Manifest) -> Kernel:
    """Return a kernel that has only the parameters of a dataset: no source, restrictions and resources.

    Among them are the built-in compiler parameters: a dataset that lacks one was recorded with its default.
    """
    labels = cast("dict[str, tuple[float | str, ...]]", manifest.labels)
    compiler = {name: code_values(values) for name, values in BUILT_IN.items()}
    for name, values in manifest.parameters.items():
        if (parameter := compiler.get(name)) and not (
            parameter.labels == labels.get(name) and {*values} <= {*parameter.integers}
        ):
            del compiler[name]
    parameters = {name: values for name, values in manifest.parameters.items() if name not in compiler}
    return Kernel(
        name=manifest.kernel,
        problem=manifest.problem.kind,
        source=KernelSource(sha256=manifest.source_hash),
        space=KernelSpace(parameters=parameters, labels=labels),
        compiler=CompilerSpace(**spanned(compiler)),
        precisions=(manifest.problem.precision,) if manifest.problem.precision else (),
    ).recorded_with(manifest.parameters)


class _Replay:
    """The recorded results of a dataset by configuration.

    One that is not there, or one to run that did not compile then, raises a DatasetError on submission.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._parameters = tuple(dataset.columns)

    def _row(self, configuration: Mapping[str, int]) -> int:
        recorded = {name: value for name, value in configuration.items() if name in self._parameters}
        row = find(self._dataset.space, recorded)
        if row < 0:
            raise DatasetError(
                f"{dict(configuration)} is not recorded in dataset {self._dataset.manifest.name}; search in the "
                "dataset's own configurations."
            )
        return row

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing: there is nothing to release."""


class ReplayBuilder(_Replay):
    """A builder of the recorded builds, failures included, without cubins."""

    def submit(self, configuration: Mapping[str, int]) -> Future[Build]:
        """Return the recorded build."""
        return fulfilled(self._dataset.builds(self._row(configuration), 1)[0])


class ReplayRunner(_Replay):
    """A runner of the recorded measurements, failures included."""

    def submit(
        self, configuration: Mapping[str, int], build: Build, *, best_s: float | None = None
    ) -> Future[Measurement]:
        """Return the recorded measurement; ``best_s`` has no effect."""
        measurement = self._dataset.measurements(self._row(configuration), 1)[0]
        if measurement is None:
            raise DatasetError(
                f"dataset {self._dataset.manifest.name} has no build in state ok of {dict(configuration)}, and no "
                "other can run."
            )
        return fulfilled(measurement)
