"""The wisdom on a GPU: a winner is measured first by the next run, at the same size and at another, and holds."""

import pytest

import mltune
from mltune.resolve.device import Target
from mltune.tuning.wisdom_check import check_wisdom

pytestmark = pytest.mark.gpu

SIZES = {"rows": 2048, "columns": 2048}


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """Return the result of a run, and the file to which its winner was added."""
    folder = tmp_path_factory.mktemp("wisdom")
    return tune(folder / "run", folder / "wisdom.json", SIZES, trials=48), folder / "wisdom.json"


def tune(run, file, sizes, **options):
    return mltune.tune("transpose", size=sizes, device="cuda:0", run=run, wisdom=file, progress=None, **options)


@pytest.mark.parametrize("sizes", [SIZES, {"rows": 1024, "columns": 2048}])
def test_what_is_known_is_measured_first(known, tmp_path, sizes):
    before, file = known
    kernel = mltune.load_kernel("transpose")
    (match,) = mltune.Wisdom.load(file).lookup(kernel, kernel.arrays.problem(sizes), before.device)
    copy = tmp_path / "wisdom.json"
    copy.write_bytes(file.read_bytes())

    again = tune(tmp_path / "run", copy, sizes, trials=16)

    assert match.entry.verified
    assert match.relation == ("problem" if sizes == SIZES else "size")
    varied = kernel.with_variants()
    first = [varied.space.labelled(record.configuration) for record in again.records[:2]]
    assert first == [match.entry.configuration, varied.space.labelled(varied.compiler.completed(kernel.space.default))]


def test_what_was_found_just_now_holds(known):
    _, file = known
    (checked,) = check_wisdom(mltune.Wisdom.load(file), Target(cuda=0))
    assert checked.median_s is not None
    assert not checked.verdict.is_miss, checked.detail
