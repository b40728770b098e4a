# SPDX-License-Identifier: Apache-2.0
"""vLLM's sampling masks: the tokens that truncation keeps, for engines with return_sampling_mask.

vLLM finds them in processed logits [n, V], and a row whose ties do not fit in a bit mask. Draws
list them without these logits, and cut ties, so that every row fits in its top_k places.
"""

from __future__ import annotations

from typing import Any

import torch

from .drawer import Drawn


def pack_kept(drawn: Drawn, vocab_size: int, rows: int = 1) -> Any:
    """vLLM's tensors of the kept tokens of a draw; None: it does not list them.

    rows         number of results of each request, which follow one another.
    """
    if drawn.kept is None or drawn.kept_ids is None:
        return None
    from vllm.v1.worker.gpu.sample.output import SamplingMaskTensors  # since 0.32

    ids = drawn.kept_ids
    no_bits = ids.new_empty((len(ids), 0), dtype=torch.uint8)  # of rows with more ids than places
    return SamplingMaskTensors(ids, no_bits, drawn.kept, vocab_size, rows)


def pack_emitted(
    drawn: Drawn, emitted: torch.Tensor, offsets: torch.Tensor, vocab_size: int, most: int
) -> Any:
    """pack_kept() of verified drafts: `most` results for each request, of which `emitted` count.

    offsets      [R + 1]: the first row of each request, whose first rows drew its tokens.
    """
    if drawn.kept is None or drawn.kept_ids is None:
        return None
    steps = torch.arange(most, device=emitted.device)
    rows = offsets[:-1].long().unsqueeze(1) + steps
    rows = rows.clamp(max=len(drawn.kept_ids) - 1).view(-1)
    used = (steps < emitted.unsqueeze(1)).view(-1)
    found = Drawn(drawn.tokens, kept=drawn.kept[rows] * used, kept_ids=drawn.kept_ids[rows])
    return pack_kept(found, vocab_size, most)
