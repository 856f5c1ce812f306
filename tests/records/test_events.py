"""The event log: what is written is read, and a damaged file stops neither run nor reader."""

import json
import math
import os
import subprocess
import sys
import threading
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltune.records.events import (
    EVENTS,
    EVERYWHERE,
    FILE,
    LONGEST_LINE,
    MOST_BYTES,
    EventLog,
    planned,
    read_events,
)
from mltune.results.messages import message

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def written(directory, *events):
    log = EventLog(directory)
    for event, facts in events:
        log.write(event, **facts)
    return directory / FILE


def test_what_is_written_comes_back_in_order(tmp_path):
    path = written(tmp_path, ("run_started", {"pid": 7, "versions": {"mltune": "1"}}), ("best", {"number": 3}))
    events, _ = read_events(path)
    assert [event["event"] for event in events] == ["run_started", "best"]
    assert events[0]["versions"] == {"mltune": "1"}
    assert datetime.fromisoformat(events[0]["at"]).utcoffset().total_seconds() == 0


def test_every_event_takes_all_of_its_fields(tmp_path):
    path = written(tmp_path, *((name, dict.fromkeys(fields | EVERYWHERE, 1)) for name, fields in EVENTS.items()))
    events, _ = read_events(path)
    assert {event["event"]: event.keys() - {"at", "event"} - EVERYWHERE for event in events} == EVENTS


@pytest.mark.parametrize(("event", "facts"), [("eureka", {}), ("best", {"tflop": 1.0}), ("gpu_back", {"at": "now"})])
def test_an_unknown_event_or_field_is_a_mistake_in_the_program(tmp_path, event, facts):
    with pytest.raises(ValueError, match="EVENTS"):
        EventLog(tmp_path).write(event, **facts)


@given(message=PLAIN)
def test_lines_are_strict_json(tmp_path_factory, message):
    path = written(tmp_path_factory.mktemp("log"), ("progress", {"message": message}))

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    (line,) = path.read_text().splitlines()
    json.loads(line, parse_constant=refuse)
    assert len(read_events(path)[0]) == 1


def test_numbers_of_numpy_are_numbers_and_what_is_not_finite_is_none(tmp_path):
    facts = {
        "number": np.int64(4),
        "tflops": np.float64(2.5),
        "share_of_peak": math.nan,
        "share_of_reference": math.inf,
    }
    (event,), _ = read_events(written(tmp_path, ("best", facts)))
    assert [event[name] for name in facts] == [4, 2.5, None, None]


def test_long_texts_are_cut(tmp_path):
    (event,), _ = read_events(written(tmp_path, ("failure", {"detail": "x" * 10**6})))
    assert event["detail"] == "x" * 299 + "…"


def test_reading_goes_on_where_it_ended_and_leaves_a_torn_line_for_later(tmp_path):
    path = written(tmp_path, ("interrupted", {"signal": "SIGINT"}))
    first, offset = read_events(path)
    line = b'{"at": "2026-01-01T00:00:00+00:00", "event": "gpu_lost"}\n'
    with path.open("ab") as file:
        file.write(line[:20])
    assert read_events(path, offset) == ([], offset)
    with path.open("ab") as file:
        file.write(line[20:])
    second, _ = read_events(path, offset)
    assert [event["event"] for event in first + second] == ["interrupted", "gpu_lost"]


def test_a_file_that_was_truncated_is_read_from_its_beginning(tmp_path):
    path = written(tmp_path, *[("best", {"number": number}) for number in range(9)])
    _, offset = read_events(path)
    path.unlink()
    written(tmp_path, ("resumed", {}))
    assert [event["event"] for event in read_events(path, offset)[0]] == ["resumed"]


@pytest.mark.parametrize(
    "garbage",
    [
        b"\n",
        b"\x00" * 100 + b"\n",
        b"\xff\xfe{\n",
        b"[1, 2]\n",
        b'{"event": "best"}\n',
        b'{"at": 1, "event": 2}\n',
        b"[" * 50_000 + b"\n",
        b"9" * 10_000 + b"\n",
        b'{"at": "' + b"x" * 3 * LONGEST_LINE + b'", "event": "best"}\n',
    ],
    ids=lambda garbage: repr(garbage[:12]),
)
def test_garbage_is_passed_over(tmp_path, garbage):
    path = tmp_path / FILE
    path.write_bytes(garbage)
    written(tmp_path, ("gpu_back", {"lost_s": 3.0}))
    events, offset = read_events(path)
    assert [event["event"] for event in events] == ["gpu_back"]
    assert offset == path.stat().st_size


@pytest.mark.parametrize("make", [lambda path: None, Path.mkdir], ids=["nothing", "a folder"])
def test_where_there_is_no_file_there_are_no_events(tmp_path, make):
    make(tmp_path / FILE)
    assert read_events(tmp_path / FILE, 100) == ([], 0)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("canary")], ids=["FIFO", "link"])
def test_what_is_no_file_is_neither_read_nor_written(tmp_path, make):
    written(tmp_path, ("best", {"number": 1})).rename(tmp_path / "canary")
    before = (tmp_path / "canary").read_bytes()
    make(tmp_path / FILE)
    log = EventLog(tmp_path)
    log.write("resumed", trials=1)
    assert log.dropped == 1
    assert read_events(tmp_path / FILE) == ([], 0)
    assert (tmp_path / "canary").read_bytes() == before


def test_a_large_file_is_read_in_parts(tmp_path):
    path = written(tmp_path, ("best", {"number": 1}))
    with path.open("ab") as file:
        file.truncate(3 * MOST_BYTES)  # sparse: one line of zeros
        file.seek(3 * MOST_BYTES)
        file.write(b"\n")
    written(tmp_path, ("best", {"number": 2}))
    found, offset = [], 0
    for _ in range(4):
        before = offset
        events, offset = read_events(path, before)
        assert offset - before <= MOST_BYTES + LONGEST_LINE
        found += events
    assert offset == path.stat().st_size
    assert [event["number"] for event in found] == [1, 2]


@pytest.mark.parametrize(
    "number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 400, '"7"', "true", "[7]", '{"7": 7}', "null"]
)
def test_what_is_no_number_is_none(tmp_path, number):
    (tmp_path / FILE).write_text(f'{{"at": "now", "event": "best", "number": 1, "tflops": {number}}}\n')
    (event,), _ = read_events(tmp_path / FILE)
    assert (event["number"], event["tflops"]) == (1, None)


@given(
    st.sampled_from(sorted(EVENTS)).flatmap(
        lambda name: st.fixed_dictionaries(
            {"event": st.just(name), "at": PLAIN},
            optional=dict.fromkeys(EVENTS[name] | EVERYWHERE, PLAIN),
        )
    )
)
def test_a_field_has_its_type_whatever_is_written(tmp_path_factory, document):
    path = tmp_path_factory.mktemp("log") / FILE
    path.write_text(json.dumps(document) + "\n")
    events, _ = read_events(path)
    assert len(events) == isinstance(document["at"], str)
    for event in events:
        texts = [event.get(name) for name in ("slug", "device", "detail", "kernel", "message", "outcome", "problem")]
        assert all(text is None or (isinstance(text, str) and len(text) <= 300) for text in texts)
        assert all(isinstance(event.get(name) or [], list) for name in ("devices", "runs", "ties"))
        assert all(isinstance(event.get(name) or {}, dict) for name in ("versions", "seconds", "rejected"))
        numbers = [event.get(name) for name in ("trials", "done", "elapsed_s", "tflops", "pid", "left_s", "number")]
        assert all(number is None or math.isfinite(number) for number in numbers)
        assert planned([event]) == [] or event["event"] == "plan_started"
        assert message(event).isprintable()


def test_only_names_of_problems_are_planned(tmp_path):
    problems = ["sgemm-nt-4096", "../../etc", "\x1b[2J", 7, "", "-"]
    events, _ = read_events(written(tmp_path, ("plan_started", {"problems": problems})))
    assert planned(events) == ["sgemm-nt-4096"]


def test_a_place_that_cannot_be_written_drops_events_and_counts_them(tmp_path):
    log = EventLog(tmp_path / "not-yet")
    log.write("interrupted", signal="SIGINT")
    log.write("interrupted", signal="SIGINT")
    (tmp_path / "not-yet").mkdir()
    log.write("resumed")
    log.write("best")
    assert [event.get("dropped") for event in read_events(log.path)[0]] == [2, None]


def test_a_disk_that_was_full_for_a_while_loses_nothing_after_it(tmp_path):
    script = """
import resource, sys
from pathlib import Path
from mltune.records.events import EventLog
log = EventLog(Path(sys.argv[1]))
log.write("resumed", trials=0)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (log.path.stat().st_size + 30, hard))
log.write("best", number=1)
log.write("best", number=2)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
log.write("best", number=3)
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=300)
    events, _ = read_events(tmp_path / FILE)
    assert [(event["event"], event.get("number"), event.get("dropped")) for event in events] == [
        ("resumed", None, None),
        ("best", 3, 2),
    ]


def test_several_writers_share_a_file(tmp_path):
    def write(writer):
        for number in range(200):
            EventLog(tmp_path).write("failure", slug=str(writer), number=number, detail="x" * 200)

    writers = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    events, _ = read_events(tmp_path / FILE)
    for writer in range(4):
        assert [event["number"] for event in events if event["slug"] == str(writer)] == list(range(200))


def test_progress_is_written_once_a_minute_unless_it_must_be(tmp_path):
    log = EventLog(tmp_path)
    for _ in range(5):
        log.snapshot([{"trials": 1}])
    log.snapshot([{"trials": 2}], at_once=True, left_s=0.0)
    events, _ = read_events(log.path)
    assert [event["runs"] for event in events] == [[{"trials": 1}], [{"trials": 2}]]
