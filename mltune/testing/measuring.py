"""The contracts of builders and runners."""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import Future

from mltune.measure.pipeline import Builder, Runner
from mltune.records.trial import Build, Measurement, TrialState

WAIT_S = 300.0
"""Seconds that a test waits for a build or a measurement."""


class BuilderContract:
    """The laws of :class:`~mltune.measure.pipeline.Builder`: every submission ends in a build, failures included.

    Override :meth:`make`, :meth:`sound` and :meth:`broken`.
    """

    def make(self) -> Builder:
        """Return a builder, which the suite enters and leaves."""
        raise NotImplementedError

    def sound(self) -> list[dict[str, int]]:
        """Return two or more configurations that compile."""
        raise NotImplementedError

    def broken(self) -> list[dict[str, int]]:
        """Return configurations that do not compile, if there are any."""
        raise NotImplementedError

    def test_entering_returns_the_builder(self) -> None:
        """``with make() as builder`` names the builder itself."""
        builder = self.make()
        with builder as entered:
            assert entered is builder

    def test_a_configuration_that_compiles_is_ok(self) -> None:
        """The build says what the compiler reported, in numbers that can be."""
        with self.make() as builder:
            for future in [builder.submit(configuration) for configuration in self.sound()]:
                build = future.result(WAIT_S)
                assert build.state is TrialState.OK
                assert build.detail == ""
                assert build.compile_s >= 0
                assert build.registers is None or 0 < build.registers <= 255
                assert build.spill_bytes is None or build.spill_bytes >= 0

    def test_a_failure_is_a_state_and_never_an_exception(self) -> None:
        """A search goes on after a configuration that does not compile."""
        with self.make() as builder:
            for future in [builder.submit(configuration) for configuration in self.broken()]:
                build = future.result(WAIT_S)
                assert build.state is not TrialState.OK
                assert build.detail

    def test_the_order_of_the_parameters_does_not_matter(self) -> None:
        """A configuration is a mapping."""
        configuration = self.sound()[0]
        with self.make() as builder:
            first, second = (
                builder.submit(ordered).result(WAIT_S)
                for ordered in (configuration, dict(reversed(configuration.items())))
            )
        assert (first.state, first.registers, first.code_bytes) == (second.state, second.registers, second.code_bytes)

    def test_what_is_not_done_is_cancelled_on_leaving(self) -> None:
        """Leaving waits for nothing: each future has a result or is cancelled."""
        with self.make() as builder:
            futures: list[Future[Build]] = [builder.submit(configuration) for configuration in self.sound() * 3]
        assert all(future.done() for future in futures)


class RunnerContract:
    """The laws of :class:`~mltune.measure.pipeline.Runner`: every build ends in a measurement, failures included.

    Override :meth:`make`, :meth:`builds` and, if there are any, :meth:`failing`.
    """

    def make(self) -> Runner:
        """Return a runner, which the suite enters and leaves."""
        raise NotImplementedError

    def builds(self) -> list[tuple[Mapping[str, int], Build]]:
        """Return configurations with their builds, in state ``OK``, that run and are right."""
        raise NotImplementedError

    def failing(self) -> list[tuple[Mapping[str, int], Build]]:
        """Return configurations with builds, in state ``OK``, that crash, are late or are wrong."""
        return []

    def test_entering_returns_the_runner(self) -> None:
        """``with make() as runner`` names the runner itself."""
        runner = self.make()
        with runner as entered:
            assert entered is runner

    def test_a_right_kernel_has_a_time(self) -> None:
        """The median lies among its samples; nothing is negative."""
        with self.make() as runner:
            for configuration, build in self.builds():
                measurement = runner.submit(configuration, build).result(WAIT_S)
                assert measurement.state is TrialState.OK
                assert measurement.median_s is not None
                assert 0 < measurement.median_s < math.inf
                assert all(sample > 0 for sample in measurement.samples_s)
                assert measurement.noise is None or measurement.noise >= 0

    def test_a_failure_is_a_state_and_never_an_exception(self) -> None:
        """Without a time, and with a reason."""
        with self.make() as runner:
            for configuration, build in self.failing():
                measurement: Measurement = runner.submit(configuration, build).result(WAIT_S)
                assert measurement.state is not TrialState.OK
                assert measurement.median_s is None
                assert measurement.detail

    def test_the_best_time_so_far_may_be_given(self) -> None:
        """A configuration that is much slower need not be sampled to the end; its state stays ``OK``."""
        with self.make() as runner:
            for configuration, build in self.builds():
                assert runner.submit(configuration, build, best_s=1e-12).result(WAIT_S).state is TrialState.OK
