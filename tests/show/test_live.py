"""The live display of progress: on a terminal, in a log file, on narrow terminals."""

import os
import pty
import re
import struct
import subprocess
import sys
import termios
from dataclasses import replace
from fcntl import ioctl
from pathlib import Path

import pytest

from mltune.results.progress import CampaignProgress, Progress
from mltune.show import live as progress
from mltune.show.live import RunDisplay, campaign_line, run_line

STATE = Progress(
    problem="sgemm NT 4096",
    device="cuda:0",
    slug="sgemm-nt-4096",
    trials=612,
    elapsed_s=125.0,
    counts={"ok": 341, "skipped": 230, "launch_error": 41, "crashed": 0},
    audited=18,
    best_tflops=45.314,
    best_share_of_reference=0.983,
    best_share_of_peak=0.678,
    trials_per_min=512.4,
    left_s=70.2,
    trials_limit=1000,
)


CAMPAIGN = CampaignProgress((STATE,), done=3, problems=26, elapsed_s=8000.0, left_s=20_000.0)


def test_a_line_says_what_one_wants_to_know():
    assert run_line(STATE) == (
        "sgemm NT 4096 on cuda:0: best 45.31 TFLOPS, 98.3 % of cuBLAS, 67.8 % of the peak · "
        "612 of 1000 trials: 341 ok, 230 skipped, 41 launch_error · 18 audited · 512 trials/min · 2m05s, 1m10s left"
    )
    assert campaign_line(CAMPAIGN) == "3 of 26 problems done · 2h13m, 5h33m left"


TRANSPOSE = replace(
    STATE,
    problem="transpose 8192",
    device="cuda:1",
    reference="default",
    best_s=1.34e-4,
    best_tflops=None,
    best_gb_per_s=4012.3,
    best_share_of_reference=1.17,
    best_share_of_peak=0.833,
)


def test_a_line_is_in_the_unit_of_its_problem():
    assert run_line(TRANSPOSE).startswith(
        "transpose 8192 on cuda:1: best 4012 GB/s, 117.0 % of default, 83.3 % of the memory bandwidth · 612 of"
    )
    in_ms = replace(TRANSPOSE, best_gb_per_s=None, best_share_of_peak=None)
    assert run_line(in_ms).startswith("transpose 8192 on cuda:1: best 0.1340 ms, 117.0 % of default · 612 of")
    assert TRANSPOSE.to_json()["best_gb_per_s"] == 4012.3


def test_a_picture_of_several_devices_has_a_column_for_each_unit():
    _, table = progress._campaign_picture(replace(CAMPAIGN, runs=(STATE, TRANSPOSE)))
    columns = {column.heading: column for column in table.columns}
    cells = [(columns["TFLOPS"].text(run), columns["GB/s"].text(run)) for run in table.rows]
    assert cells == [("45.31", "-"), ("-", "4012")]


def test_what_is_not_known_is_left_out():
    bare = Progress(problem="p", device="replay:x", trials=0, elapsed_s=0.0, counts={})
    assert run_line(bare) == "p on replay:x: nothing found yet · 0 trials: none · 0s"
    assert "· 1 trial: none ·" in run_line(replace(bare, trials=1))
    assert campaign_line(replace(CAMPAIGN, left_s=None)) == "3 of 26 problems done · 2h13m"


def test_a_campaign_counts_the_share_of_its_budget():
    """Not of the problems that have had their minimum: the search goes on after that."""
    in_trials = replace(CAMPAIGN, done=26, left_s=None, trials=300, trials_limit=1200)
    assert in_trials.share_done == 0.25
    assert campaign_line(in_trials) == "26 of 26 problems done · 300 of 1200 trials · 2h13m"
    assert replace(CAMPAIGN, done=26).share_done == pytest.approx(8 / 28)
    assert replace(in_trials, trials=2000).share_done == 1.0


class TestWithoutATerminal:
    def test_a_short_run_tells_nothing(self, capsys):
        with RunDisplay() as display:
            display(STATE)
            display(replace(STATE, trials=700))
        assert capsys.readouterr() == ("", "")

    def test_a_line_when_it_is_time_and_one_at_the_end(self, capsys, monkeypatch):
        monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
        with RunDisplay() as display:
            display(STATE)
            monkeypatch.setattr(progress, "LINE_EVERY_S", 1e9)
            for trials in (700, 800, 900):
                display(replace(STATE, trials=trials))
        out, err = capsys.readouterr()
        assert out == ""
        assert re.findall(r"^\d\d:\d\d:\d\d sgemm NT 4096 on cuda:0: .* (\d+) of 1000 trials", err, re.MULTILINE) == [
            "612",
            "700",
            "900",
        ]

    def test_messages_and_new_problems_come_at_once_and_once(self, capsys):
        other = replace(STATE, device="cuda:1", slug="dgemm-nn-64", problem="dgemm NN 64")
        with RunDisplay() as display:
            for state in (
                CAMPAIGN,
                replace(CAMPAIGN, runs=(STATE, other), message="cuda:1 is back"),
                replace(CAMPAIGN, runs=(other, STATE)),
            ):
                display(state)
                display(replace(state, message=state.message))
        found = [line.partition(" ")[2] for line in capsys.readouterr().err.splitlines()]
        assert found == ["sgemm NT 4096 on cuda:0: begun", "cuda:1 is back", "dgemm NN 64 on cuda:1: begun"]

    def test_several_devices_have_a_line_each(self, capsys, monkeypatch):
        monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
        with RunDisplay(announce=False) as display:
            display(replace(CAMPAIGN, runs=tuple(replace(STATE, device=f"cuda:{index}") for index in range(3))))
        lines = capsys.readouterr().err.splitlines()
        assert [re.findall(r"cuda:\d|problems", line) for line in lines] == [
            ["problems"],
            ["cuda:0"],
            ["cuda:1"],
            ["cuda:2"],
        ]


SCRIPT = """
import sys
from dataclasses import replace
sys.path.insert(0, sys.argv[1])
from test_live import CAMPAIGN, STATE
from mltune.show import live as progress
progress.DRAW_EVERY_S = 0.0
with progress.RunDisplay() as display:
    for runs in range(int(sys.argv[2]) + 1):
        lines = tuple(replace(STATE, device=f"cuda:{index}") for index in range(runs))
        display(replace(CAMPAIGN, runs=lines, message="hear"))
    if sys.argv[3] == "die":
        import os
        os._exit(1)
print("the end")
"""


def on_terminal(runs, width=80, end=""):
    """Run the display in a terminal and return what it drew."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    command = [sys.executable, "-c", SCRIPT, Path(__file__).parent, str(runs), end]
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment | {"TERM": "xterm"}):
        os.close(theirs)
        drawn = bytearray()
        while True:
            try:
                drawn += os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
    os.close(ours)
    return drawn.decode()


@pytest.mark.parametrize("width", [30, 80, 200])
@pytest.mark.parametrize("runs", [1, 4])
@pytest.mark.sampled(2, nightly=99)
def test_the_picture_fits_the_terminal(runs, width):
    drawn = on_terminal(runs, width)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", drawn)
    lines = [line for line in re.split(r"[\r\n]+", text) if line]
    assert max(map(len, lines)) <= width
    assert sum(line.startswith("hear") for line in lines) == 1
    assert "Traceback" not in text
    if width == 200:
        assert "3 of 26 problems done" in text
        assert "341 ok, 230 skipped" in text


def test_the_picture_is_gone_at_the_end_and_the_cursor_is_there():
    drawn = on_terminal(1)
    assert drawn.rstrip().endswith("the end")
    assert drawn.rindex("\x1b[?25h") > drawn.rindex("\x1b[?25l")


def test_a_process_that_is_killed_leaves_the_cursor():
    drawn = on_terminal(2, end="die")
    assert drawn.rindex("\x1b[?25h") > drawn.rindex("\x1b[?25l")
