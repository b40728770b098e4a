# SPDX-License-Identifier: Apache-2.0
"""Rows that have no token to draw, where a signature has no way to report them."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque

import torch

from .._statuses import StatusCount

SECONDS = 0.05  # between two looks at rows on a GPU
PENDING_MOST = 64  # looks whose copies have not arrived


class Watch:
    """Counts rows without a token, in the log `name`.

    Rows on a CPU are all counted. On a GPU a look copies the statuses of a call to the host behind
    the call, and a later look counts them: nothing waits. A look is taken every SECONDS at most,
    or with `every` at each call; none while a CUDA graph is captured.
    """

    def __init__(self, name: str, outcome: str, every: bool = False) -> None:
        self.count = StatusCount(logging.getLogger(name), outcome)
        self.pause = 0.0 if every else SECONDS
        self.next = 0.0
        self.pending: deque[tuple[torch.Tensor, torch.cuda.Event]] = deque()
        self.lock = threading.Lock()

    def look(self, statuses: torch.Tensor) -> None:
        """Count the rows of a draw without a token, by their statuses [B]."""
        if statuses.is_cpu:
            if statuses.any():
                self.count.add(statuses.tolist())
            return
        now = time.monotonic()
        if now < self.next or torch.cuda.is_current_stream_capturing():
            return
        with self.lock:
            self.next = now + self.pause
            while self.pending and self.pending[0][1].query():
                self.count.add(self.pending.popleft()[0].tolist())
            if len(self.pending) < PENDING_MOST:
                host, event = statuses.to("cpu", non_blocking=True), torch.cuda.Event()
                event.record(torch.cuda.current_stream(statuses.device))
                self.pending.append((host, event))


def settle(watch: Watch, found: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Tokens that can be looked up in a table: 0 in a row without one, which is counted."""
    tokens, statuses = found
    watch.look(statuses)
    return tokens.clamp_(min=0)
