"""The result files of a comparison: summary, table, evaluations and figures."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mltune.comparison.figures import draw
from mltune.comparison.summary import Comparison, Runs
from mltune.errors import StoreError
from mltune.files.atomic import write_file_atomically
from mltune.files.reading import reason


def write_results(comparison: Comparison, directory: Path) -> dict[str, Any]:
    """Write ``summary.json``, ``table.md``, ``evaluations.parquet`` and ``curves*.svg`` and ``.png``.

    Return the summary (:attr:`mltune.comparison.summary.Comparison.summary`).

    Raises
    ------
    StoreError
        A file cannot be written.
    """
    document = comparison.summary
    try:
        write_file_atomically(directory / "summary.json", (json.dumps(document, indent=1) + "\n").encode())
        write_file_atomically(directory / "table.md", markdown(document).encode())
        write_file_atomically(directory / "evaluations.parquet", evaluations(comparison))
        for name, image in draw(comparison, list(document["strategies"])).items():
            write_file_atomically(directory / name, image)
    except OSError as error:
        raise StoreError(
            f"results are written to the output directory, but {directory} cannot be: {reason(error)}."
        ) from error
    return document


def markdown(document: Mapping[str, Any]) -> str:
    """Return the summary of a comparison (:func:`mltune.comparison.summary.summarise`) as Markdown."""
    strategies, datasets = document["strategies"], document["datasets"]
    first = next(iter(strategies.values()))
    limit = document["evaluations"]
    header = ["strategy", "score", *(f"at {at}" for at in first["at"])]
    header += [f"evaluations to {float(to):.0%} (reached)" for to in first["to"]]
    header += ["own ms per evaluation", "seeds"]
    overall = [
        [name, _score(found), *(f"{value:.3f}" for value in found["at"].values())]
        + [f"{to['evaluations']:.0f} ({to['reached']:.0%})" for to in found["to"].values()]
        + [f"{1e3 * found['seconds']['own_per_evaluation']:.2f}", str(found["seeds"])]
        for name, found in strategies.items()
    ]
    spaces = [
        [name, *(_score(found["datasets"][dataset]) for dataset in datasets)] for name, found in strategies.items()
    ]
    tests = [
        [one["second"], f"{one['difference']:+.3f}", f"{one['p_adjusted']:.2g}"] for one in document["significance"]
    ]
    reference = next((one["first"] for one in document["significance"]), "")
    title = f"Score of `{reference}` minus that of the others (permutation test of pairs, Holm's correction):"
    compared = [title, "", *_lines(["other", "difference", "p"], tests), ""]
    return "\n".join(
        [
            f"Means over {len(datasets)} recorded spaces; at most {limit} distinct configurations a run. `at N`:",
            "fraction of the optimum after N evaluations. A run that misses a target counts with all its evaluations.",
            "",
            *_lines(header, overall),
            "",
            "Score by space:",
            "",
            *_lines(["strategy", *datasets], spaces),
            "",
            *(compared if tests else ()),
            *(f"- {text}" for text in _notices(document)),
        ]
    )


def _notices(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a reader should know about the recordings and the runs."""
    for name, dataset in document["datasets"].items():
        yield from (f"{name}: {text}" for text in (dataset["account"], *dataset["notices"]) if text)
    if document["missing"]:
        yield f"The comparison was stopped: {document['missing']} runs are missing."


def _score(found: Mapping[str, Any]) -> str:
    error = found["score_error"]
    return f"{found['score']:.3f}" + ("" if error is None else f" ± {error:.3f}")


def _lines(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    ruler = ["---", *["---:"] * (len(header) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (header, ruler, *rows)]


def evaluations(comparison: Comparison) -> bytes:
    """Return a Parquet file of one row per strategy, dataset, seed and evaluation.

    Columns: ``strategy``, ``dataset``, ``seed``, ``evaluation`` (from 1), ``index`` (the row of the dataset),
    ``fraction`` (of the optimum, the best so far), ``own_s`` and ``recorded_s`` (of this evaluation).
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts = [
        _rows(name, dataset, runs, comparison.recordings[dataset].optimum_s)
        for (name, dataset), runs in comparison.runs.items()
    ]
    table = pa.concat_tables(parts).unify_dictionaries()
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", compression_level=9)
    return buffer.getvalue()


def _rows(name: str, dataset: str, runs: Runs, optimum_s: float) -> Any:
    import pyarrow as pa

    lengths = [len(trace.indices) for trace in runs.traces]
    numbers = [np.arange(1, length + 1, dtype=np.uint16) for length in lengths]
    fraction = [optimum_s / best[:length] for best, length in zip(runs.best_s, lengths, strict=True)]
    constant = pa.array(np.zeros(sum(lengths), dtype=np.int8))
    return pa.table(
        {
            "strategy": pa.DictionaryArray.from_arrays(constant, [name]),
            "dataset": pa.DictionaryArray.from_arrays(constant, [dataset]),
            "seed": np.repeat(np.array(runs.seeds, dtype=np.uint16), lengths),
            "evaluation": np.concatenate(numbers),
            "index": np.concatenate([trace.indices for trace in runs.traces]).astype(np.uint32),
            "fraction": np.concatenate(fraction).astype(np.float32),
            "own_s": _rounded(np.concatenate([trace.own_s for trace in runs.traces])),
            "recorded_s": _rounded(np.concatenate([trace.recorded_s for trace in runs.traces])),
        }
    )


def _rounded(seconds: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round to 11 bits, three digits: further digits are noise and would not compress."""
    mantissa, exponent = np.frexp(seconds)
    kept: NDArray[np.float32] = np.ldexp(np.round(mantissa * 2**11), exponent - 11).astype(np.float32)
    return kept
