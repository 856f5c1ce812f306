"""Completion in the shell, by the protocol of its scripts: words, and the number of the current one."""

import subprocess
import sys

import pytest

from mltune.cli import main
from mltune.cli.completion import GEMMS, STRATEGIES
from mltune.comparison.strategies import OURS, PEERS
from mltune.problem.kinds import KINDS
from tests.cli.program import command
from tests.environment import importing
from tests.planted import executed, plant


def asked(*words):
    """Return the environment in which bash asks for the last word."""
    words = ("mltune", *words)
    return {"_MLTUNE_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}


def completed(*words, cwd=None):
    """Return what the last word may be."""
    result = command(cwd=cwd, **asked(*words))
    assert (result.returncode, result.stderr) == (0, "")
    return [line for line in result.stdout.split("\n") if line]


@pytest.fixture
def folder(tmp_path):
    """Return a folder with runs and kernels, of which some have names that a shell does not take as they are."""
    files = ("run.sqlite", "run.json", "plan.toml")
    holding = {f"runs/{name}": file for name, file in zip(("one", "stored", "night"), files, strict=True)}
    holding |= {"runs/empty": "notes.txt", "mine": "kernel.toml", "deep/mine": "kernel.toml", "softmax": "kernel.toml"}
    holding |= dict.fromkeys(("m y", "m;touch hacked", "m$(touch hacked)", "m\nx", "m\x1b[2J", "-m"), "kernel.toml")
    for name, file in holding.items():
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / file).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("swe", {"sweep"}),
        ("tune sg", {"sgemm"}),
        ("tune so", {"softmax"}),
        ("check m", {"mine"}),
        ("check deep/", {"deep/mine"}),
        ("bound sgemm --kernel gemm_si", {"gemm_simt"}),
        ("bound sgemm --gpu rtx_40", {"rtx_4080", "rtx_4090"}),
        ("device h2", {"h200"}),
        ("tune --device c", {"cuda:0"}),
        ("tune --device replay:convolution_w", {"replay:convolution_w6600"}),
        ("datasets merge x convolution_w", {"convolution_w6600"}),
        ("train convolution_w6600 convolution_mi", {"convolution_mi250x_gcd"}),
        ("show ", {"runs/one", "runs/stored", "runs/night"}),
        ("report runs/o", {"runs/one"}),
        ("tune sgemm --run runs/s", {"runs/stored"}),
        ("run qu", {"quick"}),
        ("plan qu", {"quick"}),
        ("run runs/n", {"runs/night"}),
        ("compare --strategies tpe,ran", {"tpe,random"}),
        ("compare --datasets x,convolution_w", {"x,convolution_w6600"}),
        ("tune --search a", {"astra"}),
        ("check nosuch/", set()),
        ("check mine/kernel.toml/", set()),
        ("--version swe", {"sweep"}),
        ("tune --size x --on-end nosuch --sea", {"--search"}),
    ],
)
@pytest.mark.sampled(9, nightly=99)
def test_values_are_completed(words, expected, folder):
    assert set(completed(*words.split(" "), cwd=folder)) == expected


def test_names_are_those_that_there_are():
    assert list(GEMMS) == [name for kind in KINDS.values() for name in kind.names]
    assert list(STRATEGIES) == [*OURS, *PEERS]


def test_all_runs_of_another_folder_are_named_with_it(folder):
    assert completed("show", f"{folder}/runs/st") == [f"{folder}/runs/stored"]


@pytest.mark.parametrize("environment", [{"COMP_WORDS": "mltune tune"}, {"COMP_CWORD": "x"}, {"_MLTUNE_COMPLETE": "x"}])
def test_a_shell_that_asks_wrongly_sees_no_traceback(environment):
    result = command(**{"_MLTUNE_COMPLETE": "complete_bash", **environment})
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(("name", "option"), [("report", "--out"), ("dashboard", "--open"), ("show", "--follow")])
def test_a_database_is_not_opened(name, option, monkeypatch, capsys):
    """The directory of its run would be made."""
    opened = []
    monkeypatch.setattr("mltune.records.database_runs.directory_of", opened.append)
    for variable, value in asked(name, "postgresql://127.0.0.1:1/none#1", option[:4]).items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit):
        main([])
    assert option in capsys.readouterr().out.split()
    assert opened == []


@pytest.mark.parametrize("words", [("tune", ""), ("show", ""), ("bound", "--gpu", ""), ("compare", "--strategies", "")])
@pytest.mark.sampled(2, nightly=4)
def test_nothing_slow_and_nothing_of_the_working_directory_is_imported(words, tmp_path):
    program = """
import sys
from mltune.cli import main
try:
    main([])
except SystemExit:
    print(*sys.modules, file=sys.stderr)
"""
    hostile = plant(tmp_path / "hostile")
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        cwd=hostile,
        env=importing(**asked(*words)),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert len(done.stdout.splitlines()) > (0 if words[0] == "show" else 3)
    assert executed(hostile) == []
    assert {"numpy", "pandas", "optuna", "rich"}.isdisjoint(done.stderr.split())
