# SPDX-License-Identifier: Apache-2.0
"""Counts rows from which no token could be drawn, by status, and logs the counts.

A line is logged at most once a minute, and at the end of the process if the counts have changed.
"""

from __future__ import annotations

import ctypes
import logging
import multiprocessing.util
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable
from typing import Optional, Union

from . import _abi

SECONDS = 60.0  # minimum time between two lines of the log
_UNUSED = 6  # GUMBEL_ROW_UNUSED: the caller left the row out

Logger = Union[logging.Logger, "logging.LoggerAdapter[logging.Logger]"]


def describe_status(status: int) -> str:
    """The library's description of a gumbel_row_status."""
    describe = _abi.lib.gumbel_row_status_string
    describe.restype, describe.argtypes = ctypes.c_char_p, [ctypes.c_int]
    return _abi.decode_text(describe(status))


class StatusCount:
    """Counts rows without a token.

    logger       receives a warning for the first such row, and later at most one every SECONDS,
                 with the total count of each status.
    outcome      the end of the warning: how the caller handles such rows.
    """

    def __init__(self, logger: Logger, outcome: str) -> None:
        self.logger, self.outcome = logger, outcome
        self.rows: Counter[int] = Counter()
        self._logged: Optional[float] = None
        self._unlogged = False
        self._lock = threading.Lock()
        self._process = 0  # the process that flushes at its end

    def add(self, statuses: Iterable[int]) -> None:
        """Count the statuses, except 0 and that of unused rows."""
        bad = [status for status in statuses if status not in (0, _UNUSED)]
        if not bad:
            return
        with self._lock:
            self.rows.update(bad)
            self._unlogged = True
            if self._process != os.getpid():  # unlike atexit, also in multiprocessing's children
                self._process = os.getpid()
                multiprocessing.util.Finalize(None, self.flush, exitpriority=100)
            now = time.monotonic()
            if self._logged is not None and now - self._logged < SECONDS:
                return
            self._logged = now
        self.flush()

    def flush(self) -> None:
        """Log the counts if they have changed since the last line."""
        with self._lock:
            line, unlogged, self._unlogged = self.format_counts(), self._unlogged, False
        if unlogged:
            self.logger.warning("gumbel: %s", line)

    def format_counts(self) -> str:
        """The counts as a line of text."""
        total = sum(self.rows.values())
        parts = "; ".join(
            f"{describe_status(status)}: {n}" for status, n in sorted(self.rows.items())
        )
        rows = "row" if total == 1 else "rows"
        return f"{total} {rows} so far without a token to draw ({parts}); {self.outcome}"
