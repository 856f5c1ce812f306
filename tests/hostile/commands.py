"""The commands that take a stranger's file, each on the input in a folder; run in a fork of :mod:`.sandbox`.

The input is in ``FOLDER/named`` under a name that tells its kind. Each command returns an exit status.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.hostile.in_c import compare_with_python
from tests.hostile.targets import WRITERS

REPLAY = "convolution_w6600"
"""The dataset that runs and campaigns of the suite replay."""

RUN, PLAN, BUNDLE, DATASET, TABLE = "run", "plan.toml", "bundle", "recorded.json", "table"
WISDOM, MODEL, DATABASE, WINNERS = "wisdom.json", "model.json", "database", "winners"
"""Names of inputs in the folder ``named``."""


def _cli(*arguments: object) -> int:
    """Run the command line as a shell would."""
    from mltune.cli import main

    sys.argv = ["mltune", *map(str, arguments)]
    main()
    return 0


def _api(function: Callable[[], Any]) -> int:
    """Call the Python interface: an exception of mltune is an answer, any other a defect."""
    from mltune.errors import MltuneError

    try:
        function()
    except MltuneError as error:
        print(f"mltune: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


def show(folder: Path) -> int:
    return _cli("show", folder / "named" / RUN)


def show_json(folder: Path) -> int:
    return _cli("show", folder / "named" / RUN, "--json")


def show_all(folder: Path) -> int:
    """List the runs of the working directory, of which the input is one."""
    (folder / "cwd" / "runs").symlink_to(folder / "named")
    os.chdir(folder / "cwd")
    return _cli("show")


def follow(folder: Path) -> int:
    """Follow with no patience for a dead run, and end as after Ctrl-C what waits for one that has not begun."""
    from mltune.show import follow as module

    assert module.GRACE_S, module.LOOK_EVERY_S
    module.GRACE_S, module.LOOK_EVERY_S = 0.0, 0.01
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    return _cli("show", folder / "named" / RUN, "--follow")


def export(folder: Path) -> int:
    return _cli("show", folder / "named" / RUN, "--dataset", folder / "cwd" / "exported")


def report(folder: Path) -> int:
    return _cli("report", folder / "named" / RUN)


def report_elsewhere(folder: Path) -> int:
    return _cli("report", folder / "named" / RUN, "--out", folder / "cwd" / "report")


def dashboard(folder: Path) -> int:
    def write() -> None:
        from mltune.show.study import Studies

        Studies(folder / "named" / RUN).update()

    return _api(write)


def load_run(folder: Path) -> int:
    def load() -> None:
        import mltune

        run = mltune.load_run(folder / "named" / RUN)
        run.to_dataframe()
        run.plot()
        run._repr_html_()
        repr((run.best_config, run.best_time_s, run.to_json()))

    return _api(load)


def resume(folder: Path) -> int:
    options = ("--device", f"replay:{REPLAY}", "--search", "random", "--trials", 28, "--json")
    return _cli("tune", "--run", folder / "named" / RUN, *options)


def resume_campaign(folder: Path) -> int:
    return _run_for_seconds(folder / "named" / RUN)


def run_plan(folder: Path) -> int:
    return _run_for_seconds(folder / "named" / PLAN, "--run", folder / "cwd" / "run")


def _run_for_seconds(*arguments: object) -> int:
    """Carry out a plan; a campaign that still works after some seconds is ended as by Ctrl-C."""

    def interrupt(*_: object) -> None:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # it is still being loaded
            signal.setitimer(signal.ITIMER_REAL, 0.5)
        else:
            os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 4.0)
    return _cli("run", *arguments, "--json")


def plan(folder: Path) -> int:
    return _cli("plan", folder / "named" / PLAN)


def plan_json(folder: Path) -> int:
    return _cli("plan", folder / "named" / PLAN, "--json")


def begin_plan(folder: Path) -> int:
    """Begin a campaign that is interrupted at once."""

    def begin() -> None:
        from mltune.campaign.campaign import run_plan
        from mltune.resolve.placement import place
        from mltune.resolve.plan_file import load_plan

        run_plan(place(load_plan(folder / "named" / PLAN), ()), folder / "cwd" / "campaign", stop=lambda: True)

    return _api(begin)


def space(folder: Path) -> int:
    return _cli("space", folder / "named" / BUNDLE)


def space_json(folder: Path) -> int:
    return _cli("space", folder / "named" / BUNDLE, "--json", "--size", 512)


def check(folder: Path) -> int:
    return _cli("check", folder / "named" / BUNDLE)


def check_json(folder: Path) -> int:
    return _cli("check", folder / "named" / BUNDLE, "--json")


def sweep(folder: Path) -> int:
    return _cli("sweep", "sgemm", "--kernel", folder / "named" / BUNDLE, "--count", 1)


def load_kernel(folder: Path) -> int:
    def load() -> None:
        import mltune

        repr(mltune.load_kernel(folder / "named" / BUNDLE))

    return _api(load)


def tune_bundle(folder: Path) -> int:
    options = ("--device", f"replay:{REPLAY}", "--search", "random", "--trials", 4)
    return _cli("tune", "--kernel", folder / "named" / BUNDLE, *options)


def compile_bundle(folder: Path) -> int:
    """Compile one configuration."""

    def compile_one() -> None:
        from mltune.device.known import H200
        from mltune.kernel.bundle import variables_of
        from mltune.kernel.reader import load_kernel
        from mltune.kernel.space import ConstrainedSpace
        from mltune.measure.build import NvrtcBuilder
        from mltune.problem.gemm import GemmProblem

        kernel, problem = load_kernel(folder / "named" / BUNDLE), GemmProblem("s", "N", "T", 256, 256, 256)
        found = ConstrainedSpace(kernel, variables_of(problem, H200))
        configuration = {name: int(column[0]) for name, column in found.rows([0]).items()}
        cache = folder / "home" / "cubins"
        with NvrtcBuilder(
            kernel, problem, "sm_90", cache=cache, workers=1, timeout_s=8.0, memory_bytes=1 << 30
        ) as builder:
            build = builder.submit(configuration).result()
        print(build.state, build.detail)  # noqa: T201

    return _api(compile_one)


def read_arrays(folder: Path) -> int:
    """Read the files of values of a bundle, as the process does that verifies on a GPU."""

    def read() -> None:
        import numpy as np

        from mltune.kernel.reader import load_kernel
        from mltune.problem.array_values import initial_array

        kernel = load_kernel(folder / "named" / BUNDLE)
        if kernel.arrays is None:
            return
        problem = kernel.arrays.problem()
        for one in problem.arrays:
            for file in (one.initial, kernel.arrays.answer.get(one.name)):
                if isinstance(file, str) and file.endswith(".npy"):
                    print(initial_array(np, None, one.dtype, one.shape, file)[:1])  # noqa: T201

    return _api(read)


def compile_winner(folder: Path) -> int:
    """Load a winner as a function; on a host without a GPU this ends once its description has been read."""

    def load() -> None:
        from mltune.errors import DeviceError
        from mltune.results.tuned_kernel import load_winner

        with contextlib.suppress(DeviceError):
            load_winner(folder / "named" / "winner")

    return _api(load)


def gate_winner(folder: Path) -> int:
    winner = folder / "named" / "winner"
    return _gate(winner, winner, kernel="transpose")


def gate_library(folder: Path) -> int:
    _load_driver(folder)
    return _gate(folder / "named" / "library", folder / "named" / "library")


def _load_driver(folder: Path) -> None:
    """Load the driver that records launches, if there was a compiler for it: whoever asks for one gets this one."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(str(folder / "libcuda.so.1"), mode=ctypes.RTLD_GLOBAL)


def gate_revision(folder: Path) -> int:
    os.chdir(folder / "named" / "repository")
    return _gate("HEAD:bundle", "main:bundle")


def gate_bundle(folder: Path) -> int:
    os.chdir(folder / "named" / "repository")
    return _gate("bundle", "HEAD:bundle")


def gate_source(folder: Path) -> int:
    os.chdir(folder / "named" / "repository")
    return _gate("bundle/scale.cu", "bundle")


def _gate(old: object, new: object, kernel: str | None = None) -> int:
    """Make both versions of a gate, with their launches: what the gate does before it needs a GPU."""

    def make() -> None:
        from mltune.device.known import H200
        from mltune.kernel.bundle import variables_of
        from mltune.library.machine_code import READERS
        from mltune.tuning.versions import two_versions

        with two_versions(str(old), str(new), kernel, None, {}, READERS) as made:
            for version in [one(H200, {}) for one in made]:
                launch = version.launch(variables_of(version.problem, H200))
                assert all(type(one) is int and 0 < one < 2**31 for one in launch.grid), launch.grid
                assert all(type(one) is int and 0 < one <= 1024 for one in launch.block), launch.block

    return _api(make)


def load_library(folder: Path) -> int:
    """Load a library with the driver that records launches, and ask for the configuration of a size."""

    def load() -> None:
        import mltune

        _load_driver(folder)
        library = mltune.load_library(folder / "named" / "library")
        repr((library.parameters, library.choice(**dict.fromkeys(library.document["sizes"], 64))))

    return _api(load)


def build_over_library(folder: Path) -> int:
    """Build a library in place of the input, which is replaced only where it is one."""
    return _build_library(folder, folder / "named" / "library")


def _build_library(folder: Path, target: Path) -> int:
    """Build a library whose content was found before, as ``mltune library build`` does."""
    from mltune.library.folder import check_place, write_library

    content = pickle.loads((folder / "named/content.pickle").read_bytes())  # noqa: S301 - what the suite has written
    return _api(lambda: (check_place(target), write_library(target, content)))


def build_from_specification(folder: Path) -> int:
    return _cli("library", "build", folder / "named/spec.toml", folder / "cwd" / "library", "--device", "replay")


def library_of_bundle(folder: Path) -> int:
    """Write a bundle as a library, and compare its launches with those that Python computes."""
    return _api(
        lambda: compare_with_python(folder / "named" / BUNDLE, folder / "cwd" / "library", folder / "libcuda.so.1")
    )


def tune_shapes(folder: Path) -> int:
    return _shapes(folder, folder / "named/run", folder / "cwd/exported")


def _shapes(folder: Path, run: Path, exported: Path) -> int:
    named, options = folder / "named", ("--trials", 6, "--wisdom", "none", "--export", f"vllm-moe={exported}")
    return _cli("tune", f"{named / 'kernels.py'}:tuned", "--shapes", named / "shapes.csv", "--run", run, *options)


def call_tuned(folder: Path) -> int:
    """Call a tuned function for sizes that its file knows, and for others, with each effort."""
    add, arguments = _tuned_function(folder)
    status = _api(lambda: print(add.explain(*arguments(1000)), add.explain(*arguments(2000))))  # noqa: T201
    return max(status, *(_api(lambda n=n: add(*arguments(n))) for n in (1000, 2000)))


def call_beside_a_stopped_one(folder: Path) -> int:
    """Call a tuned function while another process has stopped in the middle of its tuning."""
    from mltune.tuning import tuner

    add, arguments = _tuned_function(folder)
    other = os.fork()
    if other == 0:
        tuner.tune = lambda *given, **options: os.kill(os.getpid(), signal.SIGSTOP)
        add(*arguments(1000))
        os._exit(0)
    os.waitpid(other, os.WUNTRACED)
    try:
        return _api(lambda: add(*arguments(1000)))
    finally:
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)


def _tuned_function(folder: Path) -> tuple[Any, Callable[..., Any]]:
    """Return a tuned function on an imaginary GPU, and what makes its arguments."""
    import tuned_functions
    from _pytest.monkeypatch import MonkeyPatch
    from imaginary_gpu import FOLDER

    os.environ[FOLDER] = str(folder / "home")
    tuned_functions.World(MonkeyPatch(), folder / "home")
    return tuned_functions.function(folder / "named/tuned/add.json", effort="quick"), tuned_functions.arguments


def load_dataset(folder: Path) -> int:
    def load() -> None:
        import mltune

        dataset = mltune.load_dataset(folder / "named" / DATASET)
        dataset.to_dataframe()
        repr((len(dataset), dataset.builds()[:1], dataset.measurements()[:1]))

    return _api(load)


def tune_dataset(folder: Path) -> int:
    options = ("--search", "random", "--trials", 4, "--run", folder / "cwd" / "run")
    return _cli("tune", "--device", f"replay:{folder / 'named' / DATASET}", *options)


def compare_dataset(folder: Path) -> int:
    return _compare(folder, "--datasets", folder / "named" / DATASET)


def read_table(folder: Path) -> int:
    def read() -> None:
        from mltune.dataset.importing import read_table

        parameters, time = _columns(folder)
        read_table(_table(folder), parameters or None, time or None)

    return _api(read)


def compare_table(folder: Path) -> int:
    parameters, time = _columns(folder)
    named = ("--parameters", ",".join(parameters), "--time-column", time) if parameters else ()
    return _compare(folder, "--table", _table(folder), *named)


def compare_journal(folder: Path) -> int:
    return _compare(folder, "--datasets", REPLAY, output=folder / "named" / "comparison")


def _compare(folder: Path, *options: object, output: Path | None = None, command: str = "compare") -> int:
    """Compare with one short run, whose process is a fork: its imports take seconds."""
    get_context = multiprocessing.get_context
    multiprocessing.get_context = lambda method=None: get_context("fork")
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))  # as after a spawn
    small = ("--strategies", "random", "--evaluations", 10, "--seeds", 1, "--jobs", 1)
    return _cli(command, *options, *small, "--out", output or folder / "cwd" / "compared")


def _table(folder: Path) -> Path:
    return next(path for path in sorted((folder / "named").iterdir()) if path.stem == TABLE)


def _columns(folder: Path) -> tuple[tuple[str, ...], str]:
    """Return the columns that the user names: JSON names its own."""
    return ((), "") if _table(folder).suffix == ".json" else (("a", "b"), "time_ms")


def cubin_cache(folder: Path) -> int:
    """Look for every build in a cache."""

    def get() -> None:
        from mltune.measure.cubin_cache import CubinCache

        cache = folder / "named" / "cubins"
        for path in sorted(cache.glob("??/*")):
            print(CubinCache(cache).get(path.name) is None)  # noqa: T201

    return _api(get)


def wisdom_show(folder: Path) -> int:
    return _cli("wisdom", "show", folder / "named" / WISDOM)


def wisdom_merge(folder: Path) -> int:
    file = folder / "named" / WISDOM
    return _cli("wisdom", "merge", file, file, "--out", folder / "cwd" / "merged.json", "--json")


def wisdom_check(folder: Path) -> int:
    return _cli("wisdom", "check", folder / "named" / WISDOM, "--device", f"replay:{REPLAY}")


def triton_import(folder: Path) -> int:
    return _cli("triton", "import", folder / "named" / WINNERS, "--wisdom", folder / "cwd" / "merged.json")


def triton_export_over(folder: Path) -> int:
    return _cli("triton", "export", folder / "named" / WINNERS, "--wisdom", folder / "named" / "triton.json", "--json")


def wisdom_tune(folder: Path) -> int:
    options = ("--search", "random", "--trials", 4, "--run", folder / "cwd" / "run")
    return _cli("tune", "--device", f"replay:{REPLAY}", "--wisdom", folder / "named" / WISDOM, *options)


def predict(folder: Path) -> int:
    options = ("--kernel", "clblast_xgemm", "--device", "rtx_4090", "--top", 8, "--wisdom", "none")
    return _cli("predict", "sgemm", *options, "--prior", folder / "named" / MODEL)


def tune_from_model(folder: Path) -> int:
    options = ("--device", "replay:xgemm_titan_rtx", "--trials", 4, "--run", folder / "cwd" / "run")
    return _cli("tune", *options, "--prior", folder / "named" / MODEL)


def receive(folder: Path) -> int:
    """Receive a message from a worker of a cluster, as the process does that carries out a campaign."""

    def call() -> None:
        from mltune.campaign.cluster.remote_process import RemoteProcess
        from mltune.campaign.device_worker import SliceRequest
        from mltune.errors import MltuneError
        from mltune.process.child import ChildDiedError
        from mltune.resolve.placement import place
        from mltune.resolve.plan_file import parse_plan
        from mltune.resolve.request import TuneRequest
        from tests.hostile.base import PLAN
        from tests.hostile.messages import MESSAGE, cluster_that_sends

        task = place(parse_plan(PLAN, "test"), ()).tasks[0]
        run = folder / "named" / RUN
        request = TuneRequest(task.problem, task.kernel, task.target, run=run, wisdom="none", slug=task.slug)
        message = pickle.loads((folder / "named" / MESSAGE).read_bytes())  # noqa: S301 - what the suite has written
        worker = RemoteProcess(cluster_that_sends(message), "worker", "")
        try:
            worker.call(SliceRequest(request, folder / "cwd"), 1.0, print)
        except ChildDiedError as error:  # the problem is tried again, and set aside in the end
            raise MltuneError(str(error)) from error

    return _api(call)


def show_received(folder: Path) -> int:
    receive(folder)
    return show(folder)


def report_received(folder: Path) -> int:
    receive(folder)
    return report(folder)


def load_received(folder: Path) -> int:
    receive(folder)
    return load_run(folder)


def resume_received(folder: Path) -> int:
    receive(folder)
    return resume(folder)


def list_database(folder: Path) -> int:
    """List the runs of the database that the input is in, or those below a folder."""
    database = folder / "named" / DATABASE
    return _cli("show", database.read_text()) if database.exists() else show_all(folder)


def list_database_json(folder: Path) -> int:
    database = folder / "named" / DATABASE
    return _cli("show", database.read_text(), "--json") if database.exists() else show_json(folder)


def tune_with_switch(folder: Path, at: int, trials: int, search: str) -> int:
    """Tune or resume a run, with the kill switch armed; write down what was acknowledged, and what was counted.

    ``FOLDER/acknowledged`` gets a line for every trial whose record was on file when the search went on. ``FOLDER/calls``
    gets the calls that the switch has seen, with a line ``trials`` where trials were appended.
    """
    import mltune
    from mltune.records.store import Store

    switch = ctypes.CDLL(None)
    switch.kill_switch_calls.restype = ctypes.c_char_p
    append, marks = Store.append, [0, 0]

    def acknowledge(store: Store, *records: Any) -> None:
        marks[0] = marks[0] or switch.kill_switch_count()
        append(store, *records)
        with (folder / "acknowledged").open("a") as file:
            file.writelines(f"{record.number}\n" for record in records)
        marks[1] = switch.kill_switch_count()

    Store.append = acknowledge
    switch.kill_switch_arm(at, b"run.")
    options = {"device": f"replay:{REPLAY}", "trials": trials, "search": search, "run": folder / "named" / RUN}
    mltune.tune(**options, stop=False, progress=None)
    calls = switch.kill_switch_calls().decode().splitlines()
    (folder / "calls").write_text(json.dumps({"calls": calls, "first": marks[0], "last": marks[1]}))
    return 0


def run_with_switch(folder: Path, at: int, of_worker: bool) -> int:
    """Carry out or resume a campaign; kill its first device worker, or itself, before the n-th change.

    The campaign itself writes no stores: there, changes of the files in its directory count.
    """
    if of_worker and at:
        names = ("KILL_SWITCH_AT", "KILL_SWITCH_NAME", "KILL_SWITCH_ONCE")
        os.environ.update(zip(names, (str(at), "run.", str(folder / "killed")), strict=True))
    else:
        ctypes.CDLL(None).kill_switch_arm(at, os.fsencode(folder / "named" / RUN))
    return _cli("run", folder / "named" / PLAN, "--run", folder / "named" / RUN, "--json")


def _target(folder: Path, suffix: str = "") -> Path:
    return folder / "elsewhere" / f"target{suffix}"


def wisdom_merge_to(folder: Path) -> int:
    return _cli("wisdom", "merge", folder / "named" / WISDOM, "--out", _target(folder))


def wisdom_export_to(folder: Path) -> int:
    named = ("--kernel", "convolution", "--wisdom", folder / "named" / WISDOM)
    return _cli("wisdom", "export", *named, "--out", _target(folder))


def wisdom_of_tune_to(folder: Path) -> int:
    return _tune(folder / "cwd/run", "--wisdom", _target(folder))


def tune_to(folder: Path) -> int:
    return _tune(_target(folder), "--wisdom", "none")


def _tune(run: Path, *options: object) -> int:
    small = ("--search", "random", "--trials", 4)
    return _cli("tune", "--device", f"replay:{REPLAY}", *small, "--run", run, *options)


def report_to(folder: Path) -> int:
    return _cli("report", folder / "named" / RUN, "--out", _target(folder))


def export_trials_to(folder: Path) -> int:
    return _cli("show", folder / "named" / RUN, "--dataset", _target(folder))


def compare_to(folder: Path) -> int:
    return _compare(folder, "--datasets", REPLAY, output=_target(folder))


def scoreboard_to(folder: Path) -> int:
    return _compare(folder, "--datasets", REPLAY, output=_target(folder), command="scoreboard")


def run_to(folder: Path) -> int:
    return _run_for_seconds(folder / "named" / PLAN, "--run", _target(folder))


def export_dataset_to(folder: Path) -> int:
    return _cli("datasets", "export", folder / "named" / DATASET, _target(folder, ".json"), "--format", "t4")


def merge_datasets_to(folder: Path) -> int:
    dataset = folder / "named" / DATASET
    return _cli("datasets", "merge", dataset, dataset, "--name", "recorded", "--out", _target(folder))


def import_dataset_to(folder: Path) -> int:
    named = ("--kernel", "table", "--device", "unknown", "--parameters", "a,b", "--time-column", "time_ms")
    return _cli("datasets", "import", folder / "named/table.csv", *named, "--out", _target(folder))


def train_to(folder: Path) -> int:
    return _cli("train", REPLAY, "--out", _target(folder))


def device_to(folder: Path) -> int:
    return _cli("device", "h200", "--out", _target(folder, ".json"))


def init_to(folder: Path) -> int:
    return _cli("init", _target(folder))


def junit_to(folder: Path) -> int:
    """Write the verdict of a gate that needed no GPU."""
    from mltune.device import query
    from mltune.device.known import H200
    from mltune.tuning import gate

    query.query_device = lambda index: H200
    gate.compare_versions = lambda old, new, **options: gate.GateResult(
        "equal", old.name, new.name, "p", "d", 0.01, 0.99
    )
    return _cli("gate", "transpose", "transpose", "--junit", _target(folder))


def library_to(folder: Path) -> int:
    return _build_library(folder, _target(folder))


def shapes_to(folder: Path) -> int:
    return _own_shapes(folder, _target(folder), folder / "cwd/exported")


def export_shapes_to(folder: Path) -> int:
    return _own_shapes(folder, folder / "cwd/run", _target(folder))


def _own_shapes(folder: Path, run: Path, exported: Path) -> int:
    from tests.triton_file import FILE

    (folder / "named/kernels.py").write_text(FILE)
    (folder / "named/shapes.csv").write_text("M,E,N\n16,9,14336\n")
    return _shapes(folder, run, exported)


RUN_COMMANDS = (
    "show",
    "show_json",
    "follow",
    "export",
    "dashboard",
    "load_run",
    "report",
    "resume",
    "show",
    "show_all",
)
COMMANDS_OF: dict[str, tuple[str, ...]] = {
    "store": RUN_COMMANDS,
    "run folder": RUN_COMMANDS,
    "campaign": ("show", "show_json", "follow", "dashboard", "report", "resume_campaign", "show", "show_all"),
    "winner folder": ("report", "report_elsewhere", "resume_campaign"),
    "plan": ("plan", "plan_json", "begin_plan", "run_plan"),
    "bundle": ("load_kernel", "space", "space_json", "tune_bundle", "check", "check_json", "sweep"),
    "source": ("compile_bundle", "check", "space"),
    "arrays bundle": ("load_kernel", "read_arrays", "space", "check", "check_json"),
    "include folders": ("load_kernel", "compile_bundle", "check"),
    "tuned kernel": ("compile_winner", "gate_winner"),
    "library": ("gate_library", "load_library", "build_over_library"),
    "formulas": ("library_of_bundle", "check", "space"),
    "specification": ("build_from_specification",),
    "versions": ("gate_revision", "gate_bundle", "gate_source"),
    "shapes": ("tune_shapes",),
    "tuned function": ("call_tuned",),
    "target": WRITERS,
    "dataset": ("load_dataset", "tune_dataset", "compare_dataset"),
    "table": ("read_table", "compare_table"),
    "Kernel Tuner cache": ("read_table", "compare_table"),
    "comparison": ("compare_journal",),
    "cubin cache": ("cubin_cache",),
    "winners of Triton": ("triton_import", "triton_export_over", "triton_import"),
    "wisdom": ("wisdom_show", "wisdom_merge", "wisdom_check", "wisdom_tune"),
    "model": ("predict", "tune_from_model"),
    "database rows": ("list_database", *RUN_COMMANDS[:8], "list_database_json"),
    "cluster messages": ("receive", "show_received", "load_received", "report_received", "resume_received"),
}
"""The commands that each kind of input is run through, in order."""

COMMANDS: dict[str, Callable[..., int]] = {
    name: globals()[name]
    for names in (*COMMANDS_OF.values(), ("tune_with_switch", "run_with_switch", "call_beside_a_stopped_one"))
    for name in names
}
