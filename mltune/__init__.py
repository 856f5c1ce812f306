"""Find the fastest version of a parametrised GPU kernel while measuring few of its versions."""

__version__ = "0.2.0.dev0"
