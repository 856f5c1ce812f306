"""``mltune wisdom`` and ``mltune tune --wisdom`` as separate processes, without a GPU."""

import json

import pytest

from tests.cli.program import answer, command

DEVICE = "replay:h200-sgemm-nt-4096-random"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return the wisdoms of two runs with different seeds."""
    folder = tmp_path_factory.mktemp("wisdom")
    found = [folder / "one.json", folder / "other.json"]
    for seed, file in enumerate(found):
        run = folder / f"run-{seed}"
        simple = ("--search", "random", "--no-skip", "--no-stop")
        answer("tune", "--device", DEVICE, "--trials", 20, "--seed", seed, "--run", run, "--wisdom", file, *simple)
    return found


def test_show(files):
    document = answer("wisdom", "show", files[0])
    assert [entry["label"] for entry in document["best"]] == ["sgemm NT 4096"]
    assert document["entries"] >= 1
    assert answer("wisdom", "show", MLTUNE_WISDOM=str(files[0])) == document
    table = command("wisdom", "show", files[0]).stdout
    assert "NVIDIA H200" in table
    assert "BLK_M=" in table


def test_nothing_is_known_at_first(tmp_path):
    result = command("wisdom", "show", MLTUNE_WISDOM=str(tmp_path / "none.json"))
    assert (result.returncode, result.stdout) == (0, f"No entries in {tmp_path / 'none.json'}.\n")
    assert answer("wisdom", "show", MLTUNE_WISDOM=str(tmp_path / "none.json"))["best"] == []


def test_merge_does_not_depend_on_the_order(files, tmp_path):
    outs = [tmp_path / "a.json", tmp_path / "b.json"]
    answer("wisdom", "merge", *files, "--out", outs[0])
    document = answer("wisdom", "merge", *reversed(files), "--out", outs[1])
    assert outs[0].read_bytes() == outs[1].read_bytes()
    assert document == {"wisdom": str(outs[1]), "entries": len(json.loads(outs[1].read_text())["entries"])}
    (best,) = answer("wisdom", "show", outs[0])["best"]
    times_s = [entry["median_s"] for file in files for entry in answer("wisdom", "show", file)["best"]]
    assert best["median_s"] <= 1.01 * min(times_s)


def test_export(files, tmp_path):
    out = tmp_path / "gemm.json"
    result = command("wisdom", "export", "--kernel", "gemm_simt", "--wisdom", files[0], "--out", out)
    assert result.stdout.startswith(f"written: {out} (")
    assert out.read_bytes() == files[0].read_bytes()
    refused = command("wisdom", "export", "--kernel", "gemm_sim", "--wisdom", files[0], "--out", out)
    assert refused.returncode == 2
    assert "did you mean 'gemm_simt'?" in refused.stderr


def test_check_passes_and_finds_what_has_rotted(files, tmp_path):
    check = "wisdom", "check", "--device", DEVICE
    document = answer(*check, files[0])
    assert (document["measured"], document["misses"]) == (1, 0)

    content = json.loads(files[0].read_text())
    for entry in content["entries"]:
        entry |= {name: entry[name] / 2 for name in ("median_s", "low_s", "high_s")}
    rotten = tmp_path / "rotten.json"
    rotten.write_text(json.dumps(content))
    (entry,) = answer(*check, rotten, code=1)["entries"]
    assert (entry["verdict"], entry["label"]) == ("slower", "sgemm NT 4096")

    for entry in content["entries"]:
        entry["source_hash"] = "00" * 32
    rotten.write_text(json.dumps(content))
    result = command(*check, rotten)
    assert result.returncode == 1
    assert "stale" in result.stdout
    assert result.stdout.endswith("1 entry, 0 measured, 1 missed\n")


def test_a_wisdom_of_which_nothing_can_be_checked_does_not_pass(files, tmp_path):
    content = json.loads(files[0].read_text())
    for entry in content["entries"]:
        entry["device"]["sm_count"] = 1
    other = tmp_path / "other.json"
    other.write_text(json.dumps(content))
    (entry,) = answer("wisdom", "check", other, "--device", DEVICE, code=1)["entries"]
    assert entry["verdict"] == "unchecked"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("merge", "no.json", "--out", "x.json"), "there is no wisdom no.json"),
        (("check", "no.json"), "there is no wisdom no.json"),
        (("show", "no.json"), "there is no wisdom no.json"),
        (("export", "--kernel", "x", "--wisdom", "no.json", "--out", "x.json"), "there is no wisdom no.json"),
        (("show",), "MLTUNE_WISDOM is none"),
        (("show", __file__), "is no wisdom of mltune"),
        (("check", "--sample", "0"), "--sample cannot be 0"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments, part):
    result = command("wisdom", *arguments, MLTUNE_WISDOM="none")
    assert (result.returncode, result.stdout) == (2, "")
    assert part in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_help():
    assert "\n  wisdom " in command("--help").stdout
    result = command("wisdom")
    assert result.returncode == 2
    for name in ("show", "merge", "export", "check"):
        assert f"\n  {name} " in result.stderr
