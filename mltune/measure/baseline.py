"""The baseline: the default configuration of a kernel, which must compile and fit its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from mltune.errors import BundleError, DeviceError
from mltune.kernel.placed import PlacedKernel
from mltune.measure.build import NvrtcBuilder
from mltune.measure.messages import Baseline
from mltune.measure.pipeline import Builder
from mltune.measure.source_check import entry_probes, with_probe
from mltune.records.trial import Build, TrialState


def check_source(placed: PlacedKernel) -> None:
    """Check the launch of a kernel's default and, where NVRTC is installed, its source and arguments."""
    kernel, problem, default = placed.kernel, placed.runnable, placed.default
    placed.launch(default)
    architecture = placed.device.architecture
    with suppress(DeviceError), NvrtcBuilder(with_probe(kernel), problem, architecture, workers=1) as builder:
        make_baseline(placed, builder)
        plain = builder.submit(default).result()
        for text, read in entry_probes(kernel, problem, builder.definitions(default)):
            for fault in read(builder.build(text).result(), plain):
                raise BundleError(f"{fault}.")


def make_baseline(placed: PlacedKernel, builder: Builder) -> Baseline:
    """Compile the default configuration, with whose results those of the others are compared."""
    build, kernel = builder.submit(placed.default).result(), placed.kernel
    if build.state is not TrialState.OK:
        raise BundleError(
            f"the default configuration of {kernel.name} ends with {build.state}: {build.detail}; it must compile, see "
            f"{kernel.described_in}."
        )
    return baseline_of(placed, placed.default, build)


def baseline_of(placed: PlacedKernel, configuration: Mapping[str, int], build: Build) -> Baseline:
    """Return the baseline that is a build of a configuration."""
    kernel, right, reference = placed.kernel, placed.kernel.reference_kernel, None
    assert kernel.source.entry is not None  # noqa: S101 - it is built
    if right is not None:
        assert right.source.entry is not None  # noqa: S101 - a reference has one
        verified = replace(placed, kernel=right).verified
        reference = right.source.entry, tuple(case.launch(configuration) for case in verified)
    launches = tuple(case.launch(configuration) for case in placed.verified)
    return Baseline(build.cubin, build.entry or kernel.source.entry, launches, reference, kernel.verify)
