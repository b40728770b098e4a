# SPDX-License-Identifier: Apache-2.0
"""The library's threads on a CPU: as many as vLLM's, on the same processors."""

from __future__ import annotations

import functools
import os
from typing import Any

import torch

from .._device import open_device


def _process_affinity() -> set[int]:
    """The processors that any thread of this process may use.

    vLLM binds each of its threads, the calling one included, to a single processor. Threads that
    the calling thread starts would inherit that processor.
    """
    found = set(os.sched_getaffinity(0))
    for thread in os.listdir("/proc/self/task"):
        try:
            found |= os.sched_getaffinity(int(thread))
        except OSError:  # the thread has ended
            continue
    return found


@functools.cache
def _start_threads(count: int) -> int:
    """Have the library start `count` threads; returns `count`."""
    own = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, _process_affinity())
        open_device("cpu", None, count)
    finally:
        os.sched_setaffinity(0, own)
    return count


def threads_for(rows: torch.Tensor) -> dict[str, Any]:
    """The `threads` argument of a call on these rows; empty on a GPU."""
    return {"threads": _start_threads(torch.get_num_threads())} if rows.is_cpu else {}
