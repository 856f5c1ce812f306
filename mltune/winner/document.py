"""winner.json: all that is known of a winner, for programs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mltune import __version__
from mltune.problem.gemm_operands import GemmOperands
from mltune.winner.formulas import launch_formulas, size_restrictions

if TYPE_CHECKING:
    from mltune.winner.winner import Winner

FORMAT = 1
"""Version of the document's format."""

GEMM_ARGUMENTS = ("m", "n", "k", "alpha", "A", "lda", "B", "ldb", "beta", "C", "ldc")
"""The arguments of a GEMM kernel, as :meth:`~mltune.problem.gemm.GemmProblem.kernel_arguments` has them."""


def describe(winner: Winner, files: Mapping[str, bytes], date: str) -> dict[str, Any]:
    """Return the document.

    Parameters
    ----------
    winner : Winner
    files : mapping of str to bytes
        The other files of the folder, whose hashes are given.
    date : str
        When it was written.

    Returns
    -------
    dict
        Described in docs/winners.md. ``launch``, ``build`` and ``verified`` are None where there is no machine code,
        and ``lacks_code`` says why.
    """
    record, problem = winner.record, winner.problem
    has_code = not winner.lacks_code
    return {
        "format": FORMAT,
        "label": problem.label,
        "problem": {"kind": problem.kind, **problem.to_json()},
        "kernel": {
            "name": winner.kernel.name,
            "entry": winner.kernel.entry,
            "source_sha256": winner.kernel.source_hash,
        },
        "configuration": dict(record.configuration),
        "timing": _timing(winner),
        "device": winner.device.to_json(),
        "versions": {"mltune": __version__, **winner.versions},
        "written": date,
        "lacks_code": winner.lacks_code,
        "build": _build(winner) if has_code else None,
        "launch": _launch(winner) if has_code else None,
        "verified": _verified(winner) if has_code else None,
        "sha256": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }


def _timing(winner: Winner) -> dict[str, Any]:
    from mltune.device.peaks import peak_flops

    declaration, problem = winner.declaration, winner.problem
    finalist, reference, measured = declaration.winner, declaration.reference, winner.record.measurement
    rate = problem.flops / finalist.median_s
    tied = [other for other in declaration.finalists if other.number in declaration.ties]
    return {
        "trial": winner.record.number,
        "median_s": finalist.median_s,
        "interval_s": [finalist.low_s, finalist.high_s],
        "tflops": rate / 1e12,
        "share_of_peak": rate / peak_flops(winner.device, problem.arithmetic),
        "share_of_reference": None if reference is None else reference.ratio,
        "share_of_reference_interval": None if reference is None else [reference.ratio_low, reference.ratio_high],
        "ties": [
            {"trial": other.number, "ratio": other.ratio, "interval": [other.ratio_low, other.ratio_high]}
            for other in tied
        ],
        "rounds": declaration.rounds,
        "sm_clock_hz": None if measured is None else measured.sm_clock_hz,
    }


def _build(winner: Winner) -> dict[str, Any]:
    from mltune.measure.build import compile_options

    build, architecture = winner.build, winner.device.architecture
    return {
        "architecture": architecture,
        "compiler": f"NVRTC {winner.versions.get('nvrtc', '')}".strip(),
        "options": list(compile_options(architecture, {})),
        "registers": build.registers,
        "spill_bytes": build.spill_bytes,
        "stack_bytes": build.stack_bytes,
        "static_shared_bytes": build.shared_bytes,
        "code_bytes": build.code_bytes,
    }


def _launch(winner: Winner) -> dict[str, Any]:
    launch = winner.launch()
    return {
        "grid": list(launch.grid),
        "block": list(launch.block),
        "shared_bytes": launch.shared_bytes,
        "arguments": [*_gemm_arguments(winner), *_launched_arguments(winner)],
        "at_other_sizes": launch_formulas(winner),
        "sizes_must_satisfy": size_restrictions(winner),
    }


def _gemm_arguments(winner: Winner) -> list[dict[str, Any]]:
    problem = winner.gemm
    values = problem.kernel_arguments(GemmOperands("A", "B", "C"))
    return [
        {"name": name, "type": f"pointer to {problem.dtype.name}"}
        if isinstance(value, str)
        else {"name": name, "type": value.dtype.name, "value": _plain(value)}
        for name, value in zip(GEMM_ARGUMENTS, values, strict=True)
    ]


def _launched_arguments(winner: Winner) -> list[dict[str, Any]]:
    configuration = winner.record.configuration
    return [{"name": name, "type": "int32", "value": configuration[name]} for name in winner.kernel.arguments]


def _plain(value: np.generic) -> Any:
    number = value.item()
    return [number.real, number.imag] if isinstance(number, complex) else number


def _verified(winner: Winner) -> dict[str, Any]:
    from mltune.measure.runner import WINNER_SIZES
    from mltune.measure.verification import verification_cases

    problem = winner.gemm
    small = [case.problem for case in verification_cases(problem)]
    wide, narrow = small[0], small[-1]
    return {
        "passed": winner.declaration.verified,
        "sizes": [[problem.m, problem.n, problem.k], *map(list, WINNER_SIZES), [wide.m, wide.n, wide.k]],
        "leading_dimensions": [[one.lda, one.ldb, one.ldc] for one in (problem, wide, narrow)],
        "addresses": "aligned to 256 bytes, and one element behind that",
    }
