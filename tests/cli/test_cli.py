"""The commands as separate processes, without a GPU."""

import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mltune.errors import UsageError
from mltune.records.store import PHASES, Store
from mltune.records.trial import TrialState
from mltune.resolve.request import parse_duration
from tests.cli.program import answer, assert_refused, command, python
from tests.conftest import few_rows
from tests.environment import PATIENT, importing

ENVIRONMENT = importing(CUDA_VISIBLE_DEVICES="")
SIMPLE = ("--search", "random", "--no-skip", "--no-stop")
"""Options of a search that starts at once."""


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """Return the document of one small run, and its directory."""
    directory = tmp_path_factory.mktemp("tuned") / "run"
    return answer("tune", "sgemm", "--trials", 40, "--run", directory), directory


class TestStart:
    def test_help_names_every_command(self):
        result = command("--help")
        assert result.returncode == 0
        for name in ("init", "tune", "sweep", "show", "dashboard", "compare", "space", "device", "datasets"):
            assert f"\n  {name} " in result.stdout

    def test_help_imports_nothing_heavy(self):
        """So that it answers at once."""
        code = (
            "import sys, mltune.cli\n"
            "try: mltune.cli.main(['--help'])\n"
            "except SystemExit: print(*sys.modules, file=sys.stderr)"
        )
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=ENVIRONMENT)
        heavy = {"numpy", "pandas", "sklearn", "optuna", "pydantic", "pyarrow", "cupy"}
        assert not heavy & set(done.stderr.split())
        assert "mltune.cli" in done.stderr.split()

    def test_version(self):
        result = command("--version")
        assert result.returncode == 0
        assert result.stdout.startswith("mltune 0.")

    @pytest.mark.parametrize(
        "arguments", [("polish",), ("tune",), ("tune", "sgemm", "--colour"), ("tune", "sgemm", "--trials", 0)]
    )
    def test_misuse_is_exit_code_2(self, arguments):
        result = command(*arguments)
        assert result.returncode == 2
        assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_several_sizes_are_tuned_together_and_resumed(tmp_path):
    given = ("tune", "sgemm", "--size", 1024, "--size", 4096, "--run", tmp_path / "run", "--trials")

    said = command(*given, 48).stderr
    first = answer(*given, 48)

    assert f"run directory: {tmp_path / 'run'}; name it to resume the run" in said
    assert [one["slug"] for one in first["problems"]] == ["sgemm-nt-1024", "sgemm-nt-4096"]
    assert all(one["trials"] >= 16 and one["best"] for one in first["problems"])
    assert sum(one["trials"] for one in first["problems"]) == 48
    more = answer(*given, 64)
    assert sum(one["trials"] for one in more["problems"]) == 64
    assert answer("run", tmp_path / "run")["problems"] == more["problems"]
    assert_refused(result_without_notice(command(*given[:4], "--run", tmp_path / "run")), "that of a plan")


@pytest.mark.slow
def test_kernels_compete_within_one_budget_and_are_resumed(tmp_path):
    kernels = ("--kernel", "gemm_simt", "--kernel", "clblast_xgemm")
    given = ("tune", "sgemm", *kernels, "--device", "replay", "--run", tmp_path / "run", "--trials")

    first = answer(*given, 48)

    assert (first["kernel"], first["accuracy"], first["run"]) == ("gemm_simt", "ieee", str(tmp_path / "run"))
    assert [row["kernel"] for row in first["kernels"]] == ["gemm_simt"], "the other one cannot be as fast"
    assert answer(*given, 64)["trials"] == 64
    shown = answer("show", tmp_path / "run")
    assert [(one["state"], one["chosen"]) for one in shown["problems"]] == [("declared", True), ("left out", False)]
    assert (shown["distinct"], shown["with_winner"]) == (1, 1)
    report = answer("report", tmp_path / "run")
    assert (report["problems"], report["with_winner"]) == (1, 1)
    table = command(*given, 64).stdout
    assert "kernel   gemm_simt\n" in table
    assert "gemm_simt  ieee" in table


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "parts"),
        [
            (("tune", "qgemm"), ("sgemm, dgemm, cgemm, zgemm", "'qgemm'")),
            (("tune", "sgemm", "--trans", "NX"), ("N, T, C", "'NX'")),
            (("tune", "sgemm", "--size", "-1"), ("-1",)),
            (("tune", "sgemm", "--size", str(2**60)), (str(2**60),)),
            (("tune", "sgemm", "--time", "soon"), ("30m", "'soon'")),
            (("tune", "sgemm", "--time", "0s"), ("'0s'",)),
            (("tune", "sgemm", "--device", "tpu"), ("cuda:N", "'tpu'")),
            (("tune", "sgemm", "--device", "replay:no_such_dataset"), ("no_such_dataset",)),
            (("tune", "sgemm", "--size", "4095"), ("sgemm NT 4095", "no GPU was found")),
            (("tune", "sgemm", "--kernel", "no_such_kernel"), ("no_such_kernel",)),
            (("tune", "--trials", "3"), ("no problem is named",)),
            (("tune", "sgemm", "--device", "replay:convolution_w6600"), ("holds convolution", "sgemm was requested")),
            (("tune", "--size", "8", "--device", "replay:convolution_w6600"), ("another size of convolution",)),
            (("space", "convolution", "--size", "8"), ("only replayed", "another one")),
            (("sweep", "sgemm", "--device", "replay:x"), ("'x' is no dataset",)),
            (("sweep", "sgemm"), ("Without a GPU, `mltune tune` replays recorded timings",)),
            (("space", "no_such_kernel"), ("no_such_kernel",)),
            (("space", "gemm_simt", "--precision", "q"), ("--precision", "s, d, c, z, h, b, dd", "'q'")),
            (("show", "no/such/run"), ("no/such/run",)),
        ],
    )
    @pytest.mark.sampled(6)
    def test_names_the_law_and_the_fact(self, arguments, parts, tmp_path):
        assert_refused(command(*arguments, cwd=tmp_path), *parts)

    def test_a_malformed_kernel_toml(self, tmp_path):
        bundle = tmp_path / "bundle"
        bundle.mkdir()
        (bundle / "kernel.toml").write_text("[kernel]\nname = 'x'\nprecissions = ['s']\n")
        assert_refused(command("space", bundle), "kernel.toml", "precissions")

    def test_a_dataset_of_another_problem(self):
        name = next(entry["name"] for entry in answer("datasets") if entry["label"].startswith("cgemm"))
        assert_refused(command("tune", "sgemm", "--device", f"replay:{name}"), "cgemm", "sgemm", name)

    @pytest.mark.system
    def test_a_run_directory_of_another_run(self, tuned):
        _, directory = tuned
        result = command("tune", "sgemm", "--trials", 50, "--seed", 7, "--run", directory)
        assert_refused(result_without_notice(result), "seed")

    def test_a_run_directory_that_is_a_file(self, tmp_path):
        (tmp_path / "file").write_text("mine")
        result = command("tune", "sgemm", "--trials", 5, "--run", tmp_path / "file")
        assert_refused(result_without_notice(result), "file")
        assert (tmp_path / "file").read_text() == "mine"


def result_without_notice(result):
    """Drop the line that says that there is no GPU."""
    lines = [line for line in result.stderr.splitlines() if not line.startswith("no GPU found")]
    return subprocess.CompletedProcess(result.args, result.returncode, result.stdout, "\n".join(lines))


def trials_in(run: Path) -> int:
    """Return the number of trials on record; 0 before there is a store."""
    try:
        with Store.read_only(run) as store:
            return len(store)
    except UsageError:
        return 0


class TestTune:
    def test_without_a_gpu_it_says_so_in_one_line_and_replays(self):
        result = command("tune", "sgemm", "--trials", 30, *SIMPLE)
        assert result.returncode == 0
        line, spent, following = result.stderr.splitlines()
        assert spent.startswith("the budget is spent; ")
        assert following.startswith("next: mltune report runs/sgemm-nt-4096-")
        assert line.startswith("no GPU found (")
        assert "replaying timings of sgemm NT 4096 recorded on NVIDIA H200 (dataset " in line
        assert "TFLOPS" in result.stdout
        assert "BLK_M=" in result.stdout
        assert "replayed from recorded times: nothing was compiled or verified" in result.stdout

    @pytest.mark.parametrize("problem", ["dgemm", "cgemm", "zgemm"])
    @pytest.mark.sampled(1)
    def test_every_precision_is_replayed_without_a_word_about_its_shape(self, problem, tmp_path):
        document = answer("tune", problem, "--trials", 20, "--run", tmp_path / "run", *SIMPLE)
        assert document["trials"] == 20
        assert document["problem"]["precision"] == problem[0]

    @pytest.mark.parametrize("problem", [(), ("convolution",)])
    def test_a_replay_knows_its_own_problem_and_kernel(self, problem, tmp_path):
        arguments = ("--device", "replay:convolution_mi250x_gcd", "--trials", 20, "--run", tmp_path / "run", *SIMPLE)
        document = answer("tune", *problem, *arguments)
        assert document["kernel"] == "convolution"
        assert document["problem"]["kind"] == "recorded"
        assert 0 < document["best"]["share_of_peak"] < 1

    def test_the_document_has_exactly_the_promised_fields(self, tuned):
        document, directory = tuned
        assert list(document) == [
            "label",
            "problem",
            "reference",
            "device",
            "kernel",
            "accuracy",
            "choice",
            "replayed",
            "trials",
            "counts",
            "seconds",
            "stopped",
            "funnel",
            "best",
            "run",
            "model",
            "whole",
            "notice",
            "skips",
            "optimum",
            "why",
        ]
        assert document["kernel"] == "gemm_simt"
        assert document["trials"] == 40 == sum(document["counts"].values())
        assert set(document["counts"]) <= {str(state) for state in TrialState}
        best = document["best"]
        rating = {"median_s", "gb_per_s", "tflops", "share_of_peak", "share_of_reference"}
        declared = {"configuration", "interval_s", "interval_share_of_reference", "ties", "verified", "error"}
        assert set(best) == declared | rating
        assert math.isclose(best["tflops"], 2 * 4096**3 / best["median_s"] / 1e12)
        assert 0 < best["share_of_peak"] < 1
        assert set(document["seconds"]) == set(PHASES)
        assert Path(document["run"]) == directory
        assert f"% of the dataset's optimum ({1e3 * document['optimum']['median_s']:.4f} ms), rank " in (
            command("show", directory).stdout
        )

    def test_the_same_seed_finds_the_same(self, tuned, tmp_path):
        document, _ = tuned
        again = answer("tune", "sgemm", "--trials", 40, "--run", tmp_path / "again")
        assert again["best"] == document["best"]
        assert again["counts"] == document["counts"]

    @pytest.mark.system
    def test_the_same_command_with_more_trials_resumes(self, tmp_path):
        directory = tmp_path / "run"
        answer("tune", "sgemm", "--trials", 20, "--run", directory, *SIMPLE)
        longer = answer("tune", "sgemm", "--trials", 45, "--run", directory, *SIMPLE)
        assert longer["trials"] == 45

    @pytest.mark.slow
    def test_what_is_not_given_comes_from_the_dataset(self):
        entry = next(entry for entry in answer("datasets") if entry["label"].startswith("cgemm"))
        document = answer("tune", "cgemm", "--trials", 20, "--device", f"replay:{entry['name']}")
        assert document["problem"] == entry["problem"]

    @pytest.mark.slow
    def test_time_is_a_budget(self):
        document = answer("tune", "sgemm", "--time", "3s", "--trials", 100_000)
        assert 0 < document["trials"] < 100_000

    @pytest.mark.system
    def test_an_interrupted_run_reports_its_best_and_can_go_on(self, tmp_path):
        command = [
            *PATIENT,
            "tune",
            "sgemm",
            "--time",
            "10m",
            *SIMPLE,
            "--run",
            tmp_path / "run",
            "--json",
        ]
        with subprocess.Popen(
            command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            deadline = time.monotonic() + 300
            while trials_in(tmp_path / "run") < 32 and time.monotonic() < deadline:
                time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=300)
        assert process.returncode == 130
        assert "Traceback" not in stderr
        resumed = f"interrupted; resume with: mltune tune sgemm --time 10m {' '.join(SIMPLE)} --run {tmp_path / 'run'}"
        assert resumed in stderr
        document = json.loads(stdout)
        assert document["best"]["tflops"] > 0
        assert document["replayed"]
        assert not document["best"]["verified"]
        trials = document["trials"] + 5
        assert answer("tune", "sgemm", *SIMPLE, "--trials", trials, "--run", tmp_path / "run")["trials"] == trials

    @pytest.mark.slow
    def test_three_hundred_trials_take_less_than_a_minute(self, tmp_path):
        document = answer("tune", "sgemm", "--trials", 300, "--run", tmp_path / "run")
        assert document["trials"] == 300
        assert document["seconds"]["total"] < 60


STOPPED_SWEEP = """
import os, signal, sys
from mltune.cli import main
from mltune.records.store import Store

append = Store.append

def append_and_stop(*arguments):
    append(*arguments)
    os.kill(os.getpid(), signal.SIGTERM)

Store.append = append_and_stop
sys.argv = ["mltune", "sweep", "--complete", "--prune", "convolution", "--device", "replay:few.parquet"]
main()
"""


def test_an_interrupted_sweep_says_what_resumes_it(tmp_path):
    few_rows(tmp_path, "convolution_w6600", 300, kind="complete")
    stopped = python(STOPPED_SWEEP, cwd=tmp_path)
    assert stopped.returncode == 130
    (run,) = (tmp_path / "runs").iterdir()
    *_, said = stopped.stderr.splitlines()
    text, _, resuming = said.partition(": mltune ")
    assert text == "interrupted; resume with"
    with Store.read_only(run) as store:
        before = store.records()
    found = answer(*shlex.split(resuming), cwd=tmp_path)
    assert (tmp_path / found["dataset"]).parent == run
    with Store.read_only(run) as store:
        assert 0 < len(before) < len(store)
        assert list(store.records())[: len(before)] == list(before)


class TestShow:
    def test_exports_the_trials_as_a_dataset_that_can_be_replayed(self, tuned, tmp_path):
        _, directory = tuned
        result = command("show", directory, "--dataset", tmp_path, "--json")
        assert result.returncode == 0, result.stderr
        arguments = ("--trials", 5, "--device", f"replay:{tmp_path / 'run.parquet'}", *SIMPLE)
        again = answer("tune", "sgemm", *arguments, cwd=tmp_path)
        assert again["trials"] == 5

    def test_lists_the_best_first(self, tuned):
        document, directory = tuned
        shown = answer("show", directory, "--top", 3)
        assert len(shown["best"]) == min(3, document["counts"]["ok"])
        assert shown["best"][0]["configuration"] == document["best"]["configuration"]
        times = [entry["median_s"] for entry in shown["best"]]
        assert times == sorted(times)
        assert shown["trials"] == document["trials"]
        assert {state: count for state, count in shown["counts"].items() if count} == {
            state: count for state, count in document["counts"].items() if count
        }
        assert set(shown["seconds"]) >= {"search", "compile", "time", "wait"}

    def test_for_a_person(self, tuned):
        _, directory = tuned
        result = command("show", directory)
        assert result.returncode == 0
        assert "sgemm NT 4096 on NVIDIA H200" in result.stdout
        assert "of cuBLAS" in result.stdout

    def test_follows_a_run_that_has_ended_and_shows_it(self, tuned):
        document, directory = tuned
        result = command("show", directory, "--follow", "--top", 1)
        assert result.returncode == 0, result.stderr
        assert "best so far" in result.stdout
        assert f"trials   {document['trials']}" in result.stdout

    def test_waits_for_a_run_until_the_user_has_seen_enough(self, tmp_path):
        command = [sys.executable, "-m", "mltune", "show", tmp_path / "run", "--follow"]
        with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert b"no run in" in process.stdout.readline()
            process.send_signal(signal.SIGINT)
            try:
                _, errors = process.communicate(timeout=300)
            finally:
                process.kill()  # it goes on where SIGINT is ignored, as in a shell's background
        assert (process.returncode, errors) == (130, b"")

    def test_following_is_for_people(self, tuned):
        assert_refused(command("show", tuned[1], "--follow", "--json"), "--json", "events.jsonl")

    def test_a_plan_is_a_table_of_its_problems(self, tuned, tmp_path):
        document, directory = tuned
        (tmp_path / "plan.toml").write_text("")
        shutil.copytree(directory, tmp_path / "problems/sgemm-nt-4096")
        (shown,) = answer("show", tmp_path)["problems"]
        assert (shown["slug"], shown["state"], shown["trials"]) == ("sgemm-nt-4096", "declared", document["trials"])
        assert shown["best"]["tflops"] == document["best"]["tflops"]
        assert "sgemm-nt-4096" in command("show", tmp_path).stdout
        assert command("show", tmp_path, "--dataset", tmp_path / "datasets").returncode == 0
        assert (tmp_path / "datasets/sgemm-nt-4096.parquet").exists()


class TestSpace:
    def test_counts_and_explains(self):
        document = answer("space", "gemm_simt")
        assert 1_000_000 < document["valid"] < document["combinations"]
        assert document["restrictions"]
        for entry in document["restrictions"]:
            assert entry["reason"]
            assert 0 <= entry["removes_alone"] <= entry["removes"] <= 1

    def test_a_kernel_that_is_only_replayed(self):
        assert answer("space", "convolution")["valid"] == 4362
        assert not answer("space", "clblast_xgemm")["has_source"]
        assert "it can be replayed, but not built" in command("space", "clblast_xgemm").stdout

    @pytest.mark.system
    def test_depends_on_precision_and_transposition(self):
        cases = ((), ("--precision", "z"), ("--trans", "TN"))
        usual, *others = (answer("space", "gemm_mma64", *case)["valid"] for case in cases)
        assert usual not in others

    def test_for_a_person(self):
        result = command("space", "gemm_shared", "--precision", "d")
        assert result.returncode == 0
        assert "dgemm NT 4096" in result.stdout
        assert "a block is made of whole warps" in result.stdout


class TestBound:
    def test_prints_what_limits_the_hardware_and_the_kernel(self):
        text = command("bound", "sgemm", "--kernel", "gemm_shared", "--gpu", "h200", "--config", "BLK_M=64").stdout
        assert "66.91 TFLOPS *" in text
        assert "any kernel" in text
        assert "with these values" in text
        assert "* what limits most. The best of all" in text

    @pytest.mark.system
    def test_the_kernels_that_solve_a_problem_stand_side_by_side(self):
        arguments = ("dgemm", "--trans", "NT", "--device", "h200")
        found = answer("bound", *arguments)
        assert (found["kernel"], found["unit"]) == ("gemm_mma64", "tensor_fp64")
        assert [one["kernel"] for one in found["rivals"]] == ["gemm_simt"]
        assert found["rivals"][0]["best"]["time_s"] > 1.9 * found["best"]["time_s"]

    @pytest.mark.slow
    def test_a_choice_is_that_of_the_kernel_that_can_be_the_fastest(self):
        arguments = ("dgemm", "--trans", "NT", "--device", "h200", "--wisdom", "none")
        assert answer("predict", *arguments)["kernel"] == "gemm_mma64"

    @pytest.mark.slow
    def test_a_measured_gpu_has_other_rates(self, tmp_path):
        facts = answer("device", "a100")["devices"][0]["device"]
        mix = {"arithmetic": "fp32", "load_bytes": 4, "per_load": 32.0, "threads": 1024, "dependent": True}
        path = tmp_path / "gpu.json"
        path.write_text(json.dumps({"device": facts | {"mixes": [mix | {"per_clock": 64.0}]}}))
        arguments = ("bound", "sgemm", "--kernel", "gemm_simt:astra", "--gpu")
        measured, sheet = answer(*arguments, path), answer(*arguments, "a100")
        assert (measured["mixes"], sheet["mixes"]) == (1, 0)
        assert measured["best"]["binding"] == "issue"
        assert measured["best"]["time_s"] > 1.1 * sheet["best"]["time_s"]
        assert answer(*arguments, "h100")["mixes"] > 400  # of an H200, which has the same architecture


class TestDevice:
    def test_without_a_gpu_it_says_why(self):
        document = answer("device")
        assert document["devices"] == []
        assert document["reason"]
        assert {"NVIDIA driver", "NVRTC", "cuBLAS"} <= {library["name"] for library in document["libraries"]}
        shown = command("device").stdout
        assert shown.startswith("no GPU found: ")
        assert "NVRTC" in shown

    @pytest.mark.parametrize(
        ("arguments", "parts"),
        [
            (("--measure",), ("GPU",)),
            (("cuda:7", "--measure", "--json"), ("GPU",)),
            (("a100", "--measure"), ("cuda:N", "'a100'")),
            (("--known", "--measure"), ("cuda:N", "'--known'")),
            (("--out", "gpu.json"), ("one GPU", "gpu.json")),
            (("a100", "--out", "gpu.toml"), (".json file", "gpu.toml")),
        ],
    )
    def test_what_cannot_be_measured_or_written_is_refused(self, arguments, parts, tmp_path):
        assert_refused(command("device", *arguments, cwd=tmp_path), *parts)
        assert list(tmp_path.iterdir()) == []

    def test_facts_are_written_to_a_file_that_is_read_again(self, tmp_path):
        document = answer("device", "a100", "--out", tmp_path / "gpu.json")
        assert json.loads((tmp_path / "gpu.json").read_text()) == document
        (entry,) = answer("device", tmp_path / "gpu.json")["devices"]
        assert entry["device"] == document["devices"][0]["device"]
        assert command("device", "a100", "--out", tmp_path / "gpu.json").stdout.endswith(
            f"written: {tmp_path / 'gpu.json'}\n"
        )


class TestDatasets:
    def test_lists_what_can_be_replayed(self):
        documents = [entry for entry in answer("datasets") if entry["kernel"] == "gemm_simt"]
        assert {entry["kind"] for entry in documents} == {"random", "complete", "search"}
        recorded = {(entry["label"], entry["kind"]): entry["rows"] for entry in documents}
        assert recorded["sgemm NT 4096", "random"] >= 5000
        for label in ("sgemm NN 4096", "dgemm NT 4096", "cgemm NN 4096", "zgemm NN 4096", "sgemm NT 1024"):
            assert recorded[label, "random"] >= 1500
        for label in ("sgemm NT 4096", "cgemm NN 4096"):
            assert recorded[label, "complete"] >= 4000

    def test_those_of_others_say_so(self):
        foreign = [entry for entry in answer("datasets") if entry["kernel"] in ("clblast_xgemm", "convolution")]
        assert len(foreign) == 8
        assert all(entry["source"] and entry["licence"].startswith("MIT") for entry in foreign)

    def test_for_a_person(self):
        result = command("datasets")
        assert result.returncode == 0
        assert "sgemm NT 4096" in result.stdout


class TestCompare:
    def test_prints_the_figures_of_each_strategy(self, tmp_path):
        pytest.importorskip("matplotlib")
        options = ("--strategies", "random,astra", "--datasets", "h200-dgemm-nt-4096-random", "--evaluations", 30)
        document = answer("compare", *options, "--seeds", 2, "--jobs", 1, "--out", tmp_path)
        for found in document["strategies"].values():
            assert {"at", "to", "score", "seeds", "seconds"} <= found.keys()
        assert (tmp_path / "table.md").exists()
        again = command("compare", *options, "--seeds", 2, "--jobs", 1, "--out", tmp_path)
        assert again.returncode == 0
        assert "random" in again.stdout

    @pytest.fixture
    def table(self, tmp_path):
        rows = [f"{a},{b},{c},{1 + abs(a - 3) + b * c / 7}" for a in range(8) for b in range(8) for c in range(4)]
        (tmp_path / "times.csv").write_text("\n".join(["a,b,c,time_ms", *rows, "7,7,9,"]) + "\n")
        return ("compare", "--table", "times.csv", "--parameters", "a,b,c", "--time-column", "time_ms")

    @pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
    @pytest.mark.system
    def test_a_signal_ends_it_with_what_it_has_and_the_same_command_goes_on(self, table, tmp_path, number):
        """The signal goes to the whole group, as from a terminal or a job scheduler."""
        options = ("--strategies", "random,tpe", "--evaluations", "60", "--jobs", "2")
        process = subprocess.Popen(
            [*PATIENT, *table, *options, "--seeds", "5000"],
            cwd=tmp_path,
            env=ENVIRONMENT,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

        def ended() -> int:
            journals = [*tmp_path.glob("runs/*/runs-1of1.jsonl")]
            return journals[0].read_bytes().count(b"\n") - 1 if journals else 0  # the first line has the facts

        until = time.monotonic() + 300
        while ended() < 16 and time.monotonic() < until:
            time.sleep(0.1)
        os.killpg(process.pid, number)
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 130, errors
        assert "Traceback" not in errors
        assert "257 rows, 257 distinct, 1 failed" in errors
        assert "10000 runs in runs/compare-" in errors
        assert "runs missing; the same command goes on" in errors
        assert "failed:" not in errors
        assert "score: 0 is random search, 1 the optimum at once" in output
        assert "own ms: milliseconds" in output
        (folder,) = tmp_path.glob("runs/*")
        assert json.loads((folder / "summary.json").read_text())["missing"] > 9000
        again = command(*table, *options, "--seeds", 3, cwd=tmp_path)
        assert again.returncode == 0
        assert f"6 runs in runs/{folder.name}, 6 there already" in again.stderr
        assert [*tmp_path.glob("runs/*")] == [folder]

    @pytest.mark.system
    def test_modules_in_the_working_directory_are_not_imported_by_its_processes(self, table, tmp_path):
        for name in ("struct", "selectors", "signal", "ctypes", "mltune"):
            (tmp_path / f"{name}.py").write_text("open('executed', 'w').close()\nraise SystemExit(5)\n")
        program = "import sys; from mltune.cli import main; main()"
        command = [sys.executable, "-c", f"import sys; sys.path.pop(0); {program}", *table, "--strategies", "random"]
        done = subprocess.run(
            [*command, "--seeds", "2", "--evaluations", "10"], cwd=tmp_path, env=ENVIRONMENT, capture_output=True
        )
        assert done.returncode == 0, done.stderr
        assert not (tmp_path / "executed").exists()

    @pytest.mark.system
    def test_refuses_in_one_line(self, table, tmp_path):
        assert_refused(command("compare", "--strategies", "nosuch"), "nosuch", "hybrid_vndx")
        assert_refused(command("compare", "--strategies", "random", "--datasets", "nosuch"), "nosuch")
        forgotten = [*table[:-3], "a,b", *table[-2:]]
        assert_refused(command(*forgotten, cwd=tmp_path), "c also varies: is it a parameter?", "--aggregate")
        merged = command(*forgotten, "--aggregate", "--strategies", "random", "--seeds", 2, cwd=tmp_path)
        assert "257 rows, 64 distinct, 1 failed" in merged.stderr
        assert "contradict each other: 1 configurations both succeeded and failed" in merged.stderr


class TestDuration:
    @pytest.mark.parametrize(
        ("text", "seconds"),
        [("90", 90), ("20s", 20), ("30m", 1800), ("1h", 3600), ("1h30m", 5400), ("1.5h", 5400), ("2m5.5s", 125.5)],
    )
    def test_reads(self, text, seconds):
        assert parse_duration(text) == seconds

    @pytest.mark.parametrize("text", ["", "0", "-3", "s", "30 minutes", "5m1h", "nan", "inf", "1e3"])
    def test_refuses(self, text):
        with pytest.raises(UsageError, match="is no positive time"):
            parse_duration(text)


@pytest.mark.system
def test_report_writes_one_page_and_prints_where(make_run, make_trial, tmp_path):
    make_run(tmp_path / "run", *map(make_trial, range(5)))
    result = command("report", tmp_path / "run")
    assert result.returncode == 0, result.stderr
    files = [Path(line) for line in result.stdout.splitlines()]
    assert [file.name for file in files] == ["report.html", "report.md", "winners.json"]
    elsewhere = tmp_path / "elsewhere"
    document = answer("report", tmp_path / "run", "--out", elsewhere)
    assert document == json.loads((elsewhere / "winners.json").read_text())
    assert document["winners"][0]["tflops"] > 0


def test_a_report_of_a_damaged_run_says_so_and_names_no_following_command(make_run, make_trial, tmp_path):
    make_run(tmp_path / "run", *map(make_trial, range(5)))
    (tmp_path / "run/run.sqlite").write_bytes(b"SQLite format 3\0" + b"\xff" * 4000)
    result = command("report", tmp_path / "run")
    assert result.returncode == 1
    assert "run cannot be read: " in result.stderr
    assert "next:" not in result.stderr


def test_report_needs_a_run(tmp_path):
    result = command("report", tmp_path)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1


def test_a_command_ends_with_the_one_that_follows(tuned, tmp_path):
    _, directory = tuned
    shown = command("show", directory)
    assert shown.stderr == f"next: mltune report {directory}\n"
    assert "next:" not in shown.stdout
    assert command("plan", "rehearsal").stderr.endswith("next: mltune run rehearsal\n")
    assert command("report", directory, "--out", tmp_path).stderr.endswith("next: mltune init FOLDER\n")
    assert "next:" not in command("show", directory, "--json").stderr


def test_a_shell_completes_commands():
    asked = {"_MLTUNE_COMPLETE": "complete_bash", "COMP_WORDS": "mltune swe", "COMP_CWORD": "1"}
    assert command(**asked).stdout.split() == ["sweep"]
    assert "--install-completion" in command("--help").stdout
