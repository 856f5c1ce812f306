"""Libraries that somebody changed by the hundred, with hashes that match: each is read, or refused in one line."""

import contextlib
import copy
import json
import shutil
from random import Random
from time import process_time

import pytest
from c_library import content_of, rewrite
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mltune.device.known import H200
from mltune.errors import MltuneError
from mltune.kernel.bundle import variables_of
from mltune.library.folder import read_library, write_library
from mltune.library.loaded import Library, load_library
from mltune.library.machine_code import READERS
from mltune.problem.gemm import parse_problem
from mltune.tuning.versions import two_versions
from tests.hostile.values import change, damaged, to_json

SHARED = "libsgemm_nt.so"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Return the folder of a library whose shared object is no program, which no test may run."""
    folder = tmp_path_factory.mktemp("built") / "lib"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mltune.library.folder._COMPILERS", ())
        problem = parse_problem("sgemm", trans="NT", size=300)
        write_library(folder, content_of("gemm_simt", problem, ("m", "n", "k"), count=3))
    (folder / SHARED).write_bytes(b"not a program")
    rewrite(folder, lambda document: document.update(shared_object=SHARED), SHARED)
    return folder


def gate(folder):
    with two_versions(str(folder), str(folder), None, None, {"size": 200}, READERS) as makings:
        for version in [make(H200, {}) for make in makings]:
            launch = version.launch(variables_of(version.problem, H200))
            assert min(*launch.grid, *launch.block, launch.shared_bytes) >= 0
            assert version.built().cubin is not None


def describe(folder):
    """Make what Python has of a library from its document, without a driver and without its functions."""
    document, _ = read_library(folder)
    names = tuple(parameter.name for parameter in document.parameters)
    Library(document.name, document.model_dump(), names, None, None, False)


def refused_or_done(work, folder):
    begun, message = process_time(), ""
    try:
        work(folder)
    except MltuneError as error:
        message = str(error)
    assert message == "" or message.isprintable()
    assert len(message) < 3000
    assert process_time() - begun < 10


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), count=st.integers(1, 4))
def test_a_changed_document_is_read_or_refused(library, tmp_path, seed, count):
    rng, folder = Random(seed), tmp_path / "lib"  # noqa: S311
    if not folder.exists():
        shutil.copytree(library, folder)
    document = json.loads((library / "library.json").read_text())
    for _ in range(count):
        part = rng.choice(
            [
                document,
                document["problem"],
                document["dispatcher"],
                *document["parameters"],
                *document["configurations"],
            ]
        )
        part = part["launch"] if "launch" in part and rng.random() < 0.5 else part
        key = rng.choice([*part])
        part[key] = change(copy.deepcopy(part[key]), rng)
    (folder / "library.json").write_bytes(to_json(document).encode("utf-8", "surrogatepass"))
    with contextlib.suppress(ValueError, TypeError, LookupError):  # what cannot be read has no hash either
        rewrite(folder, lambda read: None)
    for work in (load_library, describe, gate):
        refused_or_done(work, folder)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), name=st.sampled_from(["sgemm_nt.c", "sgemm_nt.h", SHARED, "library.json"]))
def test_a_changed_file_is_read_or_refused(library, tmp_path, seed, name):
    folder = tmp_path / "lib"
    shutil.copytree(library, folder, dirs_exist_ok=True)
    (folder / name).write_bytes(damaged((library / name).read_bytes(), Random(seed)))  # noqa: S311
    if name != "library.json":
        rewrite(folder, lambda document: None, name)
    for work in (load_library, describe, gate):
        refused_or_done(work, folder)
