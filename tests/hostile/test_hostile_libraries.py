"""Descriptions of libraries and their folders as strangers may give them: each is read, or refused in one line."""

import json
import shutil
from pathlib import Path
from random import Random

import pytest

from mltune.errors import DamagedRunError, LibraryError
from mltune.library.folder import read_library
from mltune.library.spec import load_spec
from mltune.library.times import CROSS, read_times
from tests.hostile.values import change, damaged, to_json, to_toml

SPEC = {
    "library": {"operation": "sgemm", "trans": "NN", "kernel": ["gemm_simt"], "time": "10m", "tuned": 3, "floor": 0.5},
    "sizes": {"shapes": [64, {"m": 5, "n": 6, "k": 7}, {"m": 1, "n": 1, "k": 2**31 - 1}]},
}
OTHERS = ({"ranges": {"m": [64, 8192], "n": [1, 1]}}, {"grid": {"n": [1, 2, 3]}}, {"csv": "shapes.csv"})
DOCUMENT = {
    "format": 1,
    "abi": 1,
    "name": "sgemm_nn",
    "problem": {"kind": "gemm"},
    "sizes": ["m"],
    "parameters": [{"name": "m", "dtype": "int64", "role": "size"}, {"name": "A", "dtype": "float32", "role": "in"}],
    "configurations": [{"launch": {"workspace_bytes": None}}],
    "shared_object": "libsgemm_nn.so",
    "sha256": {"libsgemm_nn.so": "0" * 64, "sgemm_nn.h": "1" * 64},
}


def refused_or_read(read, errors=LibraryError) -> bool:
    """Return whether something is refused, by an error that a person can read."""
    message = ""
    try:
        read()
    except errors as error:
        message = str(error)
    assert not message or message.isprintable()
    assert len(message) < 2000
    return bool(message)


@pytest.mark.parametrize("seed", range(3))
def test_a_changed_description_is_read_or_refused(tmp_path: Path, seed: int) -> None:
    rng, refused = Random(seed), 0
    (tmp_path / "shapes.csv").write_text("m,count\n5,6\n7,8\n")
    for _ in range(100):
        spec = {**SPEC, "sizes": rng.choice((SPEC["sizes"], *OTHERS))}
        file = tmp_path / "spec.toml"
        file.write_bytes(to_toml(change(spec, rng)).encode("utf-8", "surrogatepass"))
        refused += refused_or_read(lambda file=file: load_spec(file))
    assert refused > 30


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.sampled(1, nightly=99)
def test_a_damaged_profile_is_read_or_refused(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    honest = "m,n,k,count\n" + "".join(
        f"{rng.randrange(1, 9000)},{rng.randrange(1, 9)},7,{rng.randrange(9)}\n" for _ in range(30)
    )
    for _ in range(100):
        (tmp_path / "shapes.csv").write_bytes(damaged(honest.encode(), rng))
        (tmp_path / "spec.toml").write_text('[library]\noperation = "sgemm"\n[sizes]\ncsv = "shapes.csv"\n')
        refused_or_read(lambda: load_spec(tmp_path / "spec.toml"))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.sampled(1, nightly=99)
def test_a_changed_library_is_refused(tmp_path: Path, seed: int) -> None:
    """The hashes of the honest document are those of other files: whatever it becomes, nothing is run."""
    rng, folder = Random(seed), tmp_path / "library"
    folder.mkdir()
    (folder / "libsgemm_nn.so").write_bytes(b"not a program")
    for _ in range(100):
        (folder / "library.json").write_bytes(to_json(change(DOCUMENT, rng)).encode("utf-8", "surrogatepass"))
        assert refused_or_read(lambda: read_library(folder))
    for content in (b"", b"[" * 100_000, b"{", b"null", json.dumps(DOCUMENT).encode()[:-5]):
        (folder / "library.json").write_bytes(content)
        assert refused_or_read(lambda: read_library(folder))
    shutil.rmtree(folder)
    assert refused_or_read(lambda: read_library(folder))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.sampled(1, nightly=99)
def test_changed_times_of_candidates_are_read_or_refused(tmp_path: Path, seed: int) -> None:
    rng, file, refused = Random(seed), tmp_path / CROSS, 0
    honest = {"seconds": 3.5, "times": {"sgemm NN 64": {"tiles {}": 1e-3, "tiles": None}, "sgemm NN 65": {}}}
    for _ in range(100):
        file.write_bytes(to_json(change(honest, rng)).encode("utf-8", "surrogatepass"))
        refused += refused_or_read(lambda: read_times(file), DamagedRunError)
    assert 10 < refused < 100
    for content in (
        b"",
        b"[" * 100_000,
        b"{",
        b"null",
        b'{"seconds": 1e999}',
        b'{"seconds": -1}',
        b'{"times": {"a": {"b": 0}}}',
    ):
        file.write_bytes(content)
        assert refused_or_read(lambda: read_times(file), DamagedRunError)
    file.unlink()
    (elsewhere := tmp_path.with_suffix(".elsewhere")).write_text(json.dumps(honest))
    file.symlink_to(elsewhere)
    assert refused_or_read(lambda: read_times(file), DamagedRunError)
