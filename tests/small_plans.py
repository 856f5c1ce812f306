"""Small plans and GPUs for the tests of plans."""

import dataclasses

import pytest

from mltune.device.known import H200
from mltune.kernel.reader import load_kernel
from mltune.problem.gemm import GemmProblem
from mltune.resolve.plan import Plan, Task

TEXT = """
[plan]
title = "A few"
budget = "1h"
minimum = "1m"

[[problems]]
kernel = "gemm_simt"
precisions = ["s", "z"]
trans = ["NN", "NC"]
sizes = [512, [256, 512, 1024]]
"""


@pytest.fixture
def text():
    """Return the text of a small plan."""
    return TEXT


@pytest.fixture
def gpu():
    """Return the facts of a GPU."""
    return H200


@pytest.fixture(scope="session")
def make_plan():
    """Return a function that makes a plan of tasks with given minima."""

    def make(minima, budget, *, unit="s", maximum=None, priorities=None, devices=1):
        kernel = load_kernel("gemm_simt")
        problems = [GemmProblem("s", "N", "N", size, 64, 64) for size in range(1, len(minima) + 1)]
        tasks = [
            Task(f"p{at}", kernel, problem, None, (priorities or [1.0] * len(minima))[at], minimum, maximum)
            for at, (problem, minimum) in enumerate(zip(problems, minima, strict=True))
        ]
        ordered = tuple(sorted(tasks, key=lambda task: -task.priority))
        return Plan("p", "P", unit, budget, ordered, devices=tuple(f"cuda:{at}" for at in range(devices)))

    return make


@pytest.fixture
def small_gpu():
    """Return a GPU with very little memory."""
    return dataclasses.replace(H200, name="small", memory_bytes=1_000_000)
