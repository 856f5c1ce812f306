"""Import the public sweeps that datasets/ ships.

    python benchmarks/import_public_sweeps.py TABLES LICENCES [DATASETS]

TABLES holds one Parquet file for each entry of public_sweeps.toml: the cache files of its source with one row per
configuration and the columns of the parameters, time_ms (mean of the runs), time_med_ms, compile_ms, status (ok,
fail_compile, fail_runtime, not_measured), and for the random rows of a search sample_kind. LICENCES holds the licence
texts, which are copied beside the datasets. The same tables give the same bytes.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pandas as pd

from mltune.dataset.cells import Layout
from mltune.dataset.dataset import Dataset, write_dataset
from mltune.dataset.importing import import_table
from mltune.device.facts import Device
from mltune.device.known import find_device
from mltune.kernel.reader import load_kernel
from mltune.problem.gemm import parse_problem
from mltune.problem.problem import Problem
from mltune.problem.recorded import RecordedProblem

HERE = Path(__file__).parent
WIDTH, FILTER = 4096, 15
PROBLEMS: dict[str, Problem] = {
    "clblast_xgemm": parse_problem("sgemm", trans="NT", m=4096, n=4096, k=4096),
    "convolution": RecordedProblem(
        name="convolution",
        size=f"{WIDTH}x{WIDTH}, filter {FILTER}x{FILTER}",
        flops=2 * WIDTH**2 * FILTER**2,
        values={
            "width": WIDTH,
            "height": WIDTH,
            "filter_width": FILTER,
            "filter_height": FILTER,
            "element_bytes": 4,
        },
    ),
}


def import_sweep(name: str, entry: dict[str, Any], device: Device, table: pd.DataFrame) -> Dataset:
    """Make the dataset of one sweep: its cost of timing is the mean time of all runs."""
    source = f"{entry['source']}; median of the recorded runs"
    table = table[table["status"] != "not_measured"].assign(benchmark_ms=entry["runs"] * table["time_ms"])
    if "sample_kind" in table:
        # random rows come first: they alone are an unbiased sample of the space
        table = table.sort_values("sample_kind", key=lambda kinds: kinds != "random", kind="stable")
        drawn = int((table["sample_kind"] == "random").sum())
        source += f"; the first {drawn} rows are a uniform random sample, the others the steps of local searches"
    kernel = load_kernel(entry["kernel"])
    with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
        table.to_parquet(file.name)
        imported = import_table(
            file.name,
            kernel=kernel,
            problem=PROBLEMS[kernel.name],
            device=device,
            layout=Layout(time_column="time_med_ms"),
            name=name,
            kind=entry["kind"],
            source=source,
            licence=entry["licence"],
        )
    return imported.dataset


def main(tables: Path, licences: Path, datasets: Path) -> None:
    """Import every sweep and copy the licence texts."""
    document = tomllib.loads((HERE / "public_sweeps.toml").read_text())
    ours = {name: Device.from_json(facts) for name, facts in document["devices"].items()}
    for name, entry in document["datasets"].items():
        folder = datasets / entry["kernel"]
        table = pd.read_parquet(tables / entry["table"])
        device = ours.get(entry["device"]) or find_device(entry["device"])[0]
        written = write_dataset(import_sweep(name, entry, device, table), folder, overwrite=True)
        text = entry["licence"].rpartition(" ")[2]
        shutil.copyfile(licences / text, folder / text)
        size = (folder / f"{name}.parquet").stat().st_size
        print(f"{name}: {len(written)} rows, {size} bytes")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]), Path(sys.argv[3]) if len(sys.argv) > 3 else HERE.parent / "datasets")
