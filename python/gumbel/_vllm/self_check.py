# SPDX-License-Identifier: Apache-2.0
"""Checks of a vLLM that is newer than the newest known version.

1. Hooks are installed only if the functions that they replace have the parameters that the hooks
   expect (check_hooks and check_parameters of vllm_versions.py).
2. The first draw of a runner from hidden states is compared with a draw from vLLM's own logits,
   with the same parameters. Tokens must be equal or tied within rounding, and their raw
   log-probabilities equal within rounding. Until then drafts are verified by vLLM.

If a check fails, or the first draw raises an error, the runner keeps vLLM's draws, and one line of
the log states the reason. Known versions are not checked.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
import vllm

from .._calls import sample_calls as _sampling
from .._inputs.workspaces import use_workspace
from .counts import logger
from .draw_parameters import DrawParameters
from .drawer import Drawer, add_mask
from .lazy import LazyLogits, is_lazy
from .threads import threads_for
from .vllm_versions import checks_needed


def is_unproven(owner: Any) -> bool:
    """Whether the first draw of a runner or sampler is still to be compared."""
    return checks_needed() and not getattr(owner, "_gumbel_proven", False)


def attempt(owner: Any, read: Callable[..., Any], *arguments: Any) -> Any:
    """`read(*arguments)`; None if `owner` is unproven and this fails: vLLM draws from then on."""
    if not is_unproven(owner):
        return read(*arguments)
    if not owner._gumbel_serves:
        return None
    try:
        return read(*arguments)
    except Exception as problem:  # anything may have changed in an unknown version
        owner._gumbel_serves = False
        logger.warning(
            "gumbel: draws are vLLM's own, as vLLM %s is not known and its first draw was not as "
            "expected: %s: %s",
            vllm.__version__,
            type(problem).__name__,
            problem,
        )
        return None


def prove_first_draw(
    owner: Any, drawer: Drawer, logits: Any, parameters: Optional[DrawParameters]
) -> None:
    """Compare the first draw of an unproven runner or sampler; ValueError if it is different."""
    if parameters is None or not is_lazy(logits) or not is_unproven(owner):
        return
    with use_workspace(drawer.workspace):
        _compare_draws(logits, add_mask(logits, parameters))
    owner._gumbel_proven = True
    logger.info("gumbel: the first draw of vLLM %s is as expected", vllm.__version__)


def _compare_draws(logits: LazyLogits, parameters: DrawParameters) -> None:
    """Raise ValueError unless draws from hidden states and from vLLM's logits agree."""
    head = {**logits.head, **threads_for(logits.hidden)}
    stock = logits.make()
    if stock is None or stock.shape != logits.shape:
        raise ValueError(f"logits have another shape than {tuple(logits.shape)}")
    threads, arguments = threads_for(stock), parameters.arguments()
    finite = stock[stock.isfinite()].abs()
    relative = max(2 * torch.finfo(logits.hidden.dtype).eps, 2**-10)
    rounding = relative * max(1.0, finite.max().item() if len(finite) else 0.0)

    def draw(rows: torch.Tensor) -> Any:
        out: Any = _sampling.sample_logits(rows, **threads, **arguments, logprobs=None)
        return out.tokens.view(-1).long()

    out: Any = _sampling.sample(logits.hidden, logits.weight, **head, **arguments, logprobs=None)
    tokens = out.tokens.view(-1).long()
    differ = (tokens != draw(stock)).nonzero().view(-1)
    if len(differ):
        raised = stock.float()
        raised[differ, tokens[differ]] += rounding
        if (draw(raised)[differ] != tokens[differ]).any():
            raise ValueError("tokens drawn from its logits are different")
    scored: Any = _sampling.score(logits.hidden, logits.weight, tokens.int(), **head)
    wanted: Any = _sampling.score_logits(stock, tokens.int(), **threads)
    close = {"rtol": 0.0, "atol": 2 * rounding, "equal_nan": True}
    if not torch.allclose(scored.logprobs, wanted.logprobs, **close):
        raise ValueError("log-probabilities of its logits are different")
