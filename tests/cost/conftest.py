"""Small spaces and bundles for the tests of this room."""

from tests.small_spaces import bare_bundle, landscape, tile_bundle

__all__ = ["bare_bundle", "landscape", "tile_bundle"]
