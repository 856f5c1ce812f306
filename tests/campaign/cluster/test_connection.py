"""How a cluster is named, that connections to other hosts are encrypted, and what a check of it says."""

import json
import shutil
import subprocess

import pytest

from mltune.errors import UsageError, WorkerError
from mltune.measure.compile_farm import PLAIN, address_of, check_encrypted, connect
from tests.cli import program

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
    with pytest.raises(UsageError, match="must be encrypted"):
        check_encrypted(address)
    check_encrypted(address.replace("tcp", "tls").replace("ws", "wss"))
    monkeypatch.setenv(PLAIN, "1")
    check_encrypted(address)


def test_this_host_needs_no_encryption():
    for address in ("tcp://127.0.0.1:8786", "tcp://localhost:8786", "tcp://[::1]:8786"):
        check_encrypted(address)


def test_where_nobody_answers_it_says_so():
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
    assert 0 < document["latency_s"] < 1
    assert document["compile"]["builds"] == 1
    assert document["compile"]["per_second"] > 0
    shown = program.command("cluster", "check", str(cluster.file), "--builds", "2")
    assert "configurations/s on 2 cores" in shown.stdout
