"""Campaigns to report on: real runs in replay, and stores with the traces of many failures."""

import json
from dataclasses import replace

from mltune.dataset.dataset import load_manifest
from mltune.device.known import H200
from mltune.kernel.reader import load_kernel
from mltune.problem.gemm import GemmProblem
from mltune.records.declaration import Declaration, Finalist, Reference
from mltune.records.events import EventLog
from mltune.records.header import RunHeader
from mltune.records.store import Store
from mltune.records.trial import Build, Measurement, Skip, TrialRecord, TrialState
from mltune.resolve.device import Target
from mltune.resolve.request import TuneRequest
from mltune.tuning.tuner import tune
from tests.owned_folders import write_winner

HOSTILE = "</script><script>alert('x')</script><img src=http://a.invalid/x onerror=alert(1)> $x_1$ | `b` \x1b[2J\u202e"
"""Text that a third party may write into any text field."""

REPLAYED = ("h200-sgemm-nt-4096-complete", "convolution_rtx_a4000")


def replayed(directory, name, trials=64):
    """Tune in replay."""
    manifest = load_manifest(name)
    tune(
        TuneRequest(manifest.problem, load_kernel(manifest.kernel), Target(dataset=name), trials=trials, run=directory)
    )


def stored(directory, records, *, problem=None, device=f"H200 {HOSTILE}", reference_s=2.65e-3, references=(), **facts):
    """Write the store of a run on a GPU."""
    values = {"BLK_M": {16, 32, 64}, HOSTILE: {1, 2}}
    for name, known in values.items():
        known |= {record.configuration[name] for record in records}
    header = RunHeader(
        kernel=HOSTILE,
        source_hash="",
        parameters={name: tuple(sorted(known)) for name, known in values.items()},
        problem=(problem or GemmProblem("d", "T", "N", 4096, 512, 4096)).to_json(),
        device=replace(H200, name=device).to_json(),
        seed=7,
        versions={"mltune": HOSTILE},
        settings={"target": "cuda:0", "note": HOSTILE},
        created_at=1.75e9,
    )
    with Store.open(directory, header) as store:
        store.append(*records)
        store.set_seconds(
            {
                "search": 20.0,
                "wait": 50.0,
                "reference": 4.0,
                "record": 1.0,
                "finals": 9.0,
                "compile": 300.0,
                "time": 60.0,
                "total": 100.0,
            }
        )
        for name, value in ({"reference_median_s": reference_s} | facts).items():
            store.set_fact(name, value)
        for reference in references:
            store.append_reference(reference)


def trial(number, state=TrialState.OK, median_s=3e-3, detail=HOSTILE):
    """Return a trial of :func:`stored`."""
    skipped = state is TrialState.SKIPPED
    return TrialRecord(
        number,
        number // 16,
        number,
        {"BLK_M": (16, 32, 64)[number % 3], HOSTILE: 1 + number % 2},
        state,
        detail="" if state in (TrialState.OK, TrialState.SKIPPED) else detail,
        skip=Skip("after_compile", -2.0, -1.5) if skipped else None,
        build=Build(TrialState.OK, compile_s=0.2),
        measurement=None
        if skipped
        else Measurement(state, median_s=median_s if state is TrialState.OK else None, discarded=2),
        predicted=-0.9 - 0.01 * number,
        elapsed_s=2.0 * (number + 1),
    )


RECORDS = [
    *(trial(number, median_s=3e-3 - 1e-5 * number) for number in range(40)),
    trial(40, TrialState.SKIPPED),
    *(
        trial(41 + place, state)
        for place, state in enumerate(TrialState)
        if state not in (TrialState.OK, TrialState.SKIPPED)
    ),
]

DECLARED = Declaration(
    number=39,
    finalists=(
        Finalist(38, 2.60e-3, 2.59e-3, 2.62e-3, 0.999, 0.997, 1.001),
        Finalist(39, 2.61e-3, 2.60e-3, 2.62e-3),
        Finalist(37, 2.66e-3, 2.65e-3, 2.67e-3, 1.02, 1.01, 1.03),
    ),
    reference=Finalist(-1, 2.65e-3, 2.64e-3, 2.66e-3, 1.0153, 1.011, 1.019),
    rounds=30,
    as_of=40,
    rejected={12: HOSTILE},
    verified=True,
)

REFERENCES = [Reference(10 * at, 20.0 * at, 2.65e-3 * (1.1 if at == 3 else 1.0), 1e-3) for at in range(1, 6)]


def failed_campaign(directory):
    """Make the directory of a campaign in which much went wrong."""
    problems = directory / "problems"
    problems.mkdir(parents=True)
    for name in REPLAYED:
        replayed(problems / name.replace("_", "-"), name)
    (directory / "plan.toml").write_text(f'title = "A failed campaign"\n# {HOSTILE.replace(chr(27), "")}\n')
    stored(problems / "declared", RECORDS, references=REFERENCES, declaration=DECLARED.to_json())
    stored(problems / "interrupted", RECORDS[:20], reference_s=None, problem=GemmProblem("z", "N", "C", 64, 64, 64))
    stored(problems / "no-success", RECORDS[40:])
    stored(problems / "empty", [])
    (problems / "damaged").mkdir()
    (problems / "damaged" / "run.sqlite").write_bytes(b"SQLite format 3\0" + b"\xff" * 4000)
    write_winner(problems / "declared" / "winner", kernel="code")
    log = EventLog(directory)
    log.write("plan_started", plan="bad", problems=["no-success", "declared", "interrupted", "never", "../../etc"])
    log.write("gpu_lost", slug="interrupted", detail=HOSTILE)
    log.write("interrupted", signal="SIGTERM")
    log.write("progress", done=1)
    other = {"at": "yesterday", "event": "of another version", "what": HOSTILE}
    with log.path.open("a") as file:
        file.write(json.dumps(other) + '\n{"torn')
