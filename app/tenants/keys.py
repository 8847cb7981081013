"""Keys of tenants: made here, shown once, kept only as their SHA-256."""

from __future__ import annotations

import hashlib
import secrets

PREFIX = "fg_"
"""Lets people and secret scanners recognise a key that has strayed."""


def new_key() -> str:
    """A key of 256 random bits; its alphabet fits headers, subprotocols and shells unquoted."""
    return PREFIX + secrets.token_urlsafe(32)


def key_hash(key: str) -> str:
    """What the tenants file holds in place of the key.

    A plain hash is enough: nobody can try all keys of 256 bits, and every request pays for it.
    """
    # A frame of JSON may hold half a surrogate pair: nobody's key, and no reason to fail.
    return "sha256:" + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
