"""The commands ``init``, ``space``, ``check`` and ``device``: bundles and GPUs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from mltune import api
from mltune.cli.application import Given, answer, command, fail_if
from mltune.cli.options import AsJson, argument, file, flag, path, text

KERNEL = argument("KERNEL", "A built-in kernel, or the folder of a bundle.")


@command(
    api.new_kernel,
    "init",
    folder=argument("FOLDER", "A folder that is empty or does not exist.", Path, parser=path("FOLDER")),
)
def init(given: Given, as_json: AsJson = False) -> None:
    """Write a new kernel bundle: kernel.toml and kernel.cu, a small example to be edited."""
    from mltune.files import assets

    folder, name = given["folder"], api.new_kernel(**given)
    is_plain = re.fullmatch(r"\w[\w./-]*", str(folder)) and not (assets.folder("kernels") / folder).exists()
    named = shlex.quote(str(folder) if is_plain or folder.is_absolute() else f"./{folder}")
    files, following = sorted(map(str, folder.iterdir())), [f"mltune check {named}", f"mltune tune {named}"]
    document = {"kernel": name, "files": files, "next": following}
    answer(document, as_json, lambda: [f"wrote {' and '.join(files)}; then", *following])


@command(api.space, kernel=KERNEL)
def space(given: Given, as_json: AsJson = False) -> None:
    """Show the size and the restrictions of a kernel's search space.

    It is counted for an NVIDIA H200. What each restriction removes is a share of the raw combinations, estimated on a
    uniform sample of them: "removes" by itself, "only this" what no other restriction removes.

    Launches are computed for a sample of configurations; nothing is compiled: mltune check does that.
    """
    from mltune.show import inventory

    document = api.space(**given)
    answer(document, as_json, lambda: inventory.space(document))


@command(api.check, kernel=KERNEL, time=text("--time", "TIME", "Most time of all builds: 8s, 1m."))
def check(given: Given, as_json: AsJson = False) -> None:
    """Check a kernel bundle: its files, the launches of a sample of configurations, and the builds of some.

    It is checked for an NVIDIA H200; no GPU is needed. Where NVRTC is not installed, nothing is compiled. The exit code
    is 1 if a launch or a build fails; a build that has not ended in time does not count.
    """
    from mltune.show import inventory

    checked = api.check(**given)
    document = checked.to_json()
    answer(document, as_json, lambda: inventory.check(document))
    fail_if(not checked.passed)


@command(
    api.devices,
    "device",
    facts=argument("[FACTS]", "cuda:N, a known GPU, or a file (JSON, TOML): show its facts.", str | None),
    known=flag("--known", "List the known GPUs, with values from data sheets."),
    measure=flag("--measure", "Measure the rates of a GPU, cuda:0 if none is named: some twenty seconds."),
    out=file("--out", "FILE", "Write the facts of one GPU to a .json file, for FACTS."),
)
def device(given: Given, as_json: AsJson = False) -> None:
    """List the GPUs of this machine, and the CUDA libraries that are used; or show the facts of one GPU.

    With --measure they include rates that small kernels measure on it: of arithmetic, tensor cores, memories, launches,
    and of arithmetic mixed with loads.
    """
    from mltune.show import inventory

    document = api.devices(**given)
    written = [] if given["out"] is None else [f"written: {given['out']}"]
    answer(document, as_json, lambda: [*inventory.devices(document), *written])
