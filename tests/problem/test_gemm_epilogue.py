"""The epilogue of a GEMM: names, the correct result, its error bound, and how it is passed on."""

import json
import math

import numpy as np
import pytest

from mltune.errors import ProblemError, UsageError
from mltune.kernel.reader import load_kernel
from mltune.problem.array_values import stored
from mltune.problem.gemm import GemmProblem, parse_problem
from mltune.problem.gemm_cases import as_table, expand
from mltune.problem.gemm_epilogue import ACTIVATIONS, BIASES
from mltune.problem.gemm_operands import numbers

EPILOGUES = ["+".join(filter(None, (bias, activation))) for bias in BIASES for activation in ACTIVATIONS][1:]
EPILOGUES += ["scales", "scales+bias_m", "scales+bias_n+silu", "scales+relu"]

VALUES = {
    "": lambda x: x,
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + math.exp(-x)),
}


@pytest.mark.parametrize("precision", ["s", "h", "bs"])
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_an_answer_is_that_of_its_definition(precision, epilogue):
    problem = GemmProblem(precision, "T", "N", 4, 3, 5, 1.5, -0.5, epilogue=epilogue)
    operands = problem.operands(np, 1)
    products, added = (
        GemmProblem(precision, "T", "N", 4, 3, 5, *scalars).answer({name: operands[name] for name in "ABC"})
        for scalars in ((1.5, 0.0), (0.0, -0.5))
    )
    if problem.finish.scales:
        products = np.diag(operands["scale_m"].astype("float64")) @ products @ np.diag(operands["scale_n"])
    sums = products + added
    if problem.finish.bias:
        bias = numbers(operands["bias"], problem.types.result).astype(np.float64)
        assert len(bias) == {"bias_m": 4, "bias_n": 3}[problem.finish.bias]
        sums = sums + (bias.reshape(-1, 1) if problem.finish.bias == "bias_m" else bias)
    expected = np.vectorize(VALUES[problem.finish.activation])(sums)
    answer, bound = problem.answer(operands), problem.error_bound(operands)
    np.testing.assert_allclose(answer, expected, rtol=1e-12, atol=1e-12)
    kind = problem.types.result
    assert problem.worst_error(stored(np, expected.astype("float32"), kind), answer, bound) <= 1
    assert problem.worst_error(stored(np, (expected + 0.1).astype("float32"), kind), answer, bound) > 1


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_it_is_passed_on(epilogue):
    problem = parse_problem("hgemm", trans="TN", m=4, n=3, k=5, epilogue=epilogue)
    assert problem.label == f"hgemm TN {epilogue} 4x3x5"
    assert GemmProblem.from_json(json.loads(json.dumps(problem.to_json()))) == problem
    assert [*expand(as_table(problem))] == [problem]
    arguments = [*problem.kernel_arguments(problem.operands(np, 1))]
    vectors = ["scale_m", "scale_n"] * bool(problem.finish.scales) + ["bias"] * bool(problem.finish.bias)
    assert arguments[arguments.index("ldc") + 1 :] == vectors
    macros = problem.macros()
    assert macros["EPILOGUE_SCALES"] == int(epilogue.startswith("scales"))
    assert macros["EPILOGUE_BIAS"] == BIASES[problem.finish.bias]
    assert macros["EPILOGUE_ACTIVATION"] == ACTIVATIONS[problem.finish.activation][0]
    assert problem.reference == ""
    is_smooth = problem.finish.activation in ("gelu", "gelu_tanh", "silu")
    assert problem.is_exact != is_smooth
    assert {case.integers for case in problem.verification_cases()} == {False, not is_smooth} - {None}
    load_kernel("gemm_wgmma").check_problem(problem)


def test_factors_of_blocks_multiply_their_part_of_a_sum():
    problem = GemmProblem("es", "T", "N", 130, 3, 257, 1.5, -0.5, epilogue="block_scales+bias_m")
    operands = problem.operands(np, 1)
    assert problem.vectors == {"scale_m": ("float32", 6), "scale_n": ("float32", 9), "bias": ("float32", 130)}
    expected = -0.5 * problem.result(operands["C"]).astype(np.float64) + operands["bias"][:, None]
    for block, first in enumerate(range(0, 257, 128)):
        lhs, rhs = (numbers(operands[name], "float8_e4m3fn").reshape(-1, 257).astype(np.float64) for name in "AB")
        for row in range(130):
            for column in range(3):
                factor = float(operands["scale_m"][row // 128 * 3 + block]) * float(
                    operands["scale_n"][block * 3 + column]
                )
                steps = slice(first, first + 128)
                expected[row, column] += 1.5 * factor * (lhs[row, steps] @ rhs[column, steps])
    np.testing.assert_allclose(problem.answer(operands), expected, rtol=1e-12, atol=1e-12)
    assert 0 < problem.worst_error(expected.astype(np.float32), expected, problem.error_bound(operands)) <= 1
    load_kernel("gemm_wgmma").check_problem(problem)


@pytest.mark.parametrize(("precision", "batch"), [("h", 1), ("ebf", 1), ("es", 2)])
def test_factors_of_blocks_need_sums_of_blocks(precision, batch):
    law = "they are for FP8 whose sums are promoted, such as ebgemm, without a batch."
    law = f"{'a batch' if batch > 1 else 'gemm'} cannot have block_scales: {law}"
    with pytest.raises(ProblemError, match=law):
        GemmProblem(precision, "T", "N", 8, 8, 8, batch=batch, epilogue="block_scales")


def test_a_problem_without_one_says_nothing_of_it():
    problem = parse_problem("hgemm", size=8)
    assert "epilogue" not in problem.to_json()
    assert not {name for name in problem.macros() if name.startswith("EPILOGUE")}


@pytest.mark.parametrize("epilogue", ["gelu+bias_m", "bias", "bias_m+", "relu+silu", "+", "BIAS_M", 1, "bias_m+scales"])
def test_what_is_no_epilogue_is_refused(epilogue):
    with pytest.raises(ProblemError, match=r"is no epilogue: it is scales, a bias, an activation, or several"):
        GemmProblem("h", "N", "N", 1, 1, 1, epilogue=epilogue)


@pytest.mark.parametrize("precision", ["d", "c", "dd"])
def test_precisions_without_one_refuse_it(precision):
    with pytest.raises(ProblemError, match=f"epilogue cannot be relu: there is none of {precision}gemm"):
        GemmProblem(precision, "N", "N", 1, 1, 1, epilogue="relu")


def test_a_kernel_that_applies_none_refuses_it():
    with pytest.raises(UsageError, match=r"gemm_simt does not solve .*: it applies no epilogue"):
        load_kernel("gemm_simt").check_problem(parse_problem("sgemm", size=8, epilogue="relu"))


@pytest.mark.parametrize("m", [0, 1])
def test_a_bias_is_an_argument_where_it_is_empty(m):
    problem = GemmProblem("h", "N", "N", m, 2, 1, epilogue="bias_m")
    operands = problem.operands(np, 1)
    assert "bias" in operands
    assert problem.answer(operands).shape == problem.error_bound(operands).shape == (m, 2)
