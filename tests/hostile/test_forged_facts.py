"""A fact of a run that no run writes, with a right checksum, is ignored with a notice or refused with a sentence."""

import json

import pytest

from mltune.records.facts import NAMES, NEEDED
from tests.hostile.base import record_run
from tests.hostile.cases import Case
from tests.hostile.stores import edited
from tests.hostile.suite import check
from tests.hostile.values import XSS

COMMANDS = ("show", "show_json", "export", "report", "dashboard", "resume", "show")
"""Each is run on one forged store, the last after a resume that may have repaired it."""

FACTS = (
    *("accuracy", "choice", "declaration", "limit", "model", "plans", "reference_median_s", "scored", "skipped"),
    *("stages", "stopping", "whole", "wisdom"),
)
VALUES = {
    "text": XSS,
    "long-text": "long " * 100_000,
    "list": [1, [2.5], {"number": 0}],
    "object": {"number": "0", "reason": 3, "trials": 0, "valid": -1, "finalists": {}},
    "nan": float("nan"),
    "infinity": float("inf"),
    "negative": -1,
    "huge": 2**63 - 1,
    "huge-float": 1e308,
    "truth": True,
}
PARTS = {
    "stopping-before-the-first-batch": ("stopping", {"reason": "little is gained", "batch": -3}),
    "stopping-with-a-goal": ("stopping", {"reason": ["goal"], "batch": 2}),
    "whole-that-ends-before-it-begins": ("whole", {"since": 7, "until": 2, "detail": XSS}),
    "plans-far-away": ("plans", [{"batch": 2**53, "known": 2**53, "first": 2**53 - 4096, "size": 4096}]),
    "plans-of-nobody": ("plans", [{"batch": 0, "known": -1, "first": 2**63, "size": 0}]),
    "plans-of-the-same-trials": (
        "plans",
        [{"batch": at, "known": 9 - at, "first": 2, "size": 4096} for at in range(9)],
    ),
    "limit-without-end": ("limit", {"trials": 2**63 - 1, "time_s": float("inf")}),
    "limit-of-nothing": ("limit", {}),
    "stages-of-nan": ("stages", {"valid": "9" * 300, "compilers": float("nan")}),
    "scored-more-than-are-kept": ("scored", list(range(5_000))),
    "skipped-twice": ("skipped", [3, 3, 3]),
    "wisdom-of-another-kernel": ("wisdom", [{"another": 1}]),
    "wisdom-out-of-range": ("wisdom", [{"TBX": 2**53 - 1}]),
    "wisdom-of-nothing": ("wisdom", [{}]),
    "declaration-of-no-finalist": ("declaration", {"number": 0, "finalists": []}),
    "declaration-of-another-trial": (
        "declaration",
        {"number": 7_000, "finalists": [{"number": 7_000, "median_s": 1e-3, "low_s": 1e-3, "high_s": 1e-3}]},
    ),
    "declaration-in-no-time": (
        "declaration",
        {"number": 0, "finalists": [{"number": 0, "median_s": 0.0, "low_s": 0.0, "high_s": 0.0}]},
    ),
}
FORGED = {f"{fact}-{name}": (fact, value) for fact in FACTS for name, value in VALUES.items()} | PARTS


VALUES_IGNORED = {f"{fact}-list" for fact in FACTS if fact not in NEEDED}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return record_run(tmp_path_factory.mktemp("honest"), "store")


def test_all_facts_are_forged():
    assert {*FACTS} == NAMES


@pytest.mark.sampled(4, nightly=10)
@pytest.mark.parametrize("name", FORGED)
def test_a_forged_fact_is_ignored_or_refused(name, base, sandbox, tmp_path):
    fact, value = FORGED[name]

    def forge(place):
        with edited(place) as database:
            database.execute("DELETE FROM facts WHERE name = ?", (fact,))
            database.execute("INSERT INTO facts VALUES (?, ?, 0)", (fact, json.dumps(value)))

    failures, outcomes = check(Case("store", name, forge, COMMANDS), tmp_path / "input", base, sandbox, len(COMMANDS))
    assert failures == []
    if name in VALUES_IGNORED:
        assert "a fact that no run writes is ignored" in " ".join(outcomes[0].output.split())
