"""Another user of the machine gains nothing while a campaign runs: no port, no file, no name that was taken first."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from mltune.known.wisdom import Wisdom
from mltune.measure.cubin_cache import CubinCache
from mltune.records.trial import Build, TrialState
from tests.campaign.conftest import PLAN
from tests.environment import importing

pytest.importorskip("distributed")
psutil = pytest.importorskip("psutil")
pytestmark = pytest.mark.system

STRANGER = [sys.executable, "-P", str(Path(__file__).with_name("stranger.py"))]
LONGEST_S = 600.0
SHORT = PLAN.replace("96 trials", "24 trials").replace(', "convolution_mi250x_gcd", "xgemm_rtx_2080_ti"', "")
ALERT = "\x15"  # of TLS: that was no handshake
BECOME = "import os; os.setgroups([]); os.setgid(65534); os.setuid(65534)"


@pytest.fixture(scope="module")
def may_be_another_user():
    """Skip where no process of another user can be started."""
    if os.geteuid():
        pytest.skip("only root may start a process of another user")
    tried = subprocess.run([sys.executable, "-c", BECOME], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"no process of another user can be started: {tried.stderr.splitlines()[-1]}")


@pytest.fixture
def machine():
    """Return a folder that everybody may enter, with a folder of temporary files for all, as /tmp is."""
    folder = Path(tempfile.mkdtemp(prefix="shared-"))
    folder.chmod(0o755)
    for name in ("home", "mine/folder", "work", "tmp"):
        (folder / name).mkdir(parents=True)
    (folder / "tmp").chmod(0o1777)
    for name in ("kept.txt", "folder/kept.txt"):
        (folder / "mine" / name).write_text("mine")
    yield folder
    shutil.rmtree(folder)


def everything_in(folder):
    """Return what would tell that a folder was changed."""
    found = {path: path.lstat() for path in sorted([folder, *folder.rglob("*")])}
    return {str(path): (one.st_mode, one.st_uid, one.st_size, one.st_mtime_ns) for path, one in found.items()}


def ports_of(process):
    """Return the ports at which a process and its descendants take connections."""
    found = set()
    for one in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
        try:
            inodes = {os.readlink(path) for path in Path(f"/proc/{one.pid}/fd").iterdir() if path.is_symlink()}
        except OSError:
            continue
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            row = line.split()
            if row[3] == "0A" and f"socket:[{row[9]}]" in inodes:
                found.add(int(row[1].partition(":")[2], 16))
    return found


@pytest.mark.usefixtures("may_be_another_user")
@pytest.mark.sampled(0, system=1, nightly=3)
@pytest.mark.parametrize("how", ["folders", "links"])
@pytest.mark.parametrize("options", [("--cluster", "local"), ()], ids=["cluster", "alone"])
def test_another_user_gains_nothing(how, options, machine):
    home, mine, temporary = machine / "home", machine / "mine", machine / "tmp"
    (machine / "plan.toml").write_text(SHORT)
    cache = home / ".cache" / "mltune" / "cubins"
    CubinCache(cache).put("ab" * 32, Build(TrialState.OK, cubin=bytes(1000), registers=32))
    wisdom = home / ".local" / "share" / "mltune" / "wisdom.json"
    Wisdom().save(wisdom)
    before = everything_in(mine), everything_in(wisdom.parent)
    stranger = subprocess.Popen(STRANGER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/", text=True)
    paths = {"temporary": temporary, "mine": mine, "private": cache, "home": home, "work": machine / "work"}
    orders = {"how": how, **{name: str(path) for name, path in paths.items()}}
    print(json.dumps(orders), file=stranger.stdin, flush=True)
    assert stranger.stdout.readline() == "ready\n"
    planted = everything_in(temporary)
    command = [sys.executable, "-P", "-m", "mltune", "run", "../plan.toml", "--run", "run", *options]
    campaign = subprocess.Popen(
        command,
        cwd=machine / "work",
        env=importing(TMPDIR=str(temporary), HOME=str(home), OMP_NUM_THREADS="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    told, deadline = set(), time.monotonic() + LONGEST_S
    while campaign.poll() is None and time.monotonic() < deadline:
        for port in ports_of(campaign) - told:
            told.add(port)
            print(port, file=stranger.stdin, flush=True)
        time.sleep(0.1)
    campaign.kill()  # where it was kept from ending
    loot = json.loads(stranger.communicate(timeout=300)[0])
    output = campaign.communicate()[0]
    assert campaign.returncode == 0, output
    assert (machine / "work" / "run" / "report.html").exists()
    assert (len(told) > 2) == bool(options)
    assert loot["ports"].keys() == {str(port) for port in told}
    for heard, *entered in loot["ports"].values():
        assert not entered
        assert not heard or heard.startswith((ALERT, "HTTP/1.1 404"))
    assert loot["seen"] > 100
    assert (loot["read"], loot["written"]) == ([], [])
    assert (everything_in(mine), everything_in(wisdom.parent)) == before
    found = everything_in(temporary)
    assert {path: found[path] for path in planted if path != str(temporary)} == {
        path: facts for path, facts in planted.items() if path != str(temporary)
    }
