"""The kernels that solve batches of GEMMs compile for them."""

import math

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="needs the Python bindings of NVRTC")

from mltune.device.known import H200
from mltune.kernel.bundle import variables_of
from mltune.kernel.reader import built_in, load_kernel
from mltune.kernel.space import ConstrainedSpace
from mltune.measure.build import NvrtcBuilder
from mltune.problem.gemm import parse_problem
from mltune.records.trial import TrialState

pytestmark = pytest.mark.system

BATCHED = [kernel for kernel in map(load_kernel, built_in()) if kernel.batched]


@pytest.mark.parametrize("kernel", BATCHED, ids=lambda kernel: kernel.name)
@pytest.mark.sampled(0, system=2, nightly=99)
def test_a_batch_compiles(kernel):
    problem = parse_problem(f"{kernel.precisions[-1]}gemm", size=96, batch=60)
    space = ConstrainedSpace(kernel, variables_of(problem, H200))
    rows = space.rows(space.sample(2, np.random.default_rng(1)))
    configurations = [{name: int(column[at]) for name, column in rows.items()} for at in range(2)]
    with NvrtcBuilder(kernel, problem, "sm_90", workers=1) as builder:
        builds = [builder.submit(configuration).result(300) for configuration in configurations]
    compiled = [build.state is TrialState.OK for build in builds]  # one may need more registers than there are
    assert any(compiled), builds
    launch = kernel.launch(configurations[compiled.index(True)], variables_of(problem, H200))
    assert math.prod(launch.grid) >= 60
