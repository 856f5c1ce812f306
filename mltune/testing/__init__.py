"""Contract suites: the laws that every implementation of a seam keeps, for the tests of a plug-in.

Each suite is a class for pytest. Subclass it under a name that begins with ``Test``, say how yours is made, and its
laws run as tests of yours. ``pytest.register_assert_rewrite("mltune.testing")`` in your conftest.py makes failures say
more. mltune's own implementations run the same suites.

=====================  ================================================================
suite                  seam
=====================  ================================================================
StoreContract          :class:`mltune.records.store.Store`, over tables of another kind
BuilderContract        :class:`mltune.measure.pipeline.Builder`
RunnerContract         :class:`mltune.measure.pipeline.Runner`
SearchSpaceContract    :class:`mltune.kernel.space.SearchSpace`
CostModelContract      :class:`mltune.cost.regressors.CostModel`
StrategyContract       :class:`mltune.comparison.simulation.Strategy`
=====================  ================================================================

Examples
--------
>>> from mltune.testing import StrategyContract
>>> class TestMine(StrategyContract):
...     def make(self):
...         from my_package import MyStrategy
...
...         return MyStrategy()
"""

from mltune.testing.cost_models import CostModelContract
from mltune.testing.measuring import BuilderContract, RunnerContract
from mltune.testing.search_spaces import SearchSpaceContract
from mltune.testing.stores import StoreContract
from mltune.testing.strategies import StrategyContract

__all__ = [
    "BuilderContract",
    "CostModelContract",
    "RunnerContract",
    "SearchSpaceContract",
    "StoreContract",
    "StrategyContract",
]
