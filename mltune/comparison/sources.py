"""Sources of recordings: a dataset or a bare table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from mltune.comparison.recording import Recording, record


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a recording, from which a worker process loads it.

    Attributes
    ----------
    name : str
        Name or path of a dataset, or the display name of a table.
    table : pathlib.Path or None
        A bare table: CSV, Parquet or JSON (:func:`mltune.dataset.bare_table.read_table`).
    parameters : tuple of str
        Parameter columns of the table; empty if the format defines them.
    time : str or None
        Time column of the table.
    """

    name: str
    table: Path | None = None
    parameters: tuple[str, ...] = ()
    time: str | None = None

    def load(self) -> Recording:
        """Load and check the recording.

        Raises
        ------
        DatasetError
            The source does not exist, or is malformed.
        """
        from mltune.dataset.dataset import load_dataset
        from mltune.kernel.reader import load_kernel

        if self.table is not None:
            from mltune.dataset.bare_table import read_table

            bare = read_table(self.table, self.parameters or None, self.time)
            return replace(record(bare.dataset, bare.kernel), name=self.name)
        dataset = load_dataset(self.name)
        kernel = load_kernel(dataset.manifest.kernel)
        dataset.check_kernel(kernel)
        return record(dataset, kernel)
