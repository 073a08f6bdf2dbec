"""One hash of a whole training state. Used by the session, by a watched worker and by whoever compares runs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping


def combine(hash_by_name: Mapping[str, str]) -> str:
    """SHA-256 over the lines ``name:hash`` in the mapping's own order, which the caller must fix."""
    whole = hashlib.sha256()
    for name, tensor_hash in hash_by_name.items():
        whole.update(f"{name}:{tensor_hash}\n".encode())
    return whole.hexdigest()
