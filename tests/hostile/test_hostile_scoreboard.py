"""The community's spaces as strangers may give them: links, huge and broken files, times that are none."""

import gzip
import json
import sys
from pathlib import Path

import pytest

from mltune.dataset.dataset import load_dataset
from mltune.errors import DatasetError
from tests.hostile.values import ESCAPE, TEXTS

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def community(monkeypatch):
    """Return the script that imports the spaces."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    yield pytest.importorskip("community_spaces")
    del sys.modules["community_spaces"]


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """Return a folder as the community has it, with one file."""
    write(
        tmp_path / "hub",
        "convolution_milo/A4000.json",
        cache([{"time": time} for time in (*range(1, 9), float("nan"))]),
    )
    return tmp_path / "hub"


def write(hub: Path, name: str, content: object) -> None:
    path = hub / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


def cache(entries: list[dict]) -> dict:
    """Return a cache of Kernel Tuner."""
    entries = [{"x": x, "compile_time": 100.0, "benchmark_time": 9.0, **one} for x, one in enumerate(entries)]
    return {"tune_params_keys": ["x"], "cache": {str(one["x"]): one for one in entries}}


def test_files_are_read_packed_or_not_and_what_is_missing_is_said(community, hub: Path, tmp_path: Path) -> None:
    results = [
        {"configuration": {"x": x}, "invalidity": "correct", "objectives": ["GFLOP/s"], "times": {"compilation": 100.0}}
        | {"measurements": [{"name": "time", "value": 1.0, "unit": "ms"}, {"name": "GFLOP/s", "value": 10.0 * (1 + x)}]}
        for x in range(5)
    ]
    write(hub, "hotspot_milo/W7800_T4.json.gz", gzip.compress(json.dumps({"results": results}).encode()))
    speeds = cache([{"time": 1.0, "GFLOP/s": 10.0 * (1 + x)} for x in range(5)])
    write(hub, "hotspot_milo/A100.json", speeds)
    write(hub, "hotspot_milo/A100_T4.json", b"the other form is not read")
    write(hub, "hotspot_milo/A100-metadata.json", b"nor what is no space")
    said = list(community.import_spaces(hub, tmp_path))
    assert len(said) == 24
    assert "convolution on A4000: 9 rows, 9 distinct, 1 failed" in said
    assert sum("there is no file, and it is left out" in line for line in said) == 21
    for name in ("hotspot_w7800", "hotspot_a100"):
        dataset = load_dataset(tmp_path / f"{name}.json")
        assert dataset.numbers("median_s").tolist() == pytest.approx([100.0 / (1 + x) for x in range(5)])
        assert (dataset.manifest.licence, dataset.manifest.kind) == ("MIT", "complete")
    assert load_dataset(tmp_path / "convolution_rtx_a4000.json").manifest.device.name == "NVIDIA RTX A4000"


def test_the_score_over_time_is_played_with_one_core(community, hub: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    options = ["--strategies", "random", "--seeds", "2", "--evaluations", "8", "--work", str(tmp_path / "work")]
    monkeypatch.setattr(sys, "argv", ["community_spaces.py", str(hub), *options])
    with pytest.warns(UserWarning, match="only the parameters are known"):
        community.main()
    page = Path(capsys.readouterr().out.strip())
    (found,) = json.loads((page.parent / "summary.json").read_text())["strategies"].values()
    assert [*found["over_time"]] == ["1"]
    assert "MIT" in page.read_text()


@pytest.mark.parametrize("kernel", ["convolution", "hotspot"])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[" * 100_000,
        b'{"cache": [], "tune_params_keys": []}',
        b'{"cache": {"1": 3}, "results": 4}',
        {"results": [{"measurements": [{"name": 1}]}]},
        cache([{"time": -1.0, "GFLOP/s": -1.0}] * 3),
        cache([{"time": [1.0], "GFLOP/s": [1.0]}] * 3),
        cache([{"time": 1e300, "GFLOP/s": 1e-300}] * 3),
        cache([{"time": text, "GFLOP/s": text} for text in (*TEXTS[:9], ESCAPE)]),
    ],
)
def test_what_is_no_space_is_refused_by_its_name(community, hub: Path, tmp_path: Path, kernel: str, content) -> None:
    write(hub, f"{kernel}_milo/A100.json", content)
    with pytest.raises(DatasetError) as refusal:
        list(community.import_spaces(hub, tmp_path))
    assert f"{kernel}_milo/A100.json" in str(refusal.value)
    assert str(refusal.value).isprintable()


def test_nothing_is_read_behind_a_link_or_beyond_the_limit(community, hub: Path, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "elsewhere.json").write_text(json.dumps(cache([{"time": 1.0}] * 3)))
    for link in (hub / "convolution_milo" / "A100.json", hub / "gemm_milo"):
        link.symlink_to(tmp_path / ("elsewhere.json" if link.suffix else "."))
        (tmp_path / "A100.json").write_bytes(b"{}")
        with pytest.raises(DatasetError, match="no link is followed"):
            list(community.import_spaces(hub, tmp_path / "into"))
        link.unlink()
    monkeypatch.setattr(community, "MOST_PARSED", 1_000_000)
    write(hub, "hotspot_milo/A6000.json.gz", gzip.compress(bytes(10_000_000)))
    with pytest.raises(
        DatasetError, match=r"A6000\.json\.gz.*at most 1000000 bytes are read, but unpacked it has more"
    ):
        list(community.import_spaces(hub, tmp_path / "into"))
    write(hub, "hotspot_milo/A6000.json.gz", gzip.compress(b"{}" * 1000)[:-20])
    with pytest.raises(DatasetError, match=r"A6000\.json\.gz"):
        list(community.import_spaces(hub, tmp_path / "into"))
    with (hub / "hotspot_milo" / "A6000.json").open("wb") as file:
        file.truncate(10_000_000_000)
    with pytest.raises(DatasetError, match=r"A6000\.json has 10000000000 bytes, of which at most 1000000 are read"):
        list(community.import_spaces(hub, tmp_path / "into"))
