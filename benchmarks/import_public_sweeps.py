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
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mltune.dataset.dataset import Dataset, write_dataset
from mltune.dataset.foreign import Outcomes, foreign_dataset
from mltune.device.facts import Device
from mltune.kernel.bundle import Kernel
from mltune.kernel.reader import load_kernel
from mltune.problem.gemm import parse_problem
from mltune.problem.problem import Problem
from mltune.problem.recorded import RecordedProblem

HERE = Path(__file__).parent
STATES = {"ok": "ok", "fail_compile": "compile_error", "fail_runtime": "launch_error"}
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
    """Make the dataset of one sweep."""
    kernel = load_kernel(entry["kernel"])
    table = table[table["status"] != "not_measured"]
    source = f"{entry['source']}; median of the recorded runs"
    if "sample_kind" in table:
        # random rows come first: they alone are an unbiased sample of the space
        table = table.sort_values("sample_kind", key=lambda kinds: kinds != "random", kind="stable")
        drawn = int((table["sample_kind"] == "random").sum())
        source += f"; the first {drawn} rows are a uniform random sample, the others the steps of local searches"
    mean_s = 1e-3 * table["time_ms"].to_numpy()
    outcomes = Outcomes(
        states=table["status"].map(STATES).to_numpy(),
        median_s=1e-3 * table["time_med_ms"].to_numpy(),
        compile_s=1e-3 * table["compile_ms"].to_numpy() if "compile_ms" in table else 0.0,
        time_s=np.nan_to_num(entry["runs"] * mean_s),
    )
    return foreign_dataset(
        {parameter: table[parameter].to_numpy() for parameter in kernel.all_parameters},
        outcomes,
        name=name,
        kind=entry["kind"],
        kernel=kernel.name,
        problem=PROBLEMS[kernel.name],
        device=device,
        parameters=recorded_values(kernel, table),
        source=source,
        licence=entry["licence"],
    )


def recorded_values(kernel: Kernel, table: pd.DataFrame) -> dict[str, list[int]]:
    """Return the values that a sweep took of each parameter, in the order of the bundle."""
    return {
        parameter: [value for value in values if (table[parameter] == value).any()]
        for parameter, values in kernel.all_parameters.items()
    }


def main(tables: Path, licences: Path, datasets: Path) -> None:
    """Import every sweep and copy the licence texts."""
    document = tomllib.loads((HERE / "public_sweeps.toml").read_text())
    devices = {name: Device.from_json(facts) for name, facts in document["devices"].items()}
    for name, entry in document["datasets"].items():
        folder = datasets / entry["kernel"]
        table = pd.read_parquet(tables / entry["table"])
        written = write_dataset(import_sweep(name, entry, devices[entry["device"]], table), folder, overwrite=True)
        text = entry["licence"].rpartition(" ")[2]
        shutil.copyfile(licences / text, folder / text)
        size = (folder / f"{name}.parquet").stat().st_size
        print(f"{name}: {len(written)} rows, {size} bytes")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]), Path(sys.argv[3]) if len(sys.argv) > 3 else HERE.parent / "datasets")
