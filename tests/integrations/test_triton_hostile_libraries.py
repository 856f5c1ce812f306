"""Libraries, files and surroundings that fail while the switch is on: each failure is one kernel's, and is said."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mltune.errors import MltuneWarning
from mltune.known.wisdom import Wisdom
from tests.environment import importing

HERE = Path(__file__).parent

SOURCE = """
@triton.jit
def kernel(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, 2 * tl.load(x + at, at < n), at < n)
"""
BEST = 512

LIBRARY = """
import os
import triton
import triton.language as tl

configs = [triton.Config({"BLOCK": block}) for block in (32, 64, 128, 256)]


@triton.autotune(configs, key=["n"])
@triton.jit
def honest(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, 3 * tl.load(x + at, at < n), at < n)
"""
FAULTY = """

@triton.constexpr_function
def fault_of_NAME(block):
    return 0


def real_fault_of_NAME(block):
    if block == 64:
        FAULT
    return 0


fault_of_NAME.fn = real_fault_of_NAME  # Triton does not allow that the function calls others


@triton.autotune(configs, key=["n"])
@triton.jit
def NAME(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK) + fault_of_NAME(BLOCK)
    tl.store(x + at, 2 * tl.load(x + at, at < n), at < n)
"""
ENDLESS = "__import__('time').sleep(600)"
KERNELS = ("faulty", "faulty_too", "faulty_again", "faulty_at_last")
"""Of a library with as many faults."""

PROGRAM = f"""
import json, sys
sys.path.insert(0, {str(HERE)!r})
import triton.language as tl
from simulated_gpu import SimulatedGpu, pointer, submit_with_limit
from triton.runtime.driver import driver
from mltune.device.known import H200
from mltune.integrations.triton import compilers, decorator

decorator.gpu_and_driver = lambda index: (H200, "13.0")
driver._active = SimulatedGpu(lambda meta: 1.0 + abs(meta["BLOCK"] - 128) / 1024)
import library

is_endless = lambda source: source.name in library.ENDLESS and 64 in source.constants.values()
compilers.Compilers.submit = submit_with_limit(is_endless)
for name in sys.argv[1:]:
    tuner = getattr(library, name)
    tuner[(4,)](pointer(tl.float32), 4096)
    measured = len(getattr(tuner, "configs_timings", ()))
    print(json.dumps([name, tuner.best_config.kwargs["BLOCK"], measured]), flush=True)
"""


@pytest.fixture
def program(triton, tmp_path):
    """Return a function that starts a program in which a library's kernels are launched, switched on from outside."""
    (tmp_path / "program.py").write_text(PROGRAM)

    def started(*kernels, faults=("pass",), options=(), **environment):
        faulty = zip(KERNELS, faults, strict=False)
        parts = [FAULTY.replace("NAME", name).replace("FAULT", fault) for name, fault in faulty]
        endless = [name for name, fault in zip(KERNELS, faults, strict=False) if fault == ENDLESS]
        (tmp_path / "library.py").write_text(f"{LIBRARY}\nENDLESS = {endless}\n" + "".join(parts))
        own = {"TRITON_CACHE_DIR": str(tmp_path / "triton"), "MLTUNE_WISDOM": str(tmp_path / "wisdom.json")}
        words = [sys.executable, "-m", "mltune.integrations.triton", *options, str(tmp_path / "program.py"), *kernels]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(words, env=importing(**own | environment), cwd=tmp_path, **pipes)

    return started


def answers(process):
    stdout, stderr = process.communicate(timeout=240)
    assert process.returncode == 0, stderr
    return [json.loads(line) for line in stdout.splitlines()], stderr


class TestFaults:
    """Kernels of a library whose compilers fail: the program goes on, and other kernels are tuned."""

    def test_a_configuration_that_ends_its_compiler_is_left_out(self, program):
        faults = ("os.abort()", "bytearray(1 << 40)", ENDLESS, "os._exit(0)")
        tuned, said = answers(program(*KERNELS, "honest", faults=faults))
        assert tuned == [*([name, 128, 3] for name in KERNELS), ["honest", 128, 4]]
        assert "Traceback" not in said

    @pytest.mark.parametrize("fault", [pytest.param("os.abort()", marks=pytest.mark.nightly), ENDLESS])
    def test_a_first_step_does_not_wait_for_it(self, program, fault):
        tuned, _ = answers(program(*["faulty", "honest"] * 2, faults=[fault], options=["--overlap"]))
        assert tuned == [["faulty", 32, 0], ["honest", 32, 0], ["faulty", 128, 3], ["honest", 128, 4]]

    def test_a_program_that_ends_after_its_first_step_leaves_what_is_queued(self, program, tmp_path, monkeypatch):
        many = '[triton.Config({"BLOCK": 64}, num_stages=stages) for stages in range(1, 41)]'
        blocks = '[triton.Config({"BLOCK": block}) for block in (32, 64, 128, 256)]'
        monkeypatch.setitem(globals(), "LIBRARY", LIBRARY.replace(blocks, many))
        tuned, _ = answers(program("faulty", faults=["__import__('time').sleep(1)"], options=["--overlap"]))
        assert tuned == [["faulty", 64, 0]]
        assert len(list((tmp_path / "triton").glob("*/faulty.cubin"))) < 12  # of 25 that were begun

    def test_all_configurations_fail(self, program):
        process = program("honest", "faulty", faults=["pass\n    raise ValueError('no such block')"])
        stdout, stderr = process.communicate(timeout=240)
        assert json.loads(stdout) == ["honest", 128, 4]
        assert process.returncode == 1
        assert "no such block" in stderr


class TestProcesses:
    """Several processes that are switched on."""

    def test_two_that_tune_at_the_same_time_lose_nothing(self, program, tmp_path):
        processes = [program("honest"), program("faulty")]
        assert sorted(answers(process)[0] for process in processes) == [[["faulty", 128, 4]], [["honest", 128, 4]]]
        names = {entry.kernel for entry in Wisdom.load(tmp_path / "wisdom.json")}
        assert names == {"library.honest", "library.faulty"}
        again, _ = answers(program("honest", "faulty"))
        assert [measured for *_, measured in again] == [1, 1]

    @pytest.mark.nightly  # in one process it is tested where winners are
    def test_without_a_folder_for_winners_each_process_tunes(self, program):
        for _ in range(2):
            tuned, said = answers(program("honest", MLTUNE_WISDOM="/proc/none/wisdom.json"))
            assert tuned == [["honest", 128, 4]]
            assert "the wisdom /proc/none/wisdom.json cannot be written" in said

    @pytest.mark.nightly
    def test_without_a_folder_for_kernels_the_error_is_that_of_triton(self, program):
        process = program("honest", TRITON_CACHE_DIR="/proc/none")
        _, stderr = process.communicate(timeout=240)
        assert process.returncode == 1
        assert "'/proc/none" in stderr.strip().splitlines()[-1]


@pytest.fixture
def gpu(simulated):
    return simulated(lambda meta: 1.0 + abs(meta["BLOCK"] - BEST) / 1024)


@pytest.fixture
def is_switched(switched):
    switched()


@pytest.fixture
def jit(kernels):
    return kernels(SOURCE).kernel


@pytest.fixture
def configs(triton):
    return [triton.Config({"BLOCK": 2**power}) for power in range(5, 12)]


def launch(tuner, x=None, n=4096):
    import triton.language as tl
    from simulated_gpu import pointer

    tuner[(4,)](pointer(tl.float32) if x is None else x, n)
    return tuner


def _cut(path):
    path.write_bytes(path.read_bytes()[:-20])


def _of_the_future(path):
    path.write_text(path.read_text().replace('"format": 1', '"format": 99'))


def _a_pipe(path):
    path.unlink()
    os.mkfifo(path)


def _a_folder(path):
    path.unlink()
    path.mkdir()


def _a_link_to_itself(path):
    path.unlink()
    path.symlink_to(path.name)


def _without_end(path):
    os.truncate(path, 1 << 34)


@pytest.mark.usefixtures("warm_cache")
class TestWinners:
    """Files of winners that are damaged, or that somebody has forged."""

    @pytest.mark.parametrize("damage", [_cut, _of_the_future, _a_pipe, _a_folder, _a_link_to_itself, _without_end])
    @pytest.mark.sampled(0, system=2, nightly=99)
    def test_a_damaged_file_is_said_and_kept_and_the_kernel_is_tuned(
        self, triton, gpu, jit, configs, is_switched, damage, tmp_path
    ):
        path = tmp_path / "wisdom.json"
        launch(triton.autotune(configs, ["n"])(jit))
        damage(path)
        before = os.lstat(path)
        gpu.launches.clear()
        with pytest.warns(MltuneWarning, match="winners of Triton's kernels are not kept"):
            tuner = launch(triton.autotune(configs, ["n"])(jit))
        assert tuner.best_config.kwargs["BLOCK"] == BEST
        assert len(tuner.configs_timings) == 7
        after = os.lstat(path)
        assert (after.st_ino, after.st_size, after.st_mode) == (before.st_ino, before.st_size, before.st_mode)

    def test_a_forged_winner_is_a_choice_from_the_list_or_nothing(
        self, triton, gpu, jit, configs, is_switched, tmp_path
    ):
        path = tmp_path / "wisdom.json"
        launch(triton.autotune(configs, ["n"])(jit))
        honest = path.read_text()
        for block, chosen in (("32", 32), ("32.5", BEST), ('"32"', BEST), ("4096", BEST)):
            path.write_text(honest.replace(f'"BLOCK": {BEST}', f'"BLOCK": {block}'))
            assert launch(triton.autotune(configs, ["n"])(jit)).best_config.kwargs["BLOCK"] == chosen


@pytest.mark.usefixtures("warm_cache")
class TestWrappers:
    """Classes and functions that libraries put around Triton's autotuner."""

    def test_hooks_of_a_subclass_for_optional_arguments(self, triton, gpu, jit, configs, is_switched):
        from simulated_gpu import HostTensor

        class Library(triton.runtime.Autotuner):
            """Replaces hooks of Triton that fail where an argument is None."""

            def __init__(self, *arguments, **options):
                super().__init__(*arguments, **options)
                self.copies = {}
                self.pre_hook, self.post_hook = self.keep, self.put_back

            def keep(self, arguments, reset_only=False):
                if not reset_only and arguments["x"] is not None:
                    self.copies["x"] = arguments["x"].clone()

            def put_back(self, arguments, exception):
                for name, kept in self.copies.items():
                    arguments[name].copy_(kept)

        def doubled(meta, x, *_):
            if x is not None:
                x.values *= 2

        gpu.effect = doubled
        x = HostTensor([1.0, 1.0])
        tuner = launch(Library(jit, jit.arg_names, configs, ["n"], None, ["x"]), x)
        assert tuner.best_config.kwargs["BLOCK"] == BEST
        assert x.values.tolist() == [2.0, 2.0]

    def test_an_object_around_a_tuner_that_is_copied_and_called_by_name(self, triton, gpu, jit, configs, is_switched):
        import copy

        class Wrapper:
            """Keeps one tuner for each device, as serving engines do."""

            def __init__(self, tuner):
                self.tuner, self.of_device = tuner, {}

            def __getitem__(self, grid):
                mine = self.of_device.setdefault(0, copy.copy(self.tuner))
                return lambda *arguments: mine.run(*arguments, grid=grid, warmup=False)

        wrapper = launch(Wrapper(triton.autotune(configs, ["n"])(jit)))
        (mine,) = wrapper.of_device.values()
        assert mine.best_config.kwargs["BLOCK"] == BEST
        assert len(gpu.launches) > 7
        gpu.launches.clear()
        launch(wrapper)
        assert [meta["BLOCK"] for meta in gpu.launches] == [BEST]

    def test_a_function_that_decorates_anew_at_each_call_measures_once(self, triton, gpu, jit, configs, is_switched):
        for call in range(3):
            tuner = launch(triton.autotune(configs, ["n"])(jit))
            assert tuner.best_config.kwargs["BLOCK"] == BEST
            assert len(tuner.configs_timings) == (1 if call else 7)

    def test_a_copy_of_a_tuner_that_was_tuned_has_arguments_of_its_own(self, triton, gpu, jit, configs, is_switched):
        import copy

        tuner = launch(triton.autotune(configs, ["n"])(jit))
        twin = copy.copy(tuner)
        twin.configs, twin.cache = configs[:3], {}
        assert launch(twin).best_config.kwargs["BLOCK"] == 128
        assert launch(tuner).best_config.kwargs["BLOCK"] == BEST
