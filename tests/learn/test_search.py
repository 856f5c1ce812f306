"""Every search that can be asked for by name proposes what is valid and new."""

import optuna
import pytest

from mltune.device.known import H200
from mltune.errors import BundleError
from mltune.kernel.bundle import device_variables
from mltune.kernel.reader import load_kernel
from mltune.kernel.space import ConstrainedSpace
from mltune.learn.features import Features
from mltune.learn.search import SEARCHES, make_sampler
from mltune.problem.gemm import GemmProblem

PROBLEM = GemmProblem("s", "N", "T", 4096, 4096, 4096)


def planned(bundle, search, batches=1):
    kernel = load_kernel(str(bundle))
    space = ConstrainedSpace(kernel, PROBLEM.variables() | device_variables(H200))
    sampler = make_sampler(search, space, Features(kernel, PROBLEM, H200), seed=0)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    found = []
    for batch in range(batches):
        proposals = sampler.plan(study, batch, 4)
        sampler.enqueue(proposals)
        for proposal in proposals:
            study.tell(study.ask(sampler.distributions), -1.0 - proposal.index % 7)
        found += proposals
    return found


@pytest.mark.parametrize("search", SEARCHES)
def test_each_proposes_distinct_configurations_and_says_who_did(search):
    proposals = planned("gemm_simt", search, batches=4)
    assert len({proposal.index for proposal in proposals}) == len(proposals) == 16
    own = {"model": {"start", "model", "random"}, "tpe": {"tpe", "random"}}.get(search, {"random"})
    assert {proposal.proposed_by for proposal in proposals} <= own


def test_the_program_offers_them_all():
    from mltune.cli.application import Search

    assert tuple(each.value for each in Search) == SEARCHES


def test_thresholds_need_resources(bare_bundle):
    with pytest.raises(BundleError, match="does not name"):
        planned(bare_bundle, "astra")


def test_another_name_is_refused(tile_bundle):
    with pytest.raises(ValueError, match="model, tpe, random, astra"):
        planned(tile_bundle, "grid")
