"""The wisdom of runs on a GPU, which is imaginary here: the user's file is used, and the default stays the first."""

import pytest
from imaginary_gpu import HOSTILE, PROBLEM, ImaginaryBuilder, imaginary_runner

from mltune.device.known import H200
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.kernel.space import TableSpace
from mltune.known.wisdom import Wisdom
from mltune.measure import runner as runner_module
from mltune.resolve.device import Target
from mltune.resolve.request import TuneRequest
from mltune.tuning import tuner
from mltune.tuning.session import Session

KERNEL = load_kernel(HOSTILE)
TIMES_S = (3e-3, 2.2e-3, 2e-3, 2e-3, 4e-3)


@pytest.fixture
def run(tmp_path, idle_workers, monkeypatch):
    """Return a function that tunes five configurations, of which two tie; the user's wisdom is in the folder."""
    monkeypatch.setenv("MLTUNE_WISDOM", str(tmp_path / "wisdom.json"))
    monkeypatch.setattr(runner_module, "_PAUSES_S", ())
    behaviours = {number: {"time_s": time_s, "noise": 0.002} for number, time_s in enumerate(TIMES_S)}

    def opened(*arguments, **options):
        runner = imaginary_runner(pool=idle_workers.pool)
        space = TableSpace({"MISDEED": list(range(len(TIMES_S))), "REPEAT": [1] * len(TIMES_S)})
        default = {"MISDEED": 0, "REPEAT": 1}
        parts = ImaginaryBuilder(behaviours), runner, {"driver": "13.0"}
        return Session(PlacedKernel(KERNEL, PROBLEM, H200, space), *parts, gpu=runner, default=default)

    monkeypatch.setattr(tuner, "open_session", opened)
    monkeypatch.setattr(tuner.Tuner, "_write_winner", lambda *arguments: None)

    def tune(name, deeds=None, **options):
        for misdeed, deed in (deeds or {}).items():
            behaviours[misdeed]["deed"] = deed
        return tuner.tune(TuneRequest(PROBLEM, KERNEL, Target(cuda=0), trials=5, run=tmp_path / name, **options))

    return tune


def test_the_verified_winner_and_its_ties_are_added_and_measured_next_time(run, tmp_path):
    result = run("first")
    assert result.settled
    entries = list(Wisdom.load(tmp_path / "wisdom.json"))
    assert [one.configuration["MISDEED"] for one in entries] == [2, 3]
    assert all(one.verified and one.default_s == 3e-3 and one.driver == "13.0" for one in entries)
    (best,) = Wisdom(entries).best
    assert best.configuration["MISDEED"] == 2  # the first of a tie, whichever won the race

    again = run("again")

    first = [(record.configuration["MISDEED"], record.proposed_by) for record in again.records[:2]]
    assert first == [(2, "wisdom"), (0, "default")]
    assert again.best_time_s < 3e-3


@pytest.mark.parametrize(
    ("deed", "reason"),
    [("no build", "crashed: the compiler died"), ("retire", "crashed: "), ("wrong at full size", "wrong_result")],
)
@pytest.mark.sampled(2, nightly=99)
def test_what_fails_here_is_not_proposed_again(run, tmp_path, deed, reason):
    """Of the two that tie the first fails: the next run takes the other, and the one after that as well."""
    run("first")
    failed = run("second", {2: deed})
    assert proposed(failed) == [2]

    for name in ("third", "fourth"):
        assert proposed(run(name)) == [3]
    outcomes = {one.configuration["MISDEED"]: one for one in Wisdom.load(tmp_path / "wisdom.json")}
    assert reason in outcomes[2].failed
    assert outcomes[3].verified


def proposed(result):
    return [one.configuration["MISDEED"] for one in result.records if one.proposed_by == "wisdom"]


def test_what_fails_is_known_where_no_trial_succeeds(run, tmp_path):
    run("first")
    assert run("second", {**dict.fromkeys(range(5), "no build"), 2: "die"}).best is None
    assert [one.configuration["MISDEED"] for one in Wisdom.load(tmp_path / "wisdom.json").best] == [3]


def test_it_can_be_switched_off(run, tmp_path):
    run("first", wisdom="none")
    assert not (tmp_path / "wisdom.json").exists()


def test_a_damaged_file_of_the_user_is_a_warning_and_stays_as_it_is(run, tmp_path):
    (tmp_path / "wisdom.json").write_text("nonsense")
    with pytest.warns(UserWarning, match="is no wisdom") as warned:
        result = run("first")
    assert len(warned) == 2
    assert result.best is not None
    assert (tmp_path / "wisdom.json").read_text() == "nonsense"
