"""Real compiles of the kernels of arrays agree with the estimates of their bundles."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="needs the Python bindings of NVRTC")

from arrays import ArraysBundle

from mltune.device.known import H200
from mltune.measure.build import NvrtcBuilder
from mltune.records.trial import TrialState

pytestmark = pytest.mark.system

SPACES = {
    "transpose": (100_000, 1_000_000),
    "reduction": (100_000, 1_000_000),
    "softmax": (100_000, 1_000_000),
    "stencil": (10_000, 1_000_000),
    "convolution_cuda": (4_000, 5_000),
}
"""Bounds of the number of valid configurations."""

SAMPLED = 1


@pytest.fixture(params=SPACES)
def bundle(request):
    return ArraysBundle(request.param)


def columns(configuration):
    return {name: np.array([value]) for name, value in configuration.items()}


def builder(bundle, kernel):
    macros = bundle.macros({}, bundle.sizes)
    return NvrtcBuilder(kernel, SimpleNamespace(macros=lambda: macros), "sm_90", workers=1)


def test_the_space_is_of_a_reasonable_size_and_contains_the_default(bundle):
    space = bundle.space()
    least, most = SPACES[bundle.kernel.name]
    assert least <= space.count <= most
    assert bundle.default.keys() == bundle.kernel.space.parameters.keys()
    assert space.index_of(columns(bundle.default))[0] >= 0


def test_every_restriction_removes_something(bundle):
    removals = {removal.restriction: removal.removes for removal in bundle.space().explain()}
    device_limits = {
        rule.text for rule in bundle.kernel.space.restrictions if rule.reason.startswith("the device's limit")
    }
    assert [text for text, share in removals.items() if share == 0 and text not in device_limits] == []


@pytest.mark.sampled(0, system=3, nightly=99)
def test_the_default_and_a_sample_compile(bundle):
    configurations = [bundle.default, *bundle.sample(SAMPLED, seed=1)]
    with builder(bundle, bundle.kernel) as compiler:
        futures = [compiler.submit(configuration) for configuration in configurations]
        for position, (configuration, future) in enumerate(zip(configurations, futures, strict=True)):
            build = future.result(300)
            assert (build.state, build.detail) == (TrialState.OK, ""), configuration
            assert build.shared_bytes == 0, configuration  # all shared memory is dynamic
            assert position > 0 or build.spill_bytes == 0
            launch = bundle.launch(configuration, bundle.sizes)
            assert launch.shared_bytes <= H200.shared_bytes_per_block, configuration
            variables = bundle.variables(bundle.sizes)
            said = bundle.kernel.space.evaluate(columns(configuration), variables, bundle.kernel.resources.estimates)
            assert build.registers <= said.get("register_cap", [255])[0], configuration
            assert int(np.prod(launch.block)) == said["threads"][0], configuration


@pytest.mark.sampled(0, system=3, nightly=99)
def test_the_reference_compiles(bundle):
    kernel = bundle.kernel
    kernel = replace(kernel, source=replace(kernel.source, entry=bundle.document["reference"]["entry"]))
    with builder(bundle, kernel) as compiler:
        build = compiler.submit(bundle.default).result(300)
    assert (build.state, build.detail) == (TrialState.OK, "")
