"""The commands `mltune datasets ...` as processes: import, replay, compare, export, verify, merge."""

import json

import pytest

from mltune.dataset.dataset import load_dataset, load_manifest, shipped_datasets, shipped_searches
from tests.cli.program import answer, assert_refused, command

TABLE = "block,tile,time_ms\n" + "\n".join(
    f"{block},{tile},{block / 7 + tile}" for block in (16, 32, 64) for tile in (1, 2)
)
OPTIONS = (
    "--kernel",
    "vecAdd",
    "--size",
    "n=1000",
    "--flops",
    1000,
    "--parameters",
    "block,tile",
    "--time-column",
    "time_ms",
)


@pytest.mark.slow
def test_from_a_table_to_a_comparison_and_back(tmp_path):
    (tmp_path / "t.csv").write_text(TABLE)
    facts = answer("device", "a100")
    (tmp_path / "gpu.json").write_text(json.dumps(facts))
    made = answer("datasets", "import", "t.csv", *OPTIONS, "--gpu", "gpu.json", "--out", "mine", cwd=tmp_path)
    assert made == {"dataset": "mine/t.parquet", "rows": 6, "counts": {"ok": 6}}
    tuned = answer("tune", "--device", "replay:mine/t.parquet", "--trials", 6, "--run", "run", cwd=tmp_path)
    assert tuned["best"]["configuration"] == {"block": 16, "tile": 1}
    assert (tuned["device"]["name"], tuned["problem"]["values"]) == ("NVIDIA A100-SXM4-80GB", {"n": 1000})
    options = ("--strategies", "random", "--evaluations", 4, "--seeds", 2, "--out", "compared")
    assert answer("compare", "--datasets", "mine", *options, cwd=tmp_path)["missing"] == 0
    answer("datasets", "export", "mine/t.json", "cache.json", "--format", "kernel-tuner", cwd=tmp_path)
    again = ("import", "cache.json", "--kernel", "vecAdd", "--size", "n=1000", "--flops", 1000, "--gpu", "a100")
    answer("datasets", *again, "--out", "again", cwd=tmp_path)
    merged = answer("datasets", "merge", "mine/t.json", "again/cache.json", "--out", "merged", cwd=tmp_path)
    assert (merged["dataset"], merged["rows"]) == ("merged/t-merged.parquet", 6)
    assert not any(one["problems"] for one in answer("datasets", "verify", "mine", "again", "merged", cwd=tmp_path))


def test_the_problem_is_by_default_that_of_the_kernels_recordings(tmp_path):
    table = load_dataset("convolution_w6600").to_dataframe().assign(time_ms=lambda rows: 1e3 * rows.pop("median_s"))
    names = list(load_manifest("convolution_w6600").parameters)
    table[[*names, "time_ms"]].dropna().to_csv(tmp_path / "t.csv", index=False)
    words = ("datasets", "import", "t.csv", "--kernel", "convolution", "--gpu", "a100", "--time-column", "time_ms")
    for named in ((), ("--problem", "convolution")):
        answer(*words, *named, "--parameters", ",".join(names), "--out", "mine", "--overwrite", cwd=tmp_path)
        assert load_manifest(tmp_path / "mine" / "t.json").problem == load_manifest("convolution_w6600").problem
    refused = command(*words, "--problem", "other", "--parameters", ",".join(names), "--out", "other", cwd=tmp_path)
    law = (
        "its expressions may use element_bytes, filter_height, filter_width, height, width, which the problem does not"
    )
    assert_refused(refused, law, "leave the problem out")


def test_what_is_there_is_not_replaced(tmp_path):
    (tmp_path / "t.csv").write_text(TABLE)
    words = ("datasets", "import", "t.csv", *OPTIONS, "--gpu", "unknown", "--out")
    assert_refused(command(*words, ".", cwd=tmp_path), "which is read and not replaced", "t.csv")
    assert command(*words, "mine", cwd=tmp_path).returncode == 0
    assert_refused(command(*words, "mine", cwd=tmp_path), "mine/t.json exists")
    assert command(*words, "mine", "--overwrite", cwd=tmp_path).returncode == 0
    assert_refused(
        command("datasets", "export", "mine/t.json", "t.csv", "--format", "t4", cwd=tmp_path), "t.csv exists"
    )


def test_a_problem_of_any_name_has_named_sizes(tmp_path):
    (tmp_path / "t.csv").write_text(TABLE)
    words = ("datasets", "import", "t.csv", "--kernel", "vecAdd", "--size", 4096, "--gpu", "a100", "--out", "mine")
    assert_refused(command(*words, cwd=tmp_path), "only a GEMM has one size", "--size NAME=N")


@pytest.mark.system
def test_all_that_is_shipped_is_verified():
    names = [one["name"] for one in answer("datasets", "verify")]
    assert len([name for name in names if "searches" in name]) == len(shipped_searches()) > 0
    assert {*shipped_datasets()} <= {*names}


def test_a_damaged_dataset_is_named_and_the_exit_code_is_1(tmp_path):
    (tmp_path / "t.csv").write_text(TABLE)
    command("datasets", "import", "t.csv", *OPTIONS, "--gpu", "a100", "--out", "mine", cwd=tmp_path)
    with (tmp_path / "mine/t.parquet").open("ab") as file:
        file.write(b"x")
    found = command("datasets", "verify", "mine", cwd=tmp_path)
    assert found.returncode == 1
    assert "not that of its manifest" in found.stdout
    assert "1 dataset, 1 with problems" in found.stdout
