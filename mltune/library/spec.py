"""The description of a library that is to be built: the operation, its sizes, and what the choice may take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, StrictStr, ValidationError, model_validator

from mltune.errors import LibraryError
from mltune.files.reading import parse_toml, read_text, reason
from mltune.files.sizes import MAX_BYTES, MOST_SIZES, Counted, distinct, sizes_of_csv
from mltune.files.text import printable
from mltune.files.validation import matching, problems_of
from mltune.library.document import NAME
from mltune.library.portfolio import FLOOR, MOST

_MOST_TUNED, _MOST_TIMED = 200, 2000

_Extent = Annotated[StrictInt, Field(ge=1, lt=2**31)]
_SizeName = Annotated[StrictStr, matching(r"[A-Za-z_][A-Za-z0-9_]{0,63}", "be the name of a size")]
_Text = Annotated[StrictStr, Field(min_length=1, max_length=1000)]
_Size = dict[_SizeName, _Extent]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class _LibraryTable(_Table):
    """``[library]``."""

    operation: _Text
    trans: Annotated[StrictStr, Field(max_length=2)] | None = None
    epilogue: _Text | None = None
    kernel: Annotated[list[_Text], Field(max_length=20)] = []
    accuracy: Annotated[StrictStr, Field(max_length=20)] | None = None
    name: Annotated[StrictStr, matching(NAME, "be a name of small letters, digits and _")] | None = None
    trials: Annotated[StrictInt, Field(ge=1)] | None = None
    time: _Text | None = None
    tuned: Annotated[StrictInt, Field(ge=2, le=_MOST_TUNED)] = 60
    timed: Annotated[StrictInt, Field(ge=2, le=_MOST_TIMED)] = 400
    most: Annotated[StrictInt, Field(ge=1, le=100)] = MOST
    floor: Annotated[StrictFloat, Field(ge=0, le=1)] = FLOOR
    seed: Annotated[StrictInt, Field(ge=0, lt=2**31)] = 0


class _Sizes(_Table):
    """``[sizes]``: one of the ways to say which sizes are used, and how often."""

    shapes: Annotated[list[_Extent | _Size], Field(max_length=MOST_SIZES)] | None = None
    grid: dict[_SizeName, Annotated[list[_Extent], Field(min_length=1, max_length=1000)]] | None = None
    ranges: dict[_SizeName, Annotated[list[_Extent], Field(min_length=2, max_length=2)]] | None = None
    distribution: Literal["log-uniform", "uniform"] = "log-uniform"
    csv: Annotated[StrictStr, matching(r"[^/\\\x00]{1,250}\.csv", "be the name of a .csv file beside it")] | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if sum(way is not None for way in (self.shapes, self.grid, self.ranges, self.csv)) != 1:
            raise ValueError("one of shapes, grid, ranges and csv must be there")
        if "distribution" in self.model_fields_set and self.ranges is None:
            raise ValueError("distribution is that of ranges, but there are none")
        return self


class _SpecDocument(_Table):
    library: _LibraryTable
    sizes: _Sizes


@dataclass(frozen=True, slots=True)
class Spec:
    """A library that is to be built: ``[library]`` as it is written, with its defaults, and the sizes.

    Candidates are timed at `sizes` of the names `extents`; `weights` say how often each is used, `tuned` which are
    tuned.
    """

    library: _LibraryTable
    extents: tuple[str, ...]
    sizes: tuple[Mapping[str, int], ...]
    weights: tuple[float, ...]
    tuned: tuple[int, ...]


def load_spec(spec: str | Path | Mapping[str, Any]) -> Spec:
    """Read a TOML file or mapping as docs/reference/library.md says; a malformed one raises a LibraryError."""
    place, content = Path.cwd(), spec
    where = "it" if isinstance(spec, Mapping) else str(spec)
    try:
        if not isinstance(spec, Mapping):
            place, content = Path(spec).parent, parse_toml(read_text(spec, MAX_BYTES))
        document = _SpecDocument.model_validate(content)
        rng = np.random.default_rng(document.library.seed)
        counted = _counted(document.sizes, place, rng, document.library.timed)
        sizes, weights = _drawn(counted, document.library.timed)
        if len(sizes) < 2:
            raise ValueError("a library is for several sizes, but there is one; `mltune tune` tunes one")
        return Spec(
            document.library, tuple(sizes[0]), sizes, weights, representatives(sizes, weights, document.library.tuned)
        )
    except ValidationError as error:
        fact = problems_of(error, content, model=_SpecDocument)
    except (OSError, ValueError) as error:
        fact = reason(error)
    raise LibraryError(f"a library is described as in docs/reference/library.md, but {printable(where, 300)}: {fact}.")


def _counted(sizes: _Sizes, place: Path, rng: np.random.Generator, count: int) -> Counted:
    """Return sizes with their weights."""
    if sizes.shapes is not None:
        return distinct(
            ({"m": shape, "n": shape, "k": shape} if isinstance(shape, int) else shape, 1.0) for shape in sizes.shapes
        )
    if sizes.grid is not None:
        if math.prod(map(len, sizes.grid.values())) > MOST_SIZES:
            raise ValueError(f"a grid has at most {MOST_SIZES} sizes")
        return distinct((dict(zip(sizes.grid, extents, strict=True)), 1.0) for extents in product(*sizes.grid.values()))
    if sizes.ranges is not None:
        for name, (low, high) in sizes.ranges.items():
            if low > high:
                raise ValueError(f"low <= high must hold for the range of {name}, got low={low}, high={high}")
        bounds = np.array(list(sizes.ranges.values()), dtype=float).reshape(-1, 2)
        draws = rng.uniform(size=(count, len(bounds)))
        if sizes.distribution == "log-uniform":
            drawn = np.exp(np.log(bounds[:, 0]) + draws * np.log(bounds[:, 1] / bounds[:, 0]))
        else:
            drawn = bounds[:, 0] + draws * (bounds[:, 1] - bounds[:, 0])
        rows = np.rint(drawn).astype(np.int64).tolist()
        return distinct((dict(zip(sizes.ranges, extents, strict=True)), 1.0) for extents in rows)
    return distinct(sizes_of_csv(read_text(place / str(sizes.csv), MAX_BYTES, inside=place)))


def _drawn(counted: Counted, most: int) -> tuple[tuple[dict[str, int], ...], tuple[float, ...]]:
    """Return the sizes that are timed: the most used ones."""
    heaviest = sorted(counted.items(), key=lambda entry: -entry[1])[:most]
    return tuple(dict(size) for size, _ in heaviest), tuple(weight for _, weight in heaviest)


def representatives(sizes: Sequence[Mapping[str, int]], weights: Sequence[float], count: int) -> tuple[int, ...]:
    """Return the places of sizes that stand for all others: the nearest ones to the centres of k-means on their logs.

    Centres minimise the weighted mean of the squared distances, so they lie where sizes are, and not at the borders.
    """
    from sklearn.cluster import KMeans

    logs = np.log2([list(size.values()) for size in sizes])
    distinct = len(np.unique(logs, axis=0))
    if count >= distinct:
        return tuple(np.sort(np.unique(logs, axis=0, return_index=True)[1]).tolist())
    means = KMeans(count, n_init=4, random_state=0).fit(logs, sample_weight=np.asarray(weights))
    distances = means.transform(logs)
    return tuple(sorted({int(np.argmin(column)) for column in distances.T}))
