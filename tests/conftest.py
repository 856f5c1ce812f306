"""Stored runs, made without a GPU, for the tests of everything that reads stores."""

import datetime
import gc
import os
import platform
import signal
import subprocess
import sys
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # pytest-xdist has a process for each core

import pytest
from hypothesis import settings

from mltune import __version__
from mltune.dataset.dataset import load_dataset, make_dataset, write_dataset
from mltune.device.known import H200
from mltune.problem.gemm import GemmProblem
from mltune.records.header import RunHeader
from mltune.records.store import Store
from mltune.records.trial import Build, Measurement, Skip, TrialRecord, TrialState

pytest.register_assert_rewrite("mltune.testing")
gc.disable()  # until all is collected, which stays

HEADER = RunHeader(
    kernel="toy",
    source_hash="ab" * 32,
    parameters={"BLK_M": (16, 32, 64), "STAGES": (1, 2)},
    problem=GemmProblem("s", "N", "T", 4096, 4096, 4096).to_json(),
    device=H200.to_json(),
    seed=1,
    settings={"target": "replay:toy"},
    created_at=1.75e9,
)
CUBLAS_S = 2.65e-3

# Where a shell starts pytest in its background, SIGINT is ignored, also in what tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ["MLTUNE_WISDOM"] = "none"  # that of the user is neither read nor written
os.environ.pop("COLUMNS", None)  # pytest-xdist sets it, and tables fit it
# Machines are shared: time is measured by benchmarks. A test finds the same in every run.
settings.register_profile("mltune", deadline=None, derandomize=True, max_examples=40)
settings.register_profile("many", deadline=None, derandomize=True, max_examples=1000)  # --hypothesis-profile=many
settings.load_profile("mltune")


def trial(number, state=TrialState.OK, median_s=3e-3, **facts):
    """Return a trial that ended in a state, half a second after the one before it."""
    skipped = state is TrialState.SKIPPED
    return TrialRecord(
        number,
        number // 16,
        number,
        {"BLK_M": (16, 32, 64)[number % 3], "STAGES": 1 + number % 2},
        state,
        detail="" if state in (TrialState.OK, TrialState.SKIPPED) else f"what went wrong with {number}",
        proposed_by="model",
        skip=Skip("after_compile", -2.0, -1.5) if skipped else None,
        build=Build(TrialState.OK, registers=128, spill_bytes=0, compile_s=0.2),
        measurement=None if skipped else Measurement(state, median_s=median_s if state is TrialState.OK else None),
        predicted=-0.5,
        elapsed_s=0.5 * (number + 1),
        **facts,
    )


@dataclass
class RunMaker:
    """A maker of stored runs, which can also continue one."""

    header: RunHeader = HEADER
    facts: dict = field(default_factory=lambda: {"reference_median_s": CUBLAS_S})

    def __call__(self, directory: Path, *records: TrialRecord, **facts) -> Path:
        with Store.open(directory, self.header) as store:
            store.append(*records)
            store.set_seconds({"total": max((record.elapsed_s for record in records), default=0.0)})
            for name, value in (self.facts | facts).items():
                store.set_fact(name, value)
        return directory

    def of(self, **changes) -> "RunMaker":
        return RunMaker(replace(self.header, **changes), self.facts)


def few_rows(folder, dataset="convolution_mi250x_gcd", rows=24, **facts):
    """Write the first rows of a dataset as one of their own, and return its path."""
    recorded = load_dataset(dataset)
    table = recorded.table.slice(0, rows)
    manifest = recorded.manifest
    kept = {name: getattr(manifest, name) for name in ("kernel", "source_hash", "problem", "device", "created")}
    kept |= {"name": "few", "kind": "random", "versions": dict(manifest.versions), "seed": 0} | facts
    dataset = make_dataset(table, dict(manifest.parameters), **kept)
    write_dataset(dataset, folder)
    return folder / f"{kept['name']}.parquet"


@pytest.fixture
def make_run():
    return RunMaker()


@pytest.fixture
def make_trial():
    return trial


@pytest.fixture
def mltune(monkeypatch, capsys):
    """Run the command in this process, where no GPU is found; return its exit code, output and errors."""
    from mltune.cli import main
    from mltune.resolve import device

    monkeypatch.setattr(device, "find_gpus", lambda: ((), "there is no driver"))
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    handler = signal.getsignal(signal.SIGTERM)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["mltune", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0, *capsys.readouterr()

    yield run
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture(scope="session")
def runtime(tmp_path_factory):
    """Return the object file of the emulator's runtime, for all kernels that are run on the host."""
    from emulation.host import build_runtime

    return build_runtime(tmp_path_factory.mktemp("emulation"))


@pytest.fixture(scope="session")
def all_idle_workers(tmp_path_factory):
    from imaginary_gpu import IdleWorkers

    workers = IdleWorkers(tmp_path_factory.mktemp("gpu"))
    yield workers
    workers.pool.close()


@pytest.fixture
def idle_workers(all_idle_workers, monkeypatch):
    """Return workers of an imaginary GPU that earlier tests have started; the GPU is usable, and none of a real one."""
    from imaginary_gpu import FOLDER

    monkeypatch.setenv(FOLDER, str(all_idle_workers.folder))
    monkeypatch.setattr("mltune.measure.runner.start_worker", lambda pool, index: None)
    all_idle_workers.clean()
    return all_idle_workers


@pytest.fixture(scope="session")
def distributions(tmp_path_factory):
    """Build the sdist, and the wheel from the sdist, as an installer from an index would; return their paths."""
    folder = tmp_path_factory.mktemp("dist")
    root = Path(__file__).resolve().parent.parent
    subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, root], check=True)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="session")
def wheel(distributions):
    """Return the path of the wheel of this checkout."""
    return distributions[1]


def origin(command: str) -> dict[str, str]:
    """Return the head of a tally: when, how and where it was made."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command,
        "host": f"{os.cpu_count()} cores, Python {platform.python_version()}, mltune {__version__}",
    }


def pytest_addoption(parser):
    parser.addoption("--kills", type=int, default=8, help="number of times that campaigns in replay are killed")
    parser.addoption("--faults-output", help="file that the tally of those kills is written to")
    parser.addoption("--environments-output", help="file that what was installed in each environment is appended to")
    parser.addoption("--hostile-seed", type=int, default=1, help="seed of the many hostile inputs (-m hostile)")
    parser.addoption("--hostile-table", help="file that the table of hostile inputs is written to")


def pytest_terminal_summary(terminalreporter, config):
    """Write the table of hostile inputs by kind."""
    reports = (
        report for found in terminalreporter.stats.values() for report in found if getattr(report, "when", "") == "call"
    )
    found = [tuple(value) for report in reports for name, value in report.user_properties if name == "hostile"]
    path = config.getoption("--hostile-table")
    if path and found:
        rows = ["| kind | inputs | commands | longest | most memory |", "|---|---:|---:|---:|---:|"]
        for kind in [*dict.fromkeys(kind for kind, *_ in found), "all"]:
            mine = [one for one in found if kind in (one[0], "all")]
            _, commands, wall_s, grown = zip(*mine, strict=True)
            rows.append(f"| {kind} | {len(mine)} | {sum(commands)} | {max(wall_s):.1f} s | {max(grown) / 1e6:.0f} MB |")
        Path(path).write_text("\n".join(rows) + "\n")


SYSTEM_FIXTURES = {"browser", "cluster", "database_url", "package_statistics", "postgres", "triton"}
"""Fixtures of what is not in the package's dependencies for tests: whoever uses one is a system test."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark system tests by their fixtures, and as system, nightly or slow the cases that ``sampled`` leaves out.

    Long ones begin first: at the end of a run other processes would wait for them.
    """
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
    cases = {}
    for item in items:
        if SYSTEM_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.system)
        if (mark := item.get_closest_marker("sampled")) is not None:
            cases.setdefault((item.fspath, item.originalname), (mark, []))[1].append(item)
    for mark, found in cases.values():
        (few,) = mark.args
        kept = _spread(few, len(found))
        marks = {name: _spread(many, len(found)) for name, many in mark.kwargs.items()} | {"slow": {*range(len(found))}}
        for i, item in enumerate(found):
            if i not in kept:
                item.add_marker(next(name for name, places in marks.items() if i in places))


def pytest_collection_finish():
    """Keep modules and tests out of the collections of garbage: each would look at a million objects that stay.

    Also out of those at the end, in which pytest looks for resources that tests have left open: 3 s of each process.
    """
    gc.freeze()
    gc.enable()
    gc.set_threshold(100_000, 20, 20)  # a search makes many objects, and few in circles


def _spread(few, count):
    """Return the places of a few of some cases, from the first to the last."""
    return {round(i * (count - 1) / max(few - 1, 1)) for i in range(few)}


@pytest.fixture(scope="session")
def postgres(tmp_path_factory):
    """Return a PostgreSQL server of this process."""
    from tests.postgres import programs, server

    if programs() is None:
        pytest.skip("PostgreSQL is not installed")
    os.environ["XDG_DATA_HOME"] = str(tmp_path_factory.mktemp("data"))  # where the databases are noted that were named
    with server() as running:
        yield running


@pytest.fixture(scope="session")
def database_url(postgres):
    """Return the URL of a PostgreSQL database."""
    return postgres.url("runs")


@pytest.fixture(scope="session", params=["file", pytest.param("postgresql", marks=pytest.mark.system)])
def database(request):
    """Return where a store is created: nowhere else than in its directory, or in a database."""
    return request.getfixturevalue("database_url") if request.param == "postgresql" else ""
