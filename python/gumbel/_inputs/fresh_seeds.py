# SPDX-License-Identifier: Apache-2.0
"""Fresh seeds, and the seeds of rows."""

from __future__ import annotations

import os

from .. import _abi

_forks = 0  # number of forks since the process that imported this module


def count_forks() -> int:
    """A number that differs between a child of fork() and its parent."""
    return _forks


def _record_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_record_fork)


def fresh_seed() -> int:
    """64 random bits from the operating system."""
    return int.from_bytes(os.urandom(8), "little")


def derive_row_seed(seed: int, row: int) -> int:
    """The seed of a row if one seed serves the batch: gumbel_row_seed()."""
    mixed: int = _abi.lib.gumbel_row_seed(seed, row)
    return mixed
