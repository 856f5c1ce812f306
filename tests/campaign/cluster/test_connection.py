"""How a cluster is named, that connections to other hosts are encrypted, and what a check of it says."""

import contextlib
import json
import math
import os
import shutil
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from mltune.campaign.cluster.gpu_workers import Cluster, named_cluster
from mltune.errors import MltuneWarning, UsageError, WorkerError
from mltune.measure.compile_farm import GPU, PLAIN, address_of, check_encrypted, connect, workers_with
from tests.cli import program
from tests.environment import importing
from tests.planted import executed, plant

dask = pytest.importorskip("dask")
pytest.importorskip("distributed")
pytestmark = pytest.mark.system


def test_a_cluster_is_named_by_an_address_or_a_file(tmp_path):
    file = tmp_path / "scheduler.json"
    file.write_text(json.dumps({"address": "tls://10.1.2.3:8786"}))
    assert address_of(str(file)) == "tls://10.1.2.3:8786"
    assert address_of("host:8786") == "tcp://host:8786"


@pytest.mark.parametrize("where", ["", "host", "tcp://host", "{}", "[]", '{"address": 3}', "nonsense"])
def test_what_is_no_address_is_refused(where, tmp_path):
    file = tmp_path / "scheduler.json"
    file.write_text(where)
    for name in (where, str(file)):
        with pytest.raises(UsageError, match="a cluster is named by the address"):
            address_of(name)


@pytest.mark.parametrize("address", ["tcp://10.1.2.3:8786", "tcp://host:1", "ws://[2001:db8::1]:80"])
def test_connections_to_other_hosts_are_encrypted(address, monkeypatch):
    monkeypatch.delenv(PLAIN, raising=False)
    with pytest.raises(UsageError, match="is not encrypted"):
        check_encrypted(address)
    check_encrypted(address.replace("tcp", "tls").replace("ws", "wss"))
    monkeypatch.setenv(PLAIN, "1")
    check_encrypted(address)


def test_of_a_plain_address_of_this_host_the_user_is_warned_once(monkeypatch):
    """Other users of the host could run programs as the user."""
    monkeypatch.delenv(PLAIN, raising=False)
    for address in ("tcp://127.0.0.1:9786", "tcp://localhost:9786", "tcp://[::1]:9786"):
        with pytest.warns(MltuneWarning, match="safe only where you alone can log in"):
            check_encrypted(address)
        check_encrypted(address)


def listening():
    """Return the addresses at which this process and its children take connections, as HOST:PORT."""
    mine, ours = str(os.getpid()), set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mine in (process.name, process.joinpath("stat").read_text().rpartition(")")[2].split()[1]):
                ours |= {os.readlink(one) for one in process.glob("fd/*")}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    found = [row[1].split(":") for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in ours]
    return {f"{socket.inet_ntoa(bytes.fromhex(host)[::-1])}:{int(port, 16)}" for host, port in found}


ALERT = b"\x15"  # of TLS: that was no handshake


def answer_of(port, context):
    """Return the first byte with which a port answers a user without its certificate; empty where it hangs up."""
    with contextlib.suppress(ConnectionError, ssl.SSLError), socket.create_connection(("127.0.0.1", port), 20) as raw:
        channel = raw if context is None else context.wrap_socket(raw)
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            channel.sendall(bytes(64))
            return channel.recv(1)
    return b""


def test_nobody_else_connects_to_the_cluster_on_this_machine():
    import distributed

    before = listening()
    with named_cluster("local", 0) as cluster:
        client = cluster.client()
        address = client.scheduler.address
        assert address.startswith("tls://127.0.0.1:")
        client.wait_for_workers(1, timeout=300)
        assert workers_with(client, GPU)
        (worker,) = client.scheduler_info()["workers"]
        other = distributed.Security.temporary().get_connection_args("client")["ssl_context"]
        assert {one.rpartition(":")[0] for one in listening() - before} == {"127.0.0.1"}
        for port in (int(one.rpartition(":")[2]) for one in (address, worker)):
            assert answer_of(port, None) in (b"", ALERT)
            assert answer_of(port, other) == b""
    with pytest.raises(WorkerError, match="does not answer"):
        connect(address, timeout_s=0.5)


def test_the_cluster_on_this_machine_runs_nothing_from_the_working_directory(tmp_path):
    """Its worker is started by Dask, and imports what Python's own modules and those of Dask need."""
    hostile = plant(tmp_path / "hostile")
    program = (
        "import os\n"
        "from mltune.campaign.cluster.gpu_workers import named_cluster\n"
        "if __name__ == '__main__':\n"
        "    with named_cluster('local', 0) as cluster:\n"
        "        client = cluster.client()\n"
        "        client.wait_for_workers(1, timeout=300)\n"
        "        (folder,) = client.run(os.getcwd).values()\n"
        "        print(folder)\n"
    )
    (tmp_path / "program.py").write_text(program)
    environment = importing() | {"PYTHONUNBUFFERED": "1"}
    environment.pop("PYTHONSAFEPATH", None)
    started = [sys.executable, str(tmp_path / "program.py")]  # as the command: without -P
    done = subprocess.run(started, cwd=hostile, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(hostile)  # the worker was there
    assert executed(hostile) == []


def test_a_lost_scheduler_is_told():
    """Its client knows no workers then."""

    class Lost:
        def scheduler_info(self, n_workers):
            return {}

    with pytest.raises(WorkerError, match="the scheduler is lost"):
        workers_with(Lost(), GPU)


def test_where_nobody_answers_it_says_so(monkeypatch):
    monkeypatch.setenv(PLAIN, "1")
    with pytest.raises(WorkerError, match="does not answer"):
        connect("tcp://127.0.0.1:1", timeout_s=0.5)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl, for the certificate")
def test_a_check_says_who_is_there_and_how_fast_they_compile_over_tls(start_cluster, tmp_path, monkeypatch):
    """With one certificate for all, as docs/how-to/use-a-cluster.md makes it."""
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=mltune"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    settings = {"distributed.comm.tls.ca-file": certificate}
    for role in ("scheduler", "worker", "client"):
        settings |= {f"distributed.comm.tls.{role}.cert": certificate, f"distributed.comm.tls.{role}.key": key}
    for name, value in settings.items():
        monkeypatch.setenv("DASK_" + name.upper().replace(".", "__").replace("-", "_"), value)
    with dask.config.set(settings):
        cluster = start_cluster("tls")
        cluster.start_worker("farm", "COMPILE=2", threads=2)
        cluster.start_worker("gpu", "GPU=1")
        cluster.wait_for_workers(2)
    assert cluster.address.startswith("tls://")
    done = program.command("cluster", "check", str(cluster.file), "--builds", "2", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [(one["name"], one["resources"], one["fits"]) for one in document["workers"]] == [
        ("farm", {"COMPILE": 2}, True),
        ("gpu", {"GPU": 1}, True),
    ]
    assert 0 < document["latency_s"] < 60
    assert document["compile"]["builds"] == 1
    assert document["compile"]["per_second"] > 0
    shown = program.command("cluster", "check", str(cluster.file), "--builds", "2")
    assert "configurations/s on 2 cores" in shown.stdout
    assert shown.stderr.endswith(f"next: mltune tune sgemm --compile-on {cluster.file}\n")


class LostClient:
    """A client whose scheduler is killed between two questions."""

    def scheduler_info(self, **_):
        return {"workers": {"tcp://a": {"name": "a", "host": "h", "resources": {"GPU": 1}}}}

    def run(self, *_, **__):
        raise OSError("Stream is closed")


def test_a_scheduler_that_is_lost_between_two_questions_is_waited_for(monkeypatch):
    found = Cluster("tcp://nowhere")
    monkeypatch.setattr(found, "client", LostClient)
    with pytest.raises(WorkerError, match="does not answer: Stream is closed"):
        found.workers()
    assert found._answering(LostClient(), lost_until=math.inf) == []


def test_waiting_for_the_first_worker_is_said_once(monkeypatch):
    found = Cluster("tcp://host:1")
    monkeypatch.setattr(found, "client", LostClient)
    monkeypatch.setattr(found, "_answering", lambda *_, **__: [])
    with pytest.raises(UsageError, match=r"has no worker .*: CUDA_VISIBLE_DEVICES=0 dask worker tcp://host:1"):  # noqa: SIM117
        with pytest.warns(MltuneWarning, match="waiting up to 1 s for the first worker") as said:
            found.workers(1.0)
    assert len(said) == 1
