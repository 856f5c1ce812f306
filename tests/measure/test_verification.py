"""What a verification holds a kernel to, as far as it is made on the host."""

import numpy as np
import pytest

from mltune.measure.operand_checksums import _CHECKSUM
from mltune.measure.stopwatch import _SPIN
from mltune.measure.verification import _COMPARE, _HostCase, size_cases, verification_cases
from mltune.problem.gemm import CASES, parse_problem


def cases_of(precision, trans):
    return verification_cases(parse_problem(f"{precision}gemm", trans=trans, m=4096, n=4096, k=4096))


@pytest.mark.parametrize("precision", ["s", "d", "c", "z"])
def test_every_fringe_alignment_and_kind_of_operand_occurs(precision):
    cases = cases_of(precision, "NT")

    assert {(case.integers, bool(case.offset)) for case in cases} == {
        (a, b) for a in (True, False) for b in (True, False)
    }
    for case in cases:
        problem = case.problem
        assert all(extent % 2 for extent in (problem.m, problem.n, problem.k))
        odd = all(leading % 2 for leading in (problem.lda, problem.ldb, problem.ldc))
        assert odd == bool(case.offset)
        assert problem.is_exact
        assert "aligned" in case.label


@pytest.mark.parametrize(("precision", "trans_a", "trans_b"), CASES[::5])
def test_right_answer_passes_and_everything_else_is_guarded(precision, trans_a, trans_b):
    parts = 2 if precision in "cz" else 1
    for case in cases_of(precision, trans_a + trans_b):
        host = _HostCase.make(case)
        problem = case.problem
        operands = problem.operands(np, 20110, integers=case.integers)
        answer = host.before.copy()
        first = host.skip_bytes // problem.element_bytes * parts
        window = answer[first : first + problem.ldc * problem.n * parts].reshape(problem.n, problem.ldc, parts)
        right = np.ascontiguousarray(problem.answer(operands).astype(problem.dtype).T)
        window[:, : problem.m] = right.view(answer.dtype).reshape(problem.n, problem.m, parts)

        guarded = host.bound < 0
        error = abs(answer.astype(np.float64) - host.expected)[~guarded]

        assert (~guarded).sum() == problem.m * problem.n * parts
        assert (error <= host.bound[~guarded]).all()
        assert (answer[guarded] == host.before[guarded]).all()
        assert not case.integers or (error == 0).all()
        assert (host.skip_bytes % 256 == 0) == (case.offset == 0)
        assert np.isnan(host.A[0])
        assert np.isnan(host.B[-1])


def test_bytes_before_and_behind_are_as_wide_as_a_tile():
    host = _HostCase.make(cases_of("s", "NN")[0])
    inside = np.flatnonzero(host.bound >= 0)

    assert inside[0] >= 4096
    assert len(host.bound) - inside[-1] >= 256 * host.case.problem.ldc


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (5, 0, 3), (0, 5, 3), (7, 3, 0)])
def test_sizes_without_elements_are_legal(m, n, k):
    cases = size_cases(parse_problem("zgemm", trans="CN", m=m, n=n, k=k))

    assert [case.integers for case in cases] == [False, True]
    for case in cases:
        assert (_HostCase.make(case).bound >= 0).sum() == 2 * m * n


def test_integers_are_left_out_where_their_answer_is_not_exact():
    cases = size_cases(parse_problem("sgemm", trans="NN", m=4, n=4, k=4, alpha=0.1))

    assert [case.integers for case in cases] == [False]


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize(
    ("source", "macro"),
    [(_SPIN, "NONE=0"), (_CHECKSUM, "NONE=0"), (_COMPARE, "REAL=float"), (_COMPARE, "REAL=double")],
)
def test_kernels_of_the_worker_compile(architecture, source, macro):
    from cuda.bindings import nvrtc

    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"worker.cu", 0, [], [])
    options = [f"--gpu-architecture={architecture}".encode(), f"-D{macro}".encode()]
    (result,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = bytes(size)  # of zeros: Python shares its one-byte objects, and NVRTC writes a zero into them
    nvrtc.nvrtcGetProgramLog(program, log)

    assert result == nvrtc.nvrtcResult.NVRTC_SUCCESS, log.decode()
