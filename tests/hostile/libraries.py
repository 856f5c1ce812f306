"""Hostile libraries: folders with a damaged document, source or file, kernels with hostile formulas, and specifications."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.hostile.cases import Place, add
from tests.hostile.folders import OBSTACLES, is_small, obstruct
from tests.hostile.texts import expression
from tests.hostile.values import ESCAPE, TEXTS, Raw, change, damaged, encoded, to_json, to_toml

LIBRARY, SHARED, SOURCE, DOCUMENT = "library", "libsgemm_nt.so", "sgemm_nt.c", "library.json"
FILES = (SHARED, SOURCE, DOCUMENT, "sgemm_nt.h", "CMakeLists.txt", "sgemm_nt.pc", "notes.txt", ".git", "src/main.c")
FORMULAS = (None, "", "-5", "0", "m // 0", "m / 3", "1e308 * 10", "2**31", "n", "x", "m.real", "(" * 5000, ESCAPE, 7, -5, [], {},
            True, 1.5, Raw("1" + "0" * 5000), "__import__('os')", "9**9**9**9", "m - 1000", "65536 * 65536")  # fmt: skip
"""What may stand in place of a formula or a shape of a launch."""

CUTS: tuple[tuple[str, str], ...] = (
    (r"\{0x\w+", "{0xfffffffffffffffff"), (r"\{0x\w+", "{"), (r"\{0x\w+", "{zz"), (r"\{0x\w+", "{" + "9" * 5000),
    (r'^  \{\d+, "', '  {99, "'), (r'^  \{\d+, "', '  {' + "9" * 5000 + ', "'), (r'^  \{\d+, "', '  {-1, "'), (r"cubin_0", "cubin_1"),
    (r"^static const uint64_t cubin.*$", ""), (r"0x(\w+)", r"0x\1"), (r"\};", ""), (r"\A", "static const uint64_t cubin_9[] = {};\n"),
)  # fmt: skip
"""Changes of the C source where machine code is read from it: words, digits, and indices."""

CONSTRUCTOR = """#include <fcntl.h>
__attribute__((constructor)) static void run(void) { open("CANARY/new.txt", O_CREAT | O_WRONLY, 0600); }
"""


def library(place: Place) -> Path:
    """Copy the honest library, and the driver that records launches, with which it can be loaded without a GPU."""
    shutil.copy(place.base / "libcuda.so.1", place.folder / "libcuda.so.1")
    place.copy("content.pickle", "content.pickle")
    return place.copy(LIBRARY, LIBRARY)


def rehash(folder: Path, *, code: bool = False) -> None:
    """Make the hashes of a library right again, as anybody can; that of a program, whose code is run, where asked."""
    document = json.loads((folder / DOCUMENT).read_bytes())
    for name in document["sha256"]:
        if (code or name != SHARED) and is_small(folder / name):
            document["sha256"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / DOCUMENT).write_text(json.dumps(document))


def random_library(place: Place) -> None:
    """Change the document, the machine code, the bytes or the files of a library; half of the hashes are kept right."""
    rng = place.rng
    folder = library(place)
    for how in rng.choices(("document", "launch", "launch", "bytes", "source", "file"), k=rng.choice((1, 1, 2))):
        path = folder / rng.choice(FILES[:6] if how == "bytes" else FILES)
        if how == "file":
            obstruct(place, path, rng.choice(list(OBSTACLES)))
        elif how == "bytes" and is_small(path):
            path.write_bytes(damaged(path.read_bytes(), rng))
        elif how == "source" and is_small(folder / SOURCE):
            pattern, by = rng.choice(CUTS)
            text = (folder / SOURCE).read_text(errors="replace")
            (folder / SOURCE).write_text(re.sub(pattern, by, text, count=rng.choice((0, 1)), flags=re.MULTILINE))
        elif how in ("document", "launch") and is_small(folder / DOCUMENT):
            with contextlib.suppress(ValueError, OSError, LookupError, TypeError):  # it was damaged before
                if rng.random() < 0.5:
                    rehash(folder)
                document = json.loads((folder / DOCUMENT).read_bytes())
                changed = changed_launch if how == "launch" else changed_part
                (folder / DOCUMENT).write_bytes(encoded(to_json(changed(document, rng))))
    if rng.random() < 0.5 and is_small(folder / DOCUMENT):
        with contextlib.suppress(ValueError, OSError, LookupError, TypeError):
            rehash(folder)


def changed_part(document: dict[str, Any], rng: Random) -> Any:
    """Change one of the parts of a document, each as probably: some have thousands of numbers."""
    name = rng.choice(list(document))
    return document | change({name: document[name]}, rng) if rng.random() < 0.9 else change(document, rng)


def changed_launch(document: dict[str, Any], rng: Random) -> Any:
    """Change the launch of one configuration, or of all, or the conditions on sizes."""
    configurations = document["configurations"]
    for one in configurations if rng.random() < 0.7 else [rng.choice(configurations)]:
        launch, name = one["launch"], rng.choice(list(one["launch"]))
        value = rng.choice(FORMULAS)
        if isinstance(launch[name], list) and rng.random() < 0.7:
            launch[name][rng.randrange(len(launch[name])) if launch[name] else slice(0)] = value
        elif rng.random() < 0.1:
            del launch[name]
        elif rng.random() < 0.2:
            one["sizes_must_satisfy"] = rng.choice(({str(value): ""}, value, [value], {"m > 10**9": ESCAPE}))
        else:
            launch[name] = value
    return document


def _document(name: str, edit: Callable[[dict[str, Any]], object], *commands: str) -> None:
    """Add a library whose document is another."""

    def build(place: Place) -> None:
        folder = library(place)
        document = json.loads((folder / DOCUMENT).read_bytes())
        edit(document)
        (folder / DOCUMENT).write_bytes(encoded(to_json(document)))

    add("library", name, build, *commands)


def _launches(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda document: [one["launch"].update(values) for one in document["configurations"]]


def _file(name: str, build: Callable[[Place, Path], object], *commands: str) -> None:
    """Add a library with other files."""
    add("library", name, lambda place: build(place, library(place)), *commands)


def _constructor(*, hashed: bool) -> Callable[[Place, Path], None]:
    def build(place: Place, folder: Path) -> None:
        if (compiler := shutil.which("cc")) is None:
            pytest.skip("there is no C compiler")
        (place.folder / "run.c").write_text(CONSTRUCTOR.replace("CANARY", str(place.canary)))
        subprocess.run([compiler, "-shared", "-fPIC", "run.c", "-o", folder / SHARED], cwd=place.folder, check=True)
        if hashed:
            rehash(folder, code=True)

    return build


for _field in ("format", "abi", "name", "problem", "sizes", "extents", "parameters", "configurations", "dispatcher", "sha256", "shared_object", "device"):  # fmt: skip
    _document(f"no-{_field}", lambda document, name=_field: document.pop(name))
    _document(f"a-{_field}-that-is-null", lambda document, name=_field: document.update({name: None}))
for _field in ("grid", "block", "shared_bytes", "workspace_bytes", "launched"):
    for _name, _value in {"null": None, "-5": "-5", "number": 7, "10-to-the-5000": Raw("1" + "0" * 5000), "digits": "9" * 5000}.items():  # fmt: skip
        _values = [_value] * 3 if _field in ("grid", "block") and _value is not None else _value
        _document(f"a-launch-with-a-{_field}-of-{_name}", _launches(**{_field: _values}))
    _document(f"a-launch-without-{_field}", lambda document, name=_field: [one["launch"].pop(name) for one in document["configurations"]])  # fmt: skip
_MAP = [1, "4", "m", "n", "m", "8"]
for _name, _value in {"towers": [[*_MAP[:2], "9**9**9**9", *_MAP[3:]]], "five": [_MAP[:5]], "negative-places": [[-1, *_MAP[1:]]], "far-places": [[10**6, *_MAP[1:]]], "ten-thousand": [_MAP] * 10_000}.items():  # fmt: skip
    _document(f"maps-of-{_name}", _launches(tensor_maps=_value), "gate_library")
_document("a-document-of-60-megabytes", lambda document: document.update(report={"text": "x" * 60_000_000}))
_document("a-document-of-a-million-numbers", lambda document: document.update(report={"values": list(range(1_000_000))}))  # fmt: skip
_document("a-dispatcher-of-nan", lambda document: document.update(dispatcher=Raw("NaN")))
_document("an-entry-of-escapes", lambda document: [one.update(entry=ESCAPE) for one in document["configurations"]])
_document("a-problem-of-2-to-the-62", lambda document: document["problem"].update(m=2**62, n=2**62, k=2**62))
_document("a-file-elsewhere", lambda document: document["sha256"].update({"../../canary/secret.txt": "0" * 64}))
_file("a-program-that-writes-when-it-is-loaded", _constructor(hashed=True), "gate_library", "build_over_library")
_file("a-program-with-another-hash", _constructor(hashed=False))
_file("a-program-of-a-gigabyte-of-nothing", lambda place, folder: os.truncate(folder / SHARED, 1 << 30))
_file("a-source-of-a-gigabyte-of-nothing", lambda place, folder: os.truncate(folder / SOURCE, 1 << 30))
_file("no-program", lambda place, folder: (folder / SHARED).unlink())
_file("no-source", lambda place, folder: (folder / SOURCE).unlink())
_file("a-folder-of-somebody", lambda place, folder: (folder / "notes.txt").write_text("mine"), "build_over_library")
_file("a-program-that-is-a-fifo", lambda place, folder: obstruct(place, folder / SHARED, "a-fifo"))
_file("a-document-that-is-a-fifo", lambda place, folder: obstruct(place, folder / DOCUMENT, "a-fifo"))
for _number, (_pattern, _by) in enumerate(CUTS):

    def _cut(place: Place, folder: Path, pattern: str = _pattern, by: str = _by) -> None:
        text = re.sub(pattern, by, (folder / SOURCE).read_text(), count=1, flags=re.MULTILINE)
        (folder / SOURCE).write_text(text)
        rehash(folder)

    _file(f"a-source-with-other-machine-code-{_number}", _cut)


NAMES = """
INFINITY NAN EOF NULL BUFSIZ RAND_MAX I M_PI HUGE_VAL INT64_MAX SIZE_MAX stdin stdout errno read write open close exit abort
restrict _Bool inline signed main malloc free memcpy memset strlen printf dlopen dlsym y0 y1 j1 gamma lgamma signal time
linux unix alignas bool nullptr typeof constexpr static_assert thread_local __LINE__ __FILE__ __func__ int64_t uint8_t
bad s x n0 m call add_i div_f pow_i whole ceil_div_i launch context handle toy_create scale scale_create cuInit min ceil
""".split()  # noqa: SIM905
"""Names that mean something to a C compiler, to its library, or to the source of a library."""

FORMULA_BUNDLE = {
    "kernel": {"name": "scale", "problem": "arrays", "source": "scale.cu", "entry": "scale"},
    "sizes": {"a": 40, "b": 3},
    "arguments": {"out": {"dtype": "float32", "shape": ["2**20"], "role": "out"}},
    "parameters": {"TILE": [2]},
    "default": {"TILE": 2},
    "launch": {"block": ["32"], "grid": ["a", "b"]},
}


def random_formulas(place: Place) -> None:
    """Give a kernel random formulas over sizes with hostile names, and hostile values."""
    rng = place.rng
    sizes = {rng.choice((*NAMES, "a", "b", "size_9")): rng.choice((1, 2, 40, 1000, 2**31 - 1, 2**40)) for _ in range(2)}
    names = [*sizes, "TILE"]
    document: dict[str, Any] = json.loads(json.dumps(FORMULA_BUNDLE)) | {"sizes": sizes}

    def formula() -> str:
        text = expression(rng, names, rng.choice((1, 2, 4, 7)))
        return rng.choice((text, f"abs({text}) % 1000 + 1", f"floor(abs({text})) % 1000 + 1"))

    document["launch"]["grid"] = [rng.choice((formula(), names[0], "1")) for _ in range(rng.choice((1, 2, 3)))]
    for size in sizes:
        kind = rng.choice(("int32", "int64", "float32", "float64"))
        document["arguments"][rng.choice((size, *NAMES))] = {"dtype": kind, "value": rng.choice((size, formula()))}
    if rng.random() < 0.5:
        document["restrictions"] = {formula(): rng.choice(("a reason", ESCAPE, "*/ } \\\n", "??/", TEXTS[7]))}
    if rng.random() < 0.3:
        document["resources"] = {"shared_bytes": formula()}
    if rng.random() < 0.2:
        document["kernel"]["name"] = rng.choice((*NAMES, *TEXTS, "a" * 60, "scale-2", "2d"))
    write_formulas(place, document)


def write_formulas(place: Place, document: dict[str, Any] = FORMULA_BUNDLE) -> None:
    """Write a bundle with formulas, by default the honest one."""
    signature = ", ".join(
        f"float *{name}" if "shape" in one else f"{one['dtype'].replace('32', '')} {name}" for name, one in document["arguments"].items()
    )  # fmt: skip
    place.write("bundle/kernel.toml", encoded(to_toml(document)))
    place.write("bundle/scale.cu", f'extern "C" __global__ void scale({signature}) {{ int tile = TILE; }}\n')
    shutil.copy(place.base / "libcuda.so.1", place.folder / "libcuda.so.1")


def _formulas(name: str, *grid: str, **sizes: int) -> None:
    def build(place: Place) -> None:
        launch = {"block": ["32"], "grid": [*grid]}
        write_formulas(place, FORMULA_BUNDLE | {"launch": launch, "sizes": sizes or FORMULA_BUNDLE["sizes"]})

    add("formulas", name, build, "library_of_bundle", "check")


for _name in ("INFINITY", "read", "exit", "restrict", "NAN", "errno", "_Bool", "call", "int64_t", "scale"):
    _formulas(f"a-size-of-the-name-{_name}", f"{_name} + 1", "ceil_div(9, 2)", **{_name: 40})
_formulas("a-value-of-the-largest-integer", "a * 9007199254740991 // 9007199254740991")
_formulas("brackets-of-95", "(" * 95 + "a" + ")" * 95)
_formulas("minus-95-times", "-" * 94 + "a")
_formulas("a-sum-of-450", "+".join(["a"] * 450))
_formulas("sums-that-double", "max(" * 30 + "a" + ", b)" * 30)
_formulas("powers", "a ** b ** 2 % 1000", "2 ** (a % 7)")
_formulas("a-negative-modulus", "(0 - a) % 7 + 1", "abs((0 - a) // 7)", "(a - 41) // 2 + 2")
_formulas("a-negative-zero", "1 if 0 * -1.0 == 0 else 2", "floor(-0.5) + 2")
_formulas("nan-and-infinity", "1 + (1e15 * 1e15 > a)", "max(1, 0.5)")


SPEC = '[library]\noperation = "sgemm"\n[sizes]\nshapes = [64, 65]\n'


def specification(place: Place) -> None:
    """Write a specification; there are no recorded timings for it, as its builder says in the end."""
    place.write("spec.toml", SPEC)


def random_specification(place: Place) -> None:
    """Change the specification of a library, or its file of sizes."""
    rng = place.rng
    sizes = (
        {"shapes": [64, 128]},
        {"csv": "shapes.csv"},
        {"ranges": {"m": [1, 9]}},
        {"grid": {rng.choice(NAMES): [1, 2]}},
    )
    library = {"operation": rng.choice(("sgemm", "dgemm", "reduction", *TEXTS)), "trials": 2, "tuned": 2, "timed": 2}
    place.write("shapes.csv", damaged(b"m,n,k,count\n5,6,7,8\n9,8,7,6\n", rng))
    changed = change({"library": library, "sizes": rng.choice(sizes)}, rng)
    place.write("spec.toml", encoded(to_toml(changed)) if isinstance(changed, dict) else b"")


def _spec(name: str, old: str, new: str) -> None:
    add("specification", name, lambda place: place.write("spec.toml", SPEC.replace(old, new)) and None)


_spec("a-kernel-that-is-a-canary", "[sizes]", 'kernel = ["../canary"]\n[sizes]')
_spec("sizes-elsewhere", "shapes = [64, 65]", 'csv = "../canary/secret.csv"')
_spec("a-number-of-5000-digits", "[sizes]", f"seed = {'9' * 5000}\n[sizes]")
_spec("a-grid-of-a-million", "shapes = [64, 65]", f"grid = {{m = {list(range(1, 1001))}, n = {list(range(1, 1001))}}}")
