"""Where a recording comes from: one of the datasets, or a bare table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from mltune.compare.recording import Recording, record


@dataclass(frozen=True, slots=True)
class Source:
    """What a worker process needs to load a recording.

    Attributes
    ----------
    name : str
        Name or path of a dataset; of a table the name that it goes by.
    table : pathlib.Path or None
        A bare table: CSV, Parquet or JSON (:func:`mltune.dataset.bare_table.read_table`).
    parameters : tuple of str
        Its columns of parameters; none where the format says them.
    time : str or None
        Its column of times.
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
            There is none, or it is malformed.
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
