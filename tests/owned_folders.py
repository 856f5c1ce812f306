"""Folders that mltune wrote: their document has the hashes of their files."""

import hashlib
import json
from collections.abc import Mapping

from mltune.files.owned import WINNER, FolderProduct


def described(files: Mapping[str, bytes], product: FolderProduct = WINNER) -> dict[str, bytes]:
    """Return files with the document of a folder."""
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    document = dict.fromkeys(sorted(product.keys)) | {"sha256": hashes}
    return {**files, product.document: json.dumps(document).encode()}
