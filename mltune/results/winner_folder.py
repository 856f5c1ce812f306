"""The winner's folder: winner.json, and the other files, written as a whole or not at all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mltune.errors import DiskFullError, RunDirectoryError
from mltune.files.atomic import replace_folder_atomically
from mltune.files.owned import WINNER, ForeignFileError
from mltune.files.reading import reason
from mltune.kernel.launch import Launch
from mltune.records.versions import __version__
from mltune.results.leader import timing_of
from mltune.results.winner import Winner, launch_formulas, size_restrictions
from mltune.results.winner_texts import fill_templates, header_files, kernel_source

FORMAT = 1
"""Version of the document's format."""


def describe(winner: Winner, files: Mapping[str, bytes], date: str) -> dict[str, Any]:
    """Return the document; see docs/reference/winner.md.

    ``launch``, ``build`` and ``verified`` are None where there is no machine code; ``lacks_code`` says why. The files
    are the other ones of the folder, for their hashes; ``date`` is the time of writing.
    """
    leader, kernel, problem = winner.leader(), winner.placed.kernel, winner.placed.problem
    has_code = not winner.lacks_code
    return {
        "format": FORMAT,
        "label": problem.label,
        "problem": {"kind": problem.kind, **problem.to_json()},
        "kernel": {
            "name": kernel.name,
            "accuracy": kernel.accuracy,
            "entry": kernel.source.entry,
            "function": winner.build.entry or kernel.source.entry,
            "source_sha256": kernel.source.sha256,
        },
        "configuration": leader.configuration,
        "timing": timing_of(leader, winner.declaration),
        "device": winner.placed.device.to_json(),
        "versions": {"mltune": __version__, **winner.versions},
        "written": date,
        "lacks_code": winner.lacks_code,
        "build": _build(winner) if has_code else None,
        "launch": _launch(winner) if has_code else None,
        "verified": {
            "passed": winner.declaration.verified,
            "error": leader.error,
            **winner.placed.runnable.verification_document(),
        }
        if has_code
        else None,
        "sha256": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }


def _build(winner: Winner) -> dict[str, Any]:
    from mltune.measure.build import compile_options

    build, kernel = winner.build, winner.placed.kernel
    architecture = kernel.architecture_on(winner.placed.device.architecture)
    return {
        "architecture": architecture,
        "compiler": winner.compiler,
        "options": [*compile_options(architecture), *winner.options],
        "headers": {name: kernel.source.header_paths.get(name, name) for name in kernel.source.headers},
        **{name: getattr(build, name) for name in ("registers", "spill_bytes", "stack_bytes")},
        "static_shared_bytes": build.shared_bytes,
        "code_bytes": build.code_bytes,
    }


def _launch(winner: Winner) -> dict[str, Any]:
    launch, arguments = winner.launch(), winner.placed.runnable.argument_documents()
    passed = [argument for argument in arguments if argument.get("role") != "constant"]
    maps = [f"map_of_{passed[matrix.place]['name']}" for matrix in launch.tensor_maps]
    return {
        "grid": list(launch.grid),
        "block": list(launch.block),
        "shared_bytes": launch.shared_bytes,
        "workspace_bytes": launch.workspace_bytes,
        "launched": list(launch.arguments),
        "tensor_maps": [list(matrix) for matrix in launch.tensor_maps],
        "arguments": [
            *passed,
            *({"name": name, "type": "int32", "value": value} for name, value in winner.launched.items()),
            *_workspace(launch),
            *({"name": name, "type": "CUtensorMap"} for name in maps),
        ],
        "constants": [argument for argument in arguments if argument.get("role") == "constant"],
        "at_other_sizes": launch_formulas(winner),
        "sizes_must_satisfy": size_restrictions(winner),
    }


def _workspace(launch: Launch) -> list[dict[str, Any]]:
    if launch.workspace_bytes is None:
        return []
    shape = [launch.workspace_bytes]
    return [{"name": "workspace", "type": "pointer to uint8", "shape": shape, "role": "workspace", "initial": 0}]


DOCUMENT = "winner.json"
"""The file that every winner's folder holds."""


def write_winner(folder: Path, winner: Winner) -> None:
    """Write a folder with all that users of C++ or CuPy need; in replay winner.json alone, with the reason."""
    write_folder(folder, winner_files(winner, datetime.now(UTC).isoformat(timespec="seconds")))


def winner_files(winner: Winner, date: str) -> dict[str, bytes]:
    """Return the files of a winner's folder by name; ``date`` is the time of writing."""
    if winner.lacks_code:
        return {DOCUMENT: _json(describe(winner, {}, date))}
    sources = {"kernel.cu": kernel_source(winner, date), **header_files(winner.placed.kernel)}
    files = {name: text.encode() for name, text in sources.items()}
    files |= {"kernel.cubin": winner.build.cubin, **winner.controls}
    files |= fill_templates(winner, describe(winner, files, date))
    return {**files, DOCUMENT: _json(describe(winner, files, date))}


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the folder of a winner in place of an existing one, as a whole or not at all."""
    try:
        replace_folder_atomically(folder, files, WINNER)
    except ForeignFileError as error:
        raise RunDirectoryError(f"{error}, and repeat the command: no trial is measured again.") from error
    except OSError as error:
        raise DiskFullError(
            f"the folder of the winner, {folder}, cannot be written: {reason(error)}; make room on the disk and repeat "
            "the command: no trial is measured again, and an existing folder is unchanged."
        ) from error


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=2).encode() + b"\n"
