"""The command ``mltune``, or a program, in a process of its own, which starts with all modules imported."""

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.environment import ROOT, importing

SERVER = """
import contextlib, gc, importlib, json, os, pkgutil, runpy, signal, sys
import mltune

ours = [module.name for module in pkgutil.walk_packages(mltune.__path__, "mltune.")]
others = ["optuna.samplers", "pandas", "pyarrow.parquet", "rich.console", "scipy.optimize", "sklearn.ensemble"]
for name in others + ours:
    if name == "mltune.__main__" or ".migrations" in name:
        continue
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
from mltune.dataset.dataset import list_datasets
from mltune.kernel.reader import load_kernel
load_kernel("gemm_simt"), list_datasets()  # makes the validators of documents
gc.freeze()
for line in sys.stdin:
    call = json.loads(line)
    child = os.fork()
    if not child:
        os.chdir(call["cwd"])
        os.environ.clear()
        os.environ.update(call["environment"])
        for stream, path in enumerate((os.devnull, *call["streams"])):
            os.dup2(os.open(path, os.O_WRONLY if stream else os.O_RDONLY), stream)
        signal.alarm(600)
        if "program" in call:
            sys.path.insert(0, "")
            exec(call["program"], {"__name__": "__main__"})
            sys.exit()
        sys.argv = ["mltune", *call["arguments"]]
        runpy.run_module("mltune", run_name="__main__", alter_sys=True)
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def command(*arguments, cwd=None, **environment):
    """Run the command to its end, without a GPU."""
    return _run({"arguments": [*map(str, arguments)]}, cwd, environment)


def python(text, *, cwd=None, **environment):
    """Run a program in Python to its end, without a GPU."""
    return _run({"program": text, "arguments": []}, cwd, environment)


def _run(call, cwd, environment):
    server = _server()
    with tempfile.TemporaryDirectory() as scratch:
        streams = [Path(scratch) / name for name in ("stdout", "stderr")]
        for stream in streams:
            stream.touch()
        call |= {
            "cwd": str(cwd or ROOT),
            "environment": os.environ | {"CUDA_VISIBLE_DEVICES": ""} | environment,
            "streams": [*map(str, streams)],
        }
        server.stdin.write(json.dumps(call) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        return subprocess.CompletedProcess(call["arguments"], code, *(stream.read_text() for stream in streams))


def answer(*arguments, code=0, cwd=None, **environment):
    """Run the program with --json and return the document that it printed."""
    result = command(*arguments, "--json", cwd=cwd, **environment)
    assert result.returncode == code, result.stderr
    return json.loads(result.stdout)


def assert_refused(result, *parts):
    """Assert that the program ended with one clear line on stderr and exit code 2."""
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert result.stderr.startswith("mltune: ")
    assert "Traceback" not in result.stderr
    assert len(result.stderr.splitlines()) == 1
    for part in parts:
        assert part in result.stderr


@functools.cache
def _server():
    command = [sys.executable, "-P", "-c", SERVER]
    server = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=importing(CUDA_VISIBLE_DEVICES="")
    )
    atexit.register(server.__exit__, None, None, None)  # it ends with its input
    return server
