"""Merging and looking up: the same answer whatever the order, the process and the machine."""

import json
import subprocess
import sys
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from random import Random

import pytest
from entries import PROBLEM, SOURCE, entry, failure
from hypothesis import given
from hypothesis import strategies as st

from mltune.device.known import H200
from mltune.kernel.bundle import Kernel
from mltune.kernel.parts import CompilerSpace, KernelSource, KernelSpace
from mltune.kernel.space import TableSpace
from mltune.known.entry import Gpu, choose
from mltune.known.wisdom import Wisdom
from mltune.problem.gemm import parse_problem
from mltune.problem.recorded import RecordedProblem
from tests.environment import importing

KERNEL = Kernel(
    name="toy", problem="gemm", source=KernelSource(sha256=SOURCE), space=KernelSpace(parameters={"TILE": (16, 32, 64)})
)

tiles = st.sampled_from([16, 32, 64, 128])
facts = {
    "driver": st.sampled_from(["12.8", "13.0"]),
    "measured_at": st.sampled_from(["2026-11-22T01:00:00Z", "2026-11-23T01:00:00Z"]),
}
entries = st.builds(
    entry,
    tiles,
    st.sampled_from([1e-3, 1.005e-3, 1.01e-3, 1.02e-3, 2e-3]),
    st.sampled_from([0.0, 0.004, 0.01, 0.5]),
    verified=st.booleans(),
    trials=st.integers(0, 3),
    **facts,
)
outcomes = entries | st.builds(failure, tiles, **facts)
wisdoms = st.builds(Wisdom, st.lists(outcomes, max_size=8))


class TestMerging:
    @given(wisdoms, wisdoms)
    def test_it_is_commutative(self, one, other):
        assert one.merge(other) == other.merge(one)

    @given(wisdoms, wisdoms, wisdoms)
    def test_it_is_associative(self, one, two, three):
        assert one.merge(two).merge(three) == one.merge(two.merge(three)) == one.merge(two, three)

    @given(wisdoms)
    def test_it_is_idempotent(self, one):
        assert one.merge(one) == one == one.merge(Wisdom())

    @given(st.lists(outcomes, min_size=1, max_size=8), st.randoms())
    def test_the_order_of_entries_does_not_matter(self, found, random):
        shuffled = random.sample(found, len(found))
        assert Wisdom(found) == Wisdom(shuffled)
        assert [one.text for one in Wisdom(found).best] == [one.text for one in Wisdom(shuffled).best]

    @given(wisdoms)
    def test_a_file_holds_all_of_it(self, one):
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            one.save(Path(folder) / "wisdom.json")
            assert Wisdom.load(Path(folder) / "wisdom.json") == one

    def test_of_a_configuration_the_newest_measurement_counts(self):
        old, new = entry(median_s=1e-3), entry(median_s=3e-3, measured_at="2026-11-23T01:00:00Z")
        assert Wisdom([new, old]).entries == (new,)

    def test_a_failure_replaces_an_older_entry_and_a_newer_entry_a_failure(self):
        days = ["2026-11-22T01:00:00Z", "2026-11-23T01:00:00Z", "2026-11-24T01:00:00Z"]
        old, failed, new = entry(measured_at=days[0]), failure(measured_at=days[1]), entry(measured_at=days[2])
        assert Wisdom([failed, old]).entries == (failed,)
        assert Wisdom([failed, old]).best == []
        assert Wisdom([failed, old, new]).best == [new]


class TestChoice:
    @given(st.lists(entries, min_size=1, max_size=8))
    def test_it_is_not_slower_than_any_interval_allows(self, found):
        chosen = choose(found)
        others = [one for one in found if one.verified] or found
        assert chosen in others
        assert all(chosen.median_s <= one.high_s for one in others)

    def test_the_fastest_is_chosen(self):
        assert choose([entry(16, 2e-3), entry(32, 1e-3)]).configuration["TILE"] == 32

    def test_of_ties_the_first_configuration_is_chosen_by_value_and_not_by_text(self):
        found = [entry(128, 1e-3), entry(64, 1.005e-3), entry(1024, 1.001e-3)]
        assert choose(found).configuration["TILE"] == 64

    def test_a_slow_one_with_a_wide_interval_is_no_tie(self):
        assert choose([entry(16, 1.3e-3, 0.5), entry(32, 1e-3)]).configuration["TILE"] == 32

    def test_a_verified_one_comes_first(self):
        assert choose([entry(16, 1e-3, verified=False), entry(32, 2e-3)]).configuration["TILE"] == 32


def at(tile, name, trans, size):
    """Return an entry of a GEMM."""
    return entry(tile, problem=parse_problem(name, trans=trans, size=size).to_json())


CHOOSE = """
import sys, random
from mltune.known.wisdom import Wisdom
files = sys.argv[2:]
random.Random(int(sys.argv[1])).shuffle(files)
merged = Wisdom()
for file in files:
    merged = merged.merge(Wisdom.load(file))
(best,) = merged.best
print(best.text)
"""


@pytest.mark.parametrize("count", [6, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.system
def test_processes_choose_the_same_of_a_tie(tmp_path, count):
    """Each has its own order of merging, its own hash seed, and reads files with ties that differ within noise."""
    rng = Random(1)  # noqa: S311
    files = [tmp_path / f"{number}.json" for number in range(6)]
    for file in files:
        tied = [entry(tile, 1e-3 * rng.uniform(0.998, 1.002)) for tile in rng.sample((16, 32, 64, 128), 3)]
        Wisdom(tied).save(file)
    command = [sys.executable, "-c", CHOOSE]
    chosen = []
    for first in range(0, count, 6):
        started = [
            subprocess.Popen(
                [*command, str(seed), *map(str, files)],
                stdout=subprocess.PIPE,
                env=importing(PYTHONHASHSEED=str(seed)),
            )
            for seed in range(first, first + 6)
        ]
        chosen += [process.communicate(timeout=300)[0] for process in started]
    assert len(chosen) == count
    assert len(set(chosen)) == 1
    assert json.loads(chosen[0])["configuration"]["TILE"] == 16


class TestLookup:
    def look_up(self, *found, kernel=KERNEL, problem=PROBLEM, device=H200, driver="13.0", **options):
        return Wisdom(found).lookup(kernel, problem, device, driver, **options)

    def test_the_same_problem_and_driver(self):
        (match,) = self.look_up(entry(), entry(driver="12.8", tile=16, median_s=1e-3))
        assert (match.entry.driver, str(match)) == ("13.0", "the same problem")

    def test_another_driver_is_better_than_nothing(self):
        (match,) = self.look_up(entry(driver="12.8"))
        assert str(match) == "the same problem, measured with driver 12.8"

    def test_the_nearest_size_on_a_logarithmic_scale(self):
        sizes = {16: 1024, 32: 3000, 64: 8192}
        found = [
            entry(tile, problem=parse_problem("sgemm", trans="NT", size=size).to_json()) for tile, size in sizes.items()
        ]
        matches = self.look_up(*found, most=2)
        assert [str(match) for match in matches] == [
            "the nearest size, sgemm NT 3000",
            "the nearest size, sgemm NT 8192",
        ]

    def test_the_same_problem_comes_before_a_near_one(self):
        near = entry(16, problem=parse_problem("sgemm", trans="NT", size=4095).to_json())
        relations = [match.relation for match in self.look_up(near, entry(driver="12.8"), most=3)]
        assert relations == ["problem", "size"]

    def test_siblings_come_in_the_order_of_what_they_have_in_common(self):
        h100 = {"device": Gpu.of(replace(H200, name="NVIDIA H100", sm_count=114)).model_dump()}
        found = [
            at(1, "sgemm", "NT", 8192),
            at(2, "sgemm", "NN", 4096),
            at(3, "sgemm", "TN", 4096),
            at(4, "sgemm", "NN", 8192),
            entry(5, **h100),
            at(6, "dgemm", "NT", 4096),
        ]
        for shuffled in permutations(found):
            matches = self.look_up(*shuffled, most=9)
            assert [match.entry.configuration["TILE"] for match in matches] == [1, 2, 3, 4, 5, 6]
        assert [str(match) for match in matches] == [
            "the nearest size, sgemm NT 8192",
            "another case, sgemm NN 4096",
            "another case, sgemm TN 4096",
            "another case, sgemm NN 8192",
            "the same problem, from a NVIDIA H100 with 114 multiprocessors",
            "another precision, dgemm NT 4096",
        ]

    def test_few_are_of_the_same_case_and_of_other_precisions(self):
        case = [at(size, "sgemm", "NT", size) for size in (64, 128, 256, 512, 1024)]
        others = [at(size, "dgemm", "NT", size) for size in (63, 127, 255)]
        tiles = [match.entry.configuration["TILE"] for match in self.look_up(*case, *others, most=9)]
        assert tiles == [1024, 512, 256, 255, 127]

    def test_only_configurations_of_the_space_are_found_and_the_others_take_no_place(self):
        found = [at(size, "sgemm", "NT", size) for size in (64, 128, 256, 512, 1024)]
        space = TableSpace({"TILE": [64, 128, 512], "MODE": [0, 0, 0]})
        kernel = replace(KERNEL, space=replace(KERNEL.space, labels={"MODE": ("row",)}))
        tiles = [one.entry.configuration["TILE"] for one in self.look_up(*found, kernel=kernel, space=space, most=9)]
        assert tiles == [512, 128, 64]

    def test_another_source_or_kernel_is_not_found(self):
        assert self.look_up(entry(), kernel=replace(KERNEL, source=KernelSource(sha256="cd" * 32))) == []
        assert self.look_up(entry(), kernel=replace(KERNEL, name="other")) == []

    def test_of_another_gpu_only_the_same_problem_of_the_same_architecture_is_found(self):
        other = replace(H200, sm_count=114)
        assert [match.relation for match in self.look_up(entry(), device=other)] == ["gpu"]
        assert self.look_up(at(64, "sgemm", "NT", 8192), at(64, "sgemm", "TN", 4096), device=other) == []
        assert self.look_up(entry(), device=replace(H200, compute_capability=(8, 0))) == []
        without_cuda = replace(H200, compute_capability=None)
        found = entry(device=Gpu.of(without_cuda).model_dump())
        assert self.look_up(found, device=without_cuda)
        assert self.look_up(found, device=replace(without_cuda, name="another")) == []

    def test_what_has_failed_on_another_gpu_is_found(self):
        elsewhere = {"device": Gpu.of(replace(H200, sm_count=114)).model_dump()}
        assert self.look_up(entry(driver="12.8"), failure(**elsewhere))

    def test_a_problem_without_sizes_is_found_if_it_is_the_same(self):
        recorded = RecordedProblem("fft")
        found = entry(problem=recorded.to_json())
        assert self.look_up(found, problem=recorded)
        assert not self.look_up(found, problem=RecordedProblem("fft", flops=7))

    def test_the_configurations_of_several_matches_differ(self):
        near = entry(problem=parse_problem("sgemm", trans="NT", size=2048).to_json())
        assert len(self.look_up(entry(), near, most=3)) == 1

    def test_what_has_failed_for_this_problem_is_not_found(self):
        near = entry(problem=parse_problem("sgemm", trans="NT", size=2048).to_json())
        other = {"problem": parse_problem("sgemm", trans="NT", size=1024).to_json()}
        assert self.look_up(near, failure()) == self.look_up(entry(driver="12.8"), failure()) == []
        for elsewhere in (other, {"driver": "12.8"}, {"source_hash": "cd" * 32}):
            assert self.look_up(near, failure(**elsewhere))
        (match,) = self.look_up(entry(16), entry(32, 1e-3), failure(32, measured_at="2026-11-23T01:00:00Z"), most=3)
        assert match.entry.configuration["TILE"] == 16

    def test_labels_become_positions(self):
        def codes(labels, **parts):
            return entry(16).codes(Kernel(name="own", problem="gemm", space=KernelSpace(labels=labels), **parts))

        assert codes({"MODE": ("column", "row")}) == {"TILE": 16, "MODE": 1}
        assert codes({"MODE": ("column",)}) is None
        assert codes({}) is None
        varied = {"compiler": CompilerSpace(parameters={"level": (5, 8)}, varied=("level",))}
        assert codes({"MODE": ("column", "row")}, **varied) == {"TILE": 16, "MODE": 1, "level": 5}


class TestAccuracy:
    """An entry carries the accuracy class of its kernel."""

    def test_the_strictest_class_is_that_of_entries_without_one_and_is_not_written(self):
        plain, split = entry(16), entry(32, accuracy="fp32")
        assert "accuracy" not in plain.to_json()
        assert split.to_json()["accuracy"] == "fp32"
        assert type(plain).model_validate(plain.to_json()).accuracy == "ieee"

    def test_the_part_of_a_class_has_the_stricter_ones_too(self):
        wisdom = Wisdom([entry(16), entry(32, accuracy="fp32")])
        assert [one.accuracy for one in wisdom.of_accuracy("ieee")] == ["ieee"]
        assert wisdom.of_accuracy("fp32") == wisdom
