"""The choice among kernels: accuracy classes, and the candidates for a problem."""

import dataclasses

import pytest

from mltune.device.known import H200, known_devices
from mltune.errors import BundleError, UsageError
from mltune.files import folders
from mltune.kernel.reader import load_kernel
from mltune.problem.gemm import parse_problem
from mltune.problem.problem import ACCURACIES, accepts, check_accuracy
from mltune.resolve.device import fits
from mltune.resolve.problems import candidates, contenders, kernels_for
from tests.kernel.test_bundle import DOCUMENT

SGEMM, ZGEMM = parse_problem("sgemm"), parse_problem("zgemm")


def write(folder, name, *keys, problem="gemm"):
    """Write a bundle whose [kernel] has further keys."""
    (folder / name).mkdir(parents=True)
    text = DOCUMENT.replace('name = "small"', "\n".join((f'name = "{name}"', *keys)))
    (folder / name / "kernel.toml").write_text(text)
    (folder / name / "small.cu").write_text("// a source")
    return folder / name


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    """Replace the built-in kernels."""
    folder = tmp_path / "kernels"
    write(folder, "gemm_simt")
    write(folder, "an_exact_one", 'accuracy = "ieee"')
    write(folder, "a_split_one", 'accuracy = "fp32"')
    write(folder, "an_old_one", "candidate = false")
    replayed = write(folder, "a_replayed_one") / "kernel.toml"
    replayed.write_text(replayed.read_text().replace('source = "small.cu"\nentry = "small"\n', ""))
    monkeypatch.setattr(folders, "assets", lambda name: tmp_path / name)
    return folder


def names_of(kernels):
    return [kernel.name for kernel in kernels]


def test_classes_are_ordered_by_strictness():
    assert [[accepts(asked, of) for of in ACCURACIES] for asked in ACCURACIES] == [[True, False], [True, True]]
    with pytest.raises(UsageError, match=r"'fp23' is no accuracy class; did you mean 'fp32'\?"):
        check_accuracy("fp23")


def test_a_bundle_promises_ieee_unless_it_says_otherwise(tmp_path):
    plain, split = load_kernel(write(tmp_path, "plain")), load_kernel(write(tmp_path, "split", 'accuracy = "fp32"'))
    assert (plain.accuracy, plain.candidate, split.accuracy) == ("ieee", True, "fp32")
    assert plain.source.sha256 == split.source.sha256
    with pytest.raises(BundleError, match=r"kernel\.accuracy"):
        load_kernel(write(tmp_path, "wrong", 'accuracy = "about"'))


def test_candidates_solve_the_problem_at_the_accuracy_and_the_default_comes_first(kernels):
    assert names_of(candidates(SGEMM)) == names_of(candidates(SGEMM, "ieee")) == ["gemm_simt", "an_exact_one"]
    assert names_of(candidates(SGEMM, "fp32")) == ["gemm_simt", "a_split_one", "an_exact_one"]
    with pytest.raises(UsageError, match="accuracy ieee solves zgemm NT 4096; name a kernel"):
        candidates(ZGEMM)


def test_a_class_that_no_kernel_keeps_is_an_error_that_names_the_others(kernels):
    for name in ("gemm_simt", "an_exact_one"):
        (kernels / name / "kernel.toml").unlink()
    with pytest.raises(UsageError, match=r"those of other classes are a_split_one \(fp32\)"):
        candidates(SGEMM)


def test_named_kernels_compete_whatever_their_class_unless_one_is_asked_for(kernels):
    named = ["an_old_one", str(kernels / "a_split_one"), "an_old_one"]
    assert names_of(kernels_for(SGEMM, named)) == ["an_old_one", "a_split_one"]
    with pytest.raises(UsageError, match="a_split_one is of accuracy fp32, but ieee"):
        kernels_for(SGEMM, named, "ieee")


def test_a_kernel_for_one_architecture_fits_no_other(kernels):
    kernel = load_kernel("gemm_simt")
    assert fits(kernel, H200)

    for architecture in ("sm_90a", "sm_100a"):
        other = dataclasses.replace(kernel, source=dataclasses.replace(kernel.source, architecture=architecture))
        assert fits(other, H200) == (architecture == "sm_90a")


def test_a_kernel_on_a_unit_fits_what_has_it():
    kernel = load_kernel("gemm_mma64")
    assert fits(kernel, H200)
    assert not fits(kernel, known_devices()["gtx_680"])


def test_where_tensor_cores_are_far_ahead_the_kernel_without_them_is_not_tried():
    problem, old = parse_problem("dgemm", trans="NT", size=300), known_devices()["gtx_680"]
    both = candidates(problem)
    assert names_of(both) == names_of(contenders(both, problem, [])) == ["gemm_simt", "gemm_mma64"]
    assert names_of(contenders(both, problem, [H200])) == ["gemm_mma64"]
    assert names_of(contenders(both, problem, [old])) == ["gemm_simt"]
    assert names_of(contenders(both, problem, [H200, old])) == ["gemm_simt", "gemm_mma64"]
    split = candidates(SGEMM, "fp32")  # of another accuracy
    assert "gemm_simt" in names_of(contenders(split, SGEMM, [H200]))


def test_a_batch_needs_a_kernel_for_batches():
    problem = parse_problem("sgemm", trans="NN", size=64, batch=100)
    assert names_of(candidates(problem, "fp32")) == ["gemm_simt", "gemm_tf32"]
    with pytest.raises(UsageError, match="gemm_split does not solve sgemm NN 64 batch 100: it has no batches"):
        load_kernel("gemm_split").check_problem(problem)


def test_the_historical_kernels_are_no_candidates():
    assert not {"gemm_naive", "gemm_strip", "gemm_shared", "gemm_cached", "clblast_xgemm"} & set(
        names_of(candidates(SGEMM))
    )
