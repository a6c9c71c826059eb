"""The chained digest of a Thread's checkpoints: each names the one before it."""

import hashlib

GENESIS = "sha256:" + "0" * 64


def chained(previous: str, entries: bytes, state: bytes) -> str:
    """The digest of a checkpoint over canonical bytes, bound to its predecessor's digest."""
    digest = hashlib.sha256()
    for part in (previous.encode(), entries, state):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return f"sha256:{digest.hexdigest()}"
