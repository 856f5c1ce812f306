"""Every autotuner of a program tuned by mltune, on a simulated GPU: wrappers, subclasses, results on disk."""

import functools
import importlib.metadata
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mltune.errors import MltuneWarning
from mltune.integrations.triton import install_if_asked, switch
from mltune.integrations.triton.__main__ import main
from mltune.integrations.triton.decorator import Settings
from mltune.known.triton_winners import export_winners, import_winners
from tests.environment import ROOT, importing

SOURCE = """
@triton.jit
def kernel(x, n, BLOCK: tl.constexpr, EVEN: tl.constexpr = False):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, 2 * tl.load(x + at, at < n), at < n)
"""
BEST = 512


@pytest.fixture
def gpu(simulated):
    return simulated(lambda meta: 1.0 + abs(meta["BLOCK"] - BEST) / 1024)


@pytest.fixture
def jit(kernels):
    return kernels(SOURCE).kernel


@pytest.fixture
def configs(triton):
    return [triton.Config({"BLOCK": 2**power}) for power in range(5, 12)]


def launch(tuned, n=4096, **options):
    import triton.language as tl
    from simulated_gpu import pointer

    tuned[(4,)](pointer(tl.float32), n, **options)
    return tuned.fn if type(tuned).__name__ == "Heuristics" else tuned


def is_ours(tuner):
    return hasattr(tuner, "started_from") and tuner.best_config.kwargs["BLOCK"] == BEST


@pytest.mark.usefixtures("warm_cache")
class TestWhoIsTuned:
    """Kernels that reach mltune, however their library came to the class."""

    def test_those_decorated_before_and_after_and_by_names_kept_elsewhere(self, triton, gpu, jit, configs, switched):
        from triton.runtime.autotuner import Autotuner, autotune

        before = triton.autotune(configs, key=["n"])(jit)
        switched(wisdom="none")
        after, kept = triton.autotune(configs, key=["n"])(jit), autotune(configs, ["n"])(jit)
        constructed = Autotuner(jit, jit.arg_names, configs, ["n"], None, None)
        for tuner in (before, after, kept, constructed):
            assert is_ours(launch(tuner))
            assert len(tuner.configs_timings) == 7
        assert switch.not_taken_over() == {}

    def test_compilers_start_with_the_first_kernel_that_is_decorated_if_no_winner_can_be_known(
        self, triton, gpu, jit, configs, switched, monkeypatch
    ):
        started = []
        monkeypatch.setattr(Settings, "shared_compilers", lambda settings: started.append(settings.wisdom))
        monkeypatch.setattr(switch, "_start_early", functools.cache(switch._start_early.__wrapped__))
        switched()
        switch._start_early.cache_clear()
        started.clear()
        triton.autotune(configs[:1], key=["n"])(jit)
        assert started == []
        for _ in range(2):
            triton.autotune(configs, key=["n"])(jit)
        assert started == ["auto"]

    def test_heuristics_around_and_within(self, triton, gpu, jit, configs, switched):
        switched(wisdom="none")
        even = triton.heuristics({"EVEN": lambda arguments: arguments["n"] % 2 == 0})
        assert is_ours(launch(even(triton.autotune(configs, key=["n"])(jit))))
        assert is_ours(launch(triton.autotune(configs, key=["n"])(even(jit))))

    def test_a_subclass_that_looks_winners_up_first_keeps_its_own(self, triton, gpu, jit, configs, switched):
        class Library(triton.runtime.Autotuner):
            """As libraries do: what a file of theirs says is put under Triton's key."""

            def run(self, *arguments, **options):
                if arguments[1] == 77:
                    self.cache[77, "fp32"] = configs[0]
                return super().run(*arguments, **options)

        switched()
        tuner = Library(jit, jit.arg_names, configs, ["n"], None, None)
        launch(tuner, 77)
        assert tuner.best_config is configs[0]
        assert gpu.launches == [{"BLOCK": 32, "EVEN": False, "num_warps": 4, "num_stages": 3}]
        assert is_ours(launch(tuner, 4096))
        launch(tuner, 77)
        assert tuner.best_config is configs[0]

    def test_what_triton_tuned_before_stays(self, triton, gpu, jit, configs, switched):
        tuner = triton.autotune(configs, ["n"], do_bench=lambda call, quantiles: [1.0] * 3)(jit)
        launch(tuner)
        switched()
        launch(tuner)
        assert tuner.best_config == configs[0]
        assert not hasattr(tuner, "started_from")

    def test_arguments_hooks_and_benchmarks_of_the_library_are_kept(self, triton, gpu, jit, configs, switched):
        from simulated_gpu import HostTensor

        seen = []

        def benchmark(call, quantiles):
            call()
            seen.append(gpu.launches[-1]["BLOCK"])
            return abs(seen[-1] - 64) + 1.0

        def doubled(meta, x, *_):
            x.values *= 2

        switched()
        x = HostTensor([1.0, 1.0])
        gpu.effect = doubled
        restoring = triton.autotune(configs, ["n"], None, None, ["x"], warmup=None, rep=None, do_bench=None)(jit)
        restoring[(1,)](x, n=4096)
        assert is_ours(restoring)
        assert x.values.tolist() == [2.0, 2.0]
        gpu.effect = lambda *_: None
        own = triton.autotune(configs, ["n"], do_bench=benchmark)(jit)
        launch(own, EVEN=True)
        assert own.best_config.kwargs["BLOCK"] == 64
        assert sorted(seen) == [2**power for power in range(5, 12)]

    def test_a_class_that_tunes_by_itself_runs_as_it_was_and_is_named_at_the_end(
        self, triton, gpu, jit, configs, switched
    ):
        class Other(triton.runtime.Autotuner):
            def run(self, *arguments, **options):
                self.cache[()] = self.configs[1]
                return self.fn.run(*arguments, **options, **self.configs[1].all_kwargs())

        switched()
        tuner = Other(jit, jit.arg_names, configs, ["n"], None, None)
        launch(tuner)
        assert [meta["BLOCK"] for meta in gpu.launches] == [64]
        with pytest.warns(MltuneWarning, match=r"1 kernels were tuned without mltune: kernel \(its class has its own"):
            switch._report()

    def test_a_kernel_of_which_nothing_can_be_captured_is_tuned_by_triton(self, triton, configs, switched):
        from hosts import Kernel

        switched()
        kernel = Kernel()
        tuner = triton.autotune(configs, ["n"], do_bench=lambda call, quantiles: call() or [1.0] * 3)(kernel)
        tuner.run("x", 1)
        assert len(kernel.calls) == 8
        assert switch.not_taken_over() == {"fn": "what it launches is a Kernel"}

    def test_options_are_those_of_the_last_call_and_a_second_one_does_not_wrap_again(
        self, triton, gpu, jit, configs, switched
    ):
        switched(trials=3, wisdom="none")
        first = launch(triton.autotune(configs, key=["n"])(jit))
        switched(trials=2, wisdom="none")
        second = launch(triton.autotune(configs, key=["n"])(jit))
        assert [len(tuner.configs_timings) for tuner in (first, second)] == [3, 2]
        assert not hasattr(triton.runtime.Autotuner.run.__wrapped__, "__wrapped__")


class TestOverlap:
    """Kernels of one step that are compiled at the same time, and measured in the next step."""

    @pytest.fixture
    def blocks(self, gpu):
        """Return a function that says which configurations were launched since the last call."""

        def launched():
            blocks = [meta["BLOCK"] for meta in gpu.launches]
            gpu.launches.clear()
            return blocks

        return launched

    def test_the_first_call_launches_the_first_configuration_and_the_second_tunes(
        self, triton, gpu, kernels, configs, switched, blocks
    ):
        switched(overlap=True)
        sources = [SOURCE.replace("2 *", f"{factor} *") for factor in (2, 3, 4)]
        tuners = [triton.autotune(configs, ["n"])(kernels(source).kernel) for source in sources]
        for tuner in tuners:
            launch(tuner)
            assert blocks() == [32]
        for tuner in tuners:
            assert is_ours(launch(tuner))
            assert set(blocks()) == {2**power for power in range(5, 12)}
            launch(tuner)
            assert blocks() == [BEST]
        launch(tuners[0], 8192)
        assert blocks() == [32]

    def test_a_known_winner_is_taken_at_once(self, triton, gpu, jit, configs, switched, blocks):
        switched()
        launch(triton.autotune(configs, ["n"])(jit))
        switched(overlap=True)
        blocks()
        assert launch(triton.autotune(configs, ["n"])(jit)).best_config.kwargs["BLOCK"] == BEST
        assert blocks() == [BEST]

    def test_where_the_first_configuration_cannot_be_launched_the_first_call_tunes(
        self, triton, gpu, kernels, configs, switched, blocks
    ):
        switched(overlap=True)
        source = SOURCE.replace("    at =", "    tl.static_assert(BLOCK > 32)\n    at =")
        assert is_ours(launch(triton.autotune(configs, ["n"])(kernels(source).kernel)))
        assert set(blocks()) == {2**power for power in range(6, 12)}

    def test_of_the_ranks_of_a_machine_the_first_compiles(
        self, triton, gpu, jit, configs, switched, blocks, monkeypatch, tmp_path
    ):
        monkeypatch.setenv("LOCAL_RANK", "1")
        switched(overlap=True)
        tuner = triton.autotune(configs, ["n"])(jit)
        launch(tuner)
        assert blocks() == [32]
        assert len(list((tmp_path / "triton").glob("*/kernel.cubin"))) == 1
        assert is_ours(launch(tuner))


class TestResultsOnDisk:
    """The file of results that Triton reads with ``cache_results``."""

    @pytest.fixture
    def files(self, tmp_path):
        return lambda: list((tmp_path / "triton").glob("*/kernel.autotune.json"))

    def test_triton_without_mltune_reads_what_mltune_has_written(self, triton, gpu, jit, configs, switched, files):
        own = triton.runtime.Autotuner.run
        switched(trials=4)
        tuned = launch(triton.autotune(configs, key=["n"], cache_results=True)(jit))
        (file,) = files()
        timings = [times for _, times in json.loads(file.read_text())["configs_timings"]]
        assert sum(times[0] < float("inf") for times in timings) == len(tuned.configs_timings) == 4
        triton.runtime.Autotuner.run = own
        gpu.launches.clear()
        reader = triton.autotune(configs, key=["n"], cache_results=True)(jit)
        assert launch(reader).best_config == tuned.best_config
        assert len(gpu.launches) == 1

    def test_mltune_reads_what_triton_has_written(self, triton, gpu, jit, configs, switched, files, tmp_path):
        benchmark = lambda call, quantiles: [1.0 + (call() or gpu.launches[-1]["BLOCK"] != 64)] * 3  # noqa: E731
        launch(triton.autotune(configs, key=["n"], cache_results=True, do_bench=benchmark)(jit))
        assert len(files()) == 1
        switched()
        gpu.launches.clear()
        reader = launch(triton.autotune(configs, key=["n"], cache_results=True)(jit))
        assert reader.best_config.kwargs["BLOCK"] == 64
        assert len(gpu.launches) == 1
        assert not (tmp_path / "wisdom.json").exists()

    def test_a_winner_of_the_wisdom_is_written_for_triton_and_a_default_is_not(
        self, triton, gpu, jit, configs, switched, files, monkeypatch
    ):
        switched()
        monkeypatch.setenv("MLTUNE_EFFORT", "none")
        launch(triton.autotune(configs, key=["n"], cache_results=True)(jit))
        assert files() == []
        monkeypatch.delenv("MLTUNE_EFFORT")
        launch(triton.autotune(configs, key=["n"])(jit))
        assert files() == []
        monkeypatch.setenv("MLTUNE_EFFORT", "none")
        gpu.launches.clear()
        assert launch(triton.autotune(configs, key=["n"], cache_results=True)(jit)).best_config.kwargs["BLOCK"] == BEST
        assert len(gpu.launches) == 1
        assert len(files()) == 1


@pytest.mark.usefixtures("warm_cache")
class TestCarried:
    """Winners that another machine of the kind takes without measuring."""

    def test_an_imported_winner_is_launched_at_once(self, triton, gpu, jit, configs, switched, tmp_path, monkeypatch):
        switched()
        launch(triton.autotune(configs, key=["n"])(jit))
        assert export_winners(tmp_path / "wisdom.json", tmp_path / "winners") == ({"NVIDIA_H200_sm_90_132.json": 1}, 0)
        monkeypatch.setenv("MLTUNE_WISDOM", str(tmp_path / "elsewhere.json"))
        import_winners(tmp_path / "winners", tmp_path / "elsewhere.json")
        gpu.launches.clear()
        assert launch(triton.autotune(configs, key=["n"])(jit)).best_config.kwargs["BLOCK"] == BEST
        assert len(gpu.launches) == 1

    def test_the_file_of_a_gpu_can_be_read_in_place(self, triton, gpu, jit, configs, switched, tmp_path, monkeypatch):
        switched()
        launch(triton.autotune(configs, key=["n"])(jit))
        (name,), _ = export_winners(tmp_path / "wisdom.json", tmp_path / "winners")
        monkeypatch.setenv("MLTUNE_WISDOM", str(tmp_path / "winners" / name))
        gpu.launches.clear()
        assert launch(triton.autotune(configs, key=["n"])(jit)).best_config.kwargs["BLOCK"] == BEST
        assert len(gpu.launches) == 1

    def test_a_winner_that_is_not_in_the_list_is_not_taken(
        self, triton, gpu, jit, configs, switched, tmp_path, monkeypatch
    ):
        switched()
        launch(triton.autotune(configs, key=["n"])(jit))
        (name,), _ = export_winners(tmp_path / "wisdom.json", tmp_path / "winners")
        file = tmp_path / "winners" / name
        file.write_text(file.read_text().replace(f'"BLOCK": {BEST}', '"BLOCK": 1048576'))
        monkeypatch.setenv("MLTUNE_WISDOM", str(tmp_path / "elsewhere.json"))
        import_winners(tmp_path / "winners", tmp_path / "elsewhere.json")
        gpu.launches.clear()
        assert is_ours(launch(triton.autotune(configs, key=["n"])(jit)))
        assert {meta["BLOCK"] for meta in gpu.launches} == {2**power for power in range(5, 12)}


PROGRAM = """
import sys, triton
from triton.runtime.autotuner import Autotuner
print(__name__, sys.argv[1:], hasattr(Autotuner.run, "__wrapped__"), sys.path[0])
"""


class TestEntries:
    """How a program is switched without an edit."""

    def run(self, *arguments, **environment):
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(command, env=importing(**environment), capture_output=True, text=True, cwd=ROOT)
        return done.stdout.strip() or done.stderr.strip()

    def test_a_program_or_a_module_runs_as_python_runs_it(self, switched, tmp_path, monkeypatch, capsys):
        (tmp_path / "program.py").write_text(PROGRAM)
        said = self.run("-m", "mltune.integrations.triton", tmp_path / "program.py", "-m", "a b")
        assert said == f"__main__ ['-m', 'a b'] True {tmp_path}"
        monkeypatch.setattr(sys, "argv", ["mltune.integrations.triton", "-m", "program", "x"])
        monkeypatch.setattr(sys, "path", ["", *sys.path])
        monkeypatch.setenv("MLTUNE_TRITON", "")
        monkeypatch.chdir(tmp_path)
        main()
        assert capsys.readouterr().out == f"__main__ ['x'] True {tmp_path}\n"

    def test_without_a_program_it_says_how(self):
        assert self.run("-m", "mltune.integrations.triton").startswith("usage: python -m mltune.integrations.triton")

    def test_importing_pytorch_calls_what_the_package_names(self, triton, switched, monkeypatch):
        from triton.runtime.autotuner import Autotuner

        project = tomllib.loads((Path(ROOT) / "pyproject.toml").read_text())["project"]
        ((name, value),) = project["entry-points"]["torch.backends"].items()
        called = importlib.metadata.EntryPoint(name, value, "torch.backends").load()
        assert called is install_if_asked
        for asked, wrapped in (("", False), ("0", False), ("1", True), ("overlap", True)):
            monkeypatch.setenv("MLTUNE_TRITON", asked)
            called()
            assert hasattr(Autotuner.run, "__wrapped__") == wrapped
        assert switch._settings.overlap

    def test_what_is_wrong_does_not_end_the_import_of_pytorch(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "triton", None)
        monkeypatch.setenv("MLTUNE_TRITON", "1")
        monkeypatch.setattr(switch, "_settings", None)
        with pytest.warns(MltuneWarning, match="MLTUNE_TRITON=1 has no effect: the search needs triton"):
            install_if_asked()

    def test_a_process_that_does_not_ask_imports_next_to_nothing(self):
        said = self.run(
            "-c",
            "import sys; from mltune.integrations.triton import install_if_asked as called; called();"
            "print([name for name in ('numpy', 'pydantic', 'triton') if name in sys.modules])",
            MLTUNE_TRITON="",
        )
        assert said == "[]"
