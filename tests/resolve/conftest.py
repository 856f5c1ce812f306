"""Small plans for the tests of this room."""

from tests.small_plans import gpu, make_plan, small_gpu, text

__all__ = ["gpu", "make_plan", "small_gpu", "text"]
