# SPDX-License-Identifier: Apache-2.0
"""Exact token sampling by the Gumbel-max trick, fused with the LM-head product.

The letters of every shape: B rows of the batch, V vocabulary, D hidden size.

>>> import gumbel
>>> out = gumbel.sample(hidden, weight, temperature=0.8)
>>> out.tokens      # int32 [B, 1]

A call without a seed draws a fresh one from the operating system. **Equal seed and position give
equal tokens. Advance `position` by one at every step**, or let a Sampler do so:

>>> sampler = gumbel.Sampler(seed=7)
>>> out = sampler.sample(hidden, weight, temperature=0.8)

All work is done by libgumbel, a C library; any number of threads may call at the same time.
"""

from ._abi import lib as _lib
from ._calls.advance import advance
from ._calls.drafts import verify, verify_logits
from ._calls.noise import noise, philox4x32
from ._calls.outputs import KeptSets, RowStatus, SampleOutput, VerifyOutput
from ._calls.prepared import PreparedCall, prepare_sample, prepare_sample_logits
from ._calls.proposals import Proposal, draft_domain, proposal, proposal_logits
from ._calls.rule_updates import RuleUpdates
from ._calls.sample_calls import (
    explain,
    process_logits,
    sample,
    sample_logits,
    score,
    score_logits,
    softmax,
    top_k,
)
from ._calls.sampler import Sampler
from ._calls.screens import Screen
from ._calls.summaries import SUMMARY, finish, merge, partial, partial_logits
from ._calls.watermarks import Watermark, WatermarkDetection, detect_watermark
from ._device import Info, info
from ._explain.explanation import DrawExplanation
from ._explain.steps import explain_draw
from ._import_name import warn_of_other_package as _warn_of_other_package
from ._inputs.history import History
from ._inputs.recent import Recent
from ._inputs.row_lists import RowLists

_warn_of_other_package()

__version__: str = _lib.gumbel_version_string().decode()

__all__ = [
    "SUMMARY",
    "DrawExplanation",
    "History",
    "Info",
    "KeptSets",
    "PreparedCall",
    "Proposal",
    "Recent",
    "RowLists",
    "RowStatus",
    "RuleUpdates",
    "SampleOutput",
    "Sampler",
    "Screen",
    "VerifyOutput",
    "Watermark",
    "WatermarkDetection",
    "__version__",
    "advance",
    "detect_watermark",
    "draft_domain",
    "explain",
    "explain_draw",
    "finish",
    "info",
    "merge",
    "noise",
    "partial",
    "partial_logits",
    "philox4x32",
    "prepare_sample",
    "prepare_sample_logits",
    "process_logits",
    "proposal",
    "proposal_logits",
    "sample",
    "sample_logits",
    "score",
    "score_logits",
    "softmax",
    "top_k",
    "verify",
    "verify_logits",
]
