"""Compile a kernel of arrays for the host and launch it on NumPy arrays; runtime.cpp has the checks."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from emulation.host import HostLibrary
from mltune.kernel.launch import Launch

_names = itertools.count()


class HostArraysKernel(HostLibrary):
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
        header = runtime.parent / f"definitions-{next(_names)}.hpp"
        header.write_text(definitions)
        macros = {"DEFINITIONS": f'"{header}"', "KERNEL_ENTRY": entry, "KERNEL_REFERENCE": reference}
        super().__init__(source, macros, runtime)
        header.unlink()

    def set_constant(self, name: str, values: np.ndarray) -> None:
        """Copy an array to the constant memory of that name."""
        assert self.symbols[name] == values.nbytes
        ctypes.memmove(self.address(name), values.ctypes.data, values.nbytes)

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
        self.library.emulation_forget_ranges()
        for name, size in self.symbols.items():
            self.add_range(name, self.address(name), size, writable=True)
        for name, array in arguments.items():
            if array.ndim:
                self.add_range(name, array.ctypes.data, array.nbytes, writable=name in outputs)
        values = [np.array(array.ctypes.data) if array.ndim else array for array in arguments.values()]
        self.run(values, launch, reference=reference, most_accesses=most_accesses)
