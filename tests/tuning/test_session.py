"""Sessions: kernels that can and cannot be built, and problems of another kind."""

import pytest

from mltune.dataset.dataset import load_dataset
from mltune.errors import UsageError
from mltune.problem.gemm import parse_problem
from mltune.tuning.session import open_session
from mltune.tuning.target import Target

SGEMM = parse_problem("sgemm", trans="NT", m=4096, n=4096, k=4096)


@pytest.mark.parametrize("name", ["convolution_w6600", "xgemm_titan_rtx"])
def test_a_kernel_without_a_source_is_replayed(name):
    manifest = load_dataset(name).manifest
    with open_session(manifest.kernel, manifest.problem, Target(dataset=name)) as session:
        assert session.space.count == manifest.rows
        assert session.gpu is None


def test_a_kernel_without_a_source_is_not_built():
    with pytest.raises(UsageError, match="only a kernel with a source can be built"):
        open_session("clblast_xgemm", SGEMM, Target(cuda=0))


def test_a_kernel_solves_problems_of_its_own_kind():
    convolution = load_dataset("convolution_w6600").manifest.problem
    with pytest.raises(UsageError, match="of kind recorded"):
        open_session("gemm_simt", convolution, Target(dataset="convolution_w6600"))
    with pytest.raises(UsageError, match="of kind gemm"):
        open_session("convolution", SGEMM, Target(dataset="convolution_w6600"))
