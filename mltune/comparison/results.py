"""The result files of a comparison: summary, table, evaluations and figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltune.comparison.figures import draw
from mltune.comparison.tables import markdown, write_parquet
from mltune.errors import StoreError

if TYPE_CHECKING:
    from mltune.comparison.comparison import Comparison


def write_results(comparison: Comparison, directory: Path) -> dict[str, Any]:
    """Write ``summary.json``, ``table.md``, ``evaluations.parquet`` and ``curves*.svg`` and ``.png``.

    Returns
    -------
    dict
        The summary: :attr:`mltune.comparison.comparison.Comparison.summary`.

    Raises
    ------
    StoreError
        A file cannot be written.
    """
    document = comparison.summary
    try:
        (directory / "summary.json").write_text(json.dumps(document, indent=1) + "\n")
        (directory / "table.md").write_text(markdown(document))
        write_parquet(comparison, directory / "evaluations.parquet")
        draw(comparison, list(document["strategies"]), directory / "curves")
    except OSError as error:
        raise StoreError(f"results are written to the output directory, but {directory} cannot be: {error}.") from error
    return document
