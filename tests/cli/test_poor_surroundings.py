"""Processes in poor surroundings: closed streams, other locales, names that are no UTF-8, little memory, no home."""

import json
import os
import subprocess
import sys

import pytest

from mltune.records.store import Store
from tests.cli.program import command
from tests.environment import ROOT, importing

PLAIN = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
TUNE = [
    "tune",
    "--device",
    "replay:convolution_rtx_a4000",
    "--trials",
    "8",
    "--search",
    "random",
    "--no-skip",
    "--run",
    "a_run",
]
IN_ONE_PROCESS = """
import json, sys
from mltune.cli import main
for sys.argv[1:] in json.loads(sys.argv[1]):
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            sys.exit(f"{sys.argv[1:]} ended with {ended.code}")
"""
COMMANDS = [TUNE, ["show", "a_run"], ["show", "a_run", "--json"], ["report", "a_run"], ["datasets"], ["--help"]]


def mltune(*words, cwd, before="", program=("-m", "mltune"), **environment):
    """Run the command in a shell that does something ``before``."""
    script = f'{before}\nexec "$@"'
    command = ["bash", "-c", script, "bash", sys.executable, "-P", *program, *words]
    changes = {"CUDA_VISIBLE_DEVICES": "", **environment}
    return subprocess.run(command, cwd=cwd, env=importing(**changes), capture_output=True, timeout=300, check=False)


def said(result):
    assert b"Traceback" not in result.stderr, result.stderr.decode()
    return result.stderr.decode(errors="replace")


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", "2>&-"])
@pytest.mark.sampled(1, nightly=2)
def test_a_run_with_closed_streams_is_carried_out(tmp_path, closed):
    done = mltune(*TUNE, cwd=tmp_path, before=f"exec {closed}")
    assert done.returncode == 0, said(done)
    with Store.read_only(tmp_path / "a_run") as store:
        assert len(store) == 8
    assert mltune("show", "nothing", cwd=tmp_path, before=f"exec {closed}").returncode == 2
    assert mltune("--version", cwd=tmp_path, before=f"exec {closed}").returncode == 0


def test_commands_work_in_an_ascii_locale(tmp_path):
    done = mltune(json.dumps(COMMANDS), program=("-c", IN_ONE_PROCESS), cwd=tmp_path, **PLAIN)
    assert done.returncode == 0, said(done)
    assert "Usage: mltune" in done.stdout.decode("ascii")


def test_commands_work_in_a_directory_whose_name_is_no_utf_8(tmp_path):
    place = f"{tmp_path}/{os.fsdecode(bytes([255]))}"
    os.mkdir(place)
    again = [*TUNE, "--trials", "12"]
    for words in [*COMMANDS, again, ["show", "a_run", "--dataset", "exported"], ["show"]]:
        done = command(*words, cwd=place)
        assert done.returncode == 0, (words, done.stderr)
    for words in (["show", f"{place}/a_run"], ["report", f"{place}/a_run"]):
        done = command(*words, cwd=tmp_path)
        assert done.returncode == 0, (words, done.stderr)


@pytest.mark.parametrize("megabytes", [60, 200])
def test_too_little_address_space_is_said_in_words(tmp_path, megabytes):
    done = mltune(*TUNE, cwd=tmp_path, before=f"ulimit -v {megabytes * 1024}", MALLOC_ARENA_MAX="1")
    assert done.returncode == 1
    assert "not enough memory" in said(done)
    assert "ulimit -v" in said(done)


@pytest.mark.skipif(os.getuid() != 0, reason="only root runs a process of another user")
class TestNoHome:
    """A user who is in no list and has no HOME."""

    def run(self, *words, cwd, **named):
        os.chmod(cwd, 0o777)  # noqa: S103 - of another user
        changes = ["env", "-i", *(f"{name}={value}" for name, value in named.items())]
        changes += [f"PATH={os.environ['PATH']}", f"PYTHONPATH={ROOT}", "CUDA_VISIBLE_DEVICES="]
        # the interpreter may lie in a folder of root
        user = ["setpriv", "--reuid", "54321", "--clear-groups", "--inh-caps=+dac_override"]
        command = [*changes, *user, "--ambient-caps=+dac_override", sys.executable, "-P", "-m", "mltune", *words]
        return subprocess.run(command, cwd=cwd, capture_output=True, timeout=300, check=False)

    def test_what_needs_the_folder_says_what_to_set(self, tmp_path):
        done = self.run("wisdom", "show", cwd=tmp_path)
        assert done.returncode == 2
        assert "user 54321 has no home directory; set XDG_DATA_HOME" in said(done)

    def test_it_is_enough_to_set_it(self, tmp_path):
        done = self.run("wisdom", "show", cwd=tmp_path, XDG_DATA_HOME=tmp_path)
        assert done.returncode == 0, said(done)

    def test_what_can_go_on_without_it_goes_on(self, tmp_path):
        done = self.run("predict", "sgemm", "--kernel", "gemm_shared", "--gpu", "H200", cwd=tmp_path)
        assert done.returncode == 0, said(done)
        assert "no wisdom is used or kept" in said(done)
        done = self.run(*TUNE, cwd=tmp_path)
        assert done.returncode == 0, said(done)
