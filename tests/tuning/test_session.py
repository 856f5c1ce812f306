"""Sessions: kernels that can and cannot be built, and problems of another kind."""

from concurrent.futures import Future
from dataclasses import replace

import pytest

from mltune.dataset.dataset import load_dataset, make_dataset, write_dataset
from mltune.device.known import H200
from mltune.errors import BundleError, RunDirectoryError, UsageError
from mltune.kernel.bundle import variables_of
from mltune.kernel.launch import Launch
from mltune.kernel.reader import load_kernel
from mltune.kernel.space import ConstrainedSpace, default_configuration
from mltune.problem.gemm import parse_problem
from mltune.records.store import Store
from mltune.records.trial import Build, TrialState
from mltune.resolve.device import Target
from mltune.tuning.session import make_baseline, make_space, open_session, run_header

SGEMM = parse_problem("sgemm", trans="NT", m=4096, n=4096, k=4096)


@pytest.mark.parametrize("name", ["convolution_w6600", "xgemm_titan_rtx"])
def test_a_kernel_without_a_source_is_replayed(name):
    manifest = load_dataset(name).manifest
    with open_session(load_kernel(manifest.kernel), manifest.problem, Target(dataset=name)) as session:
        assert session.space.count == manifest.rows
        assert session.gpu is None


def test_a_kernel_without_a_source_is_not_built():
    with pytest.raises(UsageError, match="only a kernel with a source can be built"):
        open_session(load_kernel("clblast_xgemm"), SGEMM, Target(cuda=0))


def test_a_kernel_solves_problems_of_its_own_kind():
    convolution = load_dataset("convolution_w6600").manifest.problem
    with pytest.raises(UsageError, match="of kind recorded"):
        open_session(load_kernel("gemm_simt"), convolution, Target(dataset="convolution_w6600"))
    with pytest.raises(UsageError, match="of kind gemm"):
        open_session(load_kernel("convolution"), SGEMM, Target(dataset="convolution_w6600"))


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
        opened.append(open_session(load_kernel(recorded.manifest.kernel), recorded.manifest.problem, target))
    before, now = (run_header(session, 0, {"target": "replay:mine"}) for session in opened)
    assert before.parameters == now.parameters
    Store.open(tmp_path / "run", before).close()
    with pytest.raises(RunDirectoryError, match="dataset mine had another content"):
        Store.open(tmp_path / "run", now)


class OneBuild:
    """A builder whose every build is the same."""

    def __init__(self, build):
        self.build, self.configurations = build, []

    def submit(self, configuration):
        self.configurations.append(configuration)
        future = Future()
        future.set_result(self.build)
        return future


TRANSPOSE = load_kernel("transpose")
PROBLEM = TRANSPOSE.arrays.problem({"rows": 100, "columns": 70})
VARIABLES = variables_of(PROBLEM, H200)


def test_the_default_configuration_is_the_kernels_own_where_it_is_valid():
    space = make_space(TRANSPOSE, VARIABLES)
    assert isinstance(space, ConstrainedSpace)
    assert default_configuration(TRANSPOSE, space) == TRANSPOSE.space.default
    assert default_configuration(load_kernel("gemm_simt"), space) == {}


def test_without_one_it_is_the_valid_configuration_nearest_to_the_first_values():
    kernel = TRANSPOSE.with_default({})
    space = make_space(kernel, VARIABLES)
    found = default_configuration(kernel, space)
    assert space.index_of({name: [value] for name, value in found.items()})[0] >= 0
    assert (found["TILE_X"], found["TILE_Y"], found["THREADS"]) == (16, 16, 64)


def test_an_invalid_default_gives_way_to_one_near_it():
    kernel = TRANSPOSE.with_default({**TRANSPOSE.space.default, "SWIZZLE": 1})  # which excludes padding
    space = make_space(kernel, VARIABLES)
    found = default_configuration(kernel, space)
    assert space.index_of({name: [value] for name, value in found.items()})[0] >= 0
    assert len(found.items() - kernel.space.default.items()) == 1


def test_configurations_are_compared_with_the_default_and_the_reference():
    builder = OneBuild(Build(TrialState.OK, cubin=b"code"))

    baseline = make_baseline(TRANSPOSE, PROBLEM, H200, builder)

    assert builder.configurations == [TRANSPOSE.space.default]
    assert (baseline.cubin, baseline.entry, baseline.verify) == (b"code", "transpose", b"")
    assert [launch.grid[0] for launch in baseline.launches] == [9 * 17, 13 * 25, 1 * 32, 4 * 3]
    entry, launches = baseline.reference
    assert entry == "transpose_naive"
    assert launches[-1] == Launch((3, 13, 1), (32, 8, 1), 0, ())
    assert len(launches) == 4


def test_without_a_reference_the_default_configuration_is_the_answer():
    kernel = replace(TRANSPOSE, arrays=replace(TRANSPOSE.arrays, reference=None))
    baseline = make_baseline(kernel, PROBLEM, H200, OneBuild(Build(TrialState.OK, cubin=b"code", entry="_Z4copy")))
    assert (baseline.entry, baseline.reference) == ("_Z4copy", None)


def test_a_default_that_does_not_compile_is_told():
    builder = OneBuild(Build(TrialState.COMPILE_ERROR, "no such type"))
    with pytest.raises(BundleError, match=r"default configuration of transpose must compile, .* no such type"):
        make_baseline(TRANSPOSE, PROBLEM, H200, builder)
