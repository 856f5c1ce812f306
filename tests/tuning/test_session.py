"""Sessions: kernels that can and cannot be built, and problems of another kind."""

import pytest

from mltune.cost.model_file import choose_model
from mltune.dataset.dataset import load_dataset, make_dataset, write_dataset
from mltune.device.known import H200
from mltune.errors import RunDirectoryError, UsageError
from mltune.kernel.placed import PlacedKernel
from mltune.kernel.reader import load_kernel
from mltune.problem.gemm import parse_problem
from mltune.records.store import Store
from mltune.resolve.device import Target
from mltune.resolve.request import TuneRequest
from mltune.tuning.session import Session, open_session, run_header

SGEMM = parse_problem("sgemm", trans="NT", m=4096, n=4096, k=4096)


@pytest.mark.parametrize("name", ["convolution_w6600", "xgemm_titan_rtx"])
def test_a_kernel_without_a_source_is_replayed(name):
    manifest = load_dataset(name).manifest
    with open_session(TuneRequest(manifest.problem, load_kernel(manifest.kernel), Target(dataset=name))) as session:
        assert session.placed.space.count == manifest.rows
        assert session.gpu is None


def test_a_kernel_without_a_source_is_not_built():
    with pytest.raises(UsageError, match="has no source and cannot be built"):
        open_session(TuneRequest(SGEMM, load_kernel("clblast_xgemm"), Target(cuda=0)))


def test_a_kernel_solves_problems_of_its_own_kind():
    convolution = load_dataset("convolution_w6600").manifest.problem
    with pytest.raises(UsageError, match="of kind recorded"):
        open_session(TuneRequest(convolution, load_kernel("gemm_simt"), Target(dataset="convolution_w6600")))
    with pytest.raises(UsageError, match="of kind gemm"):
        open_session(TuneRequest(SGEMM, load_kernel("convolution"), Target(dataset="convolution_w6600")))


def test_what_the_first_batch_has_in_any_case_is_built_before_the_space_is_counted():
    placed = PlacedKernel(load_kernel("gemm_simt").with_variants(), SGEMM, H200)
    model = choose_model("auto", placed.kernel).load(SGEMM, H200)
    begun = []
    session = Session(placed, None, None, {}, foresee=begun.append, batch=16, compilers=16)
    session.begin_builds(model)
    assert begun == [remembered for remembered in model.first if placed.contains(remembered)]  # there is no default
    assert begun
    assert "layers" not in vars(placed.space)
    session.foresee = None  # in replay
    session.begin_builds(model)


def test_a_dataset_that_changed_since_a_run_began_is_refused(tmp_path):
    """A row is missing: parameters, problem and device are the same."""
    recorded = load_dataset("convolution_w6600")
    facts = recorded.manifest.to_json() | {"problem": recorded.manifest.problem, "device": recorded.manifest.device}
    facts |= {"name": "mine"}
    for derived in ("parameters", "rows", "counts", "best", "sha256", "format"):
        del facts[derived]
    opened = []
    for rows in (recorded.table, recorded.table.slice(0, len(recorded) - 1)):
        made = make_dataset(rows, recorded.manifest.parameters, **facts)
        write_dataset(made, tmp_path, overwrite=True)
        target = Target(dataset=str(tmp_path / "mine.parquet"))
        kernel = load_kernel(recorded.manifest.kernel)
        opened.append(open_session(TuneRequest(recorded.manifest.problem, kernel, target)))
    before, now = (run_header(session, 0, {"target": "replay:mine"}) for session in opened)
    assert before.parameters == now.parameters
    Store.open(tmp_path / "run", before).close()
    with pytest.raises(RunDirectoryError, match="dataset mine had another content"):
        Store.open(tmp_path / "run", now)
