"""The Python interface, in replay."""

import doctest
import inspect
import os
import pathlib
import pydoc
import re
import shutil
import signal
import subprocess
import sys
import threading
from importlib import import_module, invalidate_caches
from pathlib import Path

import pytest
from typer.main import get_command

import mltune
from mltune import errors
from mltune.cli import application
from mltune.dataset.dataset import load_manifest
from mltune.errors import DatasetError, MltuneError, MltuneWarning, UsageError
from mltune.resolve import device as target
from mltune.resolve.options import DECLARED, USUAL
from mltune.resolve.plan_file import _OptionsTable

ROOT = Path(__file__).resolve().parents[1]
DATASET = "h200-sgemm-nt-4096-random"
REPLAY = f"replay:{DATASET}"
SIMPLE = {"search": "random", "skip": False, "stop": False}
"""Options of a search that starts at once."""


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    """Let runs go to an empty folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(target, "find_gpus", lambda: ((), "there is no driver"))


def _commands(command, path=()):
    """Yield the words of each command below a group, and the command."""
    for name, below in getattr(command, "commands", {}).items():
        yield from _commands(below, (*path, name))
    if not hasattr(command, "commands"):
        yield " ".join(path), command


class TestImport:
    def test_all_names_are_distinct_and_exist(self):
        assert len(mltune.__all__) == len(set(mltune.__all__))
        assert set(mltune.__all__) <= set(dir(mltune))
        for name in mltune.__all__:
            assert getattr(mltune, name) is not None

    def test_it_offers_a_function_for_every_command(self):
        for name in ("tune", "tune_kernel", "run_kernel", "sweep", "run", "plan", "predict", "bound", "train", "check"):
            assert callable(getattr(mltune, name))
        for name in ("compare", "report", "summarise", "space", "devices", "new_kernel", "check_wisdom"):
            assert callable(getattr(mltune, name))
        for name in ("load_run", "load_dataset", "load_kernel", "load_model", "load_plan"):
            assert callable(getattr(mltune, name))
        assert issubclass(mltune.errors.RunDirectoryError, mltune.UsageError)

    @pytest.mark.parametrize("name", [name for name in mltune.api.__all__ if name.islower()])
    def test_every_function_is_documented_with_an_example(self, name):
        documented = getattr(mltune, name).__doc__
        assert ">>> " in documented
        assert "Returns\n" in documented or " -> " in str(inspect.signature(getattr(mltune, name)))

    def test_the_table_of_commands_names_what_is_there_with_the_options_of_each(self):
        page = (ROOT / "docs/reference/python/index.md").read_text()
        table = dict(re.findall(r"^\| `([a-z ]+)` \| `(mltune\.[^`]+)`", page, flags=re.MULTILINE))
        commands = dict(_commands(get_command(application.app)))
        assert set(table) == {*commands, "datasets"}
        for name, command in commands.items():
            words = set(re.findall(r"\w+", table[name]))
            if "(" not in table[name]:
                function = getattr(mltune, table[name].removeprefix("mltune."))
                words = {*inspect.signature(function).parameters}
                for declared in re.findall(r"Unpack\[(\w+)\]", str(function.__annotations__)):
                    words |= {*function.__wrapped__.__globals__[declared].__annotations__}
            words |= {"as_json", "at_end", "dataset", "follow", "report"}
            words |= {*inspect.signature(mltune.tune_shapes).parameters} if name == "tune" else set()
            assert {parameter.name for parameter in command.params} <= words, name

    def test_the_defaults_of_a_function_are_those_of_plans_and_requests(self):
        defaults = {one.name: one.default for one in inspect.signature(mltune.tune).parameters.values()}
        assert {name: defaults[name] for name in USUAL} == USUAL
        assert _OptionsTable().model_dump() == USUAL
        assert [name for name in USUAL if f"\n    {name} : " not in mltune.tune.__doc__] == []

    def test_the_types_of_a_function_are_those_of_the_declaration_and_paths(self):
        types = mltune.tune.__annotations__
        assert {name: types[name].replace("str | Path", "str") for name in USUAL} == {
            name: kind for name, (kind, _) in DECLARED.items()
        }

    @pytest.mark.parametrize("name", ["tune", "sweep", "run", "bound", "predict", "compare", "import_dataset"])
    def test_an_option_that_is_not_given_is_none_or_auto(self, name):
        defaults = [one.default for one in inspect.signature(getattr(mltune, name)).parameters.values()]
        assert "" not in defaults

    def test_another_name_is_an_attribute_error(self):
        with pytest.raises(AttributeError, match="no attribute 'tuna'"):
            mltune.tuna  # noqa: B018

    def test_subpackages_do_not_replace_functions_of_the_same_name(self):
        code = (
            "import mltune.tuning.session, mltune.show.report.writing, mltune\n"
            "from mltune.tuning import session\n"
            "assert session.open_session and callable(mltune.tune) and callable(mltune.compare)"
        )
        subprocess.run([sys.executable, "-c", code], check=True, timeout=300)

    def test_it_imports_nothing_heavy(self):
        code = "import sys, mltune; print(*{name.partition('.')[0] for name in sys.modules})"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
        heavy = {"numpy", "pandas", "optuna", "sklearn", "scipy", "pydantic", "pyarrow", "rich", "typer", "matplotlib"}
        assert not heavy & set(done.stdout.split())

    def test_a_search_without_models_and_one_of_few_trials_import_none_of_their_packages_and_no_campaign(self):
        runs = ({**SIMPLE, "trials": 32}, {"trials": 8, "progress": None})
        code = f"import sys, mltune; [mltune.tune(device='{REPLAY}', **run) for run in {runs}]; print(*sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
        assert not {"sklearn", "scipy.linalg", "scipy.optimize", "pandas", "mltune.campaign"} & {*done.stdout.split()}


class TestErrors:
    def test_all_have_one_root(self):
        found = [value for value in vars(errors).values() if isinstance(value, type)]
        assert len(found) > 10
        assert all(issubclass(each, MltuneError | MltuneWarning) for each in found)


class TestTune:
    def test_finds_a_fast_configuration(self, capsys):
        result = mltune.tune("sgemm", trans="NT", size=4096, trials=60, device=REPLAY, run="a/run")
        assert len(result.records) == 60
        assert result.problem == load_manifest(DATASET).problem
        assert result.best.median_s < 1.5 * load_manifest(DATASET).best.median_s
        assert result.to_json()["run"] == "a/run"
        assert Path("a/run/run.sqlite").exists()
        assert capsys.readouterr() == ("", ""), "without a terminal there is no progress bar"

    def test_the_best_configuration_is_at_hand(self):
        result = mltune.tune("sgemm", trans="NT", size=4096, trials=60, device=REPLAY, **SIMPLE)
        assert result.best_config == dict(result.best.configuration)
        assert result.best_time_s == pytest.approx(result.best.median_s)
        assert len(result.to_dataframe()) == 60

    @pytest.mark.slow
    def test_the_same_seed_finds_the_same_as_the_command(self):
        result = mltune.tune(trials=30, seed=3, device=REPLAY)
        command = [sys.executable, "-m", "mltune", "tune", "--trials=30", "--seed=3", f"--device={REPLAY}", "--run=cli"]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        by_command = mltune.load_run("cli")
        assert [one.configuration for one in by_command.records] == [one.configuration for one in result.records]

    def test_takes_a_problem_object(self):
        problem = mltune.load_dataset("h200-sgemm-nt-1024-random").manifest.problem
        result = mltune.tune(problem, trials=20, device="replay:h200-sgemm-nt-1024-random", **SIMPLE)
        assert result.problem == problem
        with pytest.raises(DatasetError, match="sgemm NT 1024 was requested"):
            mltune.tune(problem, device=REPLAY)
        with pytest.raises(UsageError, match="has its own shape"):
            mltune.tune(problem, size=4096, device=REPLAY)

    @pytest.mark.parametrize("of", [str, Path])
    def test_takes_the_folder_of_a_kernel(self, of):
        folder = of(mltune.load_kernel("transpose").folder)
        result = mltune.tune(folder, trials=20, device="replay:h200-transpose-8192x8192-random", **SIMPLE)
        assert result.problem.label == "transpose 8192x8192"

    def test_a_recorded_problem_may_be_named_with_its_sizes(self):
        dataset = "replay:h200-transpose-8192x8192-random"
        assert mltune.tune("transpose", size={"rows": 8192}, trials=8, device=dataset).problem.label
        for wrong in ({"rows": 4096}, {"height": 8192}):
            with pytest.raises(DatasetError, match="another size of transpose was requested"):
                mltune.tune("transpose", size=wrong, trials=8, device=dataset)

    def test_without_a_gpu_a_warning_says_what_is_replayed(self, no_gpu):
        with pytest.warns(MltuneWarning, match="no GPU found .* replaying timings of dgemm NT 4096"):
            result = mltune.tune("dgemm", trials=20, **SIMPLE)
        assert result.problem.name == "dgemm"

    def test_time_is_a_duration_or_seconds(self):
        for limit in ("0.2s", 0.2):
            result = mltune.tune(time=limit, trials=100_000, device=REPLAY, **SIMPLE)
            assert 0.2 <= result.seconds["total"] < 15
        with pytest.raises(UsageError, match="positive"):
            mltune.tune(time=-1, device=REPLAY)

    def test_reports_its_progress(self):
        seen = []
        mltune.tune(trials=40, device=REPLAY, progress=seen.append, **SIMPLE)
        assert [one.trials for one in seen] == sorted(one.trials for one in seen)
        assert seen[-1].trials == 40

    def test_an_interrupt_ends_it_with_the_best_so_far(self):
        calls = iter(range(1000))
        result = mltune.tune(device=REPLAY, interrupt=lambda: next(calls) > 5, **SIMPLE)
        assert result.interrupted
        assert len(result.records) < 300
        assert result.best is not None

    def test_ctrl_c_ends_it_with_the_best_so_far(self):
        before = signal.getsignal(signal.SIGINT)
        presses = iter([lambda: os.kill(os.getpid(), signal.SIGINT)])
        result = mltune.tune(device=REPLAY, progress=lambda _: next(presses, bool)(), **SIMPLE)
        assert result.interrupted
        assert len(result.records) < 300
        assert signal.getsignal(signal.SIGINT) is before

    def test_runs_in_a_thread(self):
        found = []
        thread = threading.Thread(target=lambda: found.append(mltune.tune(trials=20, device=REPLAY)))
        thread.start()
        thread.join()
        assert len(found[0].records) == 20


class TestLoad:
    def test_a_run_is_read_back(self):
        tuned = mltune.tune(trials=30, device=REPLAY, run="run", **SIMPLE)
        loaded = mltune.load_run("run")
        assert loaded.to_json() == tuned.to_json()
        with pytest.raises(errors.RunDirectoryError, match="nowhere"):
            mltune.load_run("nowhere")

    def test_a_run_of_an_earlier_version_is_read(self, tmp_path):
        run = mltune.load_run(shutil.copytree(ROOT / "tests/golden/run-format-3", tmp_path / "run"))
        assert len(run.records) == len(run.to_dataframe()) == 50
        assert run.best_config == dict(run.best.configuration)
        assert 0 < run.best_time_s < 0.01

    def test_datasets_and_kernels_by_name_or_path(self):
        assert len(mltune.load_dataset(DATASET)) >= 5000
        assert mltune.load_dataset(ROOT / f"datasets/gemm_simt/{DATASET}.parquet").manifest.name == DATASET
        assert mltune.load_kernel("gemm_simt").name == "gemm_simt"
        assert mltune.load_kernel(ROOT / "kernels/convolution").name == "convolution"


STRATEGY = """
class Backwards:
    name = "backwards"

    def __init__(self, step=1):
        self.step = step

    def search(self, simulation, seed):
        import sys
        assert (__name__, sys.argv[0]) in (("mine", "-c"), ("__main__", "script.py")), "a module has a worker process"
        simulation.begin()
        for index in reversed(range(0, simulation.space.count, self.step)):
            simulation.evaluate(index)
"""


class TestCompare:
    ONE = "h200-dgemm-nt-4096-random"

    def test_compares_and_writes_the_results(self, capsys):
        seen = []
        found = mltune.compare(
            ["random", "astra"], [self.ONE], evaluations=30, seeds=2, jobs=1, out="here", progress=seen.append
        )
        assert found.strategies == ("random", "astra")
        assert found.summary["strategies"].keys() == {"random", "astra"}
        assert Path("here/table.md").exists()
        assert seen[-1].done == 4
        assert capsys.readouterr() == ("", "")

    def test_shares_are_joined(self):
        options = {"evaluations": 20, "seeds": 2, "jobs": 1, "out": "here"}
        parts = [mltune.compare("random", self.ONE, share=share, **options) for share in ("1/2", "2/2")]
        assert sum(part.runs for part in parts) == 2
        assert {part.missing for part in parts} == {0}
        assert mltune.compare("random", self.ONE, **options).runs["random", self.ONE].seeds == (0, 1)

    @pytest.mark.system
    def test_a_script_needs_no_main_block_and_a_strategy_of_it_runs_in_its_process(self):
        """The other strategy runs in two processes, which do not run the script again."""
        Path("script.py").write_text(
            "import mltune\n"
            "print('once')\n"
            f"{STRATEGY}\n"
            f"options = {{'evaluations': 20, 'seeds': 2, 'jobs': 2, 'out': 'here'}}\n"
            f"found = mltune.compare(['random', Backwards], '{self.ONE}', **options)\n"
            "print(*found.strategies, found.missing, found.errors)\n"
        )
        done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, timeout=300)
        assert (done.stdout, done.stderr) == ("once\nrandom backwards 0 {}\n", "")

    @pytest.mark.system
    def test_a_strategy_of_a_module_runs_in_worker_processes(self):
        Path("mine.py").write_text(STRATEGY)
        options = "evaluations=20, seeds=2, jobs=1"
        Path("script.py").write_text(
            "import mltune, mine\n"
            "for number, one in enumerate((mine.Backwards, mine.Backwards(), 'mine:Backwards')):\n"
            f"    found = mltune.compare(['random', one], '{self.ONE}', {options}, out=f'here-{{number}}')\n"
            "    (name,) = set(found.strategies) - {'random'}\n"
            "    print(name, found.missing, found.errors)\n"
        )
        done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, timeout=300)
        assert done.stderr == ""
        assert done.stdout.splitlines() == ["backwards 0 {}", "backwards 0 {}", "mine:Backwards 0 {}"]

    @pytest.mark.system
    def test_another_source_of_a_strategy_is_another_comparison(self, tmp_path, monkeypatch):
        def compare(source):
            """Import the strategy anew, as another process does."""
            Path("mine.py").write_text(source)
            invalidate_caches()
            monkeypatch.delitem(sys.modules, "mine", raising=False)
            return mltune.compare("mine:Backwards", self.ONE, evaluations=20, seeds=1, jobs=1, out="here")

        monkeypatch.syspath_prepend(tmp_path)
        for _ in range(2):
            assert compare(STRATEGY).missing == 0
        with pytest.raises(UsageError, match=r"the content of strategy mine:Backwards in .* was"):
            compare(STRATEGY.replace("reversed(", "list("))

    def test_refuses_what_does_not_exist(self):
        with pytest.raises(UsageError, match="nosuch"):
            mltune.compare("nosuch")
        with pytest.raises(UsageError, match="nosuch:Class cannot be imported as MODULE:CLASS: ModuleNotFoundError"):
            mltune.compare("nosuch:Class")
        with pytest.raises(UsageError, match=r"has a name and a method search\(simulation, seed\)"):
            mltune.compare(pathlib.PurePath)


PACKAGE = Path(mltune.__file__).parent
LONG = {"api/tuning.py", "api/campaigns.py", "api/models.py", "api/comparing.py", "tuning/bound.py"}
LONG |= {"tuning/prediction.py", "integrations/kernel_tuner.py"}
"""Modules whose examples are whole runs, or need another tuner."""
DOCUMENTED = [path for path in sorted(PACKAGE.rglob("*.py")) if ">>>" in path.read_text()]


def name_of(path):
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.system] if name_of(path) in LONG else []) for path in DOCUMENTED],
    ids=name_of,
)
def test_the_examples_of_the_docstrings_run(path):
    name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    failed, tried = doctest.testmod(import_module(name))
    assert failed == 0
    assert tried > 0 or "+SKIP" in path.read_text()


@pytest.mark.system
def test_the_first_notebook_runs(tmp_path, monkeypatch):
    """Run the notebook without a display, in an empty folder."""
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(ROOT / "docs/notebooks/first_steps.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "a notebook is kept without outputs"
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert not [one for cell in notebook.cells for one in cell.get("outputs", ()) if one.output_type == "stream"]
    kinds = {kind for cell in notebook.cells for one in cell.get("outputs", ()) for kind in one.get("data", ())}
    assert {"image/png", "text/html"} <= kinds


@pytest.mark.filterwarnings("ignore::mltune.MltuneWarning")
class TestChoice:
    """Several kernels compete for one problem."""

    def test_the_result_is_that_of_the_fastest_and_is_loaded_again(self, no_gpu, tmp_path):
        kernels = ["gemm_simt", "clblast_xgemm"]
        seen = []
        options = SIMPLE | {"seed": 3, "progress": seen.append}
        result = mltune.tune("sgemm", kernel=kernels, device="replay", trials=32, run=tmp_path / "run", **options)
        assert (result.kernel, result.accuracy, len(result.rivals)) == ("gemm_simt", "ieee", 1)
        assert seen[-1].problems == 2
        settings = result.header.settings
        assert (settings["search"], settings["skip"], result.header.seed) == ("random", False, 3), (
            "those of every kernel"
        )
        again = mltune.load_run(tmp_path / "run")
        assert again.best_config == result.best_config

    @pytest.mark.system
    def test_without_a_kernel_all_candidates_compete(self, no_gpu, monkeypatch, tmp_path):
        kernels = [mltune.load_kernel(name) for name in ("gemm_simt", "clblast_xgemm")]
        monkeypatch.setattr("mltune.resolve.problems.candidates", lambda *problem: kernels)
        result = mltune.tune("sgemm", trials=32, run=tmp_path / "run", **SIMPLE)
        assert (tmp_path / "run/plan.toml").is_file()
        assert result.choice
        single = mltune.tune("sgemm", kernel="gemm_simt", trials=16, run=tmp_path / "single", **SIMPLE)
        resumed = mltune.tune("sgemm", trials=32, run=tmp_path / "single", **SIMPLE)
        assert (len(single.records), len(resumed.records)) == (16, 32)
        assert not (tmp_path / "single/plan.toml").exists(), "a run of one kernel goes on with it"

    @pytest.mark.parametrize("options", [{"device": REPLAY}, {"kernel": "gemm_simt"}, {"kernel": ["gemm_simt"]}])
    def test_one_kernel_is_a_run_as_before(self, no_gpu, options, tmp_path):
        result = mltune.tune("sgemm", trials=16, run=tmp_path / "run", accuracy="fp32", **options, **SIMPLE)
        assert result.directory == tmp_path / "run"
        assert not result.rivals
        assert "kernels" not in result.to_json()

    def test_a_recorded_kernel_is_of_the_accuracy(self, monkeypatch):
        monkeypatch.setattr("mltune.resolve.problems.accepts", lambda asked, found: False)
        with pytest.raises(UsageError, match="gemm_simt is of accuracy ieee, but ieee or a stricter one was asked for"):
            mltune.tune(device=REPLAY, trials=16, accuracy="ieee")


PAGES = ROOT / "docs/reference/python"
RESULTS = re.findall(r"^::: (mltune[.\w]*)", "".join(path.read_text() for path in PAGES.glob("*.md")), re.MULTILINE)
CLASSES = [
    found
    for found in map(pydoc.locate, RESULTS)
    if inspect.isclass(found)
    and not getattr(found, "_is_protocol", False)  # a plug-in decides what is computed when
    and found.__module__.split(".")[1] not in ("testing", "integrations")  # the names of pytest and of hosts
]
VERBS = ("to_", "with_", "begin", "check", "compile", "make", "plot", "save", "test_", "trace")


@pytest.mark.parametrize("found", CLASSES, ids=lambda found: found.__name__)
def test_a_method_takes_an_argument_or_begins_with_a_verb_and_any_other_fact_is_a_property(found):
    """One rule: what is known of an object is read without parentheses."""
    for name, member in inspect.getmembers(found, inspect.isfunction):
        if not name.startswith("_") and len(inspect.signature(member).parameters) == 1:
            assert name.startswith(VERBS), f"{name} is a fact of {found.__name__}: make it a property"


def test_the_rule_meets_the_results():
    assert {"TuneResult", "Comparison", "Dataset", "Wisdom", "GateResult"} <= {found.__name__ for found in CLASSES}
