"""Search spaces: exact counts, ranks that are a bijection, uniform samples, neighbours, repair."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mltune.device.known import H200
from mltune.errors import SpaceError
from mltune.kernel.bundle import Kernel, device_variables
from mltune.kernel.coding import Columns, length, row
from mltune.kernel.expressions import parse
from mltune.kernel.parts import KernelSpace, Restriction
from mltune.kernel.reader import load_kernel
from mltune.kernel.space import ConstrainedSpace, SearchSpace, TableSpace, draw
from mltune.problem.gemm import parse_problem
from mltune.testing import SearchSpaceContract
from tests.effort import cpu_s


def make_kernel(
    parameters: dict[str, tuple[int, ...]], restrictions: list[str], derived: dict[str, str] | None = None
) -> Kernel:
    return Kernel(
        name="small",
        folder=Path("small"),
        problem="gemm",
        precisions=("s",),
        space=KernelSpace(
            parameters=parameters,
            derived={name: parse(text) for name, text in (derived or {}).items()},
            restrictions=tuple(Restriction(parse(text), f"because of {text}") for text in restrictions),
        ),
    )


def raw_product(kernel: Kernel) -> dict[str, np.ndarray]:
    rows = np.array(list(itertools.product(*kernel.all_parameters.values())), dtype=np.int64)
    return {name: rows[:, i] for i, name in enumerate(kernel.all_parameters)}


def satisfied(kernel: Kernel, columns: Columns, variables: dict[str, int]) -> np.ndarray:
    """Evaluate every restriction directly."""
    scope = kernel.space.scope({**variables, **columns})
    holds = np.ones(length(columns), dtype=bool)
    for restriction in kernel.space.restrictions:
        holds &= restriction.expression.holds(scope)
    return holds


def equal(left: Columns, right: Columns) -> bool:
    return all(np.array_equal(left[name], right[name]) for name in left)


TEMPLATES = [
    "{0} % {1} == 0",
    "{0} * {1} <= 12",
    "{0} + {1} + {2} < 11",
    "{0} * {1} == p * {2}",
    "{0} != {1} or {2} > 2",
    "{0} == 0 or is_pow2({1})",
    "D * {0} >= {1}",
    "D % ({0} + {1}) != 1",
    "{0} < 6",
    "p > 1",
]


@st.composite
def kernels(draw_: st.DrawFn) -> Kernel:
    names = "ABCFG"[: draw_(st.integers(1, 5))]  # D and E are derived
    parameters = {
        name: tuple(draw_(st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True))) for name in names
    }
    name = st.sampled_from(list(names))
    restrictions = [
        template.format(draw_(name), draw_(name), draw_(name))
        for template in draw_(st.lists(st.sampled_from(TEMPLATES), max_size=5, unique=True))
    ]
    derived = {"D": f"E + {draw_(name)}", "E": f"{draw_(name)} // {draw_(name)}"}
    return make_kernel(parameters, restrictions, derived)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(kernel=kernels(), p=st.integers(1, 3))
def test_ranks_are_a_bijection_with_the_valid_configurations(kernel: Kernel, p: int) -> None:
    variables = {"p": p}
    raw = raw_product(kernel)
    valid = satisfied(kernel, raw, variables)
    space = ConstrainedSpace(kernel, variables)
    if not valid.any():
        with pytest.raises(SpaceError, match="satisfies every restriction"):
            _ = space.count
        return
    assert space.count == np.count_nonzero(valid)
    indices = space.index_of(raw)
    assert np.array_equal(indices >= 0, valid)
    assert np.array_equal(np.sort(indices[valid]), np.arange(space.count))
    assert np.array_equal(space.index_of(raw) >= 0, valid)
    assert equal(space.rows(indices[valid]), {name: column[valid] for name, column in raw.items()})
    nearest = space.nearest(raw)
    assert nearest.min() >= 0
    assert np.array_equal(nearest[valid], indices[valid])
    assert list(space.rows(np.arange(space.count))) == list(space.names)


VARIABLES = parse_problem("sgemm", trans="NT", m=4096, n=4096, k=4096).variables | device_variables(H200)


@pytest.fixture(scope="module")
def gemm() -> ConstrainedSpace:
    return ConstrainedSpace(load_kernel("gemm_simt"), VARIABLES)


def test_a_space_too_large_to_list(gemm: ConstrainedSpace) -> None:
    assert 1_000_000 < gemm.count < gemm.combinations
    rng = np.random.default_rng(0)
    indices = gemm.sample(20_000, rng)
    assert len(np.unique(indices)) == 20_000
    columns = gemm.rows(indices)
    assert satisfied(gemm.kernel, columns, VARIABLES).all()
    assert np.array_equal(gemm.index_of(columns), indices)
    ends = np.array([0, gemm.count - 1])
    assert np.array_equal(gemm.index_of(gemm.rows(ends)), ends)


def test_checking_agrees_with_the_restrictions_as_written(gemm: ConstrainedSpace) -> None:
    rng = np.random.default_rng(1)
    valid = gemm.rows(gemm.sample(50_000, rng))
    changed = {
        name: np.where(rng.random(50_000) < 0.05, rng.choice(np.array(gemm.values[name]), 50_000), column)
        for name, column in valid.items()
    }
    expected = satisfied(gemm.kernel, changed, VARIABLES)
    assert 0.1 < expected.mean() < 0.9
    assert np.array_equal(gemm.index_of(changed) >= 0, expected)


def test_a_million_configurations_are_checked_in_a_second(gemm: ConstrainedSpace) -> None:
    """Compared with the time of a sort, which processors do not speed up alike: a loop takes hundreds of sorts."""
    columns = gemm.rows(gemm.sample(100_000, np.random.default_rng(2)))
    numbers = np.random.default_rng(2).random(100_000)
    checks, sorts = (min(cpu_s(work) for _ in range(5)) for work in (lambda: gemm.index_of(columns), numbers.argsort))
    assert checks < 60 * sorts


def test_the_count_is_the_share_of_raw_combinations_that_are_valid(gemm: ConstrainedSpace) -> None:
    rng = np.random.default_rng(3)
    size = 300_000
    raw = {name: rng.choice(np.array(values), size) for name, values in gemm.values.items()}
    share = gemm.count / gemm.combinations
    found = np.count_nonzero(gemm.index_of(raw) >= 0)
    assert found == pytest.approx(share * size, abs=5 * np.sqrt(share * size) + 1)


def test_whether_one_configuration_is_valid_is_known_without_a_count(gemm: ConstrainedSpace) -> None:
    uncounted = ConstrainedSpace(gemm.kernel, gemm.variables)
    valid = gemm.rows(gemm.sample(40, np.random.default_rng(0)))
    rng = np.random.default_rng(1)
    raw = {name: rng.choice(np.array(values), 40) for name, values in gemm.values.items()}
    mixed = {name: np.concatenate([valid[name], raw[name]]) for name in gemm.names}
    rows = [row(mixed, position) for position in range(80)]
    assert [uncounted.holds(candidate) for candidate in rows] == (gemm.index_of(mixed) >= 0).tolist()
    assert not uncounted.holds(rows[0] | {"BLK_M": 7})
    assert not uncounted.holds({"BLK_M": 64})
    assert "layers" not in vars(uncounted)


def test_a_repaired_configuration_keeps_most_of_what_was_wanted(gemm: ConstrainedSpace) -> None:
    rng = np.random.default_rng(4)
    valid = gemm.rows(gemm.sample(500, rng))
    name = "BLK_M"
    wanted = {**valid, name: rng.choice(np.array(gemm.values[name]), 500)}
    found = gemm.nearest(wanted)
    assert found.min() >= 0
    assert found.max() < gemm.count
    same = np.array([wanted[each] == column for each, column in gemm.rows(found).items()])
    assert same.mean() > 0.8


def test_values_outside_the_lists_are_not_valid(gemm: ConstrainedSpace) -> None:
    inside = gemm.rows(np.array([5]))
    for value in (-1, 3, 17, 2**40, -(2**62)):
        outside = {**inside, "BLK_M": np.array([value])}
        assert gemm.index_of(outside)[0] == -1
        assert gemm.index_of(outside)[0] == -1
        assert gemm.nearest(outside)[0] >= 0


def test_neighbours_of_a_constrained_space(gemm: ConstrainedSpace) -> None:
    (index,) = gemm.sample(1, np.random.default_rng(6)).tolist()
    here = row(gemm.rows(np.array([index])), 0)
    neighbours = gemm.neighbours(index)
    assert index not in neighbours
    assert len(np.unique(neighbours)) == len(neighbours)
    single = [
        gemm.index_of({each: np.array([value if each == name else here[each]]) for each in here})[0]
        for name, values in gemm.values.items()
        for value in values
        if value != here[name]
    ]
    assert {found for found in single if found >= 0} <= set(neighbours.tolist())


def test_an_empty_space_says_what_removed_how_much() -> None:
    kernel = make_kernel({"A": (1, 2, 3), "B": (1, 2)}, ["A > B", "A == 1", "p == 2"])
    with pytest.raises(SpaceError) as caught:
        _ = ConstrainedSpace(kernel, {"p": 2}).count
    assert "none of 6 combinations of small satisfies" in str(caught.value)
    assert "`A == 1` removes 66" in str(caught.value)
    assert "because of A > B" in str(caught.value)
    with pytest.raises(SpaceError, match="`p == 2` removes 100 %"):
        _ = ConstrainedSpace(kernel, {"p": 1}).count


def test_what_each_restriction_removes() -> None:
    kernel = make_kernel({"A": (1, 2, 3, 4), "B": (1, 2)}, ["A > 2", "A > 1", "B == 1"])
    first, second, third = ConstrainedSpace(kernel, {}).explain()
    assert (first.restriction, first.reason) == ("A > 2", "because of A > 2")
    shares = [each for removal in (first, second, third) for each in (removal.removes, removal.removes_alone)]
    assert shares == pytest.approx([0.5, 0.125, 0.25, 0.0, 0.5, 0.25], abs=0.01)


def test_restrictions_that_tie_too_much_are_refused() -> None:
    parameters = {f"P{i}": tuple(range(10)) for i in range(9)}
    kernel = make_kernel(parameters, [" + ".join(parameters) + " < 40"])
    with pytest.raises(SpaceError, match="split it"):
        _ = ConstrainedSpace(kernel, {}).count


def test_an_unrestricted_space() -> None:
    space = ConstrainedSpace(make_kernel({"A": (5, 1, 3), "B": (2, 4)}, []), {})
    assert space.count == 6
    assert np.array_equal(space.index_of(space.rows(np.arange(6))), np.arange(6))


def small() -> ConstrainedSpace:
    return ConstrainedSpace(make_kernel({"A": (1, 2, 3, 4, 5), "B": (8, 2, 4), "C": (0, 1)}, ["A <= B"]), {})


class TestConstrained(SearchSpaceContract):
    def make(self) -> SearchSpace:
        return small()

    def test_the_nearest_keeps_what_can_be_kept(self) -> None:
        outside = {"A": np.array([5, 1, 9]), "B": np.array([2, 3, 8]), "C": np.array([0, 0, 0])}
        assert small().index_of(outside).tolist() == [-1, -1, -1]
        assert small().rows(small().nearest(outside))["C"].tolist() == [0, 0, 0]


class TestTable(SearchSpaceContract):
    def make(self) -> SearchSpace:
        return TableSpace(small().rows(np.arange(small().count)))


@pytest.mark.parametrize("index", [-1, 10**18])
def test_an_index_outside_the_space_is_refused(gemm: ConstrainedSpace, index: int) -> None:
    with pytest.raises(SpaceError, match="are not all from 0"):
        gemm.rows(np.array([0, index]))


def test_the_neighbours_in_a_table_differ_in_two_where_few_differ_in_one() -> None:
    space = TableSpace({"A": np.array([1, 1, 2, 3]), "B": np.array([1, 2, 2, 3]), "C": np.array([1, 1, 1, 3])})
    assert space.neighbours(0).tolist() == [1, 2]


def test_the_nearest_row_differs_in_fewest_parameters_then_least() -> None:
    space = TableSpace({"A": np.array([1, 2, 8]), "B": np.array([1, 1, 4])})
    # (2, 4) differs from rows 1 and 2 in one parameter each: a step among three values is shorter than one among two
    assert space.nearest({"A": np.array([4, 8, 2]), "B": np.array([1, 1, 4])}).tolist() == [1, 1, 2]
    assert space.nearest({"A": np.array([9, 1]), "B": np.array([4, 2])}).tolist() == [2, 0]


def test_a_table_has_distinct_rows() -> None:
    with pytest.raises(SpaceError, match="rows 0 and 2 are the same"):
        TableSpace({"A": np.array([1, 2, 1]), "B": np.array([4, 4, 4])})
    with pytest.raises(SpaceError, match="at least one"):
        TableSpace({"A": np.zeros(0, dtype=np.int64)})


@pytest.mark.parametrize(("extent", "count", "excluded"), [(12, 3, 0), (40, 3, 4), (40, 15, 9)])
def test_draws_are_uniform(extent: int, count: int, excluded: int) -> None:
    """Every integer that is not excluded is as likely as every other, at every place (five standard deviations)."""
    rng = np.random.default_rng(5)
    exclude = set(range(0, 2 * excluded, 2))
    rounds = 3000
    drawn = np.array([draw(extent, count, rng, exclude) for _ in range(rounds)])
    assert all(len(set(each)) == count for each in drawn.tolist())
    assert not exclude & set(drawn.ravel().tolist())
    allowed = extent - excluded
    for place in range(count):
        occurrences = np.bincount(drawn[:, place], minlength=extent)[sorted(set(range(extent)) - exclude)]
        expected = rounds / allowed
        assert np.abs(occurrences - expected).max() < 5 * np.sqrt(expected)


def test_drawing_from_a_huge_range_is_quick() -> None:
    rng = np.random.default_rng(0)
    first = draw(2**61, 1000, rng)
    second = draw(2**61, 1000, rng, first)
    assert len(np.unique(np.concatenate([first, second]))) == 2000
