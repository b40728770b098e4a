# SPDX-License-Identifier: Apache-2.0
"""Whether the GPU draws by rules, which the library determines for the size of a vocabulary.

A front end has no context on the GPU, and gets none: a child process calls the library.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Optional

import torch

from .._calls import sample_calls as _sampling

SECONDS = 120  # time-out of the child, which imports torch
_ROW = {"order": "temperature,typical_p", "typical_p": 0.5, "seed": 0}
_PROBE = """
import importlib, json, sys
find_refusal = importlib.import_module(sys.argv[1]).find_refusal
print(find_refusal("cuda", int(sys.argv[2]), json.loads(sys.argv[3])) or "")
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


def find_refusal(device: str, vocab_size: int, row: dict[str, Any]) -> Optional[str]:
    """The error of a draw of such a row on a device; None: it has none."""
    logits = torch.empty(1, vocab_size, device=device)
    _sampling.explain(logits, seed=0)  # plain draws must work
    try:
        _sampling.explain(logits, **row)
    except RuntimeError as reason:
        return str(reason)
    return None


def _probe_library(vocab_size: int) -> Optional[str]:
    """find_refusal() of a row with rules on the first GPU."""
    if torch.cuda.is_initialized():  # the engine is in this process
        return find_refusal("cuda", vocab_size, _ROW)
    done = subprocess.run(
        [sys.executable, "-c", _PROBE, __name__, str(vocab_size), json.dumps(_ROW)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise RuntimeError(lines[-1])
    return done.stdout.strip() or None
