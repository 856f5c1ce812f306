"""A cluster of processes on this machine: a scheduler, compile workers and GPU workers, each with its nanny."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from mltune.measure.compile_farm import PLAIN, connect

WORKERS, RESOURCES = ("gpu-a", "gpu-b"), "GPU=1 COMPILE=1"


class Cluster:
    """Processes of ``dask scheduler`` and ``dask worker``, which a test may kill, stop and start again."""

    def __init__(self, folder, environment, protocol="tcp"):
        self.protocol = protocol
        self.file = folder / "scheduler.json"
        self.environment = {**os.environ, **environment}
        self.processes = {}
        self.port = 0
        self.start_scheduler()

    def start_scheduler(self):
        """Start the scheduler, at the same port as before."""
        self.file.unlink(missing_ok=True)
        options = ["--host", f"{self.protocol}://127.0.0.1", "--port", str(self.port), "--no-dashboard", "--no-show"]
        self._start("scheduler", "scheduler", *options, "--scheduler-file", str(self.file))
        wait_for(lambda: self.file.is_file() and self.file.read_text().rstrip().endswith("}"))
        if not self.port:
            self.port = int(self.address.rpartition(":")[2])

    @property
    def address(self):
        import json

        return json.loads(self.file.read_text())["address"]

    def start_worker(self, name, resources, threads=1):
        """Start a worker with its nanny."""
        options = ["--name", name, "--resources", resources, "--nthreads", str(threads), "--no-dashboard"]
        self._start(
            name,
            "worker",
            f"{self.protocol}://127.0.0.1:{self.port}",
            *options,
            "--memory-limit",
            "0",
            "--death-timeout",
            "300",
        )

    def wait_for_workers(self, count):
        with contextlib.closing(connect(self.address)) as client:
            client.wait_for_workers(count, timeout=300)

    def worker_pid(self, name):
        """Return the process id of a worker, which its nanny has started."""
        with contextlib.closing(connect(self.address)) as client:
            found = client.scheduler_info(n_workers=-1)["workers"]
            address = next(address for address, facts in found.items() if facts["name"] == name)
            return client.run(os.getpid, workers=[address])[address]

    def kill(self, name):
        """Kill the processes of a worker or of the scheduler."""
        process = self.processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self):
        for name in list(self.processes):
            self.kill(name)

    def _start(self, name, *arguments):
        self.processes[name] = subprocess.Popen(
            [sys.executable, "-P", "-m", "dask", *arguments],
            env=self.environment,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def wait_for(done, timeout_s=300.0):
    """Wait until something is true."""
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)


@contextlib.contextmanager
def starting(tmp_path_factory):
    """Give the function that starts a cluster, and end what it started: idle processes take time of a core."""
    with contextlib.ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv(PLAIN, "1")  # of its schedulers without encryption the user knows

        def start(protocol="tcp", **environment):
            folder = tmp_path_factory.mktemp("cluster")
            environment["XDG_CACHE_HOME"] = str(folder / "cache of the workers")
            cluster = Cluster(folder, environment, protocol)
            stack.callback(cluster.close)
            return cluster

        yield start


@pytest.fixture
def start_cluster(tmp_path_factory):
    """Return the function that starts a cluster, which ends with the test."""
    with starting(tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory):
    """Return a cluster with two workers, which compile and have a GPU each, or none in replay."""
    with starting(tmp_path_factory) as start:
        cluster = start(OMP_NUM_THREADS="1")
        for name in WORKERS:
            cluster.start_worker(name, RESOURCES)
        yield cluster


@pytest.fixture
def cluster(two_workers):
    """Return that cluster, which may have lost workers in other tests: they are back."""
    two_workers.wait_for_workers(2)
    return two_workers
