# SPDX-License-Identifier: Apache-2.0
"""Seeds: fresh ones, and those of rows."""

from __future__ import annotations

import os

from .. import _abi


def fresh_seed() -> int:
    """64 random bits of the operating system."""
    return int.from_bytes(os.urandom(8), "little")


def seed_of_row(seed: int, row: int) -> int:
    """The seed of a row where one seed serves the batch: gumbel_row_seed()."""
    mixed: int = _abi.lib.gumbel_row_seed(seed, row)
    return mixed
