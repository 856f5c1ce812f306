import dataclasses
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltune.errors import ProblemError
from mltune.problem import gemm_operands
from mltune.problem.array_values import FP8, STORAGE, stored
from mltune.problem.gemm import CASES, GemmProblem, parse_problem
from mltune.problem.gemm_operands import HALF_PRECISION, PRECISIONS, transpositions
from mltune.problem.gemm_verification import verification_problem
from mltune.problem.kinds import problem_from_json
from mltune.problem.problem import RunnableProblem

ALL = [(precision, *ops) for precision in PRECISIONS if precision != "dd" for ops in transpositions(precision)]
cases = pytest.mark.parametrize("case", ALL, ids=["".join(case) for case in ALL])


def nontrivial(case: tuple[str, str, str], *, exact: bool = False) -> GemmProblem:
    precision, trans_a, trans_b = case
    alpha, beta = (1.3 - 0.2j, 0.7 + 0.1j) if precision in "cz" else (1.3, 0.7)
    if exact:
        alpha, beta = (2 - 1j, 0.5 + 1j) if precision in "cz" else (2.0, 0.5)
    return GemmProblem(precision, trans_a, trans_b, 13, 9, 21, alpha, beta, lda=24, ldb=25, ldc=14)


def multiply(problem: GemmProblem, operands: dict[str, np.ndarray]) -> np.ndarray:
    """GEMM in the precision of the problem, written independently of the module."""

    def matrix_of(buffer: np.ndarray, rows: int, columns: int, leading: int) -> np.ndarray:
        return np.array(
            [[buffer[i + j * leading] for j in range(columns)] for i in range(rows)], dtype=problem.scalar_dtype
        )

    def op(trans: str, buffer: np.ndarray, rows: int, columns: int, leading: int) -> np.ndarray:
        if trans == "N":
            return matrix_of(buffer, rows, columns, leading)
        matrix = matrix_of(buffer, columns, rows, leading).T
        return matrix.conj() if trans == "C" else matrix

    m, n, k = problem.m, problem.n, problem.k
    types = problem.types
    A, B = (gemm_operands.numbers(operands[name], dtype) for name, dtype in zip("AB", types.operands, strict=True))
    product = op(problem.trans_a, A, m, k, problem.lda) @ op(problem.trans_b, B, k, n, problem.ldb)
    product = problem.scalar_dtype.type(problem.alpha) * product
    if problem.beta:
        C = gemm_operands.numbers(operands["C"], types.result)
        product = product + problem.scalar_dtype.type(problem.beta) * matrix_of(C, m, n, problem.ldc)
    return stored(np, product, types.result)


def spoil(problem: GemmProblem, result: np.ndarray) -> None:
    """Put a wrong element into a result."""
    kind = problem.types.result
    unit = 2.0**-7 if kind in HALF_PRECISION else 2000 * np.finfo(problem.result_dtype).eps
    unit = 2.0**-5 if problem.types.is_fp8 else unit  # its sums have few bits
    wrong = gemm_operands.numbers(result[12:, 8], kind) * (1 + 4 * unit)
    result[12:, 8] = stored(np, wrong, kind)


def test_there_are_26_cases() -> None:
    assert len(CASES) == len(set(CASES)) == 26
    assert sum(precision in "sd" for precision, _, _ in CASES) == 8


@cases
def test_a_correct_product_stays_within_the_bound(case: tuple[str, str, str]) -> None:
    problem = nontrivial(case)
    operands = problem.operands(np, seed=1)
    error = problem.worst_error(multiply(problem, operands), problem.answer(operands), problem.error_bound(operands))
    assert 0 < error < 1


@cases
def test_a_wrong_element_exceeds_the_bound(case: tuple[str, str, str]) -> None:
    problem = nontrivial(case)
    operands = problem.operands(np, seed=1)
    result = multiply(problem, operands)
    spoil(problem, result)
    assert problem.worst_error(result, problem.answer(operands), problem.error_bound(operands)) > 1


@cases
def test_integers_have_one_right_answer(case: tuple[str, str, str]) -> None:
    problem = nontrivial(case, exact=True)
    assert problem.is_exact
    operands = problem.operands(np, seed=2, integers=True)
    result = gemm_operands.numbers(multiply(problem, operands), problem.types.result)
    answer = problem.answer(operands)
    rounded = gemm_operands.numbers(stored(np, answer, problem.types.result), problem.types.result)
    np.testing.assert_array_equal(result, rounded)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_integers_are_small_and_all_drawn(precision: str) -> None:
    A = GemmProblem(precision, *transpositions(precision)[0], 50, 1, 50).operands(np, seed=3, integers=True)["A"]
    A = gemm_operands.numbers(A, PRECISIONS[precision].operands[0])
    assert set(A.real.tolist()) == {-3, -2, -1, 0, 1, 2, 3}


def test_integers_are_not_exact_where_a_sum_leaves_the_integers() -> None:
    assert GemmProblem("s", "N", "N", 1, 1, 29000).is_exact
    assert not GemmProblem("s", "N", "N", 1, 1, 30000).is_exact
    assert GemmProblem("d", "N", "N", 1, 1, 2**30).is_exact
    assert not GemmProblem("s", "N", "N", 8, 8, 8, alpha=0.1).is_exact


def test_nan_and_infinity_are_wrong() -> None:
    problem = nontrivial(("c", "N", "C"))
    operands = problem.operands(np, seed=1)
    for poison in (math.nan, math.inf, complex(0, math.nan), complex(1, -math.inf)):
        result = multiply(problem, operands)
        result[3, 4] = poison
        assert problem.worst_error(result, problem.answer(operands), problem.error_bound(operands)) == math.inf


def test_a_missing_answer_is_wrong_where_the_bound_is_zero() -> None:
    problem = GemmProblem("s", "N", "N", 2, 2, 0)
    operands = problem.operands(np, seed=0)
    reference, bound = problem.answer(operands), problem.error_bound(operands)
    assert problem.worst_error(np.zeros((2, 2), np.float32), reference, bound) == 0
    assert problem.worst_error(np.full((2, 2), 1e-30, np.float32), reference, bound) > 1


def test_what_must_not_be_read_is_nan() -> None:
    problem = nontrivial(("d", "T", "N"))
    operands = problem.operands(np, seed=1)
    assert np.isnan(operands["A"].reshape(-1, 24)[:, 21:]).all()
    assert np.isnan(operands["B"].reshape(-1, 25)[:, 21:]).all()
    assert np.isnan(problem.padding(operands["C"])).all()
    assert problem.padding(operands["C"]).shape == (1, 9)
    assert not np.isnan(problem.result(operands["C"])).any()
    idle = dataclasses.replace(problem, alpha=0.0, beta=0.0).operands(np, seed=1)
    assert all(np.isnan(matrix).all() for matrix in (idle["A"], idle["B"], idle["C"]))


def test_scalars_of_zero_ignore_nan() -> None:
    problem = GemmProblem("z", "C", "T", 4, 5, 6, alpha=0, beta=2j)
    operands = problem.operands(np, seed=1)
    np.testing.assert_array_equal(problem.answer(operands), 2j * problem.result(operands["C"]))
    assert (
        problem.worst_error(2j * problem.result(operands["C"]), problem.answer(operands), problem.error_bound(operands))
        == 0
    )


@cases
def test_operands_are_reproducible_and_within_range(case: tuple[str, str, str]) -> None:
    problem = dataclasses.replace(nontrivial(case), lda=0, ldb=0, ldc=0)
    first, second, other = (problem.operands(np, seed=seed) for seed in (5, 5, 6))
    for name in "ABC":
        np.testing.assert_array_equal(first[name], second[name])
        assert (first[name] != other[name]).any()
        dtype = dict(zip("ABC", (*problem.types.operands, problem.types.result), strict=True))[name]
        assert first[name].dtype == STORAGE[dtype]
        matrix = gemm_operands.numbers(first[name], dtype)
        assert (matrix.real >= -1).all()
        assert (matrix.real < 1).all() or dtype in ("float16", "bfloat16", *FP8)  # rounded
        assert matrix.real.min() < -0.5 < 0.5 < matrix.real.max()


def test_facts_of_a_problem() -> None:
    problem = parse_problem("sgemm", trans="NT", m=4096, n=512, k=64)
    assert (problem.name, problem.case, problem.label) == ("sgemm", "sgemm NT", "sgemm NT 4096x512x64")
    assert parse_problem("ZGEMM", trans="nc", m=8, n=8, k=8).label == "zgemm NC 8"
    assert problem.flops == 2 * 4096 * 512 * 64
    assert problem.bytes == 4 * (4096 * 64 + 512 * 64 + 4096 * 512)
    assert (problem.lda, problem.ldb, problem.ldc) == (4096, 512, 4096)
    assert (problem.element_bytes, problem.arithmetic) == (4, "fp32")
    complex_problem = GemmProblem("z", "T", "C", 2, 3, 4, beta=1)
    assert complex_problem.flops == 8 * 24
    assert complex_problem.bytes == 16 * (8 + 12 + 2 * 6)
    assert (complex_problem.lda, complex_problem.ldb, complex_problem.ldc) == (4, 3, 2)
    assert complex_problem.arithmetic == "fp64"


def test_variables_and_macros() -> None:
    problem = GemmProblem("z", "T", "C", 2, 3, 4)
    assert problem.variables == {
        "m": 2, "n": 3, "k": 4, "lda": 4, "ldb": 3, "ldc": 2, "element_bytes": 16, "result_bytes": 16,
        "words": 4,
        "is_complex": 1, "is_double": 1,
        "trans_a": 1, "trans_b": 1, "conj_a": 0, "conj_b": 1, "fma_per_mac": 4,
        "batch": 1, "has_epilogue": 0, "promotes": 0, "block_scales": 0,
    }  # fmt: skip
    assert problem.macros() == {"PRECISION": 3, "TRANS_A": 1, "TRANS_B": 1, "CONJ_A": 0, "CONJ_B": 1}
    assert GemmProblem("s", "N", "C", 1, 1, 1) == GemmProblem("s", "N", "T", 1, 1, 1)


def test_a_batch_is_products_of_matrices_that_lie_behind_one_another() -> None:
    problem = parse_problem("cgemm", trans="CN", m=3, n=2, k=5, beta=0.5j, batch=4)
    single = dataclasses.replace(problem, batch=1)
    assert (problem.label, single.label) == ("cgemm CN 3x2x5 batch 4", "cgemm CN 3x2x5")
    assert problem.macros() == single.macros() | {"BATCHED": 1}
    for count in ("flops", "bytes", "operand_bytes"):
        assert getattr(problem, count) == 4 * getattr(single, count)
    assert "batch" in problem.size_names
    assert "batch" not in single.size_names  # its kernel takes no strides
    assert "batch" not in single.to_json()
    assert problem_from_json(problem.to_json()) == problem

    operands = problem.operands(np, seed=1)
    answer, bound = problem.answer(operands), problem.error_bound(operands)
    assert answer.shape == bound.shape == problem.result(operands["C"]).shape == (4, 3, 2)
    for at, (matrix, limit) in enumerate(zip(answer, bound, strict=True)):
        each = {
            name: operands[name][at * stride : (at + 1) * stride]
            for name, stride in zip("ABC", problem.strides, strict=True)
        }
        np.testing.assert_array_equal(single.answer(each), matrix)
        np.testing.assert_allclose(single.error_bound(each), limit)

    arguments = problem.kernel_arguments({"A": 0, "B": 0, "C": 0})
    assert [*arguments][-5:] == ["ldc", "stride_a", "stride_b", "stride_c", "batch"]
    assert [int(value) for value in [*arguments.values()][-4:]] == [15, 10, 6, 4]


@pytest.mark.parametrize("batch", [0, 65536, 1.5, True])
def test_a_batch_is_a_number_that_a_grid_has(batch) -> None:
    with pytest.raises(ProblemError, match=r"batch cannot be .*: it is a whole number from 1 to 65535"):
        GemmProblem("s", "N", "N", 8, 8, 8, batch=batch)


def test_double_double_numbers_have_no_batch() -> None:
    with pytest.raises(ProblemError, match="there is no batched ddgemm"):
        GemmProblem("dd", "N", "N", 8, 8, 8, batch=2)


@pytest.mark.parametrize(("precision", "result", "result_bytes"), [("b", "bfloat16", 2), ("bs", "float32", 4)])
def test_half_precision_has_scalars_in_single(precision: str, result: str, result_bytes: int) -> None:
    problem = parse_problem(f"{precision}gemm", trans="NT", m=4096, n=512, k=64, beta=0.5)
    label = f"{precision}gemm NT 4096x512x64"
    assert (problem.label, problem.arithmetic, problem.element_bytes) == (label, "tensor_fp16", 2)
    assert problem.bytes == 2 * (4096 * 64 + 512 * 64) + result_bytes * 2 * 4096 * 512
    assert problem.operand_bytes == 2 * (4096 * 64 + 512 * 64) + result_bytes * 4096 * 512
    assert [buffer.dtype for buffer in problem.buffers] == ["bfloat16", "bfloat16", result]
    assert type(problem.kernel_arguments({"A": 0, "B": 0, "C": 0})["alpha"]) is np.float32
    variables = problem.variables
    names = ("element_bytes", "result_bytes", "words", "is_double")
    assert [variables[name] for name in names] == [2, result_bytes, 1, 0]
    assert problem.cost_case == "bgemm NT", "models serve both"


def test_each_precision_has_a_number() -> None:
    numbers = {
        precision: GemmProblem(precision, *transpositions(precision)[0], 1, 1, 1).macros()["PRECISION"]
        for precision in PRECISIONS
    }
    known = {"s": 0, "d": 1, "c": 2, "z": 3, "hs": 4, "bs": 5, "dd": 6, "h": 7, "b": 8}
    of_fp8 = [f"{operands}{result}" for operands in ("e", "e45", "e54") for result in ("b", "h", "s", "bf")]
    assert numbers == known | {precision: 9 + place for place, precision in enumerate(of_fp8)}


@pytest.mark.parametrize("precision", ["h", "b"])
def test_documents_without_the_type_of_the_result_are_older(precision: str) -> None:
    document = GemmProblem(precision, "T", "N", 5, 6, 7).to_json()
    before = {name: value for name, value in document.items() if name != "result"}
    assert problem_from_json(document).precision == precision
    assert problem_from_json(before) == GemmProblem(f"{precision}s", "T", "N", 5, 6, 7)
    with pytest.raises(
        ProblemError, match=f"result of {precision}gemm cannot be 'float32': it is {document['result']}"
    ):
        problem_from_json({**document, "result": "float32"})


def test_half_precision_is_rounded_once_and_may_overflow() -> None:
    problem = GemmProblem("h", "N", "N", 1, 1, 2)
    bound = np.zeros((1, 1))
    for reference, result, is_right in [
        (1 + 2.0**-11, 1.0, True),
        (1 + 2.0**-10, 1.0, False),
        (7e4, math.inf, True),
        (7e4, -math.inf, False),
        (6e4, math.inf, False),
        (2.0**-25, 0.0, True),
    ]:
        error = problem.worst_error(np.full((1, 1), result, np.float16), np.full((1, 1), reference), bound)
        assert (error <= 1) == is_right


@pytest.mark.parametrize("precision", ["hs", "bs", "h", "b"])
def test_sums_that_are_cut_off_stay_within_the_bound(precision: str) -> None:
    """Tensor cores cut off every sum; all terms positive is their worst case."""
    problem = GemmProblem(precision, "T", "N", 8, 8, 4096)
    operands = problem.operands(np, seed=1)
    for name in "AB":
        operands[name] = abs(operands[name]) if precision[0] == "h" else operands[name] & 0x7FFF
    left, right = problem.factors(operands)
    products = left[:, None].astype(np.float64) * right.T[None].astype(np.float64)
    sums = np.zeros((8, 8))
    for first in range(0, problem.k, 16):
        sums = (sums + products[:, :, first : first + 16].sum(axis=2)).view(np.int64)
        sums = (sums >> 29 << 29).view(np.float64)  # 24 bits are left, those of FP32
    error = problem.worst_error(
        stored(np, sums, problem.types.result), problem.answer(operands), problem.error_bound(operands)
    )
    assert 0.001 < error < 1


def test_kernel_arguments_are_in_order_and_typed() -> None:
    problem = GemmProblem("c", "N", "N", 2, 3, 4, alpha=2, beta=1j)
    arguments = problem.kernel_arguments({"A": "a", "B": "b", "C": "c"})
    assert list(arguments) == ["m", "n", "k", "alpha", "A", "lda", "B", "ldb", "beta", "C", "ldc"]
    assert list(arguments.values()) == [2, 3, 4, 2, "a", 2, "b", 4, 1j, "c", 2]
    assert [type(argument) for argument in arguments.values() if not isinstance(argument, str)] == (
        [np.int64] * 3 + [np.complex64] + [np.int64] * 2 + [np.complex64] + [np.int64]
    )


@pytest.mark.parametrize("aligned", [True, False])
@cases
def test_verification_problem(case: tuple[str, str, str], aligned: bool) -> None:
    problem = verification_problem(GemmProblem(*case, 4096, 4096, 4096), aligned=aligned)
    assert (problem.precision, problem.trans_a, problem.trans_b) == case
    assert all(extent % 2 for extent in (problem.m, problem.n, problem.k))
    assert all(leading % 16 == 0 if aligned else leading % 2 for leading in (problem.lda, problem.ldb, problem.ldc))
    assert (problem.beta != 0) == aligned
    assert problem.is_exact


@given(
    case=st.sampled_from(CASES),
    sizes=st.tuples(*[st.integers(0, 2**12)] * 3),
    padding=st.tuples(*[st.integers(0, 5)] * 3),
    scalars=st.tuples(*[st.floats(-4, 4, width=32)] * 4),
)
def test_json_round_trip(
    case: tuple[str, str, str],
    sizes: tuple[int, int, int],
    padding: tuple[int, int, int],
    scalars: tuple[float, float, float, float],
) -> None:
    tight = GemmProblem(*case, *sizes)
    alpha, beta = complex(*scalars[:2]), complex(*scalars[2:])
    problem = dataclasses.replace(
        tight,
        alpha=alpha if tight.is_complex else alpha.real,
        beta=beta if tight.is_complex else beta.real,
        lda=tight.lda + padding[0],
        ldb=tight.ldb + padding[1],
        ldc=tight.ldc + padding[2],
    )
    assert GemmProblem.from_json(json.loads(json.dumps(problem.to_json()))) == problem


@pytest.mark.parametrize("case", [("s", "N", "T"), ("z", "C", "N")])
@pytest.mark.parametrize("sizes", [(0, 0, 0), (0, 3, 4), (3, 0, 4), (3, 4, 0), (1, 1, 1)])
def test_empty_extents(case: tuple[str, str, str], sizes: tuple[int, int, int]) -> None:
    problem = GemmProblem(*case, *sizes, beta=1)
    operands = problem.operands(np, seed=1)
    reference = problem.answer(operands)
    assert reference.shape == problem.error_bound(operands).shape == problem.result(operands["C"]).shape == sizes[:2]
    assert problem.worst_error(reference.astype(problem.result_dtype), reference, problem.error_bound(operands)) < 1
    if not sizes[2]:
        np.testing.assert_array_equal(reference, problem.result(operands["C"]))


@pytest.mark.parametrize(
    ("name", "keywords"),
    [
        ("qgemm", {}),
        ("gemm", {}),
        ("hgemm", {"alpha": 1j}),
        ("sgemm", {"trans": "NX"}),
        ("sgemm", {"trans": "N"}),
        ("sgemm", {"trans": ""}),
        ("sgemm", {"m": -1}),
        ("sgemm", {"n": 2**60}),
        ("sgemm", {"k": 1.5}),
        ("sgemm", {"k": True}),
        ("zgemm", {"m": 2**22, "n": 2**22}),
        ("sgemm", {"alpha": 1j}),
        ("sgemm", {"alpha": 1e39}),
        ("dgemm", {"beta": math.nan}),
        ("dgemm", {"beta": "2"}),
    ],
)
def test_impossible_problems(name: str, keywords: dict[str, object]) -> None:
    with pytest.raises(ProblemError):
        parse_problem(name, **({"trans": "NN", "m": 8, "n": 8, "k": 8} | keywords))


def test_a_leading_dimension_holds_the_rows() -> None:
    with pytest.raises(ProblemError, match=r"lda cannot be 7: for a matrix of 8 rows it is at least 8"):
        GemmProblem("s", "N", "N", 8, 8, 8, lda=7)
    assert GemmProblem("s", "T", "N", 8, 8, 7, lda=7).lda == 7


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"precision": "s"},
        {"precision": "s", "trans_a": "N", "trans_b": "N", "m": 1, "n": 1, "k": 1, "surprise": 1},
        {"precision": "c", "trans_a": "N", "trans_b": "N", "m": 1, "n": 1, "k": 1, "alpha": [1, 2, 3]},
        {"precision": "c", "trans_a": "N", "trans_b": "N", "m": "1", "n": 1, "k": 1},
    ],
)
def test_malformed_documents(document: dict[str, object]) -> None:
    with pytest.raises(ProblemError):
        GemmProblem.from_json(document)


@pytest.mark.parametrize(("beta", "role"), [(0.0, "out"), (0.5, "inout")])
def test_gemm_is_runnable_and_c_is_read_unless_beta_is_zero(beta: float, role: str) -> None:
    problem = GemmProblem("d", "N", "C", 4, 5, 6, beta=beta)
    assert isinstance(problem, RunnableProblem)
    assert [(buffer.name, buffer.role, buffer.dtype) for buffer in problem.buffers] == [
        ("A", "in", "float64"),
        ("B", "in", "float64"),
        ("C", role, "float64"),
    ]
    assert problem.formula == "C = alpha A B^T + beta C, column-major as in the BLAS"
    assert not problem.is_empty
    assert dataclasses.replace(problem, m=0, lda=0, ldc=0).is_empty


def test_a_winner_is_verified_at_other_sizes_with_its_own_scalars() -> None:
    problem = GemmProblem("z", "C", "N", 40, 50, 60, 1j, 0.1, lda=70)
    others = problem.winner_problems()
    assert [[one.m, one.n, one.k] for one in others] == problem.verification_document()["sizes"][1:-1]
    assert {(one.case, one.alpha, one.beta) for one in others} == {("zgemm CN", 1j, 0.1 + 0j)}
    assert all(one.ldc == max(1, one.m) for one in others)


@pytest.mark.parametrize("precision", [*"sdczhb", "hs", "bs"])
def test_an_error_on_the_device_is_a_share_of_the_bound(precision: str) -> None:
    """In double precision the kernel is compared with the reference implementation, whose error is allowed for."""
    problem = nontrivial((precision, "T", "N"))
    before = problem.operands(np, seed=1)

    def run(operands: dict[str, np.ndarray]) -> None:
        problem.result(operands["C"])[...] = multiply(problem, operands)

    after = {**before, "C": before["C"].copy()}
    run(after)
    assert problem.device_error(before, after, run) < 1
    spoil(problem, problem.result(after["C"]))
    assert problem.device_error(before, after, run) > 1
    ran: list[object] = []

    def record_and_run(operands: dict[str, np.ndarray]) -> None:
        ran.append(operands)
        run(operands)

    problem.device_error(before, after, record_and_run)
    assert len(ran) == (precision in "dz")


@pytest.mark.parametrize("precision", [*"sdczhb", "hs", "bs"])
def test_operands_of_a_gpu_repeat_numbers_of_the_host_at_no_row(precision, monkeypatch):
    """A module that is not NumPy stands for that of a GPU."""
    monkeypatch.setattr(gemm_operands, "REPEATED", 1013)
    elsewhere = SimpleNamespace(asarray=np.asarray, tile=np.tile)
    problem = GemmProblem(precision, "N", "T", 64, 128, 96)

    operands = problem.operands(elsewhere, 267)

    for name, shape in zip("ABC", problem.shapes(), strict=True):
        matrix = problem.operands(np, 267)[name], operands[name]
        assert matrix[0].shape == matrix[1].shape
        assert matrix[0].dtype == matrix[1].dtype
        rows = matrix[1].reshape(shape[1], -1)
        assert name == "C" or len(np.unique(rows, axis=0)) == len(rows)
        dtype = dict(zip("ABC", (*problem.types.operands, problem.types.result), strict=True))[name]
        elements = gemm_operands.numbers(matrix[1], dtype)
        parts = elements.view(elements.real.dtype)
        assert np.isnan(parts).all() if name == "C" else (np.abs(parts) <= 1).all() and parts.std() > 0.5
