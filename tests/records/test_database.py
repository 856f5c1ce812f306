"""Runs in a PostgreSQL database: nothing is lost with a process, a connection or the server, and one process writes."""

import getpass
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from test_store import HEADER, process, trial

from mltune.api.campaigns import stored_runs
from mltune.errors import DamagedRunError, RunDirectoryError, StoreError, UsageError
from mltune.records import database, database_tables, rows
from mltune.records.database import Pointer, database_of, parse_url
from mltune.records.database_runs import directory_of, list_runs
from mltune.records.directory import FILE, POINTER
from mltune.records.rows import checksum
from mltune.records.store import Store, is_written
from tests.hostile.databases import ROWS

RUN = "0f9c1f1e-7f0a-4d1e-9c53-2d6b8f0c4a11"

WRITER = """
import time
store = Store.open(Path(sys.argv[1]), HEADER, sys.argv[2])
for number in range(len(store), len(store) + int(sys.argv[3])):
    store.append(trial(number))
    store.set_seconds({"total": float(number)})
    print(number, flush=True)
    time.sleep(float(sys.argv[4])) if sys.argv[4] != "asked" else sys.stdin.readline()
store.close()
"""


def sql(url, text, *values):
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(text, values or None)
        return cursor.fetchall() if cursor.description else []


def numbers(directory):
    with Store.read_only(directory) as store:
        return [record.number for record in store.records()]


def everything(directory):
    with Store.read_only(directory) as store:
        return store.records(), store.documents()


def test_the_migrations_make_the_tables(postgres):
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    from mltune.records.database_schema import SCHEMA, metadata

    url = parse_url(postgres.url("migrated"))
    threads = [threading.Thread(target=database.prepare.__wrapped__, args=(url,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.connect(url) as connection:
        options = {
            "include_schemas": True,
            "version_table_schema": SCHEMA,
            "include_name": lambda name, kind, _: kind != "schema" or name == SCHEMA,
        }
        assert compare_metadata(MigrationContext.configure(connection, opts=options), metadata) == []


def test_a_database_of_a_newer_version_is_refused(postgres, tmp_path):
    url = postgres.url("newer")
    Store.open(tmp_path / "old", HEADER, url).close()
    sql(url, "UPDATE mltune.alembic_version SET version_num = '9999'")
    database.prepare.cache_clear()
    with pytest.raises(StoreError, match="is of version 9999, and this program knows"):
        Store.open(tmp_path / "new", HEADER, url)


def test_the_lock_of_a_run_holds_across_hosts(database_url, tmp_path, monkeypatch):
    """Two directories that name the same run are as two hosts: no lock of a file is between them."""
    here, there = tmp_path / "here", tmp_path / "there"
    with Store.open(here, HEADER, database_url) as store:
        store.append(trial(0))
    Pointer.read(here).write(_made(there))
    child = process(WRITER, there, "", 10**6, 0.01)
    assert child.stdout is not None
    child.stdout.readline()
    with pytest.raises(RunDirectoryError, match=f"is in use by {getpass.getuser()} on {socket.gethostname()}"):
        Store.open(here)
    assert is_written(here)
    child.kill()
    printed = child.communicate()[0].split()
    monkeypatch.setattr(database_tables, "_RELEASE_S", 300.0)
    with Store.open(here) as store:  # waits until the server has noticed
        assert len(store) >= 2 + len(printed)
        store.append(trial(len(store)))
    until = time.monotonic() + 300
    while is_written(here) and time.monotonic() < until:  # on a busy machine the server notices the end later
        time.sleep(0.05)
    assert not is_written(here)


def _made(directory):
    directory.mkdir()
    return directory


def test_kills_lose_nothing(database_url, tmp_path):
    printed = -1
    for turn in range(3):
        child = process(WRITER, tmp_path, database_url, 10**6, 0)
        assert child.stdout is not None
        for line in child.stdout:
            assert int(line) == printed + 1
            printed = int(line)
            if printed % 37 == 3 * turn:
                break
        child.kill()
        printed += len(child.communicate()[0].split())
        found = numbers(tmp_path)
        assert len(found) - 1 in (printed, printed + 1)
        assert found == list(range(len(found)))
        printed = len(found) - 1


def test_a_writer_outlives_a_restart_of_the_server(postgres, tmp_path):
    url = postgres.url("restarted")
    child = process(WRITER, tmp_path, url, 200, 0.005)
    assert child.stdout is not None
    for how in (signal.SIGQUIT, signal.SIGINT):  # a crash, and a restart by its administrator
        for _ in range(50):
            child.stdout.readline()
        postgres.stop(how)
        time.sleep(0.5)
        postgres.start()
    out, err = child.communicate()
    assert child.returncode == 0, err
    assert len(out.split()) == 100
    assert numbers(tmp_path) == list(range(200))


def test_a_connection_that_is_cut_while_it_writes(database_url, tmp_path):
    cut = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = 'mltune' AND datname = current_database()"
    )
    child, cuts = process(WRITER, tmp_path, database_url, 200, "asked"), 0
    for line in child.stdout:
        cuts += len(sql(database_url, cut)) if int(line) % 7 == 3 else 0
        print(file=child.stdin, flush=True)
    _, err = child.communicate()
    assert child.returncode == 0, err
    assert cuts > 3
    assert numbers(tmp_path) == list(range(200))


def test_who_was_overtaken_writes_no_more(database_url, tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    with Store.open(here, HEADER, database_url) as store:
        store.append(trial(0))
        Pointer.read(here).write(_made(there))
        sql(database_url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'mltune'")
        with Store.open(there) as other:
            other.append(trial(1))
        with pytest.raises(StoreError, match="another process has opened the run of"):
            store.append(trial(2))
    assert numbers(here) == [0, 1]


@pytest.mark.parametrize("count", [3, pytest.param(16, marks=pytest.mark.slow)])
def test_many_write_at_once(count, database_url, tmp_path):
    children = [process(WRITER, tmp_path / str(run), database_url, 50, 0) for run in range(count)]
    for child in children:
        out, err = child.communicate()
        assert child.returncode == 0, err
        assert out.split() == [str(number) for number in range(50)]
    for run in range(count):
        assert numbers(tmp_path / str(run)) == list(range(50))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("UPDATE mltune.trials SET median_s = 1e-9 WHERE run = %s AND number = 1", "has changed since it was recorded"),
        ("DELETE FROM mltune.trials WHERE run = %s AND number = 1", "is missing"),
        ("UPDATE mltune.trials SET configuration = '{}' WHERE run = %s", "do not have the parameters"),
        ("UPDATE mltune.trials SET sequence = 9 WHERE run = %s AND number = 1", "is missing"),
        ("UPDATE mltune.runs SET header = '{}' WHERE id = %s", "its header has changed"),
        ("UPDATE mltune.facts SET value = '2' WHERE run = %s", "row 1 of facts has changed"),
        ("DELETE FROM mltune.runs WHERE id = %s", "has no run"),
    ],
)
def test_what_others_changed_is_found(database_url, tmp_path, change, words):
    with Store.open(tmp_path, HEADER, database_url) as store:
        store.append(trial(0), trial(1), trial(2))
        store.set_fact("model", "none")
    sql(database_url, change, Pointer.read(tmp_path).run)
    with pytest.raises(RunDirectoryError, match=words):
        everything(tmp_path)


@pytest.mark.parametrize("text", ["[]", "{}", '{"kernel": 5}', "[" * 500])
def test_a_forged_header_with_its_checksum_is_no_run(database_url, tmp_path, text):
    Store.open(tmp_path, HEADER, database_url).close()
    change = "UPDATE mltune.runs SET header = %s, checksum = %s WHERE id = %s"
    sql(database_url, change, text, checksum((text,)), Pointer.read(tmp_path).run)
    for attempt in (Store.read_only, Store.open):
        with pytest.raises(DamagedRunError):
            attempt(tmp_path)


def test_no_password_is_kept(postgres, database_url, tmp_path, monkeypatch):
    monkeypatch.setenv(database.PASSWORDS, "{}")
    secret = database_url.replace("mltune@", "mltune:s3cret@")
    Store.open(tmp_path, HEADER, secret).close()
    assert parse_url("postgresql://host/name?password=s3cret&sslpassword=s3cret") == "postgresql://host/name"
    for path in (tmp_path / POINTER, database.known_file()):
        assert "s3cret" not in path.read_text()
    for refused in (
        "mysql://me:s3cret@host/name",
        "mysql://host/name?sslpassword=s3cret",
        "mysql:/me:s3cret@h?x=s3cret",
        "postgresql://me:s3cret",
        "postgresql://me:s3cret/name",
    ):
        with pytest.raises(UsageError) as refusal:
            parse_url(refused)
        assert "s3cret" not in str(refusal.value)


@pytest.mark.system
def test_a_server_gets_its_own_password_alone(monkeypatch):
    """Also in a child process, which inherits the environment."""
    import psycopg
    import sqlalchemy

    seen = {}

    def refuse(*_, **options):
        seen[options["host"]] = options.get("password"), options.get("sslpassword")
        raise psycopg.errors.InvalidPassword("no")

    monkeypatch.setattr(psycopg, "connect", refuse)
    monkeypatch.setenv(database.PASSWORDS, "{}")
    monkeypatch.delenv("PGPASSWORD", raising=False)
    places = (":one@first/x", "@second/x", "@third/x?sslpassword=key")
    urls = [parse_url(f"postgresql://me{place}") for place in places]
    for url in urls:
        with pytest.raises(sqlalchemy.exc.DBAPIError):
            database.connect(url, patience_s=0.0)
    assert seen == {"first": ("one", None), "second": (None, None), "third": (None, "key")}
    assert "PGPASSWORD" not in os.environ


def test_databases_that_are_named_at_the_same_time_are_all_known(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    urls = [f"postgresql://me@host/{number} and more" for number in range(4)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(database.remember, urls))
    for url in urls:
        database.check_known(url, tmp_path)


@pytest.mark.parametrize("url", ["sqlite:///x", "postgresql+asyncpg://host/name", "no url", ""])
def test_what_is_no_url(url):
    with pytest.raises(UsageError, match="write it as postgresql://user@host/name"):
        parse_url(url)


@pytest.mark.system
def test_a_database_that_cannot_be_reached_is_no_run(tmp_path):
    with pytest.raises(StoreError, match="cannot be used"):
        Store.open(tmp_path / "run", HEADER, f"postgresql://me@/name?host={tmp_path}")
    assert not (tmp_path / "run" / POINTER).exists()


def test_the_directory_of_a_stranger_connects_to_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "engine", lambda url: pytest.fail(f"connects to {url}"))
    Pointer("postgresql://me@evil.example/name", uuid.uuid4()).write(tmp_path)
    for attempt in (
        lambda: Store.read_only(tmp_path),
        lambda: Store.open(tmp_path),
        lambda: Store.open(tmp_path, HEADER),
        lambda: database_of([tmp_path]),
    ):
        with pytest.raises(RunDirectoryError, match=r"which you have not named here, .*; if you trust it"):
            attempt()
    assert not is_written(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"database": "postgresql://host/name", "run": "none"}',
        json.dumps({"database": "sqlite:///tmp/x", "run": RUN}),
        json.dumps({"database": "postgresql://me:password@host/name", "run": RUN}),
        json.dumps({"database": 5, "run": RUN}),
        "x" * 100_000,
    ],
)
def test_what_is_no_pointer(tmp_path, text):
    (tmp_path / POINTER).write_text(text)
    with pytest.raises(RunDirectoryError):
        Store.read_only(tmp_path)
    assert not is_written(tmp_path)


def test_a_run_stays_where_it_was_begun(database_url, tmp_path):
    Store.open(tmp_path / "file", HEADER).close()
    Store.open(tmp_path / "database", HEADER, database_url).close()
    Store.open(tmp_path / "database", HEADER).close()
    for directory, url in (("file", database_url), ("database", "postgresql://host/other")):
        with pytest.raises(RunDirectoryError, match="a run stays where it was begun"):
            Store.open(tmp_path / directory, HEADER, url)
        with pytest.raises(RunDirectoryError, match="a run stays where it was begun"):
            database_of([tmp_path / directory], url)
    assert database_of([tmp_path / "file"]) == ""
    assert database_of([tmp_path / "database"]) == parse_url(database_url)
    (tmp_path / "database" / FILE).write_bytes((tmp_path / "file" / FILE).read_bytes())
    with pytest.raises(DamagedRunError, match="holds both"):
        Store.open(tmp_path / "database")


def test_the_runs_of_a_database(postgres, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    url = postgres.url("listed")
    assert list_runs(url) == []
    for name in ("first", "second"):
        with Store.open(tmp_path / name, HEADER, url) as store:
            store.append(*(trial(number) for number in range(3 if name == "first" else 0)))
    with Store.open(tmp_path / "second", HEADER, url):
        second, first = list_runs(url)
    assert (first.trials, first.best_s, first.running) == (3, 0.2, False)
    assert (second.trials, second.best_s, second.running) == (0, None, True)
    assert (first.header, first.directory) == (HEADER, str(tmp_path / "first"))
    assert numbers(directory_of(f"{url}#{first.run.hex[:8]}")) == [0, 1, 2]
    for digits in ("", "0", "zzzz", str(uuid.uuid4())):
        with pytest.raises(RunDirectoryError, match="names 0 runs of the database"):
            directory_of(f"{url}#{digits}")
    sql(url, "UPDATE mltune.runs SET header = 'x', owner = E'\\x1b[31m' WHERE id = %s", first.run)
    assert [run.header for run in list_runs(url)] == [HEADER, None]
    assert list_runs(url)[1].owner.isprintable()


@pytest.fixture(scope="module")
def url_of_bad_rows(postgres):
    return postgres.url("bad")


@pytest.fixture
def bad_url(url_of_bad_rows):
    """Return the URL of a database without runs."""
    yield url_of_bad_rows
    sql(url_of_bad_rows, "DELETE FROM mltune.runs")


@pytest.mark.parametrize(("change", "seen"), ROWS.items())
def test_one_bad_row_hides_no_other_run(bad_url, mltune, tmp_path, change, seen):
    """It is listed with what can be read of it."""
    url = bad_url
    for name in ("good", "bad"):
        with Store.open(tmp_path / name, HEADER, url) as store:
            store.append(trial(0))
    run = Pointer.read(tmp_path / "bad").run
    sql(url, f"UPDATE mltune.runs SET {change} WHERE id = %s", run)  # noqa: S608
    sql(url, "UPDATE mltune.trials SET median_s = '-infinity' WHERE run = %s", run)
    (bad,), (good,) = ([one for one in list_runs(url) if (one.run == run) is is_bad] for is_bad in (True, False))
    assert (good.header, good.directory, good.trials, good.best_s) == (HEADER, str(tmp_path / "good"), 1, 0.2)
    assert (getattr(bad, seen[0]), bad.best_s) == (seen[1], None)
    assert [entry["run"] for entry in stored_runs(url)].count(str(run)) == 1
    assert json.loads(mltune("show", url, "--json")[1]) == stored_runs(url)
    code, shown, _ = mltune("show", url)
    assert (code, str(run)[:8] in shown) == (0, True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("UPDATE mltune.runs SET header = repeat('[', 100000000) WHERE id = %s", "table runs have 1000000.. b"),
        (
            "UPDATE mltune.facts SET value = repeat('[', 100000000) WHERE run = %s",
            "table facts have 1000000.. b",
        ),
        (
            "UPDATE mltune.trials SET detail = repeat('x', 100000000) WHERE run = %s",
            "table trials have 1000000.. b",
        ),
    ],
)
def test_a_text_that_is_too_long_is_not_fetched(database_url, tmp_path, monkeypatch, change, words):
    monkeypatch.setattr(rows, "MOST_TRIALS_SIZE", rows.MOST_SIZE)
    with Store.open(tmp_path, HEADER, database_url) as store:
        store.append(trial(0))
        store.set_fact("model", "none")
    run = Pointer.read(tmp_path).run
    sql(database_url, change, run)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DamagedRunError, match=words):
        everything(tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kB
    sql(database_url, "DELETE FROM mltune.runs WHERE id = %s", run)


def test_without_its_driver_a_database_is_refused(tmp_path):
    script = (
        "import sys\n"
        "sys.modules['psycopg'] = None\n"
        "from mltune.records.database_runs import list_runs\n"
        "list_runs('postgresql://host/name')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "pip install 'mltune-gpu[postgres]'" in done.stderr


def test_a_kill_while_a_run_begins_leaves_a_directory_without_one(database_url, tmp_path):
    child = process(
        """
        import os
        from mltune.records.database import Pointer
        Pointer.write = lambda *_: os._exit(9)
        Store.open(Path(sys.argv[1]), HEADER, sys.argv[2])
        """,
        tmp_path,
        database_url,
    )
    child.communicate()
    assert child.returncode == 9
    with Store.open(tmp_path, HEADER, database_url) as store:
        store.append(trial(0))
    assert numbers(tmp_path) == [0]
