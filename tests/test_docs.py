"""What the documents say is so."""

import re
import tomllib
from itertools import chain
from pathlib import Path

from mltune.kernel.reader import load_kernel
from mltune.records.events import EVENTS

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("*/README.md")])


def test_the_example_of_a_bundle_is_one(tmp_path):
    example, *_ = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/reference/kernel-toml.md").read_text(), re.DOTALL)
    (tmp_path / "kernel.toml").write_text(example)
    (tmp_path / "tiled.cu").write_text("// a source")
    kernel = load_kernel(tmp_path)
    assert kernel.name == "tiled"
    assert list(kernel.all_parameters) == ["TILE", "UNROLL", "GROUP"]


def test_ci_runs_the_test_command_of_readme():
    (command,) = re.findall(r'^command="(.*)"$', (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert f"```\n{command}\n```" in (ROOT / "README.md").read_text()


def test_readme_gives_two_commands_that_do_all_the_set_up():
    commands = re.findall(r"```\n(python3 .*)\n```", (ROOT / "README.md").read_text())
    assert [command.rpartition("bin/")[2] for command in commands] == [
        "mltune tune sgemm",
        "pytest -n auto --dist loadfile",
    ]


def test_every_dependency_has_its_reason():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    reasons = (ROOT / "docs/explanation/dependencies.md").read_text()
    for requirement in chain.from_iterable(groups):
        name = re.match(r"[a-z0-9-]+", requirement)[0]
        assert re.sub(r"-cuda1\dx$", "", name) in reasons


def test_links_lead_somewhere():
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.relative_to(ROOT)} links to {target}"


def test_every_event_is_explained():
    rows = re.findall(r"^\| (`.*?) \| .* \| (.*) \|$", (ROOT / "docs/reference/events.md").read_text(), re.MULTILINE)
    explained = {
        name: set(re.findall(r"`(\w+)`", fields)) for names, fields in rows for name in re.findall(r"`(\w+)`", names)
    }
    assert explained.keys() == EVENTS.keys()
    for event, fields in EVENTS.items():
        assert fields <= explained[event]
