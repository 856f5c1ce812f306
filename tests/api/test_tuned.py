"""A tuned function, on a GPU that is imaginary: what it takes, when it tunes, and what it says of it."""

from dataclasses import replace

import numpy as np
import pytest
from tuned_functions import PARAMETERS, SOURCE, Array, World, arguments, function

import mltune
from mltune.device.known import H200
from mltune.errors import BundleError, MltuneWarning, RunError, UsageError
from tests import needs


@pytest.fixture
def world(request, tmp_path, idle_workers, monkeypatch):
    """Return a GPU on which kernels need no compiler, except in system tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MLTUNE_EFFORT", "quick")
    return World(
        monkeypatch, tmp_path, idle_workers.pool, compiles=request.node.get_closest_marker("system") is not None
    )


@pytest.fixture
def file(tmp_path):
    return tmp_path / "add.json"


def test_the_first_call_tunes_later_ones_launch_and_another_process_reads(world, file):
    add, given = function(file), arguments()
    for _ in range(3):
        add(*given)

    assert world.tuned == 1
    assert [grid for grid, _ in world.launches] == [(4, 1, 1)] * 3  # ceil(1000 / 256)
    assert world.launches[0][1] == given
    choice = add.chosen(*given)
    assert (choice.origin, choice.effort, choice.calls) == ("tuned", "quick", 3)
    assert choice.configuration["block_size_x"] == 256
    assert choice.median_s == pytest.approx(1e-3, rel=0.1)
    assert choice.default_s == pytest.approx(3e-3, rel=0.1)
    again = function(file)
    again(*arguments())
    assert world.tuned == 1
    assert again.chosen(*given).origin == "file"
    assert again.chosen(*given).configuration == choice.configuration
    assert not list((file.parent / "cache/mltune/tuned").iterdir())


def test_the_size_is_that_of_problem_and_arrays_not_the_value_of_scalars(world, file):
    add = function(file)
    add(Array(1000), Array(1000), np.float32(2), np.int32(1000))
    add(Array(1000), Array(1000), np.float32(3), np.int32(999))
    assert world.tuned == 1
    add(Array(1000), Array(2000), np.float32(3), np.int32(1000))
    assert world.tuned == 2
    frame = add.to_dataframe()
    assert frame["calls"].tolist() == [2, 1]
    assert frame["label"].tolist() == ["add 1000x1000x1000", "add 1000x1000x2000"]
    assert frame["origin"].tolist() == ["tuned", "tuned"]
    assert frame["block_size_x"].tolist() == [256, 256]
    assert (frame["first_s"] > 0).all()


def test_without_effort_nothing_is_tuned_and_the_nearest_size_is_taken(world, file, monkeypatch):
    add = function(file, effort="none")  # the argument wins
    add(*arguments(1000))
    assert world.launches.pop()[0] == (16, 1, 1)  # ceil(1000 / 64), the first value
    assert add.chosen(*arguments(1000)).origin == "default"
    assert not file.exists()
    function(file)(*arguments(4000))
    world.launches.clear()

    monkeypatch.setenv("MLTUNE_EFFORT", "none")
    near = function(file)
    near(*arguments(5000))

    assert world.tuned == 1
    assert world.launches[0][0] == (20, 1, 1)  # ceil(5000 / 256)
    assert near.chosen(*arguments(5000)).origin == "nearest"
    assert "the nearest size, add 4000x4000x4000; measured there: " in near.explain(*arguments(5000))


def test_what_was_found_quickly_is_tuned_again_in_full(world, file):
    function(file)(*arguments())
    full = function(file, effort="full")
    full(*arguments())
    assert world.tuned == 2
    assert full.chosen(*arguments()).effort == "full"
    function(file, effort="quick")(*arguments())
    function(file, effort="full")(*arguments())
    assert world.tuned == 2


def test_chosen_and_explain_neither_tune_nor_launch(world, file):
    add = function(file)
    assert add.chosen(*arguments()).origin == "default"
    assert f"the default, because {file} knows nothing of it on NVIDIA H200" in add.explain(*arguments())
    assert (world.tuned, world.launches) == (0, [])
    assert add.prepare(*arguments()).calls == 0
    assert (world.tuned, world.launches) == (1, [])


def test_a_decorated_function_gives_the_problem_size(world, file):
    @mltune.tuned("add", SOURCE, PARAMETERS, file=file, grid_div_x=["block_size_x", 2], progress=None)
    def scaled(c, a, factor, n):
        """Return the elements."""
        return [int(n), 1]

    scaled(*arguments())

    assert (scaled.__name__, scaled.__doc__) == ("scaled", "Return the elements.")
    assert world.launches[0][0] == (2, 1, 1)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'n'"):
        scaled(*arguments()[:3])


def test_another_source_launch_or_gpu_is_not_used_silently(world, file):
    function(file)(*arguments())
    changed = SOURCE.replace("factor *", "2 * factor *")
    for other in (function(file, changed, effort="none"), function(file, effort="none", defines={"ORDER": 2})):
        with pytest.warns(MltuneWarning, match="it knows another source, launch, GPU or types"):
            other(*arguments())
        assert other.chosen(*arguments()).origin == "default"
    assert world.tuned == 1
    function(file, changed)(*arguments())
    assert world.tuned == 2

    world.device = replace(H200, name="NVIDIA H100", sm_count=114)
    with pytest.warns(MltuneWarning, match="from a NVIDIA H200 with 132 multiprocessors; MLTUNE_EFFORT=quick tunes"):
        assert function(file, effort="none").chosen(*arguments()).origin == "gpu"
    world.device = replace(H200, name="NVIDIA A100", compute_capability=(8, 0))
    with pytest.warns(MltuneWarning, match="it knows another source, launch, GPU or types"):
        assert function(file, effort="none").chosen(*arguments()).origin == "default"
    function(file)(*arguments())
    assert world.tuned == 3


def test_types_of_arguments_are_told_apart(world, file):
    function(file)(*arguments())
    doubles = Array(1000, dtype="float64"), Array(1000, dtype="float64"), np.float64(2), np.int32(1000)
    with pytest.warns(MltuneWarning, match="GPU or types"):
        assert function(file).chosen(*doubles).origin == "default"
    function(file)(*doubles)
    assert world.tuned == 2


@pytest.mark.filterwarnings("error")
def test_restrictions_may_use_sizes(world, file):
    add = function(file, restrictions=["block_size_x <= argument_0 // 8", "problem_size_x % block_size_x == 0"])
    for n, block in ((1024, 128), (4096, 256)):
        add(*arguments(n))
        assert add.chosen(*arguments(n)).configuration["block_size_x"] == block


class TestBadInput:
    @pytest.mark.parametrize(
        ("given", "words"),
        [
            (
                (Array(10), Array(10), np.float32(2), 10),
                "argument 3 is int; an argument is a NumPy scalar, such as numpy.int32.n.",
            ),
            ((Array(10), np.zeros(10), np.float32(2), np.int32(10)), "argument 1 is ndarray"),
            (
                (Array(10), Array(10, strides=(8,)), np.float32(2), np.int32(10)),
                "argument 1 is strides of .8,. bytes",
            ),
            (
                (Array(10), Array(0), np.float32(2), np.int32(10)),
                "has the shape .0,., but an array has at least one element",
            ),
            ((Array(0), Array(10), np.float32(2), np.int32(10)), "no problem size, which is a positive number"),
        ],
    )
    def test_arguments_of_no_kernel_are_refused(self, world, file, given, words):
        with pytest.raises(UsageError, match=words):
            function(file)(*given)
        assert (world.tuned, world.launches) == (0, [])

    @needs.nvrtc
    @pytest.mark.parametrize("effort", ["none", "quick"])
    @pytest.mark.parametrize(
        ("given", "words"),
        [
            ((Array(10, dtype="float64"), Array(10), np.float32(2), np.int32(10)), "a pointer to float64"),
            ((Array(10), Array(10), np.float32(2)), "has 4 parameters, not one for each of 3"),
            ((Array(10), Array(10), np.float32(2), np.int64(10)), "parameter 4 of add is .*, not int64"),
        ],
    )
    def test_so_are_those_that_the_kernel_cannot_have_are_refused(self, world, file, given, words, effort):
        with pytest.raises(BundleError, match=words):
            function(file, effort=effort)(*given)
        assert (world.tuned, world.launches) == (0, [])

    @pytest.mark.parametrize("size", [None, 1.5j, (10, None), (), -1, (1, 2, 3, 4), object()])
    def test_so_are_problem_sizes(self, world, file, size):
        tuned = mltune.tuned_kernel("add", SOURCE, lambda *given: size, PARAMETERS, file=file)
        with pytest.raises(UsageError):
            tuned(*arguments())

    def test_and_efforts(self, world, file, monkeypatch):
        with pytest.raises(UsageError, match="effort cannot be 'long': it is one of none, quick, full"):
            function(file, effort="long")
        monkeypatch.setenv("MLTUNE_EFFORT", "much")
        with pytest.raises(UsageError, match=r"MLTUNE_EFFORT cannot be .much.: it is one of"):
            function(file)(*arguments())

    def test_and_what_kernel_tuner_does_not_know(self, file):
        with pytest.raises(UsageError, match="has no argument 'answers'"):
            function(file, answers=[])

    def test_and_to_keep_nothing(self, world):
        """The wisdom of the user is switched off in tests."""
        add = mltune.tuned_kernel("add", SOURCE, 1000, PARAMETERS)
        with pytest.raises(
            UsageError, match=r"user's wisdom is switched off; give `file`.* MLTUNE_EFFORT=none takes what is known"
        ):
            add(*arguments())

    def test_a_kernel_that_never_works_is_an_error_and_nothing_is_kept(self, world, file):
        world.behaviours["deed"] = "no build"
        with pytest.raises(
            RunError,
            match="no configuration of add 1000x1000x1000 works: crashed the compiler died",
        ):
            function(file)(*arguments())
        assert not file.exists()
        world.behaviours.clear()
        function(file)(*arguments())
        assert file.exists()


@needs.nvrtc
def test_the_kernel_is_compiled_as_it_was_tuned(world, file):
    function(file)(*arguments())
    function(file)(*arguments())
    function(file, effort="none")(*arguments(4000))
    assert [grid for grid, _ in world.launches] == [(4, 1, 1)] * 2 + [(16, 1, 1)]


def test_the_user_who_interrupts_is_obeyed_and_nothing_is_kept(world, file, monkeypatch):
    from mltune.tuning import tuner

    tune = tuner.tune
    monkeypatch.setattr(tuner, "tune", lambda *given, **options: replace(tune(*given, **options), interrupted=True))
    with pytest.raises(KeyboardInterrupt):
        function(file)(*arguments())
    assert not file.exists()
