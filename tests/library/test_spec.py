"""The description of a library: its sizes with their weights, and what is refused."""

import numpy as np
import pytest

import mltune
from mltune.errors import LibraryError
from mltune.library.spec import load_spec, representatives, sizes_around

LIBRARY = '[library]\noperation = "sgemm"\n'


@pytest.fixture
def written(tmp_path):
    """Return a function that reads a description with a CSV file beside it."""

    def read(sizes, rows="", library=LIBRARY):
        (tmp_path / "spec.toml").write_text(f"{library}[sizes]\n{sizes}\n")
        (tmp_path / "shapes.csv").write_text(rows)
        return load_spec(tmp_path / "spec.toml")

    return read


def test_shapes_are_listed(written):
    spec = written("shapes = [512, {m = 64, n = 32, k = 4096}, 512]")
    assert spec.extents == ("m", "n", "k")
    assert spec.sizes == ({"m": 512, "n": 512, "k": 512}, {"m": 64, "n": 32, "k": 4096})
    assert spec.weights == (2.0, 1.0)


def test_a_grid_is_all_combinations(written):
    spec = written("grid = {rows = [1, 2], columns = [3, 4, 5]}")
    assert len(spec.sizes) == 6
    assert spec.sizes[-1] == {"rows": 2, "columns": 5}


def test_ranges_are_drawn_evenly_on_a_logarithmic_scale_by_the_seed(written):
    sizes = "ranges = {m = [64, 8192], n = [64, 8192], k = [100, 100]}"
    spec = written(sizes, library=f"{LIBRARY}timed = 400\n")
    logs = np.log2([list(one.values()) for one in spec.sizes])
    assert 380 <= len(spec.sizes) <= 400, "draws that are equal count as one"
    assert logs[:, :2].min() >= 6
    assert logs[:, :2].max() <= 13
    assert abs(np.median(logs[:, 0]) - 9.5) < 0.4
    assert set(logs[:, 2]) == {np.log2(100)}
    assert written(sizes, library=f"{LIBRARY}timed = 400\n").sizes == spec.sizes
    assert written(sizes, library=f"{LIBRARY}timed = 400\nseed = 1\n").sizes != spec.sizes
    uniform = written(f'{sizes}\ndistribution = "uniform"', library=f"{LIBRARY}timed = 400\n")
    assert abs(np.median([one["m"] for one in uniform.sizes]) - 4128) < 500


def test_nine_of_ten_draws_are_multiples_of_8_or_of_what_the_description_says(written):
    ranges = "ranges = {m = [64, 8192], n = [1, 4096], k = [100, 101]}"
    for further, multiple, share in (
        ("", {"m": 8, "n": 8}, 0.9),
        ("\nmultiple_of = 64\naligned = 0.5", {"m": 64, "n": 64}, 0.5),
        ("\nmultiple_of = {m = 96}\naligned = 1", {"m": 96}, 1.0),
        ("\naligned = 0", {}, 0.0),
    ):
        sizes = written(f"{ranges}{further}", library=f"{LIBRARY}timed = 1000\n").sizes
        whole = [all(one[name] % of == 0 or one[name] < of for name, of in multiple.items()) for one in sizes]
        assert abs(np.mean(whole) - share) < 0.05 if multiple else len(sizes) > 900
        assert all(64 <= one["m"] <= 8192 and 1 <= one["n"] <= 4096 and one["k"] in (100, 101) for one in sizes)
    assert any(one["n"] < 8 for one in sizes), "small numbers stay"


def test_linear_layers_have_tokens_on_a_logarithmic_grid_and_counts(written):
    spec = written(
        "linear_layers = [[4096, 14336], [28672, 4096, 3]]\ntokens = [1, 2000]", library=f"{LIBRARY}timed = 200\n"
    )
    assert spec.are_listed
    assert spec.extents == ("m", "n", "k")
    assert {(one["m"], one["k"]) for one in spec.sizes} == {(4096, 14336), (28672, 4096)}
    for m, used in ((4096, 1.0), (28672, 3.0)):
        tokens = [one["n"] for one in spec.sizes if one["m"] == m]
        assert {*(2**power for power in range(11))} <= {*tokens}
        assert 1 <= min(tokens) <= max(tokens) <= 2000
        assert all(sum(low <= one < 2 * low for one in tokens) >= 4 for low in (32, 128, 512))
        assert np.mean([one % 8 == 0 for one in tokens if one >= 8]) >= 0.8
        weights = [weight for one, weight in zip(spec.sizes, spec.weights, strict=True) if one["m"] == m]
        assert sum(weights) == pytest.approx(used)
    assert not written("ranges = {n = [1, 90]}").are_listed


def test_a_profile_is_a_csv_file_with_counts(written):
    spec = written('csv = "shapes.csv"', "m, n,k,count\n8,16,32,5\n9,9,9,1\n8,16,32,2\n1,1,1,0\n7,7,7,100\n")
    assert dict(zip(map(tuple, (one.values() for one in spec.sizes)), spec.weights, strict=True)) == {
        (7, 7, 7): 100.0,
        (8, 16, 32): 7.0,
        (9, 9, 9): 1.0,
    }


def test_the_most_used_sizes_are_timed_and_those_tuned_that_stand_for_the_others(written):
    rows = "n,count\n" + "".join(f"{2**power},{power}\n" for power in range(1, 21))
    spec = written('csv = "shapes.csv"', rows, library=f"{LIBRARY}timed = 10\ntuned = 3\n")
    assert [one["n"] for one in spec.sizes] == [2**power for power in range(20, 10, -1)]
    tuned = sorted(spec.sizes[place]["n"] for place in spec.tuned)
    assert tuned[0] <= 2**13
    assert tuned[-1] >= 2**18
    assert len(spec.tuned) == 3


def test_equal_points_are_not_chosen_twice():
    assert representatives([{"n": 5}, {"n": 5}, {"n": 7}], [1.0] * 3, 3) == (0, 2)


@pytest.mark.parametrize(
    ("sizes", "rows", "message"),
    [
        ("", "", "not exactly one of shapes, grid, ranges, linear_layers and csv"),
        ("shapes = [5]\ngrid = {m = [1]}", "", "not exactly one of shapes, grid, ranges, linear_layers and csv"),
        ('shapes = [64, 128]\ndistribution = "uniform"', "", "there are no ranges, to which distribution belongs"),
        ("shapes = [64]", "", "there is one size; a library is for several"),
        ("shapes = [0, 5]", "", "shapes"),
        ("shapes = [{m = 5}, {n = 5}]", "", "there are sizes of m and of n; all have the same names"),
        ("shapes = [{}, {}]", "", "all have the same names"),
        ("ranges = {m = [9, 5]}", "", "the range of m cannot be 9 to 5: low <= high must hold"),
        ("linear_layers = [[64, 64]]\ntokens = [9, 5]", "", "the range of tokens cannot be 9 to 5"),
        ("linear_layers = []", "", "linear_layers"),
        ("linear_layers = [[64]]", "", "linear_layers"),
        ("linear_layers = [[64, 64, 0]]", "", "linear_layers"),
        ("linear_layers = [[64, 64]]\nmultiple_of = {x = 8}", "", "multiple_of has x; the sizes are n"),
        ("ranges = {m = [5, 9]}\nmultiple_of = 0", "", "multiple_of"),
        ("ranges = {m = [5, 9]}\naligned = 1.5", "", "aligned"),
        ("ranges = {m = [5, 9]}\ntokens = [1, 2]", "", "there are no linear_layers, to which tokens belongs"),
        ("shapes = [5, 6]\naligned = 0.5", "", "there are no ranges or linear_layers, to which aligned belongs"),
        ("ranges = {}", "", "all have the same names"),
        ("grid = {a = [1, 2], b = []}", "", "grid"),
        (f"grid = {{a = {list(range(1, 400))}, b = {list(range(1, 400))}}}", "", "the grid has more than 100000 sizes"),
        ('csv = "../shapes.csv"', "", "the name of a .csv file beside it"),
        ('csv = "/etc/passwd"', "", "the name of a .csv file beside it"),
        ('csv = "missing.csv"', "", "there is no such file"),
        ('csv = "shapes.csv"', "", "the first line of a CSV file"),
        ('csv = "shapes.csv"', "count\n5\n", "the first line of a CSV file"),
        ('csv = "shapes.csv"', "m,m\n5,5\n", "the first line of a CSV file"),
        ('csv = "shapes.csv"', "m,n\n5,x\n", "in line 2 of a CSV file"),
        ('csv = "shapes.csv"', "m,n\n5\n", "in line 2 of a CSV file"),
        ('csv = "shapes.csv"', "m,n\n5,6,7\n", "in line 2 of a CSV file"),
        ('csv = "shapes.csv"', "m,count\n5,-1\n", "or a count is negative"),
        ('csv = "shapes.csv"', f"m\n{2**31}\n", "a size is not from 1"),
        ('csv = "shapes.csv"', f"m\n{'9' * 5000}\n", "line 2 of a CSV file"),
    ],
)
def test_what_is_no_description_is_refused(written, sizes, rows, message):
    with pytest.raises(LibraryError, match=r"docs/reference/library\.md") as error:
        written(sizes, rows)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "library",
    [
        "",
        "[library]\n",
        f"{LIBRARY}floor = 2.0\n",
        f"{LIBRARY}tuned = 1\n",
        f'{LIBRARY}name = "a b"\n',
        f"{LIBRARY}x = 1\n",
    ],
)
def test_a_table_of_another_form_is_refused(written, library):
    with pytest.raises(LibraryError):
        written("shapes = [1, 2]", library=library)


def test_a_link_to_another_file_is_not_followed(written, tmp_path):
    (tmp_path / "other.csv").symlink_to("/etc/passwd")
    with pytest.raises(LibraryError, match="link"):
        written('csv = "other.csv"')


@pytest.mark.parametrize("folder", [".", "", "..", "/"])
def test_a_library_has_a_folder_with_a_name(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LibraryError, match="has no name of its own"):
        mltune.build_library({"library": {"operation": "sgemm"}, "sizes": {"shapes": [64]}}, folder)


def test_sizes_around_listed_ones_reach_beyond_them(written):
    spec = written("linear_layers = [[4096, 1024], [8192, 2048]]\ntokens = [1, 256]")
    around = sizes_around(spec, 300)
    assert sizes_around(spec, 300) == around
    assert len(around) > 250
    extents = np.array([[size[name] for name in "mnk"] for size in around])
    assert (extents >= [2048, 1, 512]).all()
    assert (extents <= [16384, 512, 4096]).all()
    assert (extents.min(axis=0) < [2500, 2, 600]).all()
    assert (extents.max(axis=0) > [14000, 400, 3500]).all()
    assert 0.8 < (extents[extents > 8] % 8 == 0).mean() < 0.97
    assert sizes_around(written("ranges = {m = [1, 9], n = [1, 9], k = [1, 9]}"), 300) == [], (
        "they are drawn in the ranges"
    )
