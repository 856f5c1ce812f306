"""The layout of the package: modules import only from lower floors, and heavy packages lazily."""

import ast
import functools
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import mltune
from mltune.problem.kinds import KINDS as PROBLEM_KINDS

PACKAGE = Path(mltune.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

FLOORS: tuple[set[str], ...] = (
    {"files", "errors"},
    {"process", "device", "problem", "records"},
    {"kernel"},
    {"dataset", "known", "measure", "cost"},
    {"search", "results", "resolve"},
    {"comparison", "integrations", "library", "show", "tuning"},
    {"campaign", "testing"},
    {"api"},
    {"cli"},
    {"__main__"},
)
"""The rooms of the package, from the bottom up: a module imports only from its own room and from lower floors."""

MOST_ARROWS = 140
"""Most pairs of rooms of which one imports from the other. The suites of ``testing/`` import what they test."""

MOST_PARAMETERS, MOST_LONG_SIGNATURES = 8, 6
"""Most parameters of a function, and most functions that have more."""

KNOW_KINDS = {"problem", "kernel"}
"""Rooms that know kinds of problems. All others use the protocols: a new kind changes nothing in them.

A kernel's bundle makes its problem of kind arrays.
"""

KINDS = re.compile(r"mltune\.problem\.(?!(problem|kinds|array_values)\b)")
"""Modules of kinds of problems: all but the protocols, the table of kinds, and the types of arrays."""

ONLY_IN: dict[str, set[str]] = {
    "cupy": {"measure", "device", "results"},  # of results only a tuned kernel, which is launched
    "cupy_backends": {"measure", "device"},
    "cuda": {"measure", "device"},
    "pynvml": {"measure", "device"},
    "sklearn": {"cost", "library"},
    "optuna.samplers": {"search", "comparison", "integrations"},
    "kernel_tuner": {"comparison", "integrations"},
    "torch": {"comparison", "library"},
    "triton": {"integrations"},
    "helion": {"integrations"},
    "distributed": {"measure", "campaign"},
    "sqlalchemy": {"records"},
    "alembic": {"records"},
    "psycopg": {"records"},
    "typer": {"cli"},
    "rich": {"cli", "show"},
}
"""Packages that only these rooms import."""

HEAVY = {"sklearn", "pandas", "pyarrow", "scipy", "cupy", "cupy_backends", "cuda", "pynvml"}
HEAVY |= {"matplotlib", "jinja2", "distributed", "kernel_tuner", "torch", "triton", "helion"}
"""Packages that are imported inside functions only. (Optuna's base classes are subclassed, which cannot wait.)"""


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def floor_of(room: str) -> int:
    return next(floor for floor, rooms in enumerate(FLOORS) if room in rooms)


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the full names of what a tree imports: modules, and names of modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def executed_at_import(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements that run when the module is imported, without bodies of functions and conditional ones."""
    for node in ast.walk(tree):
        for statement in getattr(node, "body", []) if isinstance(node, ast.Module | ast.ClassDef) else []:
            if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.If):
                yield statement


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def forbidden(room: str, names: Iterable[str]) -> Iterator[str]:
    """Yield what is wrong with what a module of a room imports."""
    for name in names:
        package, _, rest = name.partition(".")
        other = rest.partition(".")[0]
        is_of_another = package == "mltune" and room != "__init__" and other not in ("", room)
        if is_of_another and floor_of(other) >= floor_of(room):
            yield f"{room} must not import {name}"
        if room not in KNOW_KINDS and KINDS.match(name):
            yield f"{room} must know problems by their protocol only, not by {name}"
        for heavy, homes in ONLY_IN.items():
            if within(name, heavy) and room not in homes:
                yield f"only {sorted(homes)} import {heavy}, not {room}"


def test_a_module_imports_only_from_its_room_and_lower_floors() -> None:
    found = [
        f"{name_of(path)}: {wrong}" for path in MODULES for wrong in forbidden(room_of(path), imported(tree_of(path)))
    ]

    assert found == []


@pytest.mark.parametrize(
    ("room", "name"),
    [
        ("cost", "mltune.search.search.KernelSearch"),
        ("cost", "mltune.search"),
        ("problem", "mltune.records.trial.TrialRecord"),
        ("measure", "mltune.cost.features"),
        ("search", "mltune.problem.gemm.GemmProblem"),
        ("tuning", "sklearn.ensemble"),
        ("search", "typer"),
    ],
)
def test_a_forbidden_import_is_seen(room: str, name: str) -> None:
    assert len(list(forbidden(room, ["numpy", "mltune.errors.MltuneError", name]))) == 1


def switches_on_a_kind(tree: ast.AST) -> list[int]:
    """Return the lines of a module that compare or look up the kind of a problem by its name."""
    names = set(PROBLEM_KINDS)
    found = []
    for node in ast.walk(tree):
        places: list[ast.AST] = []
        if isinstance(node, ast.Compare) and "kind" in ast.unparse(node):
            places = [node.left, *node.comparators]
        elif isinstance(node, ast.match_case):
            places = [node.pattern]
        elif isinstance(node, ast.Dict):
            places = [key for key in node.keys if key is not None] if len(names & set(_texts(node.keys))) > 1 else []
        found += [place.lineno for place in places if names & set(_texts([place]))]
    return found


def _texts(nodes: Iterable[ast.AST | None]) -> list[object]:
    return [one.value for node in nodes if node is not None for one in ast.walk(node) if isinstance(one, ast.Constant)]


def test_no_room_but_those_that_know_kinds_switches_on_one() -> None:
    others = [path for path in MODULES if room_of(path) not in KNOW_KINDS]

    assert [f"{name_of(path)}:{line}" for path in others for line in switches_on_a_kind(tree_of(path))] == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('if problem.kind == "gemm": pass', [1]),
        ('x = 1 if kernel.problem.kind in ("gemm", "arrays") else 2', [1]),
        ('match problem.kind:\n    case "arrays": pass', [2]),
        ('TABLE = {"gemm": 1, "arrays": 2}', [1, 1]),
        ('facts = {"recorded": 1}', []),
        ('if state == "recorded": pass', []),
    ],
)
def test_a_switch_on_a_kind_is_seen(source: str, lines: list[int]) -> None:
    assert switches_on_a_kind(ast.parse(source)) == lines


@pytest.mark.parametrize(
    ("name", "is_kind"),
    [
        ("mltune.problem.gemm.GemmProblem", True),
        ("mltune.problem.gemm_operands.op", True),
        ("mltune.problem.arrays.ArraysProblem", True),
        ("mltune.problem.recorded.RecordedProblem", True),
        ("mltune.problem.array_values.STORAGE", False),
        ("mltune.problem.kinds.KINDS", False),
        ("mltune.problem.problem.RunnableProblem", False),
    ],
)
def test_modules_of_kinds_are_seen(name: str, is_kind: bool) -> None:
    assert bool(KINDS.match(name)) == is_kind


def test_heavy_packages_are_imported_inside_functions() -> None:
    found = [
        f"{name_of(path)}: {name}"
        for path in MODULES
        for statement in executed_at_import(tree_of(path))
        for name in imported(statement)
        if name.split(".")[0] in HEAVY
    ]

    assert found == []


def test_the_command_line_starts_light() -> None:
    script = "import sys, mltune.cli; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    assert not set(done.stdout.split()) & (HEAVY | {"optuna", "numpy", "pydantic"})


def test_every_module_has_a_room() -> None:
    loose = {path.stem for path in PACKAGE.glob("*.py")}
    assert loose <= {"__init__", "__main__", "errors", "api"}
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert folders | (loose - {"__init__"}) <= set().union(*FLOORS)


def module_imports() -> dict[str, set[str]]:
    """Return the modules that each module imports, also inside functions and for types alone."""
    names = {path: ".".join(("mltune", *path.relative_to(PACKAGE).with_suffix("").parts)) for path in MODULES}
    names = {path: name.removesuffix(".__init__") for path, name in names.items()}
    known = set(names.values())
    return {
        name: {
            module
            for one in imported(tree_of(path))
            if (module := one if one in known else one.rpartition(".")[0]) in known - {name}
        }
        for path, name in names.items()
    }


def test_there_are_no_circles() -> None:
    """No module needs itself through others, imports inside functions included."""
    graph = module_imports()
    graphlib.TopologicalSorter(graph).prepare()
    assert sum(map(len, graph.values())) > len(graph)


def test_rooms_know_few_others() -> None:
    """An arrow from room to room is a promise to keep; a new one needs a reason, and mostly replaces another."""
    rooms = {
        (one.split(".")[1], other.split(".")[1])
        for one, others in module_imports().items()
        if "." in one and not one.startswith("mltune.testing.")
        for other in others
        if "." in other
    }
    assert len({(one, other) for one, other in rooms if one != other}) <= MOST_ARROWS


def test_few_functions_have_many_parameters() -> None:
    """More than eight are an object; the rest are public functions with options, and Kernel Tuner's names."""
    functions = [
        f"{name_of(path)} {node.name}"
        for path in MODULES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef)
        and len({one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)} - {"self"})
        > MOST_PARAMETERS
    ]
    assert len(functions) <= MOST_LONG_SIGNATURES, functions


def test_the_page_of_the_architecture_has_every_room() -> None:
    page = (PACKAGE.parent / "docs/developers/architecture.md").read_text()
    rows = re.findall(r"^\| (\d+) \| `(\w+)/?` \|", page, re.MULTILINE)
    assert {room: int(floor) for floor, room in rows} == {
        room: floor for floor, rooms in enumerate(FLOORS, start=1) for room in rooms
    }
