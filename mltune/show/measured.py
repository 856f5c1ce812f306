"""The table of what was measured on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mltune.files.text import printable
from mltune.results.wording import gb_per_s, percent, tflops
from mltune.show.fitting_table import FittingTable

if TYPE_CHECKING:
    from rich.console import RenderableType

NAMES = {
    "fp16_flops": "FP16, two at a time",
    "fp32_flops": "FP32",
    "fp64_flops": "FP64",
    "int32_ops": "INT32",
    "tensor_fp16_flops": "tensor cores, FP16",
    "tensor_bf16_flops": "tensor cores, BF16",
    "tensor_tf32_flops": "tensor cores, TF32",
    "tensor_fp64_flops": "tensor cores, FP64",
    "shared_bytes_per_s": "shared memory",
    "l2_bytes_per_s": "L2 cache",
    "memory_bytes_per_s": "memory",
    "launch_s": "a launch",
}
"""The quantities of :data:`mltune.device.facts.Quantity`, in words."""


def measured(entry: Mapping[str, Any], unmeasured: Mapping[str, str]) -> Iterator[RenderableType]:
    """Show what was measured of a device, and why the rest was not.

    Parameters
    ----------
    entry : mapping
        The device in the document of ``mltune device``.
    unmeasured : mapping of str to str
        Reasons by quantity.
    """
    shares = entry["share_of_data_sheet"]
    rows = [
        {
            f"measured on {printable(entry['device']['name'])}": NAMES[name],
            ">median": _amount(name, found["median"]),
            ">spread": percent(found["spread"]),
            ">of the data sheet": percent(shares[name]),
        }
        for name, found in entry["device"]["measured"].items()
    ]
    yield FittingTable(rows, spare=[">spread"])
    mixes = len(entry["device"].get("mixes", ()))
    if mixes:
        yield f"and the rates of {mixes} mixes of arithmetic and loads, from which `mltune bound` computes"
    for name, reason in unmeasured.items():
        yield f"not measured: {NAMES[name]}: {printable(reason)}"


def _amount(name: str, value: float) -> str:
    if name == "launch_s":
        return f"{1e6 * value:.2f} µs"
    if name.endswith("_bytes_per_s"):
        return f"{gb_per_s(1e-9 * value)} GB/s"
    return f"{tflops(1e-12 * value)} {'TOPS' if name.endswith('_ops') else 'TFLOPS'}"
