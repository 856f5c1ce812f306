"""Kernels of a program that are compiled together, because an earlier program tuned them: from the calls in a file."""

import importlib
import json
import os
import sys
from pathlib import Path

import pytest

SOURCE = """
CONFIGS = [triton.Config({"BLOCK": 2**power}) for power in range(5, 9)]


@triton.heuristics({"MASKED": lambda arguments: arguments["n"] % 32 > 0})
@triton.autotune(CONFIGS, key=["n", "H"])
@triton.jit
def first(x, n, H: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, H * tl.load(x + at, at < n), at < n)


def pruned(configs, arguments, **options):
    return [config for config in configs if config.kwargs["BLOCK"] <= arguments["n"]]


@triton.autotune(CONFIGS, key=["n"], prune_configs_by={"early_config_prune": pruned})
@triton.jit(do_not_specialize=["n"])
def second(x, y, n, scale, H: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, scale * H * tl.load(y + at, at < n), at < n)


class Endless:
    fn = property(lambda self: self)


endless = Endless()


@triton.autotune(CONFIGS, key=["n"])
@triton.jit
def other(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, at < n), at < n)
"""


@pytest.fixture
def gpu(simulated):
    return simulated(lambda meta: 1.0 + abs(meta["BLOCK"] - 128) / 1024)


@pytest.fixture
def program(triton, gpu, tmp_path, monkeypatch, switched):
    """Return a function that begins a program: it imports the library anew, and returns it."""
    from mltune.integrations.triton import calls, decorator

    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"library_{tmp_path.name}"
    path = tmp_path / f"{name}.py"
    path.write_text("import triton\nimport triton.language as tl\n\n\n" + SOURCE)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def begun(**options):
        decorator._ahead.clear()
        calls.calls_beside.cache_clear()
        sys.modules.pop(name, None)
        importlib.invalidate_caches()
        switched(**options)
        return importlib.import_module(name)

    yield begun
    sys.modules.pop(name, None)


@pytest.fixture
def built(tmp_path):
    """Return a function that says which kernels are in Triton's cache, and how often."""
    return lambda name: len(list((tmp_path / "triton").glob(f"*/{name}.cubin")))


def step(library, n=4096, heads=8, dtype="float32"):
    from simulated_gpu import pointer

    library.first[(4,)](pointer(dtype), n, H=heads)
    library.second[(4,)](pointer(dtype), pointer("bfloat16"), n, 0.5, H=heads)


def ahead():
    """Return what is compiled ahead, by the calls: the states of the configurations, for which it waits."""
    from mltune.integrations.triton import decorator

    places = {place: futures for place, futures in decorator._ahead.items() if futures}
    return {place: [future.result(300).state for future in futures.values()] for place, futures in places.items()}


def first_call(library, n=4096, heads=8, dtype="float32"):
    from simulated_gpu import pointer

    library.first[(4,)](pointer(dtype), n, H=heads)
    return ahead()


def file_of(tmp_path):
    return tmp_path / "wisdom.json.calls"


def test_a_program_compiles_at_its_first_call_for_what_an_earlier_one_tuned(program, built, tmp_path, monkeypatch):
    step(program())
    (tmp_path / "wisdom.json").unlink()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton" / "empty"))
    library = program()
    assert sorted(map(len, first_call(library).values())) == [4]
    step(library)
    assert library.second.best_config.kwargs["BLOCK"] == 128
    assert not ahead()


@pytest.mark.parametrize("changed", [{"heads": 16}, {"dtype": "float16"}, {"n": 4100}, {"heads": 16, "n": 1024}])
def test_at_another_size_the_other_kernels_are_compiled_as_they_are_called_there(program, gpu, changed):
    step(program())
    library = program()
    places = first_call(library, **changed)
    assert [*places.values()] == [["ok"] * 4]
    step(library, **changed)
    assert library.second.best_config.kwargs["BLOCK"] == 128
    assert not ahead()


def test_a_parameter_that_is_named_after_a_changed_one_and_was_alike_is_changed_too(program, tmp_path):
    from mltune.integrations.triton.calls import calls_beside

    library, wisdom = program(), tmp_path / "wisdom.json"

    def other_calls(**of_first):
        calls_beside.cache_clear()
        return [
            call for tuner, call in calls_beside(wisdom).after(library.first.fn, of_first) if tuner is library.second
        ]

    earlier = calls_beside(wisdom)
    earlier.after(library.first.fn, {"H": 8, "B": 64, "BT": 64, "T": 64})
    earlier.after(library.second, {"H": 8, "HQ": 8, "HV": 4, "NH": 8, "BT": 64, "BK": 32, "ht": None})
    same = {"H": 8, "HQ": 8, "HV": 4, "NH": 8, "BT": 64, "BK": 32, "ht": None}
    assert other_calls(H=8, B=64, BT=64, T=64) == [same]
    assert other_calls(H=16, B=32, BT=64, T=64) == [{**same, "H": 16, "HQ": 16}]


def test_a_program_whose_calls_were_carried_compiles_for_all_kernels_where_no_winner_counts(program, tmp_path):
    from mltune.known.triton_winners import export_winners, import_winners

    step(program())
    wisdom, folder = tmp_path / "wisdom.json", tmp_path / "winners"
    winners, programs = export_winners(wisdom, folder)
    assert ([*winners.values()], programs) == ([2], 1)
    for file in (wisdom, file_of(tmp_path)):
        file.unlink()
    import_winners(folder, wisdom)
    library = program()
    assert [*first_call(library, heads=16).values()] == [["ok"] * 4]
    step(library, heads=16)
    assert library.second.best_config.kwargs["BLOCK"] == 128


def test_a_kernel_with_more_arguments_than_a_record_may_have_is_left_out(tmp_path):
    from mltune.known.triton_calls import MOST_ARGUMENTS, described, read_programs, write_program

    most = {f"a{number}": number for number in range(MOST_ARGUMENTS)}
    assert described({**most, "one_more": 1}) is None
    write_program(tmp_path / "wisdom.json", [("library:kernel", described(most))])
    assert read_programs(tmp_path / "wisdom.json") == [[("library:kernel", most)]]


def test_what_is_known_is_not_compiled(program):
    library = program()
    step(library)
    from simulated_gpu import pointer

    program().second[(4,)](pointer("float32"), pointer("bfloat16"), 4096, 0.5, H=16)
    assert not first_call(program())


def test_a_program_goes_on_at_another_size_as_it_did_at_the_first(program):
    library = program()
    step(library)
    assert [*first_call(library, heads=16).values()] == [["ok"] * 4]
    step(library, heads=16)
    assert not ahead()


def test_calls_of_kernels_that_were_compiled_ahead_are_written_too(program, tmp_path):
    step(program())
    before = json.loads(file_of(tmp_path).read_text())
    step(program(), heads=16)
    (after,) = json.loads(file_of(tmp_path).read_text())["programs"]
    (was,) = before["programs"]
    assert [kernel for kernel, _ in after] == [kernel for kernel, _ in was] != []
    assert {call["H"] for _, call in after} == {16}


def test_a_call_that_was_expected_at_another_size_takes_the_place_of_the_expected_one(program):
    from simulated_gpu import pointer

    from mltune.integrations.triton import decorator

    step(program())
    library = program()
    assert len(first_call(library, heads=16)) == 1
    library.second[(4,)](pointer("float32"), pointer("bfloat16"), 2048, 0.5, H=16)
    assert library.second.best_config.kwargs["BLOCK"] == 128
    assert {key[2] for *_, key in decorator._ahead} == {(2048, 16)}  # of the first, which would be called with that


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 100_000,
        '{"programs": [[["LIBRARY:first", {"n": 4096}]]]}',
        '{"format": 2, "programs": []}',
        *(
            f'{{"format": 1, "programs": {programs}}}'
            for programs in (
                "3",
                "[[]]",
                '[["ab", 3]]',
                '[[["LIBRARY:first", {"n": 4096}], ["os:system", {"command": "touch here"}]]]',
                '[[["LIBRARY:first", {"n": {"dtype": 3}}], ["LIBRARY:second", {"x": [[1]]}]]]',
                '[[["LIBRARY:first", {"n": 1}], ["LIBRARY:second", {"H": 1e308, "n": -7, "x": {}}], ["o", {}]]]',
                '[[["LIBRARY:first", {}], ["LIBRARY:CONFIGS", {}], ["LIBRARY:pruned", {}], [".:.", {}]]]',
                '[[["LIBRARY:first", {}], ["LIBRARY:endless", {}]]]',
                '[[["LIBRARY:first", {"n": 4096, "H": 8}], ["LIBRARY:second", {"n": NaN, "scale": 1, "H": Infinity}]]]',
                '[[["LIBRARY:first", {"n": 4096, "H": 8}], ["LIBRARY:second", {"n": 1, "scale": "", "H": "\\ud800"}]]]',
            )
        ),
    ],
)
def test_a_file_that_anybody_wrote_changes_no_result(program, tmp_path, text):
    library = program()
    file_of(tmp_path).write_text(text.replace("LIBRARY", library.__name__))
    step(library)
    assert library.second.best_config.kwargs["BLOCK"] == 128
    calls = json.loads(file_of(tmp_path).read_text())["programs"][-1]
    assert [kernel.partition(":")[2] for kernel, _ in calls] == ["first", "second"]


@pytest.mark.parametrize("put", [Path.mkdir, os.mkfifo])
def test_where_no_file_can_be_written_kernels_are_tuned(program, tmp_path, put):
    put(file_of(tmp_path))
    library = program()
    step(library)
    assert library.second.best_config.kwargs["BLOCK"] == 128


def test_calls_with_what_json_cannot_hold_are_left_out(program, tmp_path):
    from simulated_gpu import pointer

    library = program()
    library.second[(4,)](pointer("float32"), pointer("bfloat16"), 4096, float("nan"), H=8)
    assert not file_of(tmp_path).exists()


def test_of_the_ranks_of_a_machine_the_first_compiles(program, monkeypatch):
    step(program())
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert not first_call(program(), heads=16)


def test_a_program_is_named_by_few_calls_and_a_file_has_few_programs(program, tmp_path, monkeypatch):
    from mltune.integrations.triton import calls
    from mltune.known import triton_calls

    monkeypatch.setattr(calls, "MOST_CALLS", 3)
    monkeypatch.setattr(triton_calls, "MOST_PROGRAMS", 2)
    library = program()
    for n in range(1, 6):
        calls.calls_beside(tmp_path / "wisdom.json").after(library.first.fn, {"n": n})
    programs = json.loads(file_of(tmp_path).read_text())["programs"]
    assert [[call["n"] for _, call in calls] for calls in programs] == [[1, 2, 3]]
    for tuner in (library.second, library.other):
        calls.calls_beside.cache_clear()
        calls.calls_beside(tmp_path / "wisdom.json").after(tuner, {"n": 1})
    assert len(json.loads(file_of(tmp_path).read_text())["programs"]) == 2
