"""The shapes of a Triton kernel, its winners there, and the files from which vLLM and SGLang read such winners.

The winners of a run have a line each in a file of its directory. vLLM and SGLang read tuned configurations of fused MoE
and block-scaled FP8 products: the name of a file tells what it is for, and its content maps numbers of rows M to
configurations of their kernels.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mltune.errors import UsageError
from mltune.files.atomic import append_line, write_file_atomically
from mltune.files.owned import FOUND, foreign
from mltune.files.reading import check_folder, parse_json, read_file, read_text, reason
from mltune.files.sizes import MAX_BYTES, distinct, sizes_of_csv

WINNERS = "winners.jsonl"
"""The name of the file in the directory of a run, with a line for the winner at each shape."""

Row = dict[str, Any]

PARAMETERS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
"""The parameters of a configuration, in the order of the files."""

FORMATS = {"vllm-moe": ("E", "N"), "sglang-moe": ("E", "N"), "vllm-fp8": ("N", "K"), "sglang-fp8": ("N", "K")}
"""The sizes in the name of a file of each format."""

_SERVERS = {"vllm": "vLLM", "sglang": "SGLang"}
_SPLIT = ("int8_w8a16", "int4_w4a16")  # vLLM's kernel of weights with groups along K has no default of SPLIT_K
_OPERANDS = r"(,dtype=\w+)?(,block_shape=\[\d+, ?\d+])?"
_PATH = re.compile(rf"(configs/triton_[\d_]+/)?[EN]=\d+,[NK]=\d+,device_name=[\w()+.-]+{_OPERANDS}\.json", re.ASCII)


@dataclass(frozen=True, slots=True)
class Export:
    """The folders in which files are written, by format.

    ``overwrite`` replaces files that hold no configurations, ``keep_default`` writes the default where a shape failed.
    """

    folders: Mapping[str, str | Path]
    overwrite: bool = False
    keep_default: bool = False

    def check(self, shapes: Sequence[Mapping[str, int]], facts: Mapping[str, Any]) -> None:
        """Raise a UsageError where the files of shapes could not be written."""
        for form, out in self.folders.items():
            for path in {Path(out, path_of(form, shape, facts)) for shape in shapes}:
                self._with_kept(path, b"{}")

    def write(
        self, rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], default: Mapping[str, Any]
    ) -> list[str]:
        """Write the files for the winners of shapes (:func:`configuration_files`), and return their paths."""
        completed = [{"configuration": default, **row} for row in rows] if self.keep_default else rows
        rows = [row for row in completed if "configuration" in row]
        forms = [(Path(out), configuration_files(form, rows, facts)) for form, out in self.folders.items()]
        for out, path, data in (files := [(out, *file) for out, content in forms for file in content.items()]):
            write_file_atomically(out / path, self._with_kept(out / path, data), inside=out)
        return [str(out / path) for out, path, _ in files]

    def notices(self, rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> list[str]:
        """Return what vLLM and SGLang do at shapes that failed, after the files are written."""
        missing = [row["shape"] for row in rows if "error" in row and not self.keep_default]
        times_s = {tuple(sorted(row["shape"].items())): row["median_s"] for row in rows if "median_s" in row}
        notices = []
        for form, shape in ((form, shape) for form in self.folders for shape in missing):
            path, server = Path(self.folders[form], path_of(form, shape, facts)), _SERVERS[form.partition("-")[0]]
            numbers = _rows_in(path)
            m, nearest = shape["M"], min(numbers, key=lambda number: abs(number - shape["M"]), default=0)
            if nearest == m or not numbers:
                continue
            time_s = times_s.get(tuple(sorted({**shape, "M": nearest}.items())))
            cost = (
                f"; at the rate of M={nearest} that takes {1e3 * time_s * m / nearest:.3g} ms"
                if time_s and nearest
                else ""
            )
            notices.append(
                f"{form}: M={m} failed, and {server} takes the configuration of M={nearest}, the nearest in the file, "
                f"not its default{cost}, which is not measured; keep_default (--keep-default) writes the first"
            )
        return notices

    def _with_kept(self, path: Path, tuned: bytes) -> bytes:
        """Return the content of a file with what an existing one has for other numbers of rows."""
        try:
            return with_kept(read_file(path, MAX_BYTES, inside=path.parent), tuned) if os.path.lexists(path) else tuned
        except (OSError, ValueError) as error:
            if self.overwrite:
                return tuned
            raise UsageError(
                f"configurations cannot be added to those of {path}: {reason(error):.300}; move it, name another "
                "folder, or give --overwrite."
            ) from error


def configuration_files(form: str, rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the files of a format, by path, for the winners of shapes, or raise a UsageError where they do not fit it.

    A row has a ``shape``, whose sizes are M and those in the name of the file, and a ``configuration``. The facts are
    ``device``, the name of the GPU as PyTorch has it; ``triton``, the version, of which SGLang has a folder each;
    ``dtype``, the operands of a fused MoE, such as ``"fp8_w8a8"``, None for FP16 and BF16; ``block_shape``, the rows
    and columns of B that share a scale, which FP8 products have. The 0 rows of weights with groups along K are not in
    the name of a fused MoE.
    """
    _check_form(form)
    files: dict[str, dict[int, dict[str, int]]] = {}
    for row in rows:
        path, shape = path_of(form, row["shape"], facts), row["shape"]
        if shape["M"] in files.setdefault(path, {}):
            raise UsageError(f"{form}: M={shape['M']} is there twice; a file has one configuration for each M.")
        further = {"SPLIT_K": 1} if form == "vllm-moe" and facts["dtype"] in _SPLIT else {}
        files[path][shape["M"]] = _checked(form, row["configuration"], _blocks(form, facts)) | further
    return {path: _json(dict(sorted(field.items()))) for path, field in files.items()}


def path_of(form: str, shape: Mapping[str, int], facts: Mapping[str, Any]) -> str:
    """Return the path of the file of a format for a shape; see :func:`configuration_files`."""
    _check_form(form)
    of_vllm, of_fp8 = form.startswith("vllm"), form.endswith("fp8")
    device = re.sub(r"[\s/]+" if of_vllm else " ", "_", facts["device"])
    blocks = _blocks(form, facts)
    if form == "vllm-moe" and "H200" in device.split("_"):
        device = "NVIDIA_H200"  # vLLM has one name for all variants
    dtype = facts["dtype"] or ("fp8_w8a8" if of_fp8 else None)
    ending = f",device_name={device}" + (f",dtype={dtype}" if dtype else "")
    if blocks or of_fp8:
        ending += f",block_shape=[{(',' if of_vllm else ', ').join(map(str, blocks))}]"
    folder = f"configs/triton_{facts['triton'].replace('.', '_')}/" if form == "sglang-moe" else ""
    path = folder + ",".join(f"{name}={shape.get(name)}" for name in FORMATS[form]) + f"{ending}.json"
    if not _PATH.fullmatch(path) or "M" not in shape:
        parts = f"a shape with M, {' and '.join(FORMATS[form])}, and SERVING has dtype and block_shape"
        raise UsageError(f"{form}: {path:.300} is not named after its content; the name of a file is made of {parts}.")
    return path


def with_kept(existing: bytes, tuned: bytes) -> bytes:
    """Return a file of tuned configurations with what an existing one has for other numbers of rows, and its texts."""
    kept = parse_json(existing)
    if not isinstance(kept, dict) or not all(
        isinstance(value, dict) if name.isdecimal() else isinstance(value, str) for name, value in kept.items()
    ):
        raise ValueError("it maps no numbers of rows to configurations")
    files = {**kept, **parse_json(tuned)}
    return _json({name: files[name] for name in sorted(files, key=lambda name: int(name) if name.isdecimal() else -1)})


def _rows_in(path: Path) -> list[int]:
    """Return the numbers of rows that a file has; none of one that cannot be read."""
    try:
        names = parse_json(with_kept(read_file(path, MAX_BYTES, inside=path.parent), b"{}"))
        return [int(name) for name in names if name.isdecimal()]
    except (OSError, ValueError):
        return []


def _json(document: Mapping[Any, Any]) -> bytes:
    return (json.dumps(document, indent=4) + "\n").encode()


def _check_form(form: str) -> None:
    if form not in FORMATS:
        raise UsageError(f"{form!r:.60} is no format of configurations: it is one of {', '.join(FORMATS)}.")


def _blocks(form: str, facts: Mapping[str, Any]) -> Sequence[int]:
    """Return the shape of the blocks that share a scale; [0, 128] is of groups along K, which have none."""
    return facts["block_shape"] if form.endswith("fp8") or all(facts["block_shape"]) else []


def _checked(form: str, configuration: Mapping[str, Any], blocks: Sequence[int]) -> dict[str, int]:
    """Return a configuration as the kernels of vLLM and SGLang take it."""
    parameters: dict[str, Any] = {name: configuration.get(name) for name in PARAMETERS}
    fits = configuration.items() <= {**parameters, "num_ctas": 1}.items() and all(
        type(value) is int for value in parameters.values()
    )
    if not fits or min(parameters.values()) < 1 or any(block % parameters["BLOCK_SIZE_K"] for block in blocks[1:]):
        law = f"has positive integers {', '.join(PARAMETERS)}, and BLOCK_SIZE_K divides the second of block_shape"
        raise UsageError(f"{form}: {dict(configuration)!s:.300} is no configuration, which {law}.")
    return parameters


def read_shapes(path: str | Path) -> list[tuple[dict[str, int], float]]:
    """Return the shapes of a CSV file with how often each is used, the most used ones first."""
    try:
        counts = distinct(sizes_of_csv(read_text(path, MAX_BYTES), least=0))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path!s:.300} has no shapes: {reason(error):.400}. They are sizes in a CSV file.") from error
    return [(dict(shape), count) for shape, count in sorted(counts.items(), key=lambda item: -item[1])]


def check_winners(folder: Path) -> None:
    """Check that winners may be added in a folder."""
    if fact := foreign(folder / WINNERS, FOUND):
        raise UsageError(
            f"{fact}, and winners of shapes are added to a file of mltune alone; name another directory (--run)."
        )


def read_winners(folder: Path, facts: Row) -> dict[tuple[tuple[str, int], ...], Row]:
    """Return the winners in a folder, which is made if missing, with the same facts, by shape; of several the last."""
    check_folder(folder, inside=folder, create=True)
    winners, path = {}, folder / WINNERS
    for line in read_text(path, MAX_BYTES, inside=folder).splitlines() if path.exists() else ():
        try:
            row = parse_json(line)
            winner = {**row["found"], "configuration": {**row["found"]["configuration"]}}
            numbers = [winner["measured"], winner["seconds"], winner["first_s"] or 0.0]
            if row["facts"] == facts and 0 < winner["median_s"] <= winner["median_s"] + sum(numbers) < 1e9:
                winners[tuple(sorted(row["shape"].items()))] = winner
        except (ValueError, TypeError, LookupError, AttributeError):
            continue  # a line that a kill cut off, or another program wrote
    return winners


def add_winner(folder: Path, facts: Row, shape: Mapping[str, int], winner: Row) -> None:
    """Add the winner of a shape to the file."""
    append_line(folder / WINNERS, json.dumps({"facts": facts, "shape": shape, "found": winner}).encode())
