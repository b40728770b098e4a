# SPDX-License-Identifier: Apache-2.0
"""Reports rows without a token to draw of calls whose signature cannot return them."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque

import torch

from .._statuses import StatusCount

SECONDS = 0.05  # minimum time between two recorded calls on a GPU
PENDING_MAX = 64  # copies in flight


class Watch:
    """Counts rows without a token, and reports them in the log `name`.

    All rows on a CPU are counted. On a GPU the statuses of a call are copied to the host
    asynchronously, and counted at a later call, so nothing waits. At most one call every SECONDS is
    recorded, or with `every` each call; none while a CUDA graph is captured.
    """

    def __init__(self, name: str, outcome: str, every: bool = False) -> None:
        self.count = StatusCount(logging.getLogger(name), outcome)
        self.pause = 0.0 if every else SECONDS
        self.next = 0.0
        self.pending: deque[tuple[torch.Tensor, torch.cuda.Event]] = deque()
        self.lock = threading.Lock()

    def record(self, statuses: torch.Tensor) -> None:
        """Count the rows without a token, by their statuses [B]."""
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
            if len(self.pending) < PENDING_MAX:
                host, event = statuses.to("cpu", non_blocking=True), torch.cuda.Event()
                event.record(torch.cuda.current_stream(statuses.device))
                self.pending.append((host, event))


def replace_missing(watch: Watch, found: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Tokens with 0 in rows without one, which are counted."""
    tokens, statuses = found
    watch.record(statuses)
    return tokens.clamp_(min=0)
