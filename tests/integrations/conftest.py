"""Triton, and a simulated GPU for it."""

import gc
import os

import pytest


@pytest.fixture(scope="session")
def triton():
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns where it is not set
    return pytest.importorskip("triton")


@pytest.fixture
def simulated(triton, monkeypatch, tmp_path):
    """Return a function that makes a simulated GPU the current one of Triton, with an empty cache of kernels."""
    from simulated_gpu import SimulatedGpu
    from triton.runtime.driver import driver

    from mltune.device.known import H200
    from mltune.integrations.triton import decorator

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("MLTUNE_WISDOM", str(tmp_path / "wisdom.json"))
    monkeypatch.setattr(decorator, "gpu_and_driver", lambda index: (H200, "13.0"))  # the driver's answer

    def made(time_ms):
        gpu = SimulatedGpu(time_ms)
        monkeypatch.setattr(driver, "_active", gpu)
        return gpu

    yield made
    gc.collect()  # kernels, which are unloaded by the driver


@pytest.fixture(scope="session")
def compiled_kernels(tmp_path_factory):
    """Return a folder with kernels that earlier tests have compiled."""
    return tmp_path_factory.mktemp("triton")


@pytest.fixture
def warm_cache(simulated, compiled_kernels, monkeypatch):
    """Take kernels that earlier tests have compiled: what is tested begins after that."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(compiled_kernels))


@pytest.fixture
def kernels(triton, tmp_path, monkeypatch):
    """Return a function that writes a module with kernels and imports it."""
    import importlib.util
    import itertools

    numbers = itertools.count()

    def made(source):
        path = tmp_path / f"kernels_{next(numbers)}.py"
        path.write_text("import triton\nimport triton.language as tl\n\n\n" + source)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return made


@pytest.fixture
def switched(triton, monkeypatch):
    """Return a function that switches mltune on until the test ends."""
    from triton.runtime.autotuner import Autotuner

    from mltune.integrations.triton import install, switch

    for name in ("run", "__init__"):  # restored at the end
        monkeypatch.setattr(Autotuner, name, getattr(Autotuner, name))
    monkeypatch.setattr(switch, "_settings", None)
    monkeypatch.setattr(switch.atexit, "register", lambda function: None)
    return lambda **options: install(**{"compilers": 2, **options})
