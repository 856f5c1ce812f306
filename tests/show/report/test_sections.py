"""Interruptions are counted whether or not the run could log them."""

import pytest

from mltune.show.report.sections import interruptions

BEGUN, RESUMED = {"event": "plan_started"}, {"event": "resumed"}
TERM = [
    {"event": "interrupted", "signal": "SIGTERM"},
    {"event": "plan_ended", "outcome": "interrupted"},
]
ENDED = {"event": "plan_ended", "outcome": "ended"}
BEST = {"event": "best"}


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ([BEGUN, *TERM], "interrupted once (by SIGTERM)"),
        ([BEGUN, *TERM, RESUMED, ENDED], "interrupted once (by SIGTERM) and resumed"),
        ([BEGUN, BEST, RESUMED, BEST], "interrupted once and resumed"),
        (
            [BEGUN, *TERM, RESUMED, BEST, RESUMED, ENDED],
            "interrupted twice (once by SIGTERM) and resumed",
        ),
        (
            [BEGUN, *TERM, RESUMED, RESUMED, *TERM],
            "interrupted 3 times (twice by SIGTERM) and resumed twice",
        ),
        ([{"event": "run_started"}, {"event": "run_ended", "outcome": "interrupted"}], "interrupted once"),
        (
            [BEGUN, {"event": "interrupted", "signal": ["?"] * 99}],
            "interrupted once (by ['?', '?', '?', '?',)",
        ),
    ],
)
def test_the_sentence(events, text):
    assert interruptions(events) == text


@pytest.mark.parametrize("events", [[], [BEGUN], [BEGUN, ENDED], [BEGUN, ENDED, RESUMED, ENDED], [RESUMED, BEST]])
def test_a_campaign_that_ended_or_goes_on_was_not_interrupted(events):
    assert not interruptions(events)
