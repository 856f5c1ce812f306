"""Finals in replay, and with a runner whose GPU is simulated."""

from dataclasses import replace

import pytest
from imaginary_gpu import HOSTILE, PROBLEM, REFERENCE_S, ImaginaryBuilder, imaginary_runner

from mltune.dataset.dataset import load_dataset
from mltune.device.known import H200
from mltune.errors import DeviceLostError
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.kernel.space import TableSpace
from mltune.measure import runner as runner_module
from mltune.records.declaration import Declaration, Drift, Reference
from mltune.records.trial import Measurement, TrialRecord, TrialState
from mltune.records.trials import Trials
from mltune.resolve.device import parse_device
from mltune.resolve.request import TuneRequest
from mltune.tuning.finals import CANDIDATES, FINALISTS, Finals, doubtful
from mltune.tuning.session import Session, open_session


def columns(records):
    return Trials.from_records(records, records[0].configuration if records else ())


def declared(session, records, **options):
    return Finals(session, columns(records), **options).declare()


def trial(number, time_s, state=TrialState.OK, samples=3):
    measured = Measurement(state, samples_s=(time_s,) * samples, median_s=time_s, noise=0.0)
    return TrialRecord(number, 0, number, {"MISDEED": number, "REPEAT": 1}, state, measurement=measured)


@pytest.fixture
def imagined(idle_workers, monkeypatch):
    """Return a function that opens a session with an imaginary GPU whose behaviour is given by trial."""
    monkeypatch.setattr(runner_module, "_PAUSES_S", ())

    def session(behaviours, pool=idle_workers.pool):
        runner = imaginary_runner(pool=pool)
        space = TableSpace({"MISDEED": [0], "REPEAT": [1]})
        return Session(
            PlacedKernel(load_kernel(HOSTILE), PROBLEM, H200, space),
            ImaginaryBuilder(behaviours),
            runner,
            {},
            gpu=runner,
        )

    return session


def test_the_fastest_is_declared_where_every_time_is_in_doubt_and_a_race_takes_too_long(imagined):
    records = [trial(0, 2.1, TrialState.UNSTABLE), trial(1, 2.0, TrialState.UNSTABLE)]
    with imagined({0: {"time_s": 2.1}, 1: {"time_s": 2.0}}) as session:
        found = declared(session, records)

    assert (found.number, found.rounds, found.verified) == (1, 0, True)


def test_a_race_takes_no_longer_than_is_allowed(imagined):
    records = [trial(number, 0.02) for number in range(4)]
    with imagined({number: {"time_s": 0.02} for number in range(4)}) as session:
        assert declared(session, records, race_s=0.5).rounds < declared(session, records).rounds


def test_the_fastest_of_the_race_is_declared_with_its_ties_and_its_share_of_reference(imagined):
    """On record trial 1 is the fastest; timed side by side it is trial 2."""
    records = [trial(0, 2.3e-3), trial(1, 1.99e-3), trial(2, 2.0e-3), trial(3, 2.01e-3)]
    behaviours = {0: {"time_s": 2.3e-3}, 1: {"time_s": 2.1e-3}, 2: {"time_s": 2.0e-3}, 3: {"time_s": 2.0001e-3}}
    for behaviour in behaviours.values():
        behaviour["noise"] = 0.002
    with imagined(behaviours) as session:
        found = declared(session, records)

    assert found.number in (2, 3)
    assert found.ties == tuple({2, 3} - {found.number})
    assert [one.number for one in found.finalists[2:]] == [1, 0]
    assert found.reference.ratio == pytest.approx(REFERENCE_S / 2e-3, rel=0.01)
    assert found.reference.ratio_low < REFERENCE_S / 2e-3 < found.reference.ratio_high
    assert found.verified
    assert found.rounds == 31
    assert found.as_of == 4
    assert Declaration.from_json(found.to_json()) == found


def test_a_trial_that_fails_the_verification_is_rejected_and_the_next_is_verified(imagined):
    records = [trial(0, 2.0e-3), trial(1, 2.1e-3), trial(2, 2.2e-3)]
    behaviours = {0: {"time_s": 2.0e-3, "deed": "wrong at full size"}, 1: {"time_s": 2.1e-3}, 2: {"time_s": 2.2e-3}}
    with imagined(behaviours) as session:
        found = declared(session, records)

    assert found.number == 1
    assert found.verified
    assert list(found.rejected) == [0]
    assert "wrong" in found.rejected[0]
    assert found.finalists[1].ratio == pytest.approx(2.2 / 2.1)


def test_a_loser_is_not_verified(imagined):
    records = [trial(0, 2.0e-3), trial(1, 2.1e-3)]
    behaviours = {0: {"time_s": 2.0e-3}, 1: {"time_s": 2.1e-3, "deed": "wrong at full size"}}
    with imagined(behaviours) as session:
        found = declared(session, records)

    assert (found.number, dict(found.rejected)) == (0, {})


def test_a_tie_is_verified(imagined):
    records = [trial(0, 2.0e-3), trial(1, 2.0e-3)]
    behaviours = {0: {"time_s": 2.0e-3}, 1: {"time_s": 2.0e-3, "deed": "wrong at full size"}}
    with imagined(behaviours) as session:
        found = declared(session, records)

    assert found.number == 0
    assert list(found.rejected) == [1]


def test_when_the_time_is_up_the_winner_is_verified_but_no_tie(imagined):
    records = [trial(0, 2.0e-3), trial(1, 2.0e-3), trial(2, 2.0e-3)]
    wrong = {"time_s": 2.0e-3, "deed": "wrong at full size"}
    with imagined({0: wrong, 1: {"time_s": 2.0e-3}, 2: wrong}) as session:
        found = declared(session, records, until=0.0)

    assert (found.number, found.verified, list(found.rejected)) == (1, True, [0])


def test_when_a_whole_set_fails_the_next_is_tried(imagined):
    wrong = {number: {"deed": "wrong at full size"} for number in range(FINALISTS)}
    with imagined({**wrong, 7: {"time_s": 3e-3}}) as session:
        found = declared(session, [*(trial(number, 2e-3) for number in range(FINALISTS)), trial(7, 3e-3)])

    assert found.number == 7
    assert found.verified
    assert len(found.rejected) == FINALISTS


def test_when_all_fail_none_is_declared(imagined):
    with imagined({0: {"deed": "wrong at full size"}, 1: {"deed": "no build"}}) as session:
        assert declared(session, [trial(0, 2e-3), trial(1, 2e-3)]) is None
        assert declared(session, []) is None


def test_what_cannot_be_built_again_is_rejected(imagined):
    with imagined({0: {"deed": "no build"}, 1: {"time_s": 2.1e-3}}) as session:
        found = declared(session, [trial(0, 2e-3), trial(1, 2.1e-3)])

    assert found.number == 1
    assert "the compiler died" in found.rejected[0]


def test_when_stopped_it_declares_what_is_on_record_and_leaves_the_gpu_alone(imagined, idle_workers):
    (idle_workers.folder / "absent").touch()
    with imagined({}, pool=None) as session:
        found = declared(session, [trial(0, 2.1e-3), trial(1, 2e-3)], stop=lambda: True)

    assert found.number == 1
    assert not found.verified
    assert found.rounds == 0
    assert found.reference is None


def test_when_stopped_after_the_race_it_declares_the_race(imagined):
    answers = iter([False, False, False])  # before the builds, and before each of them ends
    with imagined({0: {"time_s": 2e-3}, 1: {"time_s": 1.9e-3}}) as session:
        found = declared(session, [trial(0, 2e-3), trial(1, 2e-3)], stop=lambda: next(answers, True))

    assert found.number == 1
    assert found.rounds == 31
    assert not found.verified


def test_kernels_of_seconds_are_not_raced(imagined):
    with imagined({0: {"time_s": 2.0}, 1: {"time_s": 2.1}}) as session:
        found = declared(session, [trial(0, 2.0), trial(1, 2.1)])

    assert found.number == 0
    assert found.rounds == 0
    assert found.verified


def test_a_race_that_kills_its_worker_leaves_what_is_on_record(imagined):
    with imagined({0: {"deed": "die in a race"}, 1: {}}) as session:
        found = declared(session, [trial(0, 2e-3), trial(1, 2.1e-3)])

    assert found.number == 0
    assert found.rounds == 0


def test_a_lost_gpu_is_an_error(imagined):
    with imagined({0: {"deed": "take the GPU along in a race"}, 1: {}}) as session, pytest.raises(DeviceLostError):
        declared(session, [trial(0, 2e-3), trial(1, 2.1e-3)])


def test_what_was_slow_while_the_gpu_was_slow_gets_a_second_chance(imagined):
    """The last two trials ran while the reference took 20 % longer; timed again, the last is the fastest."""
    times_s = [2.0e-3 + 1e-6 * number for number in range(CANDIDATES)] + [2.5e-3, 2.3e-3, 2.35e-3]
    records = [trial(number, time_s) for number, time_s in enumerate(times_s)]
    slowed, last = CANDIDATES + 1, CANDIDATES + 2
    references = [Reference(after, 0.0, time_s) for after, time_s in ((0, 3e-3), (slowed, 3e-3), (last + 1, 3.6e-3))]
    behaviours = {number: {"time_s": time_s} for number, time_s in enumerate(times_s)}
    behaviours |= {slowed: {"time_s": 1.95e-3}, last: {"time_s": 1.9e-3}}
    with imagined(behaviours) as session:
        found = declared(session, records, references=references)

    assert found.number == last
    assert slowed in {one.number for one in found.finalists}
    assert len(found.finalists) == FINALISTS


@pytest.mark.parametrize(("race_s", "first"), [(3.0, 12), (0.05, 0)])
def test_finalists_are_the_best_of_a_heat_if_there_is_time(imagined, race_s, first):
    """The longer a kernel runs, the slower is that which draws much power: on record only the others were slower."""
    records = [trial(number, 2e-3 + 1e-6 * number) for number in range(15)]
    with imagined({number: {"time_s": 2e-3 if number == 12 else 2.2e-3} for number in range(15)}) as session:
        found = declared(session, records, race_s=race_s)

    assert found.rounds >= 2
    assert found.number == first
    assert len(found.finalists) == FINALISTS


def test_where_a_heat_fails_the_fastest_on_record_race(imagined):
    records = [trial(number, 2e-3 + 1e-5 * number) for number in range(8)]
    behaviours = {number: {"time_s": 2e-3 - 1e-5 * number} for number in range(8)} | {7: {"deed": "die in a race"}}
    with imagined(behaviours) as session:
        found = declared(session, records)

    assert found.rounds >= 2
    assert sorted(one.number for one in found.finalists) == [*range(FINALISTS)]
    assert found.number == FINALISTS - 1


def test_workspaces_that_fill_the_memory_are_not_entered_in_a_heat(imagined, monkeypatch):
    records = [trial(number, 2e-3 + 1e-6 * number) for number in range(8)]
    with imagined({number: {"time_s": 2e-3 if number == 7 else 2.2e-3} for number in range(8)}) as session:
        assert declared(session, records).number == 7
        launch = session.placed.launch({"MISDEED": 0, "REPEAT": 1})
        large = replace(launch, workspace_bytes=int(H200.memory_bytes / 60))
        monkeypatch.setattr(type(session.placed.kernel), "launch", lambda *_: large)
        assert declared(session, records).number < FINALISTS


def test_a_noisy_time_gets_a_second_chance(imagined):
    records = [trial(0, 2e-3), trial(1, 1.95e-3, TrialState.UNSTABLE)]
    with imagined({0: {"time_s": 2e-3}, 1: {"time_s": 1.9e-3}}) as session:
        assert declared(session, records).number == 1
        assert declared(session, records, stop=lambda: True).number == 0, "on record it is too noisy to count"


def test_only_what_might_be_among_the_fastest_is_doubtful():
    records = [trial(number, 2e-3 + 1e-5 * number) for number in range(10)]
    fastest = records[:5]
    slowed, spurred = Drift(5, 10, 1.02), Drift(5, 10, 0.9)

    assert [one.number for one in doubtful(columns(records), [slowed], fastest)] == [5, 6, 7]
    assert doubtful(columns(records), [spurred], fastest) == []
    assert doubtful(columns(records), [], fastest) == []
    assert [one.number for one in doubtful(columns(records), [slowed], fastest, {5})] == [6, 7, 8]
    failed = replace(records[6], state=TrialState.WRONG_RESULT)
    assert failed not in doubtful(columns([*records[:6], failed]), [slowed], fastest)


def test_in_replay_what_is_on_record_decides():
    name = "h200-sgemm-nt-1024-random"
    dataset = load_dataset(name)
    measured = dataset.measurements()
    records = [
        TrialRecord(number, 0, number, {}, one.state, measurement=one)
        for number, one in enumerate(measured)
        if one is not None
    ]
    request = TuneRequest(dataset.manifest.problem, load_kernel("gemm_simt"), parse_device(f"replay:{name}"))
    with open_session(request) as session:
        found = declared(session, records, stop=lambda: True)

    fastest = min((one.median_s, at) for at, one in enumerate(measured) if one and one.state is TrialState.OK)
    assert (found.winner.median_s, found.number) == (pytest.approx(fastest[0]), fastest[1])
    assert len(found.finalists) == FINALISTS
    assert not found.verified, "in replay nothing is verified"
    assert found.reference is None
    assert found.winner.low_s <= found.winner.median_s <= found.winner.high_s
