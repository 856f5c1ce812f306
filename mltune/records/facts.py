"""Facts of a run beside its trials: the name, the type and the range of each, checked where a store is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, PlainValidator, ValidationError

from mltune.files.validation import problems_of
from mltune.records.columns import LONGEST_S, SHORTEST_S
from mltune.records.declaration import Declaration
from mltune.records.distinct import DistinctCount
from mltune.records.header import LARGEST

LONGEST_TEXT = 2_000
"""Characters of a text on record that are shown."""

MOST_KNOWN = 5
"""Most configurations that a run measures first: with the default less than half of a first batch of 16, so that most
of the first batch stays with the search, and about 3 CPU seconds of compiling for a GEMM."""

LARGEST_BATCH, MOST_PLANS = 4096, 4096
"""Most trials of a batch, and batches whose plans are on record."""

NEEDED = frozenset({"declaration", "wisdom"})
"""Facts without which a run is not read where they are damaged: others are ignored with a notice."""

_Text = Annotated[str, AfterValidator(lambda text: text[:LONGEST_TEXT])]
_Seconds = Annotated[float, Field(ge=SHORTEST_S, le=LONGEST_S)]
_Count = Annotated[int, Field(ge=0, le=LARGEST)]
_Value = Annotated[int, Field(ge=-LARGEST, le=LARGEST)]
_Configurations = Annotated[list[dict[str, _Value]], Field(max_length=MOST_KNOWN)]
_Distinct = Annotated[DistinctCount, PlainValidator(DistinctCount.from_json)]
_Declaration = Annotated[Declaration, PlainValidator(Declaration.from_json)]


class Stopping(BaseModel, frozen=True, strict=True):
    """The end of a search. A run stores it, so that a resumed run ends at the same batch.

    ``reason`` is why no batch is planned after ``batch``, -1 before the first: little is gained, nothing is left to
    try, or the goal is reached. It is empty while the search continues.
    """

    reason: _Text = ""
    batch: Annotated[int, Field(ge=-1, le=LARGEST)] = 0


class Whole(BaseModel, frozen=True, strict=True):
    """The batches of a search that measure everything: from ``since`` to before ``until``, None where there is none.

    ``detail`` is the forecast that decided it, or why not everything is measured. A run stores it, so that a resumed
    run has batches of the same size.
    """

    since: Annotated[int, Field(ge=0, le=LARGEST)] | None = None
    until: Annotated[int, Field(ge=0, le=LARGEST)] | None = None
    detail: _Text = ""

    def covers(self, batch: int) -> bool:
        """Return whether a batch is one of them."""
        return self.since is not None and self.since <= batch and (self.until is None or batch < self.until)


class Plan(BaseModel, frozen=True, strict=True):
    """A batch of ``size`` trials from number ``first`` on, planned from the first ``known`` trials that ended.

    A run stores those of the batches in flight, so that a resumed run plans them again from the same results, in
    whatever order trials ended.
    """

    batch: _Count
    known: _Count
    first: Annotated[int, Field(ge=0, le=LARGEST - LARGEST_BATCH)]
    size: Annotated[int, Field(ge=1, le=LARGEST_BATCH)]

    @property
    def numbers(self) -> range:
        """The numbers of its trials."""
        return range(self.first, self.first + self.size)


class Limit(BaseModel, frozen=True, strict=True):
    """The budget of a run that goes on: trials and seconds, None where they are not limited."""

    trials: _Count | None = None
    time_s: Annotated[float, Field(ge=0.0, le=LONGEST_S)] | None = None


class Stages(BaseModel, frozen=True, strict=True):
    """The valid configurations of a space, a number of any size as text, and the compilers, None in replay."""

    valid: Annotated[str, Field(pattern=r"^[0-9]{1,30}$")] | None = None
    compilers: _Seconds | None = None


class Facts(BaseModel, frozen=True, strict=True):
    """The facts of a run on record, each with the default where it is missing or was ignored.

    ``reference_median_s`` is the first time of the reference kernel; ``scored`` and ``skipped`` count configurations
    that a model scored, and those of them that it skipped before compiling; ``model`` is what the search started from;
    ``limit`` is None once the run has ended. A resumed run must propose the configurations of ``wisdom`` again.
    ``notice`` is no fact: it says which facts were ignored, and why.
    """

    accuracy: Literal["ieee", "fp32"] | None = None
    choice: _Text = ""
    declaration: _Declaration | None = None
    limit: Limit | None = None
    model: _Text = ""
    plans: Annotated[list[Plan], Field(max_length=MOST_PLANS)] = []
    reference_median_s: _Seconds | None = None
    scored: _Distinct | None = None
    skipped: _Distinct | None = None
    stages: Stages = Stages()
    stopping: Stopping = Stopping()
    whole: Whole = Whole()
    wisdom: _Configurations | None = None
    notice: str = ""

    @classmethod
    def of(cls, documents: Mapping[str, Any]) -> Self:
        """Check the facts of a store, plain JSON values by name; those that are not known are left out.

        A fact that breaks its law is ignored with a notice; one of :data:`NEEDED` raises a ValueError.

        Examples
        --------
        >>> Facts.of({"reference_median_s": "soon", "choice": "sgemm"}).notice
        "a fact that no run writes is ignored: reference_median_s cannot be 'soon': it must be a number"
        """
        facts = {name: value for name, value in documents.items() if name in NAMES and value is not None}
        try:
            return cls.model_validate(facts)
        except ValidationError as error:
            broken, laws = {str(fault["loc"][0]) for fault in error.errors()}, problems_of(error, facts)
        if broken & NEEDED:
            raise ValueError(laws)
        sound = {name: value for name, value in facts.items() if name not in broken}
        return cls.model_validate(sound | {"notice": f"a fact that no run writes is ignored: {laws}"})


NAMES = frozenset(Facts.model_fields) - {"notice"}
"""The names of all facts."""
