"""Make the description of the distribution from README.md, without pictures and pages that an index does not have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

COMMENT, PICTURE, LINK = r"<!--.*?-->", r"!\[[^]]*\]\([^)]*\)\n*", r"\[([^]]+)\]\((?!https?:)[^)]*\)"


def description(text: str) -> str:
    """Return a page without comments and pictures, with the words of its relative links in place of the links.

    >>> description("See [the tutorial](docs/tutorial.md) and [Optuna](https://optuna.org).<!-- a.json#b -->")
    'See the tutorial and [Optuna](https://optuna.org).'
    """
    return re.sub(LINK, r"\1", re.sub(f"{COMMENT}|{PICTURE}", "", text, flags=re.DOTALL))


class Description(MetadataHookInterface):
    """The hook of the build."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the description."""
        text = description((Path(self.root) / "README.md").read_text())
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
