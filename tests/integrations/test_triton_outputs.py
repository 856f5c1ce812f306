"""What ``tolerance=`` of Triton's tuner compares, and times that are none: a simulated GPU, tensors on the host."""

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from hosts import Kernel

from mltune.errors import MltuneWarning, UsageError
from mltune.integrations.triton import autotune
from mltune.integrations.triton.outputs import Outputs
from mltune.known.wisdom import Wisdom

SOURCE = """
@triton.jit
def kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, 2 * tl.load(x + at, at < n), at < n)
"""
WRONG = 512


class Pair(NamedTuple):
    count: int
    base: object


@dataclass
class Record:
    base: object


class Slots:
    __slots__ = ("base",)

    def __init__(self, base):
        self.base = base


class Pointer:
    """An argument with an address, of a type that only the program knows."""

    def __init__(self, base):
        self.base, self.dtype = base, base.dtype

    def data_ptr(self):
        return self.base.data_ptr()


def descriptor(tensor):
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(tensor, [16, 64])


WRAPPERS = {
    "a tensor": lambda tensor: tensor,
    "a descriptor": descriptor,
    "a tuple": lambda tensor: (1, tensor),
    "a named tuple": lambda tensor: Pair(1, tensor),
    "a pointer": Pointer,
    "a descriptor in a tuple": lambda tensor: (1, descriptor(tensor)),
}


@pytest.fixture
def tune(triton, kernels, simulated, warm_cache):
    """Return a function that tunes a kernel whose fastest configuration leaves something else in its output."""
    gpu, kernel = simulated(lambda meta: 1.0 if meta["BLOCK"] == WRONG else 2.0), kernels(SOURCE).kernel
    configs = [triton.Config({"BLOCK": block}) for block in (128, WRONG, 256)]

    def tuned(wrapper, effect=None, **options):
        from simulated_gpu import HostTensor

        output = HostTensor(np.ones((64, 64)))
        arguments = HostTensor(np.arange(4096)), wrapper(output), 4096

        def doubled(meta, x, *_):
            output.values += 2 * x.values.reshape(64, 64)
            output.values[5, 5] += 100 * (meta["BLOCK"] == WRONG)

        gpu.effect = effect or doubled
        tuner = autotune(configs, ["n"], compilers=2, **options)(kernel)
        tuner[lambda meta: (4096 // meta["BLOCK"],)](*arguments)
        return tuner

    return tuned


def entries(tmp_path):
    return list(Wisdom.load(tmp_path / "wisdom.json"))


@pytest.mark.parametrize("name", WRAPPERS)
def test_an_output_is_compared_and_restored_wherever_it_is_reached(tune, tmp_path, name):
    tuner = tune(WRAPPERS[name], tolerance=1e-3)
    failed = {config.kwargs["BLOCK"] for config, times in tuner.configs_timings.items() if math.isinf(times[0])}
    assert failed == {WRONG} != {tuner.best_config.kwargs["BLOCK"]}
    (entry,) = entries(tmp_path)
    assert entry.verified


@pytest.mark.parametrize("wrapper", [lambda tensor: [tensor], lambda tensor: {"a": (tensor,)}, Record, Slots, Pointer])
def test_containers_of_all_kinds_are_looked_into(triton, wrapper):
    from simulated_gpu import HostTensor

    tensor = HostTensor([1.0, 2.0])
    holder = wrapper(Pointer(tensor))
    if wrapper is Slots:
        holder = SimpleNamespace(data_ptr=tensor.data_ptr, base=holder.base)
    outputs = Outputs({"x": holder, "n": 4})

    def adding(*numbers):
        def launch():
            tensor.values += numbers
            return True

        return launch

    assert outputs.are_right(0.0, adding(1, 1))
    assert not outputs.are_right(1e-3, adding(1, 2))
    assert outputs.are_right(1e-3, adding(1, 1))
    outputs.restore()
    assert tensor.values.tolist() == [1.0, 2.0]
    assert outputs.are_changed


def test_something_that_holds_itself_is_looked_into_once(triton):
    from simulated_gpu import HostTensor

    holder = [HostTensor([1.0])]
    holder.append(holder)
    assert Outputs({"x": holder}).are_right(0.0, lambda: True)


def test_what_is_behind_an_address_alone_cannot_be_compared(tune, tmp_path):
    from simulated_gpu import pointer
    from triton.language import float32

    with pytest.raises(UsageError, match=r"behind the argument out \(MockTensor\) has no clone, copy_, isclose"):
        tune(lambda tensor: pointer(float32), tolerance=1e-3)
    assert not (tmp_path / "wisdom.json").exists()


def test_where_nothing_can_be_compared_nothing_is_launched(triton):
    kernel, configs = Kernel(), [triton.Config({"BLOCK": block}) for block in (128, 256)]
    with pytest.raises(UsageError, match="no tensor can be reached through the arguments x, n"):
        autotune(configs, ["n"], tolerance=1e-3, do_bench=lambda call, quantiles: 1.0)(kernel).run("x", 1)
    assert kernel.calls == []


def test_where_nothing_changes_nothing_is_verified(tune, tmp_path):
    tune(lambda tensor: tensor, effect=lambda *_: None, tolerance=1e-3)
    (entry,) = entries(tmp_path)
    assert not entry.verified


def test_a_first_that_does_not_run_is_no_reference(tune):
    from triton.runtime.errors import OutOfResources

    def effect(meta, x, out, *_):
        if meta["BLOCK"] == 128:
            raise OutOfResources(300_000, 232_448, "shared memory")
        out.values += x.values.reshape(64, 64)

    assert tune(lambda tensor: tensor, effect=effect, tolerance=1e-3).best_config.kwargs["BLOCK"] == WRONG


@pytest.mark.parametrize(("factor", "right"), [(1.0, True), (1.0 + 2**-23, False)])
def test_bits_are_those_of_the_first_also_where_the_contents_at_hand_do_not_show_it(tune, tmp_path, factor, right):
    def effect(meta, x, out, *_):
        scale = np.float32(factor if meta["BLOCK"] == WRONG else 1.0)
        out.values[...] = (
            np.trunc(x.values.reshape(64, 64)) + (x.values.reshape(64, 64) % 1) * scale
        )  # integers hide it

    tuner = tune(lambda tensor: tensor, effect=effect, tolerance="bits")
    assert (tuner.best_config.kwargs["BLOCK"] == WRONG) == right
    (entry,) = entries(tmp_path)
    assert entry.verified
    tolerant = tune(lambda tensor: tensor, effect=effect, tolerance=1e-3)
    assert tolerant.best_config.kwargs["BLOCK"] == WRONG
    assert len(entries(tmp_path)) == 2  # the winner of the one is not that of the other


def test_signs_of_zeros_and_kinds_of_nan_are_bits(triton):
    from simulated_gpu import HostTensor

    tensor = HostTensor([0.0, math.nan])

    def leaving(*numbers):
        def launch():
            tensor.values[...] = numbers
            return True

        return launch

    outputs = Outputs({"x": tensor})
    assert outputs.are_right("bits", leaving(0.0, math.nan))
    assert outputs.are_right("bits", leaving(0.0, math.nan))
    assert not outputs.are_right("bits", leaving(-0.0, math.nan))
    assert not outputs.are_right("bits", leaving(0.0, -math.nan))
    outputs.restore()
    assert not np.signbit(tensor.values).any()


@pytest.mark.parametrize("time", [math.nan, math.inf, -math.inf, 0.0, -1.0, None])
@pytest.mark.parametrize("form", [lambda time: time, lambda time: [time] * 3, lambda time: (time,)])
def test_a_benchmark_whose_answer_is_no_time_does_not_win(triton, time, form):
    kernel, configs = Kernel(), [triton.Config({"BLOCK": block}) for block in (64, 128, 256)]

    def do_bench(call, quantiles):
        call()
        block = kernel.calls[-1][1]["BLOCK"]
        return form(time if block in bad else block / 64)

    for bad in ({64}, {128}, {64, 256}):
        tuned = autotune(configs, ["n"], do_bench=do_bench, wisdom="none")(kernel)
        if time == math.inf:
            tuned.run("x", 1)
        else:
            with pytest.warns(MltuneWarning, match="it must return milliseconds above 0"):
                tuned.run("x", 1)
        assert tuned.best_config.kwargs["BLOCK"] == min({64, 128, 256} - bad)
