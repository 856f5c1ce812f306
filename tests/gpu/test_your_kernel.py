"""The page docs/your-kernel.md from its first command to its last line, on a GPU."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.environment import importing

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

PAGE = Path(__file__).resolve().parents[2] / "docs/your-kernel.md"
MINE = """#define BLOCK 128
extern "C" __global__ void scale(float* out, const float* in, int n) {
  int i = blockIdx.x * BLOCK + threadIdx.x;
  if (i < n) out[i] = 2 * in[i];
}
"""
FILES = {"cuda": "blur/kernel.cu", "toml": "blur/kernel.toml"}


def test_the_page_runs(tmp_path):
    (tmp_path / "mine.cu").write_text(MINE)
    for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE):
        if language in FILES:
            (tmp_path / FILES[language]).write_text(text)
        for line in text.splitlines() if language == "" else []:
            run("-m", *line.split(), folder=tmp_path)
        if language == "python":
            run("-c", text, folder=tmp_path)
    assert (tmp_path / "runs/blur/winner/kernel.cubin").exists()


def run(*arguments, folder):
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=importing(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{arguments}: {done.stderr}"
