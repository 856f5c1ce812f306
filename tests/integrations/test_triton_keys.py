"""What identifies a winner of Triton's tuner: calls that run the same code share one, and no others do."""

import itertools

import pytest

from mltune.integrations.triton import autotune

SOURCE = """
@triton.jit
def kernel(x, y, n, A: tl.constexpr, B: tl.constexpr, scale=2, BLOCK: tl.constexpr = 64):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, scale * tl.load(x + at, at < n), at < n)
"""
BLOCKS = (128, 256)


class Program:
    """A program that calls a kernel; ``tune`` says how many configurations it launched."""

    def __init__(self, triton, kernel, gpu):
        from simulated_gpu import pointer

        self.kernel, self.gpu = kernel, gpu
        self.x, self.y = pointer(triton.language.float32), pointer(triton.language.float16)
        self.configs = [triton.Config({"BLOCK": block}) for block in BLOCKS]
        self.restart()

    def restart(self, key=("n", "A", "B"), **options):
        self.tuner = autotune(self.configs, list(key), compilers=2, prior="none", **options)(self.kernel)

    def tune(self, *arguments, **named):
        self.gpu.launches.clear()
        self.tuner[(1,)](*arguments, **named)
        return len({meta["BLOCK"] for meta in self.gpu.launches})


@pytest.fixture
def program(triton, kernels, simulated, warm_cache):
    return Program(triton, kernels(SOURCE).kernel, simulated(lambda meta: meta["BLOCK"] / 128))


@pytest.mark.parametrize("is_new", [False, True])
def test_the_order_of_keyword_arguments_does_not_matter(program, is_new):
    named = {"x": program.x, "y": program.y, "n": 4096, "A": 1, "B": 2}
    assert program.tune(**named) == len(BLOCKS)
    for order in itertools.islice(itertools.permutations(named), 0, 120, 17):
        if is_new:
            program.restart()
        assert program.tune(**{name: named[name] for name in order}) == 1
    assert program.tune(program.x, program.y, 4096, 1, 2) == 1
    assert program.tune(program.x, program.y, B=2, scale=2, n=4096, A=1) == 1


DIFFERENT = {
    "texts that joined by a space are the same": [("a b", "c"), ("a", "b c")],
    "a text and a number": [(1, "2"), ("1", 2)],
    "a truth value and a number": [(1, 0), (True, 0)],
    "an integer and a float": [(1, 0), (1.0, 0)],
    "nothing and its text": [(None, 0), ("None", 0)],
    "a text with a quote": [('a","b', "c"), ("a", 'b","c')],
    "numbers that JSON does not have": [(float("inf"), 0), (float("nan"), 0)],
    "a tuple and its text": [((1, 2), 0), ("(1, 2)", 0)],
}


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("name", DIFFERENT)
def test_values_of_the_key_that_differ_share_no_winner(program, name, is_new):
    for a, b in DIFFERENT[name]:
        if is_new:
            program.restart()
        assert program.tune(program.x, program.y, 4096, a, b) == len(BLOCKS)
    for a, b in DIFFERENT[name]:
        program.restart()
        assert program.tune(program.x, program.y, 4096, a, b) == 1


@pytest.mark.parametrize(
    "change",
    [{"n": 4097}, {"n": 1}, {"n": 2**40}, {"A": 2}, {"scale": 3.0}, {"enable_fp_fusion": False}, {"x": None}],
    ids=str,
)
@pytest.mark.parametrize("is_new", [False, True])
def test_all_that_changes_what_runs_is_part_of_it(program, change, is_new):
    named = {"x": program.x, "y": program.y, "n": 4096, "A": 1, "B": 2}
    if change == {"x": None}:
        change = {"x": program.y}
    program.restart(key=())
    assert program.tune(**named) == len(BLOCKS)
    if is_new:
        program.restart(key=())
    assert program.tune(**(named | change)) == len(BLOCKS)


@pytest.mark.parametrize("change", [{"n": 8192}, {"scale": 34}])
def test_numbers_outside_the_key_that_are_compiled_alike_share_a_winner(program, change):
    named = {"x": program.x, "y": program.y, "n": 4096, "A": 1, "B": 2}
    program.restart(key=())
    assert program.tune(**named) == len(BLOCKS)
    assert program.tune(**(named | change)) == 1


def test_another_hook_is_another_choice(program, triton):
    def hook(arguments):
        """Do nothing."""

    arguments = program.x, program.y, 4096, 1, 2
    assert program.tune(*arguments) == len(BLOCKS)
    program.configs = [triton.Config({"BLOCK": block}, pre_hook=hook) for block in BLOCKS]
    program.restart()
    assert program.tune(*arguments) == len(BLOCKS)
