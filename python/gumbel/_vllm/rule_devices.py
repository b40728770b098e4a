# SPDX-License-Identifier: Apache-2.0
"""Whether the GPU draws by rules, which the library determines for the size of a vocabulary.

A front end has no context on the GPU, and gets none: a child process calls the library.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any, Optional

import torch

SECONDS = 120  # time-out of the child, which imports torch
_ROW = {"order": "temperature,typical_p", "typical_p": 0.5, "seed": 0}
_PROBE = """
import importlib, sys, torch
explain = importlib.import_module(sys.argv[1]).explain
logits = torch.empty(1, int(sys.argv[2]), device="cuda")
explain(logits, seed=0)  # plain draws must work
try:
    explain(logits, **eval(sys.argv[3]))
except RuntimeError as reason:
    print(reason)
"""
_known: dict[int, Optional[str]] = {}


def find_rules_problem(config: Any) -> Optional[str]:
    """The reason why an engine of this configuration cannot draw by rules; None: it can.

    The first call on a GPU takes some seconds. If this fails, later calls try again.
    """
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        return None
    if not current_platform.is_cuda():
        return "require a CPU, or a GPU of CUDA"
    vocab_size = config.model_config.get_vocab_size()
    if vocab_size not in _known:
        try:
            reason = _probe_library(vocab_size)
        except (OSError, subprocess.SubprocessError, RuntimeError) as fault:
            return f"cannot be checked on this GPU: {fault}"
        _known[vocab_size] = reason and f"are not drawn by this GPU: {reason}"
    return _known[vocab_size]


def _probe_library(vocab_size: int) -> Optional[str]:
    """The error of a call with rules on the first GPU; None: it has none."""
    package = __name__.partition(".")[0]
    if torch.cuda.is_initialized():  # the engine is in this process
        explain = sys.modules[package].explain
        logits = torch.empty(1, vocab_size, device="cuda")
        explain(logits, seed=0)  # plain draws must work
        try:
            explain(logits, **_ROW)
        except RuntimeError as reason:
            return str(reason)
        return None
    done = subprocess.run(
        [sys.executable, "-c", _PROBE, package, str(vocab_size), repr(_ROW)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise RuntimeError(lines[-1])
    return done.stdout.strip() or None
