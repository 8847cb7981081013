"""What a key looks like and what is kept of it."""

from __future__ import annotations

import re

from app.tenants.keys import key_hash, new_key


def test_a_key_fits_headers_subprotocols_and_shells() -> None:
    assert all(re.fullmatch(r"fg_[A-Za-z0-9_-]{43}", new_key()) for _ in range(200))


def test_no_two_keys_are_alike() -> None:
    assert len({new_key() for _ in range(1000)}) == 1000


def test_the_hash_is_the_one_that_sha256sum_prints() -> None:
    digest = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    assert key_hash("test") == f"sha256:{digest}"


def test_half_a_surrogate_pair_has_a_hash_like_any_other_text() -> None:
    assert key_hash("\ud83d").startswith("sha256:")
