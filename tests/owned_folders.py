"""Folders that mltune wrote: their document has the hashes of their files."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from mltune.files.owned import WINNER, FolderProduct


def described(files: Mapping[str, bytes], product: FolderProduct = WINNER) -> dict[str, bytes]:
    """Return files with the document of a folder."""
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    document = dict.fromkeys(sorted(product.keys)) | {"sha256": hashes}
    return {**files, product.document: json.dumps(document).encode()}


def write_winner(folder: Path, **files: str) -> None:
    """Write the folder of a winner with some sources; their names have no suffix."""
    folder.mkdir()
    for name, content in described({f"{name}.cu": text.encode() for name, text in files.items()}).items():
        (folder / name).write_bytes(content)
