"""Kernel bundles, GPUs and wisdoms: make, describe and check them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltune.api.places import check_places
from mltune.errors import DeviceError, UsageError

if TYPE_CHECKING:
    from mltune.kernel.bundle import Kernel
    from mltune.measure.bundle_check import KernelCheck
    from mltune.problem.problem import Problem
    from mltune.tuning.wisdom_check import WisdomCheck


def new_kernel(folder: str | Path, *, from_source: str | Path | None = None, entry: str | None = None) -> str:
    """Write a new kernel bundle: ``kernel.toml`` and ``kernel.cu``, a small example, or a draft for a source.

    A draft has the parameters, arguments and launch that are read from the source. What cannot be read is to be filled
    in: the bundle cannot be loaded before, and the error names the lines.

    Parameters
    ----------
    folder : str or pathlib.Path
        A folder that is empty or does not exist.
    from_source : str or pathlib.Path, optional
        A CUDA source with a ``__global__`` function. Its parameters are the whole numbers that it defines as macros,
        and the numbers among the parameters of its template. Headers beside it are copied.
    entry : str, optional
        The function to tune, where the source has several.

    Returns
    -------
    str
        The name of the kernel, made of that of the folder.

    Raises
    ------
    UsageError
        The folder is not empty, or cannot be written; or the source has no such function, or no parameters.

    Examples
    --------
    >>> import mltune, tempfile
    >>> folder = tempfile.mkdtemp() + "/blur"
    >>> mltune.new_kernel(folder)
    'blur'
    >>> mltune.load_kernel(folder).name
    'blur'
    """
    from mltune.kernel.reader import new_bundle

    return new_bundle(Path(folder), None if from_source is None else Path(from_source), entry)


def space(
    kernel: str | Path,
    *,
    trans: str | None = None,
    size: int | Mapping[str, int] | None = None,
    precision: str | None = None,
) -> dict[str, Any]:
    """Describe the search space of a kernel: its size, and what each restriction removes. Nothing is compiled.

    It is counted for an NVIDIA H200. What a restriction removes is a share of the raw combinations, estimated on a
    uniform sample of them.

    Parameters
    ----------
    kernel : str or pathlib.Path
        A built-in kernel, or the folder of a bundle.
    trans, size
        Of a GEMM, or the sizes of another kernel; see :func:`tune`.
    precision : str, optional
        Of a GEMM; by default the kernel's first.

    Returns
    -------
    dict
        Plain JSON values: what ``mltune space --json`` prints.

    Raises
    ------
    BundleError
        The bundle is malformed, or no configuration of a sample can be launched.

    Examples
    --------
    >>> import mltune
    >>> found = mltune.space("gemm_shared")
    >>> 0 < found["valid"] < found["combinations"]
    True
    """
    from mltune.device.known import H200
    from mltune.kernel.placed import PlacedKernel
    from mltune.measure.bundle_check import describe_space

    return describe_space(PlacedKernel(*_described(kernel, precision, trans, size), H200))


def check(
    kernel: str | Path,
    *,
    trans: str | None = None,
    size: int | Mapping[str, int] | None = None,
    precision: str | None = None,
    time: str | float = "8s",
    gpu: str = "h200",
) -> KernelCheck:
    """Check a kernel bundle: its files, the launches of a sample of configurations, and the builds of some.

    Its reference is built and launched likewise, and the parameters of the source are compared with the arguments. No
    GPU is needed. What has a source does not pass where nothing was compiled, as without NVRTC.

    Parameters
    ----------
    kernel, trans, size, precision
        See :func:`space`.
    time : str or float
        Most time of all builds: ``"8s"``, ``"1m"``, or seconds. A build that has not ended in time does not count.
    gpu : str
        A known GPU, the file of one, or ``"cuda:N"``; see :func:`devices`.

    Raises
    ------
    BundleError
        The bundle is malformed.

    Examples
    --------
    >>> import mltune, tempfile
    >>> folder = tempfile.mkdtemp() + "/blur"
    >>> mltune.check(mltune.new_kernel(folder) and folder).checked.faults
    ()
    """
    from mltune.device.known import find_device
    from mltune.kernel.placed import PlacedKernel
    from mltune.measure.bundle_check import KernelCheck, check_bundle
    from mltune.resolve.request import parse_duration

    bundle, problem = _described(kernel, precision, trans, size)
    facts, _ = find_device(gpu)
    checked = check_bundle(PlacedKernel(bundle, problem, facts), parse_duration(str(time)))
    return KernelCheck(bundle, problem, facts, checked)


def _described(
    kernel: str | Path, precision: str | None, trans: str | None, size: int | Mapping[str, int] | None
) -> tuple[Kernel, Problem]:
    """Return a bundle and the problem that it is described for."""
    from mltune.kernel.reader import load_kernel
    from mltune.resolve.problems import check_is_kernel, space_problem

    check_is_kernel(kernel)
    bundle = load_kernel(kernel)
    problem = space_problem(bundle, precision, {"trans": trans, "size": size})
    bundle.check_problem(problem)
    return bundle, problem


def devices(
    facts: str | None = None,
    *,
    known: bool = False,
    measure: bool = False,
    out: str | Path | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """List the GPUs of this machine and the CUDA libraries that are used; or give the facts of one GPU.

    Parameters
    ----------
    facts : str, optional
        ``"cuda:N"``, a known GPU such as ``"a100"``, or a file (JSON, TOML).
    known : bool
        Whether to list the known GPUs, with values from data sheets.
    measure : bool
        Whether to measure the rates of a GPU, ``"cuda:0"`` by default, which takes some twenty seconds: of arithmetic,
        tensor cores, memories, launches, and of arithmetic mixed with loads.
    out : str or pathlib.Path, optional
        A ``.json`` file to which the facts of one GPU are written, from which they can be read again.
    overwrite : bool
        Whether that file replaces one that mltune did not write.

    Returns
    -------
    dict
        Plain JSON values: what ``mltune device --json`` prints.

    Raises
    ------
    DeviceError
        There is no such GPU or file.
    UsageError
        The options contradict each other.

    Examples
    --------
    >>> import mltune
    >>> (found,) = mltune.devices("a100")["devices"]
    >>> found["device"]["name"], found["architecture"]
    ('NVIDIA A100-SXM4-80GB', 'sm_80')
    """
    from mltune.files.atomic import write_product
    from mltune.files.owned import FACTS
    from mltune.files.text import printable
    from mltune.measure.gpus import describe_gpus
    from mltune.resolve.device import find_gpus

    if out is not None and (Path(out).suffix.lower() != ".json" or not (measure or facts)):
        raise UsageError(
            f"--out cannot be {printable(out)}: it is a .json file, for the facts of one GPU; write `mltune device "
            "cuda:0 --out my-gpu.json`."
        )
    check_places({} if out is None else {Path(out): FACTS}, overwrite=overwrite)
    document = describe_gpus(facts, find_gpus, of_data_sheets=known, measure=measure)
    if out is not None:
        text = f"{json.dumps(document, indent=2, allow_nan=False)}\n"
        write_product(Path(out), text.encode(), FACTS, overwrite=overwrite)
    return document


def check_wisdom(
    wisdom: str | Path | None = None,
    *,
    kernel: Sequence[str] | None = None,
    sample: int | None = None,
    seed: int = 0,
    device: str = "auto",
) -> WisdomCheck:
    """Measure the best entries of a wisdom again, each beside the default configuration.

    An entry is a miss if it fails, if it is slower than the default, or if it is slower than recorded by more than its
    interval and 5 %. It is also a miss if the source of its kernel has changed since.

    Parameters
    ----------
    wisdom : str or pathlib.Path, optional
        The file; by default the user's.
    kernel : sequence of str, optional
        Folders of kernels that are not built in.
    sample : int, optional
        Most entries that are measured; all by default.
    seed : int
        Seed of the sample.
    device : str
        ``"auto"``, ``"cuda:N"``, or ``"replay:DATASET"``.

    Raises
    ------
    UsageError
        There is no such file, GPU or folder.

    Examples
    --------
    >>> import mltune
    >>> mltune.check_wisdom().misses  # doctest: +SKIP
    0
    """
    from mltune.known.wisdom import Wisdom
    from mltune.resolve.device import Target, parse_device
    from mltune.tuning import wisdom_check
    from mltune.tuning.wisdom_check import WisdomCheck

    file = wisdom_file(wisdom, must_exist=True)
    loaded = Wisdom.load(file)
    target = parse_device(device) or Target(cuda=0)
    checked = wisdom_check.check_wisdom(loaded, target, kernels=kernel or (), sample=sample, seed=seed)
    return WisdomCheck(file, tuple(checked))


def export_triton_winners(
    folder: str | Path, *, gpu: str | None = None, wisdom: str | Path | None = None
) -> tuple[dict[str, int], int]:
    """Write the winners of Triton's kernels into a folder, a file for each GPU, and the calls of programs.

    Parameters
    ----------
    folder : str or pathlib.Path
        A new folder, or one of earlier winners, which stay.
    gpu : str, optional
        Only winners of this GPU: a known one, a file with its facts, ``"cuda:N"``, or its name.
    wisdom : str or pathlib.Path, optional
        A wisdom; by default the user's file.

    Returns
    -------
    dict of str to int
        How many winners each file holds.
    int
        How many programs the record of their calls, ``programs.calls``, holds; there may be none.

    Raises
    ------
    UsageError
        There are no such winners.

    Examples
    --------
    >>> import mltune
    >>> mltune.export_triton_winners("winners", gpu="h200")  # doctest: +SKIP
    ({'NVIDIA_H200_sm_90_132.json': 3}, 1)
    """
    from mltune.device.known import find_device
    from mltune.known.triton_winners import export_winners

    with contextlib.suppress(DeviceError):  # the name of a GPU that only the wisdom knows
        gpu = gpu and find_device(gpu)[0].name
    return export_winners(wisdom_file(wisdom), Path(folder), gpu)


def import_triton_winners(folder: str | Path, *, wisdom: str | Path | None = None) -> tuple[Path, dict[str, int], int]:
    """Add the winners of a folder to the wisdom: programs on these GPUs tune none of these kernels again.

    The calls of programs are added to the record beside the wisdom: on other GPUs, and at other sizes, the kernels of
    such a program are compiled together.

    Parameters
    ----------
    folder : str or pathlib.Path
        One that :func:`export_triton_winners` wrote.
    wisdom : str or pathlib.Path, optional
        A wisdom, which need not exist; by default the user's file.

    Returns
    -------
    pathlib.Path
        The file of the wisdom.
    dict of str to int
        How many winners each file of the folder has.
    int
        How many programs of the folder were added, or had all their kernels in a program beside the wisdom before.

    Examples
    --------
    >>> import mltune
    >>> path, winners, programs = mltune.import_triton_winners("winners")  # doctest: +SKIP
    """
    from mltune.known.triton_winners import import_winners

    path = wisdom_file(None) if wisdom is None else Path(wisdom)
    return path, *import_winners(Path(folder), path)


def wisdom_file(file: str | Path | None, *, must_exist: bool = False) -> Path:
    """Return the file of a wisdom; by default the user's, which need not exist."""
    from mltune.known.wisdom_file import VARIABLE, default_file

    path = default_file() if file is None else Path(file)
    if path is None:
        raise UsageError(f"{VARIABLE} is none, and no file of wisdom is named; name a file.")
    if (must_exist or file is not None) and not path.exists():
        raise UsageError(f"there is no wisdom {path}.")
    return path
