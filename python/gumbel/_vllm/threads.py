# SPDX-License-Identifier: Apache-2.0
"""The library's threads on a CPU: as many as vLLM's, on the same processors."""

from __future__ import annotations

import functools
import os
from typing import Any

import torch

from .._device import open_device


def _processors() -> set[int]:
    """Those that this process's threads may use, together.

    vLLM binds each of its threads to a processor of its own, and the one that calls, too: what that
    one may use is a single one, and threads that it starts would inherit that.
    """
    found = set(os.sched_getaffinity(0))
    for thread in os.listdir("/proc/self/task"):
        try:
            found |= os.sched_getaffinity(int(thread))
        except OSError:  # it has ended
            continue
    return found


@functools.cache
def _opened(count: int) -> int:
    """Have the library start `count` threads; their number."""
    mine = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, _processors())
        open_device("cpu", None, count)
    finally:
        os.sched_setaffinity(0, mine)
    return count


def threads_for(rows: torch.Tensor) -> dict[str, Any]:
    """What a call takes that says how many threads draw from these rows."""
    return {"threads": _opened(torch.get_num_threads())} if rows.is_cpu else {}
