"""Times of configurations that are known already at another size."""

import math
import time

import pytest

from mltune.dataset.dataset import load_dataset
from mltune.kernel.reader import load_kernel
from mltune.resolve.device import Target
from mltune.tuning.cross import time_configurations

NAME = "h200-sgemm-nt-4096-random"


@pytest.mark.parametrize(("left_s", "timed"), [(math.inf, 3), (60.0, 3), (0.0, 0)])
def test_recorded_times_until_the_time_is_over(left_s, timed):
    dataset = load_dataset(NAME)
    kernel = load_kernel("gemm_simt")
    known = dataset.space.rows([0, 1])
    configurations = [{name: int(column[at]) for name, column in known.items()} for at in (0, 1)]
    configurations.append(dict.fromkeys(configurations[0], -1))
    target = Target(dataset=NAME)
    until = time.perf_counter() + left_s
    found = time_configurations(kernel, dataset.manifest.problem, target, configurations, until=until)
    assert len(found) == timed
    assert found[2:] in ([], [None]), "it is not among the recorded ones"
    assert time_configurations(kernel, dataset.manifest.problem, target, []) == []
