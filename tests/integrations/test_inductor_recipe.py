"""The recipe for PyTorch's compiler on the page about other tuners."""

import importlib.util
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.system


def test_the_compiler_gets_the_few_configurations_that_the_search_promises(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    custom_op = pytest.importorskip("torch._inductor.kernel.custom_op")
    page = Path(__file__).resolve().parents[2] / "docs/how-to/other-tuners.md"
    (recipe,) = [
        block
        for block in re.findall(r"^```py\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
        if "config_generator" in block
    ]
    (tmp_path / "recipe.py").write_text(recipe)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    compiled, tune = [], custom_op.autotune_custom_op
    monkeypatch.setattr(
        custom_op,
        "autotune_custom_op",
        lambda *args, **options: compiled.append(options["non_tensor_args"]) or tune(*args, **options),
    )
    specification = importlib.util.spec_from_file_location("recipe", tmp_path / "recipe.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    (configurations,) = compiled
    assert len({configuration["splits"] for configuration in configurations}) == 3
    a, b = torch.randn(16, 4096), torch.randn(4096, 16)
    assert torch.allclose(module.compiled(a, b), (a @ b).relu(), atol=1e-2)
