"""Compile a kernel of arrays for the host and launch it on NumPy arrays; runtime.cpp has the checks."""

from __future__ import annotations

import ctypes
import itertools
import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from emulation.host import CHECKS, COMPILER, HERE, EmulationError, _compile
from mltune.kernel.bundle import Launch

_names = itertools.count()


class HostArraysKernel:
    """One configuration of a kernel of arrays, and its reference, compiled for the host.

    Parameters
    ----------
    source : Path
        The CUDA source.
    definitions : str
        What stands before it: its macros.
    entry, reference : str
        Names of the two kernels.
    runtime : Path
        What :func:`emulation.host.build_runtime` returned; the library is written beside it.
    """

    def __init__(self, source: Path, definitions: str, entry: str, reference: str, runtime: Path) -> None:
        library = runtime.parent / f"arrays-{next(_names)}.so"
        unit, header = library.with_suffix(".o"), library.with_suffix(".hpp")
        header.write_text(definitions)
        macros = [f'-DDEFINITIONS="{header}"', f'-DKERNEL_SOURCE="{source}"']
        macros += [f"-DKERNEL_ENTRY={entry}", f"-DKERNEL_REFERENCE={reference}"]
        _compile([*COMPILER, "-O1", "-w", *CHECKS, *macros, "-c", str(HERE / "arrays.cpp"), "-o", str(unit)])
        _compile([*COMPILER, "-shared", str(unit), str(runtime), "-o", str(library)])
        self._library = ctypes.CDLL(str(library))
        self._library.emulation_message.restype = ctypes.c_char_p
        self._symbols = _data_symbols(unit)
        self._texts: dict[str, bytes] = {}  # names of ranges, which the runtime keeps pointers to
        for path in (unit, header, library):
            path.unlink()

    def set_constant(self, name: str, values: np.ndarray) -> None:
        """Copy an array to the constant memory of that name."""
        assert self._symbols[name] == values.nbytes
        ctypes.memmove(self._address(name), values.ctypes.data, values.nbytes)

    def launch(
        self,
        arguments: Mapping[str, np.ndarray],
        outputs: set[str],
        launch: Launch,
        *,
        reference: bool = False,
        most_accesses: int = 10**9,
    ) -> None:
        """Launch the kernel or its reference; the outputs are changed in place.

        Parameters
        ----------
        arguments : mapping of str to ndarray
            In order: arrays, and scalars as arrays without dimensions.
        outputs : set of str
            Arrays that may be written.

        Raises
        ------
        EmulationError
            The kernel broke a rule.
        """
        self._library.emulation_forget_ranges()
        for name, size in self._symbols.items():
            self._add_range(name, self._address(name), size, writable=True)
        pointers = (ctypes.c_void_p * len(arguments))()
        kept = []
        for position, (name, array) in enumerate(arguments.items()):
            if array.ndim:
                self._add_range(name, array.ctypes.data, array.nbytes, writable=name in outputs)
                kept.append(ctypes.c_void_p(array.ctypes.data))
                pointers[position] = ctypes.addressof(kept[-1])
            else:
                pointers[position] = array.ctypes.data
        shapes = [(ctypes.c_uint * 3)(*shape) for shape in (launch.grid, launch.block)]
        failed = self._library.emulation_launch_arrays(
            ctypes.c_bool(reference),
            pointers,
            *shapes,
            ctypes.c_size_t(launch.shared_bytes),
            ctypes.c_longlong(most_accesses),
        )
        if failed:
            raise EmulationError(self._library.emulation_message().decode())

    def _add_range(self, name: str, address: int, size: int, *, writable: bool) -> None:
        text = self._texts.setdefault(name, name.encode())
        self._library.emulation_add_range(text, ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_int(writable))

    def _address(self, name: str) -> int:
        return ctypes.addressof(ctypes.c_char.in_dll(self._library, name))


def _data_symbols(unit: Path) -> dict[str, int]:
    """Return the variables of a compiled unit with their sizes: its device and constant memory."""
    listed = subprocess.run(["nm", "-S", "--defined-only", str(unit)], capture_output=True, text=True, check=True)
    rows = [line.split() for line in listed.stdout.splitlines()]
    return {row[3]: int(row[1], 16) for row in rows if len(row) == 4 and row[2] in "BDC"}
