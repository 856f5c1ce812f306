"""Sizes in CSV files."""

import pytest

from mltune.files.sizes import distinct, sizes_of_csv


def test_columns_are_sizes_and_count_is_a_weight():
    text = "\ufeffm, n,count\n16,4096,3\n 1,0,2\n16,4096,4\n5,5,0\n"
    assert distinct(sizes_of_csv(text, least=0)) == {(("m", 16), ("n", 4096)): 7.0, (("m", 1), ("n", 0)): 2.0}


def test_without_counts_each_is_used_once():
    assert [*sizes_of_csv("m\n1\n2\n")] == [({"m": 1}, 1.0), ({"m": 2}, 1.0)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names of sizes"),
        ("count\n1\n", "names of sizes"),
        ("m,m\n1,1\n", "names of sizes"),
        ("m\n0\n", "from 1 to"),
        ("m\n2147483648\n", "from 1 to"),
        ("m,count\n1,-1\n", "or a count is negative"),
        ("m\n=HYPERLINK(1)\n", "line 2"),
        ("m,n\n1\n", "line 2"),
        ("m\n1\n1,2\n", "more values than the 1 names of the first line, in line 3"),
        ('m\n"1\n', "unexpected end of data"),
        ("m\n1e3\n", "line 2"),
        ("m,count\n16,1_6\n", "'1_6' is no integer of at most 18 digits"),
        ("m\n\N{FULLWIDTH DIGIT ONE}6\n", "is no integer of at most 18 digits"),
        (f"m\n{'9' * 5000}\n", "line 2"),
        ("m\n\0\n", "line"),
    ],
)
def test_a_malformed_file_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        distinct(sizes_of_csv(text))


def test_there_is_a_size_and_all_have_the_same_names():
    with pytest.raises(ValueError, match="there is no size"):
        distinct([])
    with pytest.raises(ValueError, match="the same names"):
        distinct([({"m": 1}, 1.0), ({"n": 1}, 1.0)])
