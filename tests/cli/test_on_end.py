"""The command of ``--on-end``: when it is run, and what it is told."""

import json
import os
import signal
import subprocess
import time

import pytest
import typer

from mltune.cli import on_end as module
from mltune.cli.on_end import on_end
from mltune.errors import RunError
from mltune.records.database import PASSWORDS
from tests.cli.program import answer, assert_refused, command
from tests.environment import PATIENT, importing

SHORT = ("--trials", 5, "--search", "random", "--no-skip", "--no-stop")
NAMES = ("MLTUNE_OUTCOME", "MLTUNE_RUN", "MLTUNE_SUMMARY")


@pytest.fixture
def told(tmp_path):
    """Return what the command was told, which it writes to a file; `text` is the command."""

    class Told:
        file = tmp_path / "told"
        text = f"sh -c 'env -0 >> {file}'"

        def __call__(self):
            found = dict(item.split("=", 1) for item in self.file.read_text().split("\0")[:-1])
            self.file.unlink()
            return [found[name] for name in NAMES], found

    return Told()


def test_the_end_of_a_tune(told, tmp_path):
    secret = {PASSWORDS: '{"postgresql://host/name": {"password": "secret"}}'}
    document = answer("tune", "sgemm", *SHORT, "--run", "here", "--on-end", told.text, cwd=tmp_path, **secret)
    (outcome, run, summary), environment = told()
    assert (outcome, run) == ("ended", str(tmp_path / "here"))
    assert summary.startswith(f"sgemm NT 4096 on NVIDIA H200: {document['best']['tflops']:.2f} TFLOPS, ")
    assert summary.endswith("% of cuBLAS")
    assert PASSWORDS not in environment
    assert "secret" not in str(environment)


def test_its_output_is_not_in_the_document_and_its_failure_leaves_the_exit_code(tmp_path):
    told = ("--on-end", "sh -c 'echo of mine; exit 3'")
    done = command("tune", "sgemm", *SHORT, "--run", tmp_path / "run", "--json", *told)
    assert done.returncode == 0
    assert json.loads(done.stdout)["trials"] == 5
    assert done.stderr.splitlines()[-2:] == ["of mine", f"the command of --on-end failed (exit status 3): {told[1]}"]


@pytest.mark.slow
def test_the_end_of_a_campaign(told, tmp_path):
    sizes = ("--size", 1024, "--size", 4096)
    answer("tune", "sgemm", *sizes, *SHORT[2:], "--trials", 32, "--run", tmp_path / "run", "--on-end", told.text)
    assert told()[0] == ["ended", str(tmp_path / "run"), "2 of 2 problems with a winner"]
    answer("run", tmp_path / "run", "--on-end", told.text)
    assert told()[0] == ["ended", str(tmp_path / "run"), "2 of 2 problems with a winner"]


@pytest.mark.parametrize("arguments", [("tune", "qgemm"), ("run", "no-such-plan")])
def test_a_run_that_fails(told, arguments, tmp_path):
    assert_refused(command(*arguments, "--run", tmp_path / "run", "--on-end", told.text), arguments[1])
    (outcome, run, summary), _ = told()
    assert (outcome, run) == ("failed", str(tmp_path / "run"))
    assert arguments[1] in summary


@pytest.mark.system
def test_a_run_that_is_interrupted(told, tmp_path):
    run = tmp_path / "run"
    words = ("tune", "sgemm", "--time", "10m", *SHORT[2:], "--run", run, "--on-end", told.text)
    with subprocess.Popen([*PATIENT, *words], env=importing(CUDA_VISIBLE_DEVICES="")) as process:
        deadline = time.monotonic() + 300
        while not (run / "events.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        process.wait(300)
    assert told()[0][:2] == ["interrupted", str(run)]


@pytest.mark.parametrize(("text", "fault"), [("sh -c 'exit", "No closing quotation"), ("nothing -v", "no such")])
def test_a_malformed_command_is_refused_before_the_run_begins(text, fault, tmp_path):
    assert_refused(command("tune", "sgemm", *SHORT, "--run", tmp_path / "run", "--on-end", text), "--on-end", fault)
    assert not (tmp_path / "run").exists()


class TestContext:
    @pytest.mark.parametrize(
        ("interrupted", "raised", "outcome", "summary"),
        [
            (False, None, "ended", "found"),
            (True, typer.Exit(1), "interrupted", "found"),
            (False, typer.Exit(1), "failed", "found"),
            (False, RunError("the GPU\nis gone"), "failed", "the GPU is gone"),
            (False, OSError("disk"), "failed", "disk"),
        ],
    )
    def test_the_outcome(self, told, interrupted, raised, outcome, summary):
        with pytest.raises(type(raised)) if raised else pytest.MonkeyPatch.context(), on_end(told.text, None) as ending:
            ending.interrupted, ending.summary = interrupted, "found"
            if raised:
                raise raised
        assert told()[0] == [outcome, "", summary]

    def test_a_signal_that_ends_it_at_once_runs_nothing(self, told):
        with pytest.raises(KeyboardInterrupt), on_end(told.text, None):
            raise KeyboardInterrupt
        assert not told.file.exists()

    @pytest.mark.parametrize(
        ("text", "fault"),
        [
            ("sh -c 'exit 3'", "failed (exit status 3)"),
            ("sleep 600", "took more than 0.2 s and was stopped"),
            (os.devnull, "cannot be run"),
        ],
    )
    def test_its_failure_is_only_said(self, text, fault, monkeypatch, capsys):
        monkeypatch.setattr(module, "LONGEST_S", 0.2 if "sleep" in text else 300.0)
        with on_end(text, "run"):
            pass
        assert capsys.readouterr().err.startswith(f"the command of --on-end {fault}")
