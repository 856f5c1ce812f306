"""How often a night broke off is counted whether or not it could say so."""

import pytest

from mltune.report.breaks import breaks

BEGUN, RESUMED = {"event": "plan_started"}, {"event": "resumed"}
TERM = [
    {"event": "interrupted", "signal": "SIGTERM"},
    {"event": "plan_ended", "outcome": "interrupted"},
]
ENDED = {"event": "plan_ended", "outcome": "ended"}
BEST = {"event": "best"}


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ([BEGUN, *TERM], "the night was broken off once (by SIGTERM)"),
        ([BEGUN, *TERM, RESUMED, ENDED], "the night was broken off once (by SIGTERM) and gone on with"),
        ([BEGUN, BEST, RESUMED, BEST], "the night was broken off once and gone on with"),
        (
            [BEGUN, *TERM, RESUMED, BEST, RESUMED, ENDED],
            "the night was broken off twice (once by SIGTERM) and gone on with",
        ),
        (
            [BEGUN, *TERM, RESUMED, RESUMED, *TERM],
            "the night was broken off 3 times (twice by SIGTERM) and gone on with twice",
        ),
        ([{"event": "run_started"}, {"event": "run_ended", "outcome": "interrupted"}], "the night was broken off once"),
        (
            [BEGUN, {"event": "interrupted", "signal": ["?"] * 99}],
            "the night was broken off once (by ['?', '?', '?', '?',)",
        ),
    ],
)
def test_breaks_are_told(events, told):
    assert breaks(events).told() == told


@pytest.mark.parametrize("events", [[], [BEGUN], [BEGUN, ENDED], [BEGUN, ENDED, RESUMED, ENDED], [RESUMED, BEST]])
def test_a_night_that_ended_or_goes_on_did_not_break_off(events):
    assert not breaks(events)
