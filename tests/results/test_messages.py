"""Every event has a message of one printable line, whatever its fields hold."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltune.records.events import EVENTS, EVERYWHERE
from mltune.results.messages import MESSAGES, message

VALUE = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers()) | st.just({"a": 1})
)


def test_every_event_has_a_message_of_its_own_fields():
    assert MESSAGES.keys() == EVENTS.keys()
    for event, text in MESSAGES.items():
        assert set(re.findall(r"{(\w+)}", text)) <= EVENTS[event] | {"rated"}


@given(
    st.sampled_from([*EVENTS, "eureka"]).flatmap(
        lambda name: st.fixed_dictionaries(
            {"event": st.just(name), "at": st.text(max_size=30)},
            optional=dict.fromkeys(EVENTS.get(name, frozenset()) | EVERYWHERE, VALUE),
        )
    )
)
def test_whatever_it_holds_it_is_one_printable_line(event):
    assert message(event).isprintable()


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (
            {"event": "best", "tflops": 45.314, "share_of_reference": 0.983, "number": 7, "slug": "sgemm-nt-64"},
            "sgemm-nt-64: best so far 45.31 TFLOPS, 98.3 % of cuBLAS (trial 7)",
        ),
        ({"event": "failure", "number": 3, "state": "crashed", "detail": "it\ndied"}, "trial 3 crashed: it died"),
        (
            {"event": "best", "tflops": 11.9, "share_of_reference": None, "number": 7},
            "best so far 11.90 TFLOPS (trial 7)",
        ),
        (
            {
                "event": "best",
                "gb_per_s": 4012.3,
                "tflops": None,
                "median_s": 1e-4,
                "share_of_peak": 0.833,
                "number": 7,
            },
            "best so far 4012 GB/s, 83.3 % of the memory bandwidth (trial 7)",
        ),
        (
            {"event": "best", "median_s": 2e-3, "share_of_reference": 1.2, "reference": "default", "number": 7},
            "best so far 2.0000 ms, 120.0 % of default (trial 7)",
        ),
        ({"event": "declared", "number": 7, "tflops": 11.9}, "winner declared: trial 7, 11.90 TFLOPS"),
        ({"event": "best", "tflops": 10**400, "median_s": "late", "number": 7}, "best so far ? (trial 7)"),
        ({"event": "gpu_back", "lost_s": 75.0, "device": "cuda:1"}, "cuda:1: GPU back after 1m15s"),
        ({"event": "plan_started", "plan": "overnight", "problems": ["a", "b"]}, "plan overnight started: 2 problems"),
        ({"event": "best", "share_of_reference": 0.5, "reference": "BLIS"}, "best so far 50.0 % of BLIS (trial ?)"),
        ({"event": "eureka", "depth": 3}, "eureka depth=3"),
    ],
)
def test_the_message(event, text):
    at = "2026-01-01T12:00:00.000+00:00"
    clock = time.strftime("%H:%M:%S", time.localtime(1767268800))
    assert message({"at": at, **event}) == f"{clock} {text}"
