"""The engine of verification on the host, the kernels of the worker, and the reference implementation."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import host_gpu
import numpy as np
import pytest
from host_gpu import HostKernel, memory

from mltune.errors import DeviceError
from mltune.kernel.launch import Launch
from mltune.measure import verification as engine
from mltune.measure.libraries import bind_reference
from mltune.measure.messages import Baseline
from mltune.measure.verification import OperandChecksums, Verification, run_once
from mltune.problem.array_values import DTYPES, STORAGE, stored, to_bfloat16
from mltune.problem.arrays import Argument, ArraysProblem
from mltune.problem.gemm import GemmProblem
from mltune.problem.gemm_operands import numbers
from mltune.problem.gemm_verification import GemmCase
from mltune.records.trial import Measurement, TrialState

OK, WRONG = TrialState.OK, TrialState.WRONG_RESULT
LAUNCH = Launch((1, 1, 1), (1, 1, 1), 0, ())
SECONDS = Launch((1, 1, 1), (1, 1, 1), 0, (), workspace_bytes=8)


@pytest.fixture(autouse=True)
def on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    host_gpu.install(monkeypatch)


def gemm(problem: GemmProblem, misdeed: str = "") -> Callable[..., None]:
    """Return a kernel that solves a GEMM, but for a misdeed, whatever the addresses."""

    def run(m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, *batch):
        shapes = problem.shapes()
        counts = [
            leading * columns * problem.batch for leading, (_, columns) in zip((lda, ldb, ldc), shapes, strict=True)
        ]
        types = (*problem.types.operands, problem.types.result)
        operands = {
            name: memory(address, STORAGE[dtype], count)
            for name, address, dtype, count in zip("ABC", (a, b, c), types, counts, strict=True)
        }
        result = problem.result(operands["C"])
        answer = problem.answer(operands)
        result[...] = stored(np, answer, problem.types.result)
        size = problem.result_dtype.itemsize
        if misdeed == "wrong":
            result[3, 4] += 1
        if misdeed == "nan":
            result[m - 1, n - 1] = np.nan
        if misdeed == "padding":
            problem.padding(operands["C"])[-1, -1] = 0
        if misdeed == "before":
            memory(c - 1, np.uint8, 1)[...] = 0
        if misdeed == "behind":
            memory(c + size * (counts[2] + 255 * ldc), problem.result_dtype, 1)[...] = 0
        if misdeed == "reads outside":
            result[0, 0] += numbers(memory(a - 2 * operands["A"].itemsize, STORAGE[types[0]], 1), types[0])[0]
        if misdeed == "writes into A":
            operands["A"][7] = 0

    return run


def check_gemm(name: str, misdeed: str = "", batch: int = 1) -> tuple[Measurement, Verification]:
    precision, ops = name.split()
    problem = GemmProblem(precision, *ops, 39, 29, 21, 1.25, -0.75, ldc=42, batch=1 if precision == "dd" else batch)
    cases = (GemmCase(problem, False, 0), GemmCase(problem, False, 1), GemmCase(problem, True, 1))
    kernels = iter(cases)
    verification = Verification(cases)

    class Each(HostKernel):
        def bind(self, launch: Launch, arguments: Any, constants: Any = ()) -> Callable[[], None]:
            return HostKernel(gemm(next(kernels).problem, misdeed)).bind(launch, arguments)

    return verification.check(Each(gemm), [LAUNCH] * len(cases)), verification


@pytest.mark.parametrize("name", ["s NT", "d TN", "c CN", "z NC", "h NT", "b TN", "dd NN"])
@pytest.mark.sampled(3, nightly=99)
def test_a_correct_gemm_passes_at_every_alignment(name: str) -> None:
    found, verification = check_gemm(name, batch=2)

    assert (found.state, found.detail) == (OK, "")
    assert 0 <= found.error < 1
    assert verification.timed is None


@pytest.mark.parametrize(
    ("misdeed", "words"),
    [
        ("wrong", "sgemm NT 39x29x21, random operands, aligned: 1 of 1131 values wrong in C, by up to"),
        ("nan", "1 of 1131 values wrong in C, by up to inf times the bound, the first at"),
        ("padding", "aligned: 4 bytes written outside C"),
        ("before", "aligned: 1 bytes written outside C"),
        ("behind", "aligned: 4 bytes written outside C"),
        ("reads outside", "values wrong in C, by up to inf times the bound, the first at 0"),
    ],
)
def test_a_wrong_gemm_is_found(misdeed: str, words: str) -> None:
    found, verification = check_gemm("s NT", misdeed)

    assert found.state is WRONG
    assert words in found.detail
    assert found.detail.count(";") == 2, "three details at most"
    if misdeed in ("wrong", "nan", "reads outside"):
        assert found.error > 1
    again = verification._compare()
    assert (again.state is OK) == (misdeed in ("before", "behind")), "guard zones are renewed"


def test_a_write_into_an_operand_is_found_by_its_checksum() -> None:
    _, verification = check_gemm("s NT")
    checksums = OperandChecksums(verification.buffers())
    assert checksums.changed() == ()
    address = verification._cases[0].arrays["A"].address
    memory(address, np.float32, 8)[7] += 1

    assert checksums.changed() == ("A",)
    assert {name for name, _ in verification.buffers()} == {"A", "B", "the initial C", "the expected results"}


X = Argument("x", "float32", (1000,))
PROBLEM = ArraysProblem(
    "scale",
    (("n", 1000),),
    (
        Argument("out", "float32", (10, 100), role="out", tolerance=1e-4),
        X,
        Argument("sums", "float64", (3,), role="inout", initial=1.5, tolerance=1e-10),
        Argument("kept", "int32", (5,), role="inout", initial="arange"),
        Argument("n", "int32", value=1000),
        Argument("filter", "float32", (4,), role="constant", initial=2),
    ),
)
CHECK = replace(PROBLEM, sizes=(("n", 500),), checks=())
WITH_CHECK = replace(PROBLEM, checks=(CHECK,))


def scale(misdeed: str = "", factor: float = 3.0) -> Callable[..., None]:
    def run(out, x, sums, kept, n, *constants):
        ((name, address, size),) = constants
        assert (name, size, memory(address, np.float32, 4).tolist()) == ("filter", 16, [2] * 4)
        written, read = memory(out, np.float32, 1000), memory(x, np.float32, 1000)
        if misdeed != "writes nothing":
            written[:] = factor * read
        memory(sums, np.float64, 3)[:] += 1
        if misdeed == "one element":
            written[123] += 1
        if misdeed == "far out":
            memory(out + 4000 + engine.GUARD_BYTES - 8, np.uint8, 3)[:] = 1
        if misdeed == "no bounds":
            memory(out + 4000, np.float32, 24)[:] = memory(x + 4000, np.float32, 24)
        if misdeed == "kept":
            memory(kept, np.int32, 5)[2] = 9
        if misdeed == "constant":
            memory(address, np.float32, 4)[2] = 9
        if misdeed == "slightly":
            written *= np.float32(1 + 5e-5)

    return run


def verification_of(
    monkeypatch: pytest.MonkeyPatch, problem: ArraysProblem = WITH_CHECK, cases: Any = None, **baseline: Any
) -> Verification:
    monkeypatch.setattr(engine, "LoadedKernel", lambda cubin, entry: HostKernel(scale()))
    cases = problem.verification_cases() if cases is None else cases
    return Verification(cases, Baseline(b"", "scale", (LAUNCH,) * len(cases), **baseline))


@pytest.mark.parametrize(
    ("misdeed", "words"),
    [
        ("", ""),
        ("slightly", ""),
        ("one element", "scale 500: 1 of 1000 values wrong in out, by up to"),
        ("writes nothing", "scale 500: 1000 of 1000 values wrong in out, by up to inf times the bound, the first at 0"),
        ("far out", "scale 1000: 3 bytes written outside out"),
        ("no bounds", "scale 1000: 96 bytes written outside out"),
    ],
)
@pytest.mark.sampled(3, nightly=99)
def test_arrays_are_compared_with_the_baseline(monkeypatch: pytest.MonkeyPatch, misdeed: str, words: str) -> None:
    verification = verification_of(monkeypatch)
    for _ in range(2):
        found = verification.check(HostKernel(scale(misdeed)), (LAUNCH, LAUNCH))
        assert found.state is (WRONG if words else OK), found
        assert words in found.detail
        assert found.error is not None
        assert (0.1 < found.error < 1) == (misdeed == "slightly")
    assert verification.check(HostKernel(scale()), (LAUNCH, LAUNCH)).state is OK


@pytest.mark.parametrize(("misdeed", "name"), [("kept", "kept"), ("constant", "filter")])
def test_what_the_baseline_leaves_alone_must_not_change(
    monkeypatch: pytest.MonkeyPatch, misdeed: str, name: str
) -> None:
    verification = verification_of(monkeypatch)
    checksums = OperandChecksums(verification.buffers())
    verification.check(HostKernel(scale()), (LAUNCH, LAUNCH))
    assert checksums.changed() == ()

    verification.check(HostKernel(scale(misdeed)), (LAUNCH, LAUNCH))

    assert checksums.changed() == (name,)
    assert verification.timed is not None
    assert [one.name for one in verification.timed.written] == ["out", "sums"]


def test_a_kernel_with_a_workspace_runs_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    verification, calls = verification_of(monkeypatch), itertools.count()

    def run(*arguments: Any) -> None:
        scale("one element" if next(calls) == 2 else "")(*arguments)

    assert verification.check(HostKernel(run), (LAUNCH, SECONDS)).state is WRONG
    assert next(calls) == 3


def test_answers_in_files_take_the_place_of_the_baseline(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (case,) = PROBLEM.verification_cases()
    answer = np.float32(5) * case.buffers(np)["x"].values.reshape(10, 100)
    np.save(tmp_path / "out.npy", answer)
    problem = replace(PROBLEM, answer={"out": str(tmp_path / "out.npy")})
    verification = verification_of(monkeypatch, problem)

    assert verification.check(HostKernel(scale(factor=5.0)), (LAUNCH,)).state is OK
    assert "values wrong in out" in verification.check(HostKernel(scale()), (LAUNCH,)).detail


def decide(answer: Any, outputs: Any, atol: float) -> bool:
    assert (answer[0], outputs[1:], atol) == (7, [None] * 4, 0.5)
    assert outputs[0].shape == (10, 100)
    if not np.isfinite(outputs[0]).all():
        raise ValueError("no numbers")
    return bool(abs(outputs[0][0, 0]) < 100)


def test_a_function_decides_on_the_problem_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    verify = pickle.dumps((decide, [7, None, None, None, None], 0.5))
    verification = verification_of(monkeypatch, PROBLEM, verify=verify)

    assert verification.check(HostKernel(scale(factor=5.0)), (LAUNCH,)).state is OK
    assert "verify returned false" in verification.check(HostKernel(scale(factor=1e6)), (LAUNCH,)).detail
    assert (
        "verify raised ValueError: no numbers"
        in verification.check(HostKernel(scale("writes nothing")), (LAUNCH,)).detail
    )
    checked = verification_of(monkeypatch, verify=verify)
    assert (
        "scale 500: 1000 of 1000 values wrong in out"
        in checked.check(HostKernel(scale(factor=5.0)), (LAUNCH, LAUNCH)).detail
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_is_compared(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    tolerance = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-4, "float64": 1e-10}.get(dtype, 0.0)
    out = Argument("out", dtype, (100,), role="out", tolerance=tolerance)
    problem = ArraysProblem("fill", (), (out,))
    right = stored(np, np.arange(100) % 2 if dtype == "bool" else np.arange(100), dtype)

    def fill(change: int) -> HostKernel:
        def run(address: int) -> None:
            values = memory(address, STORAGE[dtype], 100)
            values[:] = right
            if change:
                values[50] = to_bfloat16(np.array([99.0], np.float32))[0] if dtype == "bfloat16" else not right[50]

        return HostKernel(run)

    monkeypatch.setattr(engine, "LoadedKernel", lambda cubin, entry: fill(0))
    verification = Verification(problem.verification_cases(), Baseline(b"", "fill", (LAUNCH,)))

    assert verification.check(fill(0), (LAUNCH,)).state is OK
    wrong = verification.check(fill(1), (LAUNCH,))
    assert "1 of" in wrong.detail
    assert wrong.detail.endswith(
        f"the first at {100 if dtype.endswith('64') and dtype[0] in 'uic' else 100 if dtype == 'complex128' else 50}"
    )


def test_a_kernel_is_run_once_on_initial_values() -> None:
    (case,) = PROBLEM.verification_cases()
    found = run_once(case, HostKernel(scale()), LAUNCH)

    assert list(found) == ["out", "x", "sums", "kept", "filter"]
    assert found["out"].shape == (10, 100)
    assert (found["out"].reshape(-1) == np.float32(3) * found["x"]).all()
    assert found["sums"].tolist() == [2.5] * 3
    assert found["kept"].tolist() == [0, 1, 2, 3, 4]


def test_a_problem_without_a_reference_is_a_device_error() -> None:
    with pytest.raises(DeviceError, match="no reference implementation of ddgemm"):
        bind_reference(GemmProblem("dd", "N", "T", 4, 4, 4), {})
    with pytest.raises(DeviceError, match="no reference implementation of scale"):
        bind_reference(PROBLEM, {})


def test_the_reference_of_a_gemm_is_a_call_of_cublas() -> None:
    addresses = {"A": 1, "B": 2, "C": 3}
    call = GemmProblem("c", "C", "N", 5, 6, 7, 1 + 2j, 3.0).reference_call(addresses)
    assert call is not None
    assert call.function == "cgemm"
    alpha = call.arguments[5]
    assert memory(alpha, np.complex64, 2).tolist() == [1 + 2j, 3]
    assert call.arguments == (2, 0, 5, 6, 7, alpha, 1, 7, 2, 7, alpha + 8, 3, 5)
    batch = GemmProblem("hs", "T", "N", 5, 6, 7, batch=2).reference_call(addresses)
    assert batch is not None
    assert batch.function == "gemmStridedBatchedEx"
    alpha = batch.arguments[5]
    assert batch.arguments == (
        1, 0, 5, 6, 7, alpha, 1, 2, 7, 35, 2, 2, 7, 42, alpha + 4, 3, 0, 5, 30, 2, 68, -1,
    )  # fmt: skip
    half = GemmProblem("b", "T", "N", 5, 6, 7).reference_call(addresses)
    assert half is not None
    assert half.function == "gemmEx"
    assert half.arguments[12:] == (half.arguments[5] + 4, 3, 14, 5, 68, -1)
    with pytest.raises(DeviceError, match="2\\*\\*31 - 1"):
        GemmProblem("s", "N", "N", 2**31, 1, 1).reference_call(addresses)


KERNELS = Path(engine.__file__).parent / "worker_kernels"
COMPARED = [("float", "double", 1), ("double", "double", 1), ("double", "double", 2)]
COMPARED += [("half", "double", 1), ("bfloat16", "double", 1)]
COMPARED += [(one, one, 1) for one in ("half", "bfloat16", "float", "unsigned char", "unsigned int")]


@pytest.mark.parametrize(
    "architecture", ["sm_80", *(pytest.param(one, marks=pytest.mark.system) for one in ("sm_90", "sm_100"))]
)
@pytest.mark.parametrize(
    ("file", "macros"),
    [
        *((name, {}) for name in ("stopwatch.cu", "checksum.cu", "guards.cu")),
        *(("compare.cu", dict(zip(("WORD", "EXPECTED", "TERMS"), one, strict=True))) for one in COMPARED),
    ],
)
@pytest.mark.sampled(0, system=9, nightly=99)
def test_kernels_of_the_worker_compile(architecture: str, file: str, macros: dict[str, Any]) -> None:
    from cuda.bindings import nvrtc

    _, program = nvrtc.nvrtcCreateProgram((KERNELS / file).read_bytes(), b"worker.cu", 0, [], [])
    options = [
        f"--gpu-architecture={architecture}",
        "--std=c++17",
        *(f"-D{name}={one}" for name, one in macros.items()),
    ]
    (result,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = bytes(size)  # of zeros: Python shares its one-byte objects, and NVRTC writes a zero into them
    nvrtc.nvrtcGetProgramLog(program, log)

    assert result == nvrtc.nvrtcResult.NVRTC_SUCCESS, log.decode()


def test_checksums_read_whole_words_wherever_elements_begin():
    problem = GemmProblem("h", "N", "N", 33, 17, 9)
    found = Verification([GemmCase(problem, integers=False, offset=1)]).buffers()

    assert {name for name, _ in found} >= {"A", "B"}
    assert all(array.data.ptr % 4 == 0 for _, array in found)
