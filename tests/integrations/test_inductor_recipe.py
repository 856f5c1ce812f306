"""The recipe for PyTorch's compiler on the page about other tuners."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.environment import importing

pytestmark = pytest.mark.system

BEFORE = """
import json
from torch._inductor.kernel import custom_op

tune, compiled = custom_op.autotune_custom_op, []


def noted(*arguments, **options):
    compiled.extend(options["non_tensor_args"])
    return tune(*arguments, **options)


custom_op.autotune_custom_op = noted
"""

AFTER = """
a, b = torch.randn(16, 4096), torch.randn(4096, 16)
print(json.dumps([compiled_with, bool(torch.allclose(compiled(a, b), (a @ b).relu(), atol=1e-2))]))
"""


def test_the_compiler_gets_the_few_configurations_that_the_search_promises(tmp_path):
    pytest.importorskip("torch")
    page = Path(__file__).resolve().parents[2] / "docs/how-to/other-tuners.md"
    blocks = re.findall(r"^```py\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    (recipe,) = [block for block in blocks if "config_generator" in block]
    program = tmp_path / "program.py"
    program.write_text(BEFORE.replace("compiled", "compiled_with") + recipe + AFTER)
    environment = importing(TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"))
    done = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    configurations, is_right = json.loads(done.stdout.splitlines()[-1])
    assert len({configuration["splits"] for configuration in configurations}) == len(configurations) == 3
    assert is_right
