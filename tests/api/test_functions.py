"""A function of the Python interface gives what its command prints."""

import json
import shlex
import signal
import sys
import warnings
from dataclasses import asdict

import pytest

import mltune
from mltune.cli import main
from mltune.errors import UsageError
from mltune.resolve import device as target
from tests.conftest import few_rows

SIMPLE = {"search": "random", "skip": False, "stop": False}
REPLAY = "replay:h200-sgemm-nt-4096-random"


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Change to an empty folder, on a machine without a GPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(target, "find_gpus", lambda: ((), "there is no driver"))


@pytest.fixture
def printed(monkeypatch, capsys):
    """Run a command in this process; return what it prints, and its exit code."""
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    handler = signal.getsignal(signal.SIGTERM)

    def run(command):
        monkeypatch.setattr(sys, "argv", ["mltune", *shlex.split(command)])
        with pytest.raises(SystemExit) as ended:
            main()
        return json.loads(capsys.readouterr().out), ended.value.code or 0

    yield run
    signal.signal(signal.SIGTERM, handler)


SHAPE = {"trans": "NN", "size": 2048}
DOCUMENTS = {
    "bound sgemm --trans NN --size 2048 --kernel gemm_shared --gpu a100": lambda: mltune.bound(
        "sgemm", **SHAPE, kernel="gemm_shared", gpu="a100"
    ).to_json(),
    "bound dgemm --size 512 --kernel gemm_shared --gpu a100 --config BLK_M=64": lambda: mltune.bound(
        "dgemm", size=512, kernel="gemm_shared", gpu="a100", config={"BLK_M": 64}
    ).to_json(),
    "predict transpose --size columns=2048 --gpu a100 --top 3 --wisdom none": lambda: mltune.predict(
        "transpose", size={"columns": 2048}, gpu="a100", top=3, wisdom="none"
    ).to_json(),
    "plan quick": lambda: mltune.plan("quick"),
    "space gemm_shared --size 512 --precision d": lambda: mltune.space("gemm_shared", size=512, precision="d"),
    "device a100": lambda: mltune.devices("a100"),
    "device --known": lambda: mltune.devices(known=True),
    "datasets verify convolution_w6600": lambda: [asdict(one) for one in mltune.verify_datasets(["convolution_w6600"])],
}


@pytest.mark.parametrize("command", DOCUMENTS)
def test_a_command_prints_the_document_of_its_function(command, printed):
    expected = json.loads(json.dumps(DOCUMENTS[command]()))
    assert printed(f"{command} --json") == (expected, 0)


def test_the_records_of_a_run(printed, tmp_path):
    result = mltune.tune(trials=20, device=REPLAY, run="run", **SIMPLE)
    assert printed("show run --top 3 --json") == (json.loads(json.dumps(mltune.summarise("run", top=3))), 0)
    written = mltune.report("run", out="here")
    assert sorted(path.name for path in (tmp_path / "here").iterdir() if path.is_file()) == sorted(
        path.name for path in (written.html, written.markdown, written.winners)
    )
    assert written.document["winners"][0]["configuration"] == result.best_config
    assert printed("report run --out here --json")[0]["winners"] == written.document["winners"]


@pytest.mark.filterwarnings("ignore::mltune.MltuneWarning")
@pytest.mark.parametrize("device", ["auto", "replay"])
@pytest.mark.sampled(1, nightly=99)
def test_a_list_of_one_size_is_a_campaign_too(tmp_path, device):
    found = mltune.tune_sizes("sgemm", [4096], kernel="gemm_simt", device=device, trials=4, run="run", **SIMPLE)
    assert [(one["slug"], one["trials"]) for one in found.to_json()["problems"]] == [("sgemm-nt-4096", 4)]


@pytest.mark.filterwarnings("ignore::mltune.MltuneWarning")
@pytest.mark.system
def test_several_sizes_are_one_campaign_that_is_resumed(printed):
    seen = []
    options = {"kernel": "gemm_simt", "device": "replay", "trials": 16, **SIMPLE}
    found = mltune.tune_sizes("sgemm", [1024, 4096], **options, run="run", progress=seen.append)
    document = found.to_json()
    assert [one["slug"] for one in document["problems"]] == ["sgemm-nt-1024", "sgemm-nt-4096"]
    assert seen[-1].problems == 2
    assert sum(one["trials"] for one in mltune.run("run").to_json()["problems"]) == 16
    assert printed("show run --json")[0]["problems"] == mltune.summarise("run")["problems"]
    with pytest.raises(UsageError, match="a size was given twice"):
        mltune.tune_sizes("sgemm", [64, 64], **options)


@pytest.mark.filterwarnings("ignore::mltune.MltuneWarning")
@pytest.mark.system
def test_a_plan_is_carried_out_from_its_file_or_as_an_object(tmp_path):
    text = '[plan]\ntitle = "Two"\nbudget = "20 trials"\nminimum = "5 trials"\nproduce = []\n'
    options = '[options]\nsearch = "random"\nskip = false\nstop = false\n'
    (tmp_path / "mine.toml").write_text(f'{text}{options}[[problems]]\ndatasets = ["h200-sgemm-nt-4096-random"]\n')
    plan = mltune.load_plan("mine.toml")
    for given, run in ((plan, "one"), ("mine.toml", "two")):
        result = mltune.run(given, run=run)
        assert result.directory == (tmp_path / run).relative_to(tmp_path)
        assert result.to_json()["with_winner"] == 1
    assert mltune.load_run("one").best_config == mltune.load_run("two").best_config
    assert mltune.plan("mine.toml")["problems"][0]["problem"] == "sgemm NT 4096"


def test_a_run_may_be_ended_at_once():
    result = mltune.run("rehearsal", run="run", interrupt=lambda: True, progress=None)
    assert result.interrupted


def test_a_model_is_trained_and_loaded():
    trained = mltune.train("h200-transpose-8192x8192-random", "models/mine", seed=1)
    loaded = mltune.load_model("models/mine")
    assert (loaded.kernel, loaded.parameters) == (trained.kernel, trained.parameters)
    with pytest.raises(UsageError, match="exists; choose another name, or overwrite=True"):
        mltune.train("h200-transpose-8192x8192-random", "models/mine")
    assert mltune.load_model("gemm_simt").kernel == "gemm_simt"


def test_a_bundle_is_made_and_checked():
    assert mltune.new_kernel("blur") == "blur"
    found = mltune.check("blur", time=0.01)
    assert not found.checked.faults
    assert found.to_json()["kernel"] == "blur"
    assert mltune.load_kernel("blur").name == "blur"


def test_timings_of_others_are_imported_merged_and_exported(printed, tmp_path):
    for name, times in (("one", "32,1.5\n64,1.25\n"), ("two", "64,1.25\n128,2\n")):
        (tmp_path / f"{name}.csv").write_text(f"block,time_ms\n{times}")
        found, notices = mltune.import_dataset(
            f"{name}.csv", kernel="mine", gpu="a100", parameters=["block"], time_column="time_ms", out="data"
        )
        assert found.manifest.problem.name == "mine"
        assert notices[0].startswith("2 rows")
    pair = ["data/one.parquet", "data/two.parquet"]
    merged, _ = mltune.merge_datasets(pair, out="data")
    assert (merged.manifest.name, len(merged)) == ("one-merged", 3)
    assert len(mltune.export_dataset("data/one-merged.parquet", "cache.json", format="kernel-tuner")) == 3
    with pytest.raises(UsageError, match="exists; choose another name"):
        mltune.export_dataset("data/one-merged.parquet", "cache.json", format="t4")
    command = f"datasets merge {' '.join(pair)} --out data --overwrite --json"
    assert printed(command)[0] == {"dataset": "data/one-merged.parquet", "rows": 3, "counts": merged.manifest.counts}


def test_a_pruned_sweep_is_a_result(tmp_path):
    dataset = f"replay:{few_rows(tmp_path, 'convolution_w6600', 200, kind='complete')}"
    found = mltune.sweep("convolution", complete=True, prune=True, device=dataset, run="run")
    assert found.pruned.saved_s == found.to_json()["pruning"]["saved_s"]
    assert mltune.load_dataset(found.dataset).manifest.kind == "pruned"
    with pytest.raises(UsageError, match="write complete=True prune=True within"):
        mltune.sweep("sgemm", within=0.1)
    with pytest.raises(UsageError, match="Without a GPU, `mltune tune` replays recorded timings"):
        mltune.sweep("sgemm")


def test_a_wisdom_is_checked(tmp_path):
    mltune.tune(trials=20, device=REPLAY, wisdom="wisdom.json", **SIMPLE)
    found = mltune.check_wisdom("wisdom.json", device=REPLAY)
    assert (found.passed, found.misses, len(found.entries)) == (True, 0, found.to_json()["measured"])
    with pytest.raises(UsageError, match="there is no wisdom nowhere"):
        mltune.check_wisdom("nowhere")


def test_a_cluster_needs_an_address():
    with pytest.raises(UsageError):
        mltune.check_cluster("nowhere.json")
