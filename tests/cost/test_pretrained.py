"""Pretrained models rank configurations by what was fast in sweeps of the same class of problems."""

from dataclasses import replace

import numpy as np
import pytest

from mltune.cost.pretrained import (
    ELSEWHERE,
    FEWEST_FITTED,
    FIRST,
    SLOWEST,
    PretrainedModel,
    Sweep,
    fastest_of,
    features,
    fit_member,
    fit_members,
)
from mltune.device.facts import NO_CUDA
from mltune.device.known import find_device
from mltune.problem.kinds import problem_from_name

RNG = np.random.default_rng(0)
COLUMNS = {"TILE": 2 ** RNG.integers(0, 8, 600), "UNROLL": RNG.integers(1, 9, 600)}


def gemm(name, trans="NT"):
    return problem_from_name(name, trans=trans, size=64)


def sweep(fastest, case="sgemm NT", architecture="sm_90", flops=0.0, device="NVIDIA H200"):
    """Return a sweep whose fastest tile has some log2, with failures."""
    time_s = 1e-3 * (1 + np.abs(np.log2(COLUMNS["TILE"]) - fastest) + 0.05 * COLUMNS["UNROLL"])
    time_s[:10] = np.nan
    return Sweep(f"s{fastest}", "a", architecture, case, case[0], flops, COLUMNS, time_s, device)


def model(*sweeps):
    return PretrainedModel("toy", tuple(COLUMNS), tuple(fit_member(one, tuple(COLUMNS)) for one in sweeps))


def best_tile(predicted):
    return int(np.log2(COLUMNS["TILE"][np.argmax(predicted)]))


def test_targets_are_relative_to_the_fastest_and_bounded():
    relative = sweep(3).relative()
    assert relative.max() == 0
    assert relative.min() >= SLOWEST
    assert (relative[:10] == SLOWEST).all()


def test_it_predicts_what_was_fast():
    predicted = model(sweep(5)).predict(COLUMNS)
    assert best_tile(predicted) == 5
    assert np.corrcoef(predicted[10:], sweep(5).relative()[10:])[0, 1] > 0.95


def counting(several, device, *gemm):
    """Return the fastest tiles of the sweeps that are closest."""
    closest = several.closest(problem_from_name(gemm[0], trans=gemm[1], size=64), find_device(device)[0])
    return closest and [int(member.sweep[1:]) for member in closest.members]


def test_sweeps_of_a_similar_size_count():
    near, far = float(gemm("sgemm").flops * 8), float(gemm("sgemm").flops * 64)
    several = model(sweep(1, "sgemm NT", flops=far), sweep(2, "sgemm TN", flops=near), sweep(3, "sgemm TN", flops=far))
    assert counting(several, "h200", "sgemm", "NT") == [2]
    assert counting(several, "h200", "dgemm", "NN") == [2]


def test_where_there_is_none_those_of_smaller_problems_count_not_those_of_larger_ones():
    smaller, larger = (float(gemm("sgemm").flops) * times for times in (1 / 64, 64))
    assert counting(model(sweep(1, flops=smaller), sweep(2, flops=larger)), "h200", "sgemm", "NT") == [1]
    assert counting(model(sweep(2, flops=larger)), "h200", "sgemm", "NT") is None


def test_a_model_of_this_very_problem_decides_the_first_choice():
    flops, here = float(gemm("sgemm").flops), find_device("rtx_a4000")[0]
    one, other = sweep(1, flops=flops), sweep(2, flops=2 * flops)
    assert model(one).closest(gemm("sgemm"), here).source.decides
    assert not model(one, other).closest(gemm("sgemm"), here).source.decides
    assert not model(one).source.decides


def test_sweeps_of_the_same_case_count_alone_or_else_those_of_the_class():
    several = model(sweep(2, "sgemm NT"), sweep(4, "sgemm TN"), sweep(6, "dgemm NT"))
    assert counting(several, "h200", "sgemm", "NT") == [2]
    assert counting(several, "h200", "sgemm", "NN") == [2, 4]
    assert counting(several, "h200", "dgemm", "TT") == [6]
    assert counting(several, "h200", "zgemm", "NT") == [2, 4, 6]
    both = several.closest(gemm("sgemm", "NN"), find_device("h200")[0]).predict(COLUMNS)
    np.testing.assert_allclose(both, (model(sweep(2)).predict(COLUMNS) + model(sweep(4)).predict(COLUMNS)) / 2)


def test_of_these_sweeps_of_the_architecture_count_alone_where_there_are_some():
    several = model(sweep(2), sweep(4, architecture="sm_80"), sweep(6, "sgemm TN", "sm_80"))
    assert counting(several, "a100", "sgemm", "NT") == [4]
    assert counting(several, "a100", "sgemm", "TN") == [6]
    assert counting(several, "rtx_a4000", "sgemm", "NT") == [2, 4]


def test_sweeps_with_cuda_say_nothing_of_gpus_without():
    cuda, other = model(sweep(2)), model(sweep(4, architecture=NO_CUDA))
    assert counting(cuda, "mi250x_gcd", "sgemm", "NT") is None
    assert counting(other, "h200", "sgemm", "NT") is None
    assert counting(model(sweep(2), sweep(4, architecture=NO_CUDA)), "mi250x_gcd", "sgemm", "NT") == [4]


def test_the_fastest_of_the_same_architecture_come_first_those_of_the_case_before_others():
    near, far, apart = (float(gemm("sgemm").flops * times) for times in (2, 20, 200))
    several = model(
        sweep(1, "sgemm NN", flops=far),
        sweep(2, "sgemm TN", flops=near),
        sweep(3, "sgemm NN", flops=near),
        sweep(4, "sgemm NN", "sm_80", flops=near),
        sweep(5, "sgemm NN", flops=apart),
    )
    found = several.closest(gemm("sgemm", "NN"), find_device("h200")[0]).first
    assert [int(np.log2(one["TILE"])) for one in found[:3]] == [3, 1, 2]
    assert len(found) == FIRST
    assert len({tuple(one.items()) for one in found}) == FIRST
    assert several.closest(gemm("sgemm", "NN"), find_device("rtx_a4000")[0]).first == ()


def test_a_small_sweep_beside_large_ones_is_remembered_alone():
    flops, few = float(gemm("sgemm").flops), FEWEST_FITTED - 1
    large, some = sweep(1, "sgemm TN", flops=flops), sweep(3, "sgemm NN", flops=flops)
    small = replace(some, columns={name: one[:few] for name, one in COLUMNS.items()}, median_s=some.median_s[:few])

    members = fit_members([small, large], tuple(COLUMNS))

    assert [one.has_regressor for one in members] == [False, True]
    assert [one.has_regressor for one in fit_members([small], tuple(COLUMNS))] == [True]
    found = PretrainedModel("toy", tuple(COLUMNS), members).closest(gemm("sgemm", "NN"), find_device("h200")[0])
    assert [int(np.log2(one["TILE"])) for one in found.first[:2]] == [3, 1]
    assert [one.sweep for one in found.members] == ["s1", "s3"]


def test_what_was_fast_on_such_a_device_is_apart_from_what_was_fast_on_others():
    flops = float(gemm("sgemm").flops)
    here, there = sweep(3, "sgemm NN", flops=flops), sweep(1, "sgemm NN", flops=flops, device="NVIDIA H100")
    found = model(there, here).closest(gemm("sgemm", "NN"), find_device("h200")[0])
    assert found.first == fit_member(here, tuple(COLUMNS)).fastest
    assert int(np.log2(found.elsewhere[0]["TILE"])) == 1
    assert len(found.elsewhere) == ELSEWHERE
    assert found.elsewhere[0] not in found.first


def test_what_several_sweeps_remember_is_measured_once():
    flops = float(gemm("sgemm").flops)
    several = model(*(sweep(3, f"sgemm {ops}", flops=flops) for ops in ("NN", "NT", "TN")))
    found = several.closest(gemm("sgemm", "NN"), find_device("h200")[0]).first
    assert found == several.members[0].fastest


def test_a_sweep_is_remembered_by_configurations_that_differ_and_ran():
    fastest = fit_member(sweep(3), tuple(COLUMNS)).fastest
    assert (fastest[0]["TILE"], fastest[0]["UNROLL"]) == (8, 1)
    assert all(one["TILE"] != fastest[0]["TILE"] and one["UNROLL"] != 1 for one in fastest[1:])
    nothing = replace(sweep(3), median_s=np.append(np.full(len(COLUMNS["TILE"]) - 1, np.nan), 1.0))
    assert len(fastest_of(nothing)) == 1


def test_the_source_is_never_above_zero():
    source = model(sweep(4)).source
    assert source.expected(COLUMNS).max() <= 0
    assert source.least == SLOWEST


def test_the_same_seed_gives_the_same_model():
    first, second = (model(sweep(4)).predict(COLUMNS) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_features_are_logs():
    np.testing.assert_allclose(features({"TILE": np.array([1, 3])}, ["TILE"]), [[1.0], [2.0]])
    with pytest.raises(KeyError):
        features({"TILE": np.array([1])}, ["OTHER"])
