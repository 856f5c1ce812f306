"""Hostile kernels with arguments of any kind, headers in folders, and winners that are loaded as functions."""

from __future__ import annotations

import io
import json
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tests.hostile.base import ARRAYS_BUNDLE
from tests.hostile.cases import Place, add
from tests.hostile.folders import OBSTACLES, obstruct
from tests.hostile.texts import expression
from tests.hostile.values import ESCAPE, TEXTS, XSS, change, damaged, encoded, scalar, to_json, to_toml

FILES = ("values.npy", "answer.npy")
LINKS = (
    "a-canary",
    "a-folder-elsewhere",
    "the-parent",
    "itself",
    "a-fifo",
    "a-folder",
    "a-device-without-end",
    "garbage",
)


def random_arrays_bundle(place: Place) -> None:
    """Change the meaning of a bundle with arguments, its expressions, its bytes, or its files of values."""
    rng = place.rng
    folder = place.copy("arrays", "bundle")
    how = rng.choice(("bytes", "meaning", "meaning", "meaning", "expression", "file", "file", "obstacle"))
    path = folder / "kernel.toml"
    if how == "bytes":
        path.write_bytes(damaged(path.read_bytes(), rng))
    elif how == "file":
        (folder / rng.choice(FILES)).write_bytes(random_npy(rng))
    elif how == "obstacle":
        obstruct(place, folder / rng.choice((*FILES, "scale.cu")), rng.choice(list(OBSTACLES)))
    else:
        document = tomllib.loads(path.read_text())
        document = with_sizes(document, rng) if how == "expression" else change(document, rng)
        path.write_bytes(encoded(to_toml(document) if isinstance(document, dict) else "x = 1"))


def with_sizes(document: dict[str, Any], rng: Random) -> dict[str, Any]:
    """Put random expressions where those over the sizes stand, and hostile values among the sizes."""
    for _ in range(rng.choice((1, 2, 4))):
        text = expression(rng, ["n", "width", "TILE"], rng.choice((1, 3, 5)))
        where = rng.choice(("shape", "value", "macros", "work", "reference", "sizes", "verify"))
        if where == "shape":
            document["arguments"]["out"]["shape"] = [text] * rng.choice((1, 2, 8))
        elif where == "value":
            document["arguments"]["n"]["value"] = text
        elif where == "sizes":
            document["sizes"][rng.choice(("n", "width"))] = rng.choice((0, 1, 7, 2**31, 2**52, scalar(rng)))
        elif where == "verify":
            document["verify"] = [{"n": rng.choice((0, 1, 2**40, scalar(rng)))}] * rng.choice((1, 20, 21))
        elif where == "reference":
            document["reference"]["grid"] = [text]
        else:
            document[where][rng.choice(list(document[where]))] = text
    return document


def random_npy(rng: Random) -> bytes:
    """Return a file of an array with another header or damaged bytes."""
    if rng.random() < 0.3:
        return damaged(npy(np.ones(1000, np.float32)), rng)
    shape = rng.choice(
        ((1000,), (10, 100), (-4, -250), (2**40,), (0,), (), (1000, 0), (True, 1000), (1000.0,), "x", None, scalar(rng))
    )
    kind = rng.choice(
        ("<f4", ">f4", "<f8", "|O", "|S4", "<U1", "|V4", "<M8[s]", [("a", "<f4")], [("a", "|O")], scalar(rng))
    )
    header = {"descr": kind, "fortran_order": rng.choice((False, True, 2, "x")), "shape": shape}
    text = repr(header) if rng.random() < 0.8 else rng.choice(
        ("(" * 5000, "[" * 90 + "]" * 90, "{" * 3, "9" * 5000, "__import__('os').system('id')", ESCAPE, "{1: 2}", "1if 1else 2", "'\\q'", "{**{}}")
    )  # fmt: skip
    return with_header(text, bytes(4000), version=rng.choice(((1, 0), (1, 0), (2, 0), (3, 0), (9, 9))))


def npy(array: Any, *, pickles: bool = False) -> bytes:
    """Return the bytes of a file with an array."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=pickles)
    return file.getvalue()


def with_header(text: str, content: bytes, version: tuple[int, int] = (1, 0)) -> bytes:
    """Return a file of an array with a header of any text."""
    data = encoded(text + "\n")
    length = (len(data) & 0xFFFF).to_bytes(2, "little") if version == (1, 0) else len(data).to_bytes(4, "little")
    return b"\x93NUMPY" + bytes(version) + length + data + content


def random_includes(place: Place) -> None:
    """Put headers, links and obstacles below and beside the folders of a bundle, and include them by random names."""
    rng = place.rng
    folder = place.copy("includes", "bundle")
    for _ in range(rng.choice((1, 2, 4))):
        name = rng.choice(("include/a.h", "include/deep/b.cuh", "more/c.inl", "small.cu"))
        lines = "".join(f"#include {random_name(place)}\n" for _ in range(rng.choice((1, 3, 20))))
        with_text = (folder / name).parent.is_dir() and not (folder / name).is_dir()
        if with_text and rng.random() < 0.7:
            (folder / name).unlink(missing_ok=True)
            (folder / name).write_bytes(encoded(lines) + (folder / name).name.encode())
        elif with_text or rng.random() < 0.5:
            obstruct(place, folder / rng.choice((name, "include", "more", "include/deep")), rng.choice(LINKS))
    if rng.random() < 0.3:
        path = folder / "kernel.toml"
        text = path.read_text().replace(
            '["include", "more"]', f"[{', '.join(_folder(rng) for _ in range(rng.choice((1, 2, 9))))}]"
        )
        path.write_bytes(encoded(text))


def _folder(rng: Random) -> str:
    names = (
        "include",
        "more",
        ".",
        "..",
        "include/..",
        "include/deep",
        "/",
        "~",
        "include/",
        "a" * 200,
        "x" + "/x" * 9,
    )
    return json.dumps(rng.choice((*names, *TEXTS[:30])))


def random_name(place: Place) -> str:
    """Return a name of a header as it stands in an include."""
    rng = place.rng
    parts = (
        "a.h",
        "b.cuh",
        "c.inl",
        "deep",
        "..",
        "..",
        ".",
        "",
        "include",
        "more",
        "canary",
        "secret.h",
        "named",
        "bundle",
    )
    name = "/".join(rng.choice(parts) for _ in range(rng.choice((1, 2, 3, 6, 60))))
    name = rng.choice((name, name, name, str(place.canary / "secret.h"), "../../canary/secret.h", rng.choice(TEXTS)))
    return rng.choice((f'"{name}"', f"<{name}>"))


def random_tuned_kernel(place: Place) -> None:
    """Change what a winner's folder says of its launch, its bytes or its files."""
    rng = place.rng
    folder = place.copy("winner", "winner")
    path = folder / rng.choice(("winner.json", "winner.json", "winner.json", "kernel.cubin"))
    if rng.random() < 0.3:
        obstruct(place, path, rng.choice(list(OBSTACLES)))
    elif path.suffix == ".json" and rng.random() < 0.8:
        document = json.loads(path.read_text())
        part = rng.choice(("launch", "launch", "kernel", None))
        document = change(document, rng) if part is None else document | {part: change(document[part], rng)}
        path.write_bytes(encoded(to_json(document)))
    else:
        path.write_bytes(damaged(path.read_bytes(), rng))


def _arrays(name: str, edit: Callable[[str], str] = str, *commands: str, **files: bytes) -> None:
    """Add a bundle with arguments whose text or files are others."""

    def build(place: Place) -> None:
        place.copy("arrays", "bundle")
        place.write("bundle/kernel.toml", edit(ARRAYS_BUNDLE))
        for stem, content in files.items():
            place.write(f"bundle/{stem}.npy", content)

    add("arrays bundle", name, build, *commands)


def _replace(old: str, new: str) -> Callable[[str], str]:
    assert old in ARRAYS_BUNDLE
    return lambda text: text.replace(old, new)


READ = "read_arrays"
ONES = np.ones(1000, np.float32)
_arrays("values-that-are-a-pickle", str, READ, values=npy(np.array([print] * 1000, object), pickles=True))
_arrays("values-that-are-an-archive", str, READ, values=b"PK\x03\x04" + bytes(4000))
_arrays(
    "values-of-2-to-the-62",
    str,
    READ,
    values=with_header(repr({"descr": "<f4", "fortran_order": False, "shape": (2**62,)}), b""),
)
_arrays("values-of-a-header-of-4-gigabytes", str, READ, values=b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(4000))
_arrays("values-of-a-header-nested-deeply", str, READ, values=with_header("(" * 9000, b""))
_arrays("values-of-an-integer-of-5000-digits", str, READ, values=with_header("9" * 5000, b""))
_arrays("values-of-escapes", str, READ, values=with_header(ESCAPE, b""))
_arrays("values-of-another-type", str, READ, values=npy(ONES.astype(np.float64)))
_arrays("values-of-another-number", str, READ, values=npy(ONES[:999]))
_arrays(
    "values-of-negative-extents",
    str,
    READ,
    values=with_header(repr({"descr": "<f4", "fortran_order": False, "shape": (-4, -250)}), bytes(4000)),
)
_arrays("values-cut-off", str, READ, values=npy(ONES)[:-1])
_arrays("no-values", str, READ, values=b"")
_arrays("an-answer-that-is-a-pickle", str, READ, answer=npy(np.array([print] * 1000, object), pickles=True))
for _name, _file in {
    "with-a-nul": "a\\u0000.npy", "of-escapes": "\\u001b[2J.npy", "of-5000-letters": "a" * 5000 + ".npy", "elsewhere": "../../canary/secret.npy",
    "of-a-path": "/etc/hostname.npy", "of-many-folders": "a/" * 3000 + "a.npy", "of-nothing": ".npy", "of-itself": "kernel.toml/.npy",
    "of-a-line": "a\\nb.npy", "of-markup": f"{XSS}.npy",
}.items():  # fmt: skip
    _arrays(f"a-file-name-{_name}", _replace('"values.npy"', f'"{_file}"'), "load_kernel", "check")
_arrays("a-shape-of-2-to-the-60", _replace("shape = ['n'], role", "shape = ['2**50'], role"))
_arrays(
    "a-shape-of-8-extents", _replace("shape = ['n'], role", "shape = ['n', 'n', 'n', 'n', 'n', 'n', 'n', 'n'], role")
)
_arrays("a-shape-of-nothing", _replace("shape = ['n'], role", "shape = ['n - n'], role"))
_arrays("a-shape-that-divides-by-0", _replace("shape = ['n'], role", "shape = ['1 / (n - n)'], role"))
_arrays("a-shape-of-a-text", _replace("shape = ['n'], role", "shape = [\"'n'\"], role"))
_arrays("a-value-of-infinity", _replace("value = 'n'", "value = '1e308 * 10'"))
_arrays("a-value-of-a-text", _replace("value = 'n'", "value = \"'n'\""))
_arrays("a-value-beyond-its-type", _replace("value = 'n'", "value = '2**53'"))
_arrays("initial-values-of-2-to-the-70", _replace('"values.npy"', str(2**70)))
_arrays("initial-values-of-1e308", _replace('"values.npy"', "1e308"))
_arrays("a-macro-of-an-escape", _replace("WIDTH = ", '"\\u001b" = '))
_arrays("work-that-is-negative", _replace("flops = 'n'", "flops = '0 - n'"))
_arrays("work-of-2-to-the-1000", _replace("flops = 'n'", "flops = '2 ** 1000'"))
_arrays("work-that-divides-by-0", _replace("flops = 'n'", "flops = 'n // (n - n)'"))
_arrays("a-reference-that-divides-by-0", _replace("grid = ['1']", "grid = ['1 // (n - n)']"))
_arrays("sizes-of-2-to-the-53", _replace("n = 1000", "n = 9007199254740991"))
_arrays("sizes-of-0", _replace("n = 1000", "n = 0"))
_arrays("20-verifications-of-2-to-the-50", lambda text: text + "[[verify]]\nn = 1125899906842624\n" * 19)
_arrays(
    "100-arguments",
    _replace(
        "[arguments]\n",
        "[arguments]\n" + "".join(f"x{n} = {{ dtype = 'float32', shape = ['n'] }}\n" for n in range(97)),
    ),
)
_arrays(
    "10000-arguments",
    _replace(
        "[arguments]\n",
        "[arguments]\n" + "".join(f"x{n} = {{ dtype = 'float32', shape = ['n'] }}\n" for n in range(10_000)),
    ),
)
for _obstacle in ("a-canary", "a-fifo", "a-folder", "a-device-without-end", "itself", "10-gigabytes-of-nothing"):
    for _file in FILES:

        def _obstructed(place: Place, file: str = _file, obstacle: str = _obstacle) -> None:
            obstruct(place, place.copy("arrays", "bundle") / file, obstacle)

        add("arrays bundle", f"{_file.replace('.', '-')}-is-{_obstacle}", _obstructed, READ, "check")


Changes = tuple[tuple[str, str], ...]

REFERENCE = ('answer = { out = "answer.npy" }', "entry = 'simple'")
BROKEN: dict[str, tuple[str, Changes, dict[str, bytes]]] = {
    "a-misspelt-reference": ("reference.entry: ", (REFERENCE, ("'simple'", "'simpel'")), {}),
    "a-reference-of-cpp": ("reference.entry: ", (REFERENCE, ('extern "C" __global__', "__global__")), {}),
    "a-reference-grid-of-n-by-0": ("reference.grid: ", (REFERENCE, ("'simple'\n", "'simple'\ngrid = ['n / 0']\n")), {}),
    "a-reference-grid-of-0-at-a-check": (
        "reference.grid: ",
        (REFERENCE, ("'simple'\n", "'simple'\ngrid = ['width // 7 + width % 7 - 1']\n"), ("width = 3", "width = 2")),
        {},
    ),
    "a-reference-with-a-parameter-too-many": ("reference.entry: ", (REFERENCE, ("simple(", "simple(int width, ")), {}),
    "a-reference-of-doubles": ("reference.entry: ", (REFERENCE, ("simple(float *out", "simple(double *out")), {}),
    "a-parameter-too-many": ("arguments: ", (("scale(float *out,", "scale(float *out, int width,"),), {}),
    "an-argument-too-many": ("arguments: ", (("[macros]", "m = { dtype = \"int32\", value = 'n' }\n\n[macros]"),), {}),
    "a-pointer-and-a-number-swapped": ("arguments: ", (("const float *in, int n) {\n", "int n, const float *in) {\n"),), {}),
    "two-pointers-swapped": ("arguments: ", (("scale(float *out, const float *in", "scale(const float *in, float *out"),), {}),
    "a-wider-argument": ("arguments.n: ", (("n = { dtype = \"int32\"", "n = { dtype = \"int64\""),), {}),
    "an-argument-of-another-kind": ("arguments.n: ", (("n = { dtype = \"int32\"", "n = { dtype = \"float32\""),), {}),
    "an-array-of-another-width": ("arguments.out: ", (("out = { dtype = \"float32\"", "out = { dtype = \"float64\""),), {}),
    "an-array-of-another-kind": ("arguments.out: ", (("out = { dtype = \"float32\"", "out = { dtype = \"int32\""),), {}),
    "a-number-for-a-pointer": ("arguments.in: ", (("scale(float *out, const float *in", "scale(float *out, long long in"), ("in[n - 1] * WIDTH", "in * WIDTH")), {}),
    "a-parameter-that-is-defined": ("parameters.TILE: ", (("__global__ void scale", "#define TILE 4\n__global__ void scale"),), {}),
    "a-parameter-that-is-defined-elsewhere": ("parameters.TILE: ", (("__global__ void scale", "#undef TILE\n#define TILE 4\n__global__ void scale"),), {}),
    "a-macro-that-is-defined": ("macros.WIDTH: ", (("__global__ void scale", "#define WIDTH 4\n__global__ void scale"),), {}),
    "a-parameter-without-use": ("parameters.KIND: ", ((" * KIND", " /* KIND */"),), {}),
    "a-macro-without-use": ("macros.WIDTH: ", ((" * WIDTH", ""),), {}),
    "a-launch-parameter-without-use": ("launch.parameters.GROUP: ", (("grid = ['1']", "grid = ['1']\nparameters = { GROUP = [1, 2] }"), ("KIND = \"a\"", "KIND = \"a\"\nGROUP = 1")), {}),
    "a-constant-that-the-source-lacks": ("arguments.taps: ", (("[macros]", "taps = { dtype = \"float32\", shape = ['9'], role = 'constant' }\n\n[macros]"),), {}),
    "values-that-are-a-pickle": ("arguments.in.initial: ", (), {"values": npy(np.array([print] * 1000, object), pickles=True)}),
    "values-that-are-short": ("arguments.in.initial: ", (), {"values": npy(ONES)[:-1]}),
    "values-of-another-type": ("arguments.in.initial: ", (), {"values": npy(ONES.astype(np.float64))}),
    "values-for-other-sizes-than-a-check": ("arguments.in.initial: ", (("width = 7", "n = 7"),), {}),
    "an-answer-that-is-a-pickle": ("reference.answer.out: ", (), {"answer": npy(np.array([print] * 1000, object), pickles=True)}),
    "an-answer-that-is-short": ("reference.answer.out: ", (), {"answer": npy(ONES[:999])}),
}  # fmt: skip
"""Bundles that can be read and compiled, but not tuned: the key that ``mltune check`` names, and changes of the text,
the source and the files of a sound one."""


def break_bundle(folder: Path, changes: Changes, files: dict[str, bytes]) -> None:
    """Change the files of a bundle; each change of a text is one of the document or of the source."""
    for old, new in changes:
        paths = [folder / name for name in ("kernel.toml", "scale.cu") if old in (folder / name).read_text()]
        assert paths, old
        for path in paths:
            path.write_text(path.read_text().replace(old, new))
    for stem, content in files.items():
        (folder / f"{stem}.npy").write_bytes(content)


for _name, (_, _changes, _files) in BROKEN.items():

    def _broken(place: Place, changes: Changes = _changes, files: dict[str, bytes] = _files) -> None:
        break_bundle(place.copy("arrays", "bundle"), changes, files)

    add("arrays bundle", f"broken-by-{_name}", _broken, "check", "check_json")


def _includes(name: str, source: str | Callable[[], str], build: Callable[[Place], object] = id) -> None:
    """Add a bundle with folders of headers and another source, or what a function returns."""

    def make(place: Place) -> None:
        folder = place.copy("includes", "bundle")
        path = folder / "small.cu"
        text = source() if callable(source) else source
        path.write_bytes(encoded(text.replace("SECRET", str(place.canary / "secret.h")) + path.read_text()))
        build(place)

    add("include folders", name, make)


def _linked(name: str, target: str) -> Callable[[Place], None]:
    def link(place: Place) -> None:
        path = place.named / "bundle" / name
        if path.exists():
            os.rename(path, place.folder / "moved")
        path.symlink_to(target.replace("CANARY", str(place.canary)))

    return link


def _controls(name: str, value: str, build: Callable[[Place], object] = id) -> None:
    """Add a bundle that names a file of controls."""

    def make(place: Place) -> None:
        place.copy("includes", "bundle")
        with (place.named / "bundle/kernel.toml").open("a") as file:
            file.write(f"\n[compiler]\napply_controls = ['', '{value.replace('CANARY', str(place.canary))}']\n")
        build(place)

    add("include folders", f"controls-{name}", make)


_controls("by-a-path", "CANARY/secret.h")
_controls("by-steps-upwards", "../../canary/secret.acf")
_controls("with-another-option", "a.acf,--output-file=CANARY/b.acf")
_controls("that-are-missing", "none.acf")
_controls("that-are-a-link-to-a-canary", "a.acf", _linked("a.acf", "CANARY/secret.h"))
_controls("that-are-a-device", "a.acf", _linked("a.acf", "/dev/zero"))
_controls("that-are-a-fifo", "a.acf", lambda place: os.mkfifo(place.named / "bundle/a.acf"))
_controls("of-10-gigabytes", "a.acf", lambda place: os.truncate(place.write("bundle/a.acf", b""), 10 * 2**30))
_controls("of-every-byte", "a.acf", lambda place: place.write("bundle/a.acf", bytes(range(256)) * 4096))


def _many_headers(place: Place) -> None:
    for number in range(4000):
        place.write(f"bundle/include/m{number}.h", f"#include <m{number + 1}.h>\n")


_includes("a-header-by-its-path", '#include "SECRET"\n')
_includes(
    "a-header-by-steps-upwards",
    '#include "../../canary/secret.h"\n#include <../../canary/secret.h>\n#include <deep/../../../../canary/secret.h>\n',
)
_includes(
    "a-header-that-is-a-link-to-a-canary", "#include <linked.h>\n", _linked("include/linked.h", "CANARY/secret.h")
)
_includes("a-folder-that-is-a-link-to-canaries", "#include <linked/secret.h>\n", _linked("include/linked", "CANARY"))
_includes("a-named-folder-that-is-a-link-to-canaries", "#include <secret.h>\n", _linked("more", "CANARY"))
_includes("a-named-folder-that-is-a-link-to-the-root", "#include <etc/hostname>\n", _linked("more", "/"))
_includes("a-named-folder-that-is-a-link-to-the-bundle", '#include "small.cu"\n', _linked("more", "."))
_includes(
    "a-header-that-is-a-fifo", "#include <fifo.h>\n", lambda place: os.mkfifo(place.named / "bundle/include/fifo.h")
)
_includes("a-header-that-is-a-device", "#include <zero.h>\n", _linked("include/zero.h", "/dev/zero"))
_includes(
    "a-header-of-10-gigabytes",
    "#include <big.h>\n",
    lambda place: os.truncate(place.write("bundle/include/big.h", b""), 10 * 2**30),
)
_includes(
    "a-header-that-is-a-folder",
    "#include <folder.h>\n",
    lambda place: (place.named / "bundle/include/folder.h").mkdir(),
)
_includes("a-chain-of-4000-headers", "#include <m0.h>\n", _many_headers)
_includes(
    "a-header-that-includes-itself",
    "#include <self.h>\n",
    lambda place: place.write("bundle/include/self.h", "#include <self.h>\n"),
)
_includes("a-million-names", lambda: "".join(f"#include <x{number}.h>\n" for number in range(700_000)))
_includes("a-million-times-one-name", lambda: "#include <a.h>\n" * 1_000_000)
_includes(
    "names-of-200-folders", lambda: "".join(f"#include <{'deep/../' * 24}x{number}.h>\n" for number in range(20_000))
)
_includes("a-name-of-a-canary-by-a-macro", '#define P "SECRET"\n#include P\n')
_includes("a-name-with-a-nul", "#include <a\0.h>\n")
_includes("a-name-of-escapes", f"#include <{ESCAPE}.h>\n")
_includes("two-headers-of-escapes", "#include <d.h>\n#include <deep/e.h>\n", lambda place: [
    place.write(f"bundle/include/{name}", text) for name, text in {"d.h": ESCAPE, "deep/d.h": ESCAPE, "deep/e.h": '#include "d.h"'}.items()
])  # fmt: skip
_includes(
    "lines-of-spaces",
    lambda: (" " * 1_000_000 + "\n") * 10 + "#" + " " * 1_000_000 + "include" + " " * 1_000_000 + "<a.h>\n",
)


def _tuned(name: str, **launch: Any) -> None:
    """Add a winner's folder with another launch."""

    def build(place: Place) -> None:
        path = place.copy("winner", "winner") / "winner.json"
        document = json.loads(path.read_text())
        path.write_bytes(encoded(to_json(document | {"launch": document["launch"] | launch})))

    add("tuned kernel", name, build)


_tuned("a-grid-of-texts", grid=["a", "b"])
_tuned("a-grid-of-nothing", grid=[])
_tuned("a-grid-that-is-a-number", grid=1)
_tuned("a-grid-that-is-missing", grid=None)
_tuned("a-block-of-2-to-the-70", block=[2**70, 1, 1])
_tuned("a-negative-block", block=[-1, 1, 1])
_tuned("a-block-of-infinity", block=[float("inf"), 1, 1])
_tuned("shared-memory-of-a-text", shared_bytes=ESCAPE)
_tuned("arguments-of-a-million", launched=[1] * 1_000_000)
_tuned("arguments-that-are-a-table", launched={"a": ESCAPE})
_FORMULAS = {"grid": ["1", "1", "1"], "block": ["1", "1", "1"], "shared_bytes": "0", "workspace_bytes": None}
_tuned("formulas-of-towers", at_other_sizes=_FORMULAS | {"grid": ["9**9**9**9", "1", "1"]})
_tuned("formulas-of-python", at_other_sizes=_FORMULAS | {"shared_bytes": "__import__('os').system('true')"})
_tuned("formulas-of-nothing", at_other_sizes=_FORMULAS | {"block": ["m // 0", "no_such_name", ""]})
_tuned("formulas-of-fractions", at_other_sizes=_FORMULAS | {"workspace_bytes": "1 / 3"})
_tuned("formulas-of-escapes", at_other_sizes=_FORMULAS | {"grid": [ESCAPE, "(" * 5000, "1"]})
_tuned("maps-of-no-argument", at_other_sizes=_FORMULAS | {"tensor_maps": [[99, "2", "m", "n", "m", "8"]]})
_tuned("maps-of-numbers", tensor_maps=[[0, 2, 8, 8, 8, 8]])
_tuned("maps-of-negative-places", tensor_maps=[[-1, 2, 8, 8, 8, 8]])
_tuned("maps-of-texts", tensor_maps=[[4, ESCAPE, "m", "n", "m", "8"]])
_tuned("maps-of-five", tensor_maps=[[4, 2, 8, 8, 8]])
_tuned("maps-of-ten-thousand", tensor_maps=[[4, 2, 8, 8, 8, 8]] * 10_000)
_tuned("conditions-of-escapes", sizes_must_satisfy={ESCAPE: ESCAPE, "m > 'a'": "texts"})
_tuned("conditions-of-a-list", sizes_must_satisfy=[1])
