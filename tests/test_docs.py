"""The documentation agrees with the code: examples run, paths exist, tables are complete, the site builds."""

import os
import pkgutil
import re
import shlex
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest

import mltune
import mltune.testing
from mltune.kernel.reader import load_kernel
from mltune.records.events import EVENTS
from tests import needs
from tests.cli import program

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(ROOT.glob("docs/**/*.md"))
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *PAGES,
    *sorted(ROOT.glob("*/README.md")),
]

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PATH = re.compile(r"`((?:benchmarks|datasets|docs|kernels|mltune|search|tests)/[^`\s{]*)`")
TEXTS = ("*.py", "*.md", "*.toml", "*.txt", "*.html", "*.ipynb", ".ci/run", ":!tests", ":!benchmarks/results")
SHOW_OUTPUTS = ("docs/tutorial.md", "docs/explanation/bound.md", "docs/explanation/pruning.md")
"""Pages that show what commands print: a test runs them."""
NOT_IN_A_CHECKOUT = {"mltune/_data/", "datasets/KERNEL/", "mltune/problem/NAME.py", "tests/problem/test_NAME.py"}


def name(path):
    return str(path.relative_to(ROOT))


def programs(path):
    return [
        text for language, text in BLOCK.findall(path.read_text()) if language == "python" and "import mltune" in text
    ]


def run(command, folder):
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env={**os.environ, "MPLBACKEND": "Agg"}, timeout=300
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done


def test_the_example_of_a_bundle_is_one(tmp_path):
    example, *_ = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/reference/kernel-toml.md").read_text(), re.DOTALL)
    (tmp_path / "kernel.toml").write_text(example)
    (tmp_path / "tiled.cu").write_text("// a source")
    kernel = load_kernel(tmp_path)
    assert kernel.name == "tiled"
    assert list(kernel.all_parameters) == ["TILE", "UNROLL", "GROUP"]


@needs.nvrtc
def test_the_kernel_of_the_page_your_kernel_passes_the_check(tmp_path):
    files = {"cuda": "kernel.cu", "toml": "kernel.toml"}
    (tmp_path / "blur").mkdir()
    for language, text in BLOCK.findall((ROOT / "docs/your-kernel.md").read_text()):
        if language in files:
            (tmp_path / "blur" / files[language]).write_text(text)
    done = program.command("check", "blur", "--time", "5m", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_call_of_the_page_your_kernel_lacks_only_a_gpu(tmp_path):
    blocks = BLOCK.findall((ROOT / "docs/your-kernel.md").read_text())
    (call,) = (text for language, text in blocks if language == "python" and "import tune_kernel" in text)
    (source,) = (text for language, text in blocks if language == "cuda")
    (tmp_path / "blur").mkdir()
    (tmp_path / "blur/kernel.cu").write_text(source)
    without_gpu = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", call.replace("8192", "64")],
        cwd=tmp_path,
        env=without_gpu,
        capture_output=True,
        text=True,
    )
    assert "mltune.errors.DeviceError" in done.stderr.splitlines()[-1], done.stderr


def test_no_text_installs_the_distribution_of_that_name_which_is_another_project():
    texts = subprocess.run(["git", "ls-files", "-z", *TEXTS], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / file for file in texts.stdout.split("\0") if file]
    assert ROOT / "mltune/comparison/peers.py" in files
    found = [
        name(file)
        for file in files
        if re.search(r"\bmltune\[(cuda|peers|dashboard)|\binstall (-U )?mltune\b(?!-)", file.read_text())
    ]
    assert found == []


def test_ci_runs_the_test_command_of_readme():
    (command,) = re.findall(r'^command="(.*)"$', (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert f"```\n{command}\n```" in (ROOT / "README.md").read_text()


def test_readme_gives_two_commands_that_do_all_the_set_up():
    commands = re.findall(r"```\n(python3 .*)\n```", (ROOT / "README.md").read_text())
    assert [command.rpartition("bin/")[2] for command in commands] == [
        "mltune tune sgemm",
        "pytest -n auto --dist worksteal",
    ]


def test_every_dependency_has_its_reason():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    reasons = (ROOT / "docs/developers/dependencies.md").read_text()
    for requirement in chain.from_iterable(groups):
        package = re.match(r"[a-z0-9-]+", requirement)[0]
        assert re.sub(r"-(cuda1\dx|cu12)$", "", package) in reasons


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_links_lead_to_files(document):
    for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", document.read_text()):
        assert (document.parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_paths_in_code_font_exist(document):
    paths = set(PATH.findall(document.read_text())) - NOT_IN_A_CHECKOUT
    assert {path for path in paths if not (ROOT / path).exists()} == set()


def test_pages_that_the_code_refers_to_exist():
    sources = [path for folder in ("mltune", "benchmarks", "kernels") for path in ROOT.glob(f"{folder}/**/*.*")]
    text = "\n".join(path.read_text() for path in sources if path.suffix in (".py", ".toml", ".md"))
    pages = set(re.findall(r"\bdocs/[\w/-]+\.md", text))
    assert pages
    assert {page for page in pages if not (ROOT / page).exists()} == set()


def test_every_event_is_explained():
    text = (ROOT / "docs/reference/events.md").read_text()
    rows = re.findall(r"^\| (`.*?) \| .* \| (.*) \|$", text, re.MULTILINE)
    explained = {
        event: set(re.findall(r"`(\w+)`", fields)) for names, fields in rows for event in re.findall(r"`(\w+)`", names)
    }
    assert explained.keys() == EVENTS.keys()
    for event, fields in EVENTS.items():
        assert fields <= explained[event]


def test_every_public_name_is_in_the_python_reference():
    pages = "\n".join(page.read_text() for page in ROOT.glob("docs/reference/python/*.md"))
    shown = {name.rpartition(".")[2] for name in re.findall(r"^::: mltune\.([\w.]+)$", pages, re.MULTILINE)}
    shown |= {name for name in vars(mltune.errors) if "::: mltune.errors\n" in pages}
    assert set(mltune.__all__) - shown - {"__version__", "errors"} == set()
    suites = set(re.findall(r"^::: mltune\.testing\.(\w+)$", pages, re.MULTILINE))
    assert suites == set(mltune.testing.__all__)


def test_everything_that_the_python_reference_shows_exists():
    pages = "\n".join(page.read_text() for page in ROOT.glob("docs/reference/python/*.md"))
    missing = []
    for target in re.findall(r"^::: ([\w.]+)$", pages, re.MULTILINE):
        try:
            pkgutil.resolve_name(target)
        except (AttributeError, ImportError):
            missing.append(target)
    assert missing == []


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text()
    assert [name(page) for page in PAGES if f": {page.relative_to(ROOT / 'docs')}\n" not in navigation] == []


@pytest.mark.system
def test_the_site_builds_without_a_warning(tmp_path):
    run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", ROOT / "mkdocs.yml", "-d", tmp_path],
        ROOT,
    )
    assert (tmp_path / "tutorial/index.html").exists()
    assert "--compile-on CLUSTER" in (tmp_path / "reference/options/index.html").read_text()
    fetched = [
        url
        for page in tmp_path.rglob("*.html")
        for url in re.findall(r'(?:src|href)="(https?:[^"]*\.(?:js|css|woff2?))"', page.read_text())
    ]
    assert fetched == []


def printed_outputs(page):
    """Yield the commands of each block of a page, with the output that the page shows for them, or None."""
    blocks = BLOCK.findall(page.read_text())
    for (language, text), (following, output) in zip(blocks, [*blocks, ("", "")][1:], strict=True):
        lines = text.replace("\\\n", " ").splitlines()
        commands = [shlex.split(line, comments=True) for line in lines if line.startswith("mltune ")]
        commands = [[word for word in command if word != "--follow"] for command in commands]  # it has ended
        if language == "" and commands:
            yield commands, output if following == "text" else None


def shows(expected, printed):
    """Return whether a page shows what was printed: `...` stands for anything, and numbers agree within 5 %.

    Libraries of linear algebra round differently on different processors, and searches differ a little for it.
    """
    pattern = re.escape(" ".join(expected.split())).replace(r"\.\.\.", ".*?")
    number = r"\d+(?:,\d{3})*(?:\\?\.\d+)?"
    wanted = [float(found.replace("\\", "").replace(",", "")) for found in re.findall(number, pattern)]
    match = re.fullmatch(re.sub(number, r"(\\d[\\d,.]*)", pattern), " ".join(printed.split()))
    if match is None:
        return False
    found = [float(text.replace(",", "").rstrip(".")) for text in match.groups()]
    return all(one == pytest.approx(other, rel=0.05) for one, other in zip(found, wanted, strict=True))


def test_what_a_page_shows_is_compared_with_what_is_printed():
    page = "best 54.64 TFLOPS (...), 81.7 % of the peak\n...\n5,320 rows"
    assert shows(page, "best  54.6 TFLOPS (53 to 56), 81.5 % of the peak\nmore\n5,320 rows\n")
    assert not shows(page, "best  54.6 TFLOPS (53 to 56), 36.1 % of the peak\nmore\n5,320 rows\n")
    assert not shows(page, "best  54.6 TFLOPS (53 to 56), 81.7 % of a peak\nmore\n5,320 rows\n")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_outputs_of_commands_are_shown_where_a_test_compares_them(page):
    shown = [commands for commands, output in printed_outputs(page) if output is not None]
    assert shown == [] or name(page) in SHOW_OUTPUTS
    assert not re.search(r"^\$ mltune ", page.read_text(), re.MULTILINE)


CAMPAIGN = "runs/rehearsal"
"""The run of the campaign of the tutorial: 1,400 trials."""


def check_commands(page, folder, wanted):
    """Run the wanted commands of a page, and compare what they print; return the number of outputs compared."""
    checked = 0
    for commands, expected in printed_outputs(ROOT / page):
        results = [program.command(*command[1:], cwd=folder) for command in filter(wanted, commands)]
        assert [(one.args, one.stderr) for one in results if one.returncode] == []
        if results and expected is not None:
            assert shows(expected, results[-1].stdout), results[-1].stdout
            checked += 1
    return checked


@pytest.mark.system
@pytest.mark.parametrize("page", SHOW_OUTPUTS)
def test_commands_print_what_a_page_shows(page, tmp_path):
    assert check_commands(page, tmp_path, lambda command: CAMPAIGN not in command)
    for text in programs(ROOT / page):
        run_program(text, tmp_path)


@pytest.mark.system
def test_the_campaign_of_the_tutorial_prints_what_the_page_shows(tmp_path):
    assert check_commands("docs/tutorial.md", tmp_path, lambda command: CAMPAIGN in command) == 1


def run_program(text, folder):
    done = program.python(text, cwd=folder, MPLBACKEND="Agg")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "document", [path for path in DOCUMENTS if programs(path) and path.name != "tutorial.md"], ids=name
)
@pytest.mark.system
def test_python_examples_run(document, tmp_path):
    for text in programs(document):
        run_program(text, tmp_path)
