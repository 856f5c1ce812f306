"""The page and the Markdown of a comparison: a scoreboard of strategies, from its summary alone.

Names of datasets, kernels, GPUs and strategies come from strangers: both templates escape every cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from mltune.files.text import many
from mltune.show.report.svg import SERIES, Omission, Plot, axes, drawn, finish, plotting
from mltune.show.report.writing import render, style

Summary = Mapping[str, Any]
"""The document of :func:`mltune.comparison.results.summarise`, or a part of it."""

PICKS = (1, 2, 3, 5, 10, 25, 50, 100)
"""Numbers of evaluations for which each GPU has the fraction of the optimum."""

MOST_FIGURES = 40
"""Most figures of a page: each takes a tenth of a second and some kilobytes."""

_DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page: paragraphs, a table with names in its first column, a list, figures."""

    heading: str
    text: tuple[str, ...] = ()
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    items: Sequence[str] = ()
    figures: Sequence[Plot | Omission] = ()


def html(document: Summary) -> str:
    """Return the scoreboard as one page of HTML without script and external resources."""
    with plotting():
        return render("scoreboard.html", document, {"sections": [*_sections(document)], "style": style()})


def markdown(document: Summary) -> str:
    """Return the scoreboard as Markdown, without figures."""
    return render("scoreboard.md", document, {"sections": [*_sections(document, draw=False)]})


def _sections(document: Summary, *, draw: bool = True) -> Iterator[Section]:
    strategies, datasets = document["strategies"], document["datasets"]
    yield _overall(document)
    if rows := [
        _on_clock(name, *curve) for name, summary in strategies.items() for curve in summary["over_time"].items()
    ]:
        text = (
            "The clock is simulated: it has some compile cores and one GPU. The score is as above, over seconds. Its "
            "budget is the time that random search takes for its evaluations, one by one.",
        )
        targets = (f"seconds to {100 * float(to):.0f} % (reached)" for to in next(iter(strategies.values()))["to"])
        yield Section("In seconds", text, ("strategy", "compile cores", "score", *targets), rows)
    yield Section("What was seen, and what was left out", items=[*_seen(document)])
    yield _picks(document, draw=draw)
    header = ("", "spaces", *strategies)
    kernels = {f"kernel {name}": spaces for name, spaces in _groups(datasets, "kernel").items()}
    groups = kernels | {f"GPU {name}": spaces for name, spaces in _groups(datasets, "device").items()}
    rows = [[name, str(len(spaces)), *_scores(document, spaces)] for name, spaces in groups.items()]
    yield Section("Score by kernel and by GPU", (), header, rows)
    by_space = [[space, *(_score(summary["datasets"][space]) for summary in strategies.values())] for space in datasets]
    yield Section("Score by space", ("Mean and standard error of the runs.",), ("", *strategies), by_space)
    yield _spaces(datasets)
    yield Section("Submit a strategy", _SUBMIT)
    yield Section(
        "How this was made",
        header=("", ""),
        rows=[
            ["date", document["date"]],
            ["command", document["command"]],
            ["machine", f"{document['machine']}; own seconds of strategies are CPU seconds there"],
            *([name, version] for name, version in document["versions"].items()),
        ],
    )


_SUBMIT = (
    "A strategy is a class with a name and a method search(simulation, seed). The method calls "
    "simulation.evaluate(index) until its budget is spent. Name the class as module:Class, or give your package an "
    "entry point in the group mltune.strategies. This command plays it under the same rules: mltune scoreboard "
    "--strategies mltune,random,my_module:MyStrategy.",
    "Then open an issue with the package or the module, its licence, and the summary.json of that run. We play every "
    "strategy again before we publish it. docs/developers/extend.md has an example. mltune.testing.StrategyContract "
    "has tests.",
)


def _overall(document: Summary) -> Section:
    strategies = document["strategies"]
    tests = {test["second"]: test for test in document["significance"]}
    reference = next((test["first"] for test in document["significance"]), "")
    header = ["strategy", "score", "95 % interval", *([f"{reference} minus this", "p"] if tests else [])]
    header += [f"evaluations to {100 * float(to):.0f} % (reached)" for to in next(iter(strategies.values()))["to"]]
    rows = []
    for name, summary in strategies.items():
        interval, test = summary["score_interval"], tests.get(name)
        cells = [name, f"{summary['score']:.3f}", "-" if interval is None else "{:.3f} to {:.3f}".format(*interval)]
        if tests:
            cells += ["", ""] if test is None else [f"{test['difference']:+.3f}", f"{test['p_adjusted']:.2g}"]
        cells += [f"{to['evaluations']:.0f} ({100 * to['reached']:.0f} %)" for to in summary["to"].values()]
        rows.append([*cells, f"{1e3 * summary['seconds']['own_per_evaluation']:.2f}", str(summary["seeds"])])
    datasets, limit = document["datasets"], document["evaluations"]
    kinds = [many(len(_groups(datasets, key)), noun) for key, noun in (("kernel", "kernel"), ("device", "GPU"))]
    text = (
        f"Figures are means over {many(len(datasets), 'recorded space')} ({', '.join(kinds)}) with equal weights. A "
        f"run evaluates at most {limit} distinct configurations, and an evaluation looks up the recorded time.",
        "The score compares the best so far with random search: 0 is as good as random search, 1 is the optimum at the "
        "first evaluation. It is a mean over the evaluations of the budget. The budget ends where random search is "
        "expected to have come 95 % of the way from the median to the optimum, and after 250 at most.",
        "A run that misses a target counts with all of its evaluations. Intervals are bootstrapped over the runs of "
        "each space. The value p is that of a permutation test of pairs with the same space and seed, with Holm's "
        "correction. The column own has the milliseconds that the strategy itself takes for an evaluation.",
    )
    return Section("Strategies", text, [*header, "own ms", "seeds"], rows)


def _on_clock(name: str, cores: str, summary: Summary) -> list[str]:
    seconds = (f"{to['seconds']:.2f} ({100 * to['reached']:.0f} %)" for to in summary["to"].values())
    return [name, cores, _score(summary), *seconds]


def _picks(document: Summary, *, draw: bool) -> Section:
    """Return the mean fractions of the optimum after :data:`PICKS`, over all spaces and for each GPU."""
    strategies, datasets = document["strategies"], document["datasets"]
    at = [str(pick) for pick in PICKS if pick <= document["evaluations"]]
    groups = {"all GPUs": [*datasets]} | _groups(datasets, "device")
    curves = {
        group: {
            name: [fmean(summary["datasets"][space]["at"][pick] for space in spaces) for pick in at]
            for name, summary in strategies.items()
        }
        for group, spaces in groups.items()
    }
    rows = [
        [group, name, *(f"{value:.3f}" for value in values)]
        for group, summaries in curves.items()
        for name, values in summaries.items()
    ]
    text = ("The best after some evaluations, as a fraction of the optimum. Figures are means over runs and spaces.",)
    shown = [*enumerate(curves.items())][: MOST_FIGURES if draw else 0]
    figures = [drawn(group, _figure, f"picks-{number}", group, at, means) for number, (group, means) in shown]
    return Section("Picks for each GPU", text, ("GPU", "strategy", *at), rows, figures=figures)


def _figure(name: str, group: str, at: Sequence[str], curves: Mapping[str, Sequence[float]]) -> Plot:
    panel = axes(3.6, 2.7)
    for number, (strategy, values) in enumerate(curves.items()):
        style = {"color": SERIES[number % len(SERIES)], "linestyle": _DASHES[number // len(SERIES) % len(_DASHES)]}
        # a name that begins with _ would have no entry in the legend
        panel.plot([int(pick) for pick in at], values, label=f"\u200b{strategy}", **style)
    panel.set(xscale="log", xlabel="evaluations", ylabel="of the optimum", ylim=(None, 1.01))
    panel.set_xticks([int(pick) for pick in at], at, minor=False)
    panel.minorticks_off()
    panel.legend(loc="best", fontsize=6.5, borderpad=0.0, labelspacing=0.2)  # among the curves, where there is room
    best = max(curves, key=lambda strategy: curves[strategy][-1])
    return finish(
        panel,
        name,
        f"Picks: {group}",
        f"{group}: {best} is the best after {at[-1]} evaluations, {curves[best][-1]:.3f} of the optimum.",
    )


def _spaces(datasets: Summary) -> Section:
    header = ("space", "kernel", "problem", "GPU", "kind", "configurations", "failed", "optimum, ms")
    rows = [
        [
            *(name, facts["kernel"], facts["problem"], facts["device"], facts.get("kind", "")),
            *(f"{facts['configurations']:,}", f"{facts['failed']:,}", f"{1e3 * facts['optimum_s']:.4g}"),
            *(str(facts["budget"]["evaluations"]), f"{facts['budget']['seconds']:.1f}"),
            *(facts.get("in_view") or "no", facts.get("source") or "not stated", facts.get("licence") or "not stated"),
        ]
        for name, facts in datasets.items()
    ]
    text = (
        "The budget ends where random search is expected to have come 95 % of the way from the median to the optimum. "
        "It is given in evaluations, and in the seconds that they take one by one. It is at most the budget of a run.",
    )
    budget = ("budget", "budget, s", "in view", "source", "licence")
    return Section("Spaces", text, (*header, *budget), rows)


def _seen(document: Summary) -> Iterator[str]:
    """Yield sentences on what strategies had seen of the spaces before, and on the limits of the figures."""
    datasets = document["datasets"]
    unseen = [name for name, facts in datasets.items() if not facts.get("in_view")]
    kernels = sum(facts.get("in_view") == "kernel" for facts in datasets.values())
    yield (
        "The constants of mltune's search and the resources of its kernels were chosen while looking at the spaces "
        f"that come with mltune: {len(datasets) - len(unseen) - kernels} of {len(datasets)} here. "
        f"{f'Another {kernels} are of the same kernels on other GPUs. ' if kernels else ''}So the figures do not show "
        "how mltune does on kernels that nobody has looked at."
    )
    if 0 < len(unseen) < len(datasets):
        scores = ", ".join(map(" ".join, zip(document["strategies"], _scores(document, unseen), strict=True)))
        yield f"Score on the other {many(len(unseen), 'space')}: {scores}."
    yield (
        "Strategies start without a pretrained model and without remembered configurations. A strategy whose name has "
        "prior= starts from a model. The list below says for each space what that model has learned from."
    )
    yield (
        "Strategies of other packages have their default options. Those of Kernel Tuner, hybrid_vndx and "
        "adaptive_tabu_greywolf, were designed on its own benchmark kernels, GEMM and convolution among them."
    )
    samples = [name for name, facts in datasets.items() if facts.get("kind") not in ("complete", "pruned")]
    if samples:
        yield f"The optimum is that of a sample in {many(len(samples), 'space')}: {', '.join(samples)}."
    for name, dataset in datasets.items():
        yield from (f"{name}: {text}" for text in (dataset["account"], *dataset["notices"]) if text)
    failed: dict[tuple[str, str], list[str]] = {}
    for failure in document["errors"]:
        failed.setdefault((failure["strategy"], failure["error"]), []).append(failure["dataset"])
    for (strategy, error), spaces in failed.items():
        yield f"{many(len(spaces), 'run')} of {strategy} failed, on {', '.join(dict.fromkeys(spaces))}: {error}"
    if document["missing"]:
        yield f"The comparison was stopped: {many(document['missing'], 'run')} missing."


def _groups(datasets: Summary, key: str) -> dict[str, list[str]]:
    """Return the names of the spaces by a common property."""
    groups: dict[str, list[str]] = {}
    for name, facts in datasets.items():
        groups.setdefault(facts[key], []).append(name)
    return groups


def _scores(document: Summary, spaces: Sequence[str]) -> list[str]:
    """Return the mean score of each strategy over some spaces."""
    datasets = [strategy["datasets"] for strategy in document["strategies"].values()]
    return [f"{fmean(figures[space]['score'] for space in spaces):.3f}" for figures in datasets]


def _score(summary: Summary) -> str:
    error = summary["score_error"]
    return f"{summary['score']:.3f}" + ("" if error is None else f" ± {error:.3f}")
