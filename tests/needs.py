"""Marks of tests that need more than the package and its test dependencies: they are system tests."""

import importlib.util

import pytest


def _needs(module, words):
    absent = pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"needs {words}")
    return lambda test: pytest.mark.system(absent(test))


nvrtc = _needs("cuda", "the Python bindings of NVRTC")
kernel_tuner = _needs("kernel_tuner", "Kernel Tuner")
