"""Tables fit the terminal without breaking a name; elsewhere they are as wide as they are, and not padded."""

import functools

import pytest

from mltune.campaign.forecast import forecast
from mltune.dataset.dataset import list_datasets
from mltune.device.known import H200
from mltune.device.peaks import peak_flops
from mltune.records.trial import TrialState
from mltune.resolve.plan_file import load_plan
from mltune.results.funnel import Funnel
from mltune.results.run import counts
from mltune.results.summary import describe_dataset
from mltune.show import inventory, table, tables

DATASETS = [describe_dataset(manifest) for manifest in list_datasets()]
SLUGS = ["h200-sgemm-nt-4096-random", "convolution-4096x4096-filter-15x15", "gemm-simt-zgemm-nn-8192x8192x8192"]


def campaign():
    problem = {
        "state": "declared",
        "choice": "",
        "chosen": True,
        "accuracy": "ieee",
        "error": 0.025,
        "replayed": False,
        "detail": "",
        "reference": "cuBLAS",
        "best": {"median_s": 2e-3, "tflops": 45.3, "share_of_peak": 0.7, "share_of_reference": 0.98},
        "trials": 4096,
        "counts": counts([TrialState.OK] * 3000 + [TrialState.SKIPPED] * 1000 + [TrialState.COMPILE_ERROR] * 96),
        "seconds": {"total": 3600.0},
    }
    problems = [problem | {"slug": slug} for slug in SLUGS]
    funnel = Funnel(6 * 10**12, 123_456, 12_288, 24, 12_264, 2_976, 288, 9_000, 24, 7200.0, 12.5, 90.0)
    known = {"plan": "runs/mine", "running": False, "distinct": 3, "with_winner": 3, "funnel": funnel.to_json()}
    return known | {"problems": problems}


def mixed_campaign():
    """Return a campaign whose problems are rated in three units, and one that was not begun."""
    rated = [
        {"median_s": 2e-3, "tflops": 45.3, "share_of_peak": 0.7, "share_of_reference": 0.98},
        {"median_s": 2e-4, "tflops": None, "gb_per_s": 4012.0, "share_of_peak": 0.83, "share_of_reference": 1.17},
        {"median_s": 2e-3, "tflops": None, "gb_per_s": None, "share_of_peak": None, "share_of_reference": 1.1},
        None,
    ]
    document = campaign()
    problem = document["problems"][0]
    slugs = ["sgemm-nt-4096", "transpose-8192x8192", "sort-1000", "waiting"]
    problems = [problem | {"slug": slug, "best": best} for slug, best in zip(slugs, rated, strict=True)]
    return document | {"problems": problems}


def pruned():
    """Return a pruned sweep that promises less than was asked for."""
    figures = {"valid": 5000, "measured": 600, "within": 0.01, "confidence": 0.6, "expected_missed": 0.04}
    figures |= {"audited": 500, "false": 0, "false_share_at_most": 0.006, "group": 10, "surely_met": 33}
    figures |= {"weakest_left_out": 1200, "weakest_audited": 105, "weakest_share_at_most": 0.027}
    return {"pruning": figures | dict.fromkeys(("saved_s", "total_s", "complete_s"), 60.0) | {"replayed": False}}


def choice_campaign():
    """Return a campaign of one problem with three kernels, of which one was left out."""
    document = campaign()
    problems = [entry | {"choice": "it", "chosen": at == 1} for at, entry in enumerate(document["problems"])]
    problems[2] |= {"state": "left out", "best": None, "accuracy": None, "error": None, "chosen": False}
    return document | {"problems": problems, "distinct": 1, "with_winner": 1}


def devices():
    peaks = {arithmetic: peak_flops(H200, arithmetic) for arithmetic in ("fp32", "fp64")}
    entry = {"architecture": H200.architecture, "peak_flops": peaks, "device": H200.to_json()}
    library = {"name": "NVRTC", "version": "13.5.37", "path": "/opt/packages/nvidia/cu13/lib/libnvrtc.so.13"}
    gpus = [entry | {"spec": f"cuda:{index}"} for index in range(2)]
    return {"devices": gpus, "reason": None, "libraries": [library], "problems": []}


def measured():
    document = devices()
    facts = {"fp32_flops": (6.1e13, 0.002), "int32_ops": (3e13, 0.0), "l2_bytes_per_s": (9e12, 0.01)}
    facts |= {"memory_bytes_per_s": (4.4e12, 0.001), "launch_s": (1.25e-6, 0.05)}
    quantities = {name: {"median": median, "spread": spread} for name, (median, spread) in facts.items()}
    shares = dict.fromkeys(facts) | {"fp32_flops": 0.912, "memory_bytes_per_s": 0.917}
    entry = document["devices"][0] | {"share_of_data_sheet": shares}
    entry["device"] = entry["device"] | {"measured": quantities}
    return document | {"devices": [entry], "libraries": [], "unmeasured": {"fp16_flops": "the worker\x1b[2J died"}}


def comparison():
    found = {"score": 0.9, "at": dict.fromkeys((25, 50, 100, 200, 400), 0.5), "seeds": 50}
    found["to"] = {share: {"evaluations": 100.0, "reached": 0.5} for share in ("0.95", "0.98", "0.99")}
    found["seconds"] = {"own_per_evaluation": 1e-3}
    to = {share: {"seconds": 12345.678, "reached": 0.5} for share in found["to"]}
    found["over_time"] = {cores: {"score": 0.8, "to": to} for cores in ("1", "16")}
    names = ["mltune-noskip", "adaptive_tabu_greywolf", "kernel_tuner:simulated_annealing"]
    return {"strategies": dict.fromkeys(names, found), "datasets": {}, "evaluations": 400}


@functools.cache
def quick_forecast():
    return forecast(load_plan("quick"), (), "there is no driver", 2)


TABLES = {
    "datasets": (lambda: [tables.datasets(DATASETS)], [entry["name"] for entry in DATASETS]),
    "campaign": (lambda: tables.campaign_summary(campaign()), SLUGS),
    "choice": (lambda: tables.campaign_summary(choice_campaign()), SLUGS),
    "mixed": (lambda: tables.campaign_summary(mixed_campaign()), ["transpose-8192x8192"]),
    "pruned": (lambda: [tables.pruned(pruned())], ["105 of 1,200 audited"]),
    "devices": (lambda: inventory.devices(devices()), ["NVIDIA H200", "cuda:1", "13.5.37"]),
    "measured": (lambda: inventory.devices(measured()), ["measured on NVIDIA H200", "L2 cache", "4400 GB/s"]),
    "comparison": (lambda: tables.comparison(comparison()), ["adaptive_tabu_greywolf"]),
    "forecast": (
        lambda: tables.forecast(quick_forecast()),
        ["sgemm-nn-4096", "zgemm-nt-4096"],
    ),
}


@pytest.fixture
def printed(capsys, monkeypatch):
    """Print a table at a width; return its lines."""

    def show(name, width):
        monkeypatch.setenv("COLUMNS", str(width)) if width else monkeypatch.delenv("COLUMNS", raising=False)
        table.show(TABLES[name][0]())
        return capsys.readouterr().out.splitlines()

    return show


@pytest.mark.parametrize("width", [60, 80, 120, None])
@pytest.mark.parametrize("name", TABLES)
def test_no_name_is_broken_and_no_line_is_padded(printed, name, width):
    lines = printed(name, width)
    for known in TABLES[name][1]:
        assert any(known in line for line in lines), known
    assert all(line == line.rstrip() for line in lines)
    assert width is None or max(map(len, lines)) <= width


def test_a_row_is_a_line_on_a_usual_terminal(printed):
    lines = printed("datasets", 80)
    assert len(lines) == 1 + len(DATASETS)
    for entry, line in zip(DATASETS, lines[1:], strict=True):
        assert entry["name"] in line and entry["label"] in line  # noqa: PT018


def test_what_was_measured_is_shown_with_its_share_of_the_data_sheet(printed):
    lines = [" ".join(line.split()) for line in printed("measured", 100)]
    assert lines[3:] == [
        "measured on NVIDIA H200 median spread of the data sheet",
        "FP32 61.00 TFLOPS 0.2 % 91.2 %",
        "INT32 30.00 TOPS 0.0 % -",
        "L2 cache 9000 GB/s 1.0 % -",
        "memory 4400 GB/s 0.1 % 91.7 %",
        "a launch 1.25 µs 5.0 % -",
        "not measured: FP16, two at a time: the worker [2J died",
    ]


def test_kernels_that_compete_stand_side_by_side(printed):
    title, _, heading, *rows = printed("choice", None)
    rows = rows[:3]
    assert "1 of 1 problem has a winner" in title
    assert heading.split()[:3] == ["problem", "state", "fastest"]
    assert ["yes" in row.split() for row in rows] == [False, True, False]
    assert ["0.025 of bound" in row for row in rows] == [True, True, False]


def test_a_pruned_sweep_says_what_its_audit_could_see(printed):
    lines = [" ".join(line.split()) for line in printed("pruned", None)]
    assert "unmeasured nothing within 1.0 % of the best, 60.0 % confidence (0.04 expected by the model)" in lines
    (weakest,) = [line for line in lines if line.startswith("weakest part")]
    assert "105 of 1,200 audited; at most 2.7 % of it is fast" in weakest
    assert "a hidden group of 10 would be met with at least 60.0 %, one of 33 with 95 %" in weakest


def test_a_pipe_gets_every_column(printed):
    for column in ("dataset", "kernel", "problem", "device", "kind", "rows", "TFLOPS", "GB/s", "of peak", "date"):
        assert column in printed("datasets", None)[0]


def test_the_least_important_columns_go_first(printed):
    assert "by state" in printed("campaign", 160)[2]
    assert "by state" not in printed("campaign", 80)[2]
    assert "TFLOPS" in printed("campaign", 60)[2]
    assert "problem" in printed("datasets", 80)[0]
    assert "of peak" in printed("datasets", 120)[0], "a narrow column takes the room that a wide one has left"


@pytest.mark.parametrize("width", [60, 80, None])
def test_every_unit_of_a_campaign_has_a_column(printed, width):
    _, _, heading, *rows = printed("mixed", width)
    rows = rows[:4]
    start = heading.index("TFLOPS")
    cells = [row[start - 2 :].split()[:3] for row in rows]
    assert cells == [["45.30", "-", "-"], ["-", "4012", "-"], ["-", "-", "2.0000"], ["-", "-", "-"]]


def test_before_anything_is_measured_no_unit_is_named(capsys):
    waiting = mixed_campaign()
    waiting["problems"] = waiting["problems"][-1:]
    table.show(tables.campaign_summary(waiting))
    heading = capsys.readouterr().out.splitlines()[2]
    assert "speed" in heading
    assert "TFLOPS" not in heading


def test_a_dataset_that_counts_bytes_is_rated_in_gigabytes_per_second(printed):
    heading, *rows = printed("datasets", None)
    (row,) = (row for row in rows if row.startswith("h200-transpose"))
    assert row[: heading.index("GB/s") + len("GB/s")].split()[-2:] == ["-", "4012"]
    (entry,) = (entry for entry in DATASETS if entry["name"] == "h200-transpose-8192x8192-random")
    assert entry["best_gb_per_s"] == pytest.approx(4012, rel=1e-3)
    assert entry["best_tflops"] is None
    assert entry["best_share_of_peak"] == pytest.approx(0.833, rel=1e-3)
