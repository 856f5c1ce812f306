"""The description of a library that is to be built: the operation, its sizes, and what the choice may take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, StrictFloat, StrictInt, StrictStr, model_validator

from mltune.errors import LibraryError
from mltune.files.folders import page
from mltune.files.reading import parse_toml, raising, read_text
from mltune.files.sizes import MAX_BYTES, MOST_SIZES, Counted, distinct, sizes_of_csv
from mltune.files.text import printable
from mltune.files.validation import matching, validated
from mltune.library.document import NAME
from mltune.library.portfolio import FLOOR

_MOST_TUNED, _MOST_TIMED = 200, 2000
_ALIGNED, _MULTIPLE = 0.9, 8

_Extent = Annotated[StrictInt, Field(ge=1, lt=2**31)]
_SizeName = Annotated[StrictStr, matching(r"[A-Za-z_][A-Za-z0-9_]{0,63}", "be the name of a size")]
_Text = Annotated[StrictStr, Field(min_length=1, max_length=1000)]
_Size = dict[_SizeName, _Extent]
_Range = Annotated[list[_Extent], Field(min_length=2, max_length=2)]
_Layer = Annotated[list[_Extent], Field(min_length=2, max_length=3)]


class _Table(BaseModel, extra="forbid", allow_inf_nan=False):
    """A table without other keys."""


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
    most: Annotated[StrictInt, Field(ge=1, le=100)] | None = None
    floor: Annotated[StrictFloat, Field(ge=0, le=1)] = FLOOR
    seed: Annotated[StrictInt, Field(ge=0, lt=2**31)] = 0


class _Sizes(_Table):
    """``[sizes]``: one of the ways to say which sizes are used, and how often."""

    shapes: Annotated[list[_Extent | _Size], Field(max_length=MOST_SIZES)] | None = None
    grid: dict[_SizeName, Annotated[list[_Extent], Field(min_length=1, max_length=1000)]] | None = None
    ranges: dict[_SizeName, _Range] | None = None
    linear_layers: Annotated[list[_Layer], Field(min_length=1, max_length=1000)] | None = None
    tokens: _Range = [1, 4096]
    distribution: Literal["log-uniform", "uniform"] = "log-uniform"
    multiple_of: _Extent | _Size = _MULTIPLE
    aligned: Annotated[StrictFloat | Literal[0, 1], Field(ge=0, le=1)] = _ALIGNED
    csv: Annotated[StrictStr, matching(r"[^/\\\x00]{1,250}\.csv", "be the name of a .csv file beside it")] | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if sum(way is not None for way in (self.shapes, self.grid, self.ranges, self.linear_layers, self.csv)) != 1:
            raise ValueError("there is not exactly one of shapes, grid, ranges, linear_layers and csv")
        of_drawn = {"distribution": self.ranges, "tokens": self.linear_layers}
        of_drawn |= dict.fromkeys(("multiple_of", "aligned"), self.ranges or self.linear_layers)
        for key, drawn in of_drawn.items():
            if key in self.model_fields_set and drawn is None:
                owner = {"distribution": "ranges", "tokens": "linear_layers"}.get(key, "ranges or linear_layers")
                raise ValueError(f"there are no {owner}, to which {key} belongs")
        return self

    @property
    def are_listed(self) -> bool:
        """Whether the sizes are those of programs, and no sample of ranges."""
        return self.ranges is None


class _SpecDocument(_Table):
    library: _LibraryTable
    sizes: _Sizes


@dataclass(frozen=True, slots=True)
class Spec:
    """A library that is to be built: ``[library]`` as it is written, with its defaults, and the sizes.

    Candidates are timed at `sizes` of the names `extents`; `weights` say how often each is used, `tuned` which are
    tuned. Where sizes `are_listed`, each has the configuration that was the fastest there.
    """

    library: _LibraryTable
    extents: tuple[str, ...]
    sizes: tuple[Mapping[str, int], ...]
    weights: tuple[float, ...]
    tuned: tuple[int, ...]
    are_listed: bool


def load_spec(spec: str | Path | Mapping[str, Any]) -> Spec:
    """Read a TOML file or mapping as docs/reference/library.md says; a malformed one raises a LibraryError."""
    place, content = Path.cwd(), spec
    where = "it" if isinstance(spec, Mapping) else str(spec)
    with raising(_refused, printable(where, 300), OSError, ValueError):
        if not isinstance(spec, Mapping):
            place, content = Path(spec).parent, parse_toml(read_text(spec, MAX_BYTES))
        document = validated(_SpecDocument, content)
        rng = np.random.default_rng(document.library.seed)
        counted = _counted(document.sizes, place, rng, document.library.timed)
        sizes, weights = _drawn(counted, document.library.timed)
        if len(sizes) < 2:
            raise ValueError("there is one size; a library is for several, and `mltune tune` tunes one")
        tuned = representatives(sizes, weights, document.library.tuned)
        return Spec(document.library, tuple(sizes[0]), sizes, weights, tuned, document.sizes.are_listed)


def sizes_around(spec: Spec, count: int) -> list[Mapping[str, int]]:
    """Return random sizes from half the least to twice the largest extents of listed sizes; none of drawn ones."""
    if not spec.are_listed:
        return []
    extents = np.array([list(size.values()) for size in spec.sizes])
    low, high = np.maximum(extents.min(axis=0) // 2, 1), 2 * extents.max(axis=0)
    ranges = dict(zip(spec.extents, np.column_stack([low, high]).tolist(), strict=True))
    return [*map(dict, _counted(_Sizes(ranges=ranges), Path(), np.random.default_rng(0), count))]


def _refused(fact: str) -> LibraryError:
    return LibraryError(f"{fact} See {page('reference/library.md')}.")


def _counted(sizes: _Sizes, place: Path, rng: np.random.Generator, count: int) -> Counted:
    """Return sizes with their weights."""
    if sizes.shapes is not None:
        return distinct(
            ({"m": shape, "n": shape, "k": shape} if isinstance(shape, int) else shape, 1.0) for shape in sizes.shapes
        )
    if sizes.grid is not None:
        if math.prod(map(len, sizes.grid.values())) > MOST_SIZES:
            raise ValueError(f"the grid has more than {MOST_SIZES} sizes, too many")
        return distinct((dict(zip(sizes.grid, extents, strict=True)), 1.0) for extents in product(*sizes.grid.values()))
    if sizes.ranges is not None:
        check_ranges(sizes.ranges)
        bounds = np.array(list(sizes.ranges.values()), dtype=float).reshape(-1, 2)
        drawn = _between(bounds, rng.uniform(size=(count, len(bounds))), sizes.distribution)
        rows = _aligned(np.rint(drawn).astype(np.int64), bounds, sizes, rng, [*sizes.ranges])
        return distinct((dict(zip(sizes.ranges, extents, strict=True)), 1.0) for extents in rows.tolist())
    if sizes.linear_layers is not None:
        return _of_layers(sizes, sizes.linear_layers, rng, count)
    return distinct(sizes_of_csv(read_text(place / str(sizes.csv), MAX_BYTES, inside=place)))


def check_ranges(ranges: Mapping[str, Sequence[int]]) -> None:
    """Refuse a range that ends before it begins."""
    for name, (low, high) in ranges.items():
        if low > high:
            raise ValueError(f"the range of {name} cannot be {low} to {high}: low <= high must hold")


def _of_layers(sizes: _Sizes, layers: Sequence[Sequence[int]], rng: np.random.Generator, count: int) -> Counted:
    """Return products of linear layers: each layer at powers of two and at drawn numbers of tokens, about `count`.

    A layer of m out features and k in features multiplies its m x k weights by a k x n matrix of n tokens. The weight
    of a layer is its count, shared by its numbers of tokens.
    """
    check_ranges({"tokens": sizes.tokens})
    low, high = sizes.tokens
    powers = [2**power for power in range(31) if low <= 2**power <= high]
    further = max(count // len(layers) - len(powers), 1)
    rows: list[tuple[dict[str, int], float]] = []
    for out_features, in_features, *uses in layers:
        places = (np.arange(further) + rng.uniform(size=further)) / further
        drawn = np.rint(_between(np.array([[low, high]], dtype=float), places[:, None], "log-uniform"))
        tokens = _aligned(drawn.astype(np.int64), np.array([[low, high]]), sizes, rng, ["n"])[:, 0]
        distinct_tokens = sorted({*powers, *tokens.tolist()})
        weight = (uses[0] if uses else 1) / len(distinct_tokens)
        rows += [({"m": out_features, "n": number, "k": in_features}, weight) for number in distinct_tokens]
    return distinct(rows)


def _between(bounds: NDArray[np.float64], places: NDArray[np.float64], distribution: str) -> NDArray[np.float64]:
    """Return the values at places from 0 to 1 between bounds, (n, n_extents)."""
    low, high = bounds.T
    if distribution == "log-uniform":
        return np.asarray(np.exp(np.log(low) + places * np.log(high / low)))
    return np.asarray(low + places * (high - low))


def _aligned(
    rows: NDArray[np.int64], bounds: NDArray[Any], sizes: _Sizes, rng: np.random.Generator, names: Sequence[str]
) -> NDArray[np.int64]:
    """Return drawn sizes of which a share is rounded to the nearest multiples that are within the bounds.

    A value below the multiple stays as it is, and so does one whose range has no multiple.
    """
    by_name = sizes.multiple_of if isinstance(sizes.multiple_of, dict) else dict.fromkeys(names, sizes.multiple_of)
    if unknown := {*by_name} - {*names, "m", "n", "k"}:
        raise ValueError(f"multiple_of has {', '.join(sorted(unknown))}; the sizes are {', '.join(names)}")
    multiples = np.array([by_name.get(name, 1) for name in names], dtype=np.int64)
    first, last = (-(-bounds[:, 0].astype(np.int64) // multiples), bounds[:, 1].astype(np.int64) // multiples)
    nearest = np.clip(np.rint(rows / multiples), np.maximum(first, 1), last).astype(np.int64) * multiples
    may_be = (rows >= multiples) & (first <= last)
    chosen = rng.permutation(len(rows)) < round(sizes.aligned * len(rows))
    return np.where(may_be & chosen[:, None], nearest, rows)


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
