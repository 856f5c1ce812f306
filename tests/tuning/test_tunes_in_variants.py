"""Whole tunes with compiler parameters, on an imaginary GPU: the session, the records, the winner and the wisdom."""

import json
import shutil

import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="needs the Python bindings of NVRTC")

from imaginary_gpu import HOSTILE, PROBLEM, ImaginaryBuilder, built, imaginary_runner

from mltune.device.known import H200
from mltune.errors import MltuneWarning, UsageError
from mltune.kernel.reader import load_kernel
from mltune.known.wisdom import Wisdom
from mltune.measure import build as build_module
from mltune.measure import runner as runner_module
from mltune.records.store import Store
from mltune.resolve.device import Target
from mltune.resolve.request import TuneRequest
from mltune.tuning import session as session_module
from mltune.tuning.tuner import tune

KERNEL = load_kernel(HOSTILE)
PLAIN_S, CUTLASS_S = 3e-3, 2e-3


class Builder(ImaginaryBuilder):
    """A builder for an imaginary GPU, on which a kernel of another name is faster."""

    workers = 2

    def __init__(self, kernel, problem, architecture, **options):
        self.kernel = kernel

    def submit(self, configuration):
        variant = self.kernel.compiler.variant(configuration)
        fast = variant.name or "--apply-controls" in str(variant.options)
        return built(time_s=CUTLASS_S if fast else PLAIN_S + 1e-5 * configuration["REPEAT"], noise=0.001)


@pytest.fixture
def run(tmp_path, idle_workers, monkeypatch):
    """Return a function that tunes on a GPU that is imaginary, with a wisdom in the folder."""
    monkeypatch.setattr(runner_module, "_PAUSES_S", ())
    monkeypatch.setattr(session_module, "gpu_facts", lambda *_: (H200, "13.0"))
    monkeypatch.setattr(build_module, "NvrtcBuilder", Builder)
    monkeypatch.setattr(build_module, "nvrtc_version", lambda: "13.0")
    monkeypatch.setattr(build_module, "compiles_with", lambda architecture, options: "level=8" not in str(options))
    monkeypatch.setattr(runner_module, "GpuRunner", lambda *_, **__: imaginary_runner(pool=idle_workers.pool))

    def start(name="run", trials=32, kernel=KERNEL, **options):
        request = TuneRequest(
            PROBLEM,
            kernel,
            Target(cuda=0),
            trials=trials,
            run=tmp_path / name,
            wisdom=str(tmp_path / "wisdom.json"),
            prior="none",
            stop=False,
            skip=False,
            **options,
        )
        return tune(request)

    return start


def test_the_best_is_found_in_another_variant_and_is_on_record_everywhere(run, tmp_path):
    with pytest.warns(MltuneWarning, match="register_usage_level = 8 is left out"):
        result = run()
    assert result.best_config["entry_name"] == "cutlass"
    assert result.best_time_s < 0.9 * PLAIN_S
    assert {one.proposed_by for one in result.records} >= {"start", "variant"}
    with Store.read_only(tmp_path / "run") as store:
        assert store.header.parameters["entry_name"] == (0, 1)
        assert store.header.parameters["register_usage_level"] == (5,)
        assert store.header.labels["entry_name"] == ("", "cutlass")
    winner = json.loads((tmp_path / "run" / "winner" / "winner.json").read_text())
    assert winner["configuration"]["entry_name"] == "cutlass"
    assert (
        f"#define {KERNEL.source.entry} {KERNEL.source.entry}_cutlass"
        in (tmp_path / "run" / "winner" / "kernel.cu").read_text()
    )
    (best,) = Wisdom.load(tmp_path / "wisdom.json").best
    assert best.configuration["entry_name"] == "cutlass"


@pytest.mark.filterwarnings("ignore::mltune.errors.MltuneWarning")
def test_what_a_wisdom_knows_is_measured_first_in_its_variant(run):
    run("first")
    again = run("again", trials=4)
    assert again.records[0].proposed_by == "wisdom"
    assert again.header.labels["entry_name"][again.records[0].configuration["entry_name"]] == "cutlass"


@pytest.mark.filterwarnings("ignore::mltune.errors.MltuneWarning")
def test_a_resumed_run_proposes_the_same(run, tmp_path):
    whole = [(one.index, one.proposed_by) for one in run("whole", trials=48).records]
    (tmp_path / "wisdom.json").unlink()
    run("parts", trials=16)
    (tmp_path / "wisdom.json").unlink()
    assert [(one.index, one.proposed_by) for one in run("parts", trials=48).records] == whole


@pytest.mark.filterwarnings("ignore::mltune.errors.MltuneWarning")
@pytest.mark.parametrize("variants", [False, True])
def test_a_run_goes_on_with_the_compiler_parameters_that_it_began_with(run, variants):
    begun = run(trials=16, variants=variants)
    result = run(trials=32, variants=not variants)
    assert len(result.records) == 32
    assert result.header.parameters == begun.header.parameters


def test_without_variants_the_space_is_that_of_the_kernel(run, tmp_path):
    result = run(variants=False)
    assert result.best_config.keys() == KERNEL.all_parameters.keys()
    assert result.best_time_s > CUTLASS_S * 1.2


def test_a_file_of_controls_is_on_record_by_its_name_and_its_content_decides_what_is_the_same_kernel(
    run, tmp_path, monkeypatch
):
    monkeypatch.setattr(build_module, "_refusal", lambda kernel, architecture, options: "")  # no valid one is at hand
    folder = tmp_path / "hostile"
    shutil.copytree(HOSTILE, folder)
    table = '[compiler]\nentry_name = [""]\nregister_usage_level = [5]\napply_controls = ["", "fast.acf"]\n'
    (folder / "kernel.toml").write_text((HOSTILE / "kernel.toml").read_text() + table)
    (folder / "fast.acf").write_bytes(b"\x00fast")

    result = run(kernel=load_kernel(folder))

    assert result.best_config["apply_controls"] == "fast.acf"
    winner = tmp_path / "run" / "winner"
    assert (winner / "fast.acf").read_bytes() == b"\x00fast"
    assert json.loads((winner / "winner.json").read_text())["configuration"]["apply_controls"] == "fast.acf"
    with Store.read_only(tmp_path / "run") as store:
        assert store.header.labels["apply_controls"] == ("", "fast.acf")
        assert "nvjitlink" in store.header.versions
    assert run("again", trials=4, kernel=load_kernel(folder)).records[0].proposed_by == "wisdom"

    (folder / "fast.acf").write_bytes(b"\x00faster")
    with pytest.raises(UsageError, match="source"):
        run(trials=40, kernel=load_kernel(folder))
    assert run("other", trials=4, kernel=load_kernel(folder)).records[0].proposed_by != "wisdom"
