"""Calls with limits: what exceeds them ends its process, and nothing else."""

import resource

import pytest

from mltune.errors import DatasetError
from mltune.process import bounded
from mltune.process.bounded import BoundsExceededError, call_bounded


def test_a_result_comes_back_and_no_limit_stays() -> None:
    before = [resource.getrlimit(kind) for kind in (resource.RLIMIT_AS, resource.RLIMIT_CPU)]
    assert call_bounded("math:hypot", 3.0, 4.0) == 5.0
    assert [resource.getrlimit(kind) for kind in (resource.RLIMIT_AS, resource.RLIMIT_CPU)] == before


@pytest.mark.parametrize(
    ("target", "argument", "message"),
    [
        ("builtins:bytes", 300_000_000, "more than 200 MB of memory"),
        ("builtins:sum", range(10**12), "more than 1 s of processor time"),
        ("os:_exit", 3, "exit status 3"),
        ("signal:raise_signal", 11, "signal SIGSEGV"),
        ("math:sqrt", "four", "must be real number"),
    ],
)
def test_what_exceeds_a_limit_or_crashes_is_an_error(
    monkeypatch: pytest.MonkeyPatch, target: str, argument: object, message: str
) -> None:
    monkeypatch.setattr(bounded, "MEMORY_BYTES", 200_000_000)
    monkeypatch.setattr(bounded, "CPU_S", 1.0)
    with pytest.raises(BoundsExceededError, match=message):
        call_bounded(target, argument)


def test_an_error_of_ours_comes_back_as_it_is() -> None:
    with pytest.raises(DatasetError, match="nosuch"):
        call_bounded("mltune.dataset.dataset:load_manifest", "nosuch")
