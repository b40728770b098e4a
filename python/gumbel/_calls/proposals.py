# SPDX-License-Identifier: Apache-2.0
"""What drew drafts at random, for the rules that weigh its probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Optional

from .. import _abi
from .._inputs.arguments import Shape, read_row_float32
from .._inputs.arrays import Array, NumpyArrays
from .._inputs.common import Common, Request, takes_common
from .._inputs.numbers import read_integer
from .library_call import LogitsSource, read_head, read_logit_options, read_logits

if TYPE_CHECKING:
    from typing_extensions import Unpack

# What a draft has from the target's call, or has none of.
NOT_OF_DRAFTS = (
    "seed",
    "position",
    "first_sample",
    "num_samples",
    "given",
    "slots",
    "num_slots",
    "live_rows",
    "logprobs",
    "top_logprobs",
    "ranks",
    "kept",
    "num_best",
    "isa",
    "threads",
)


def draft_domain(step: int = 0) -> int:
    """The `domain` that drafts are drawn with for the rules "rejection" and "block".

    step         for "block": which token of its draft is drawn, 0 to 1022. A place that is drafted
                 again, after a block was cut short, must not meet noise that was used.
    """
    return _abi.DOMAIN_DRAFT | read_integer("step", step, 0, _abi.NODES_MOST - 2) << 8


@dataclass(frozen=True, eq=False)
class Proposal:
    """What drew drafts: made by proposal() and proposal_logits(), taken by verify()."""

    make: Callable[..., tuple[LogitsSource, Request]]
    common: dict[str, Any]
    drawn: dict[str, Any]  # drawn_lse and drawn_logprobs, or None both

    def read(self, requests: int, slots: dict[str, Any]) -> tuple[LogitsSource, Request]:
        """The structs that it is; row parameters are of `requests` rows, or of slots."""
        try:
            return self.make({"domain": _abi.DOMAIN_DRAFT, **self.common, **slots}, requests)
        except (TypeError, ValueError) as wrong:
            raise type(wrong)(f"proposal.{wrong}") from wrong

    def told(self, shapes: Sequence[Shape], arrays: NumpyArrays) -> dict[str, Any]:
        """What its draws had, by its name in the struct and in memory that the library reads."""
        return {
            name[len("drawn_") :]: read_row_float32(f"proposal.{name}", value, shapes, arrays)
            for name, value in self.drawn.items()
            if value is not None
        }


def _drawn(lse: Optional[Array], logprobs: Optional[Array]) -> dict[str, Any]:
    if (lse is None) != (logprobs is None):
        given, other = ("drawn_lse", "drawn_logprobs")[:: 1 if logprobs is None else -1]
        raise ValueError(f"{given}: it goes with {other}, both or neither")
    return {"drawn_lse": lse, "drawn_logprobs": logprobs}


@takes_common(*NOT_OF_DRAFTS)
def proposal(
    hidden: Array,
    weight: Array,
    *,
    bias: Optional[Array] = None,
    drawn_lse: Optional[Array] = None,
    drawn_logprobs: Optional[Array] = None,
    scale: float = 1.0,
    softcap: float = 0.0,
    vocab_size: Optional[int] = None,
    **common: Unpack[Common],
) -> Proposal:
    """Say that drafts were drawn by sample() with these arguments, for verify().

    hidden       [n, D]: as many rows as the target's; row j of a request drew node j + 1, and the
                 row of its last node may hold anything.
    weight       [V, D]: the draft's own head, over the target's tokens.
    drawn_lse, drawn_logprobs
                 float32 [n], or [R, M] where verify() has `tokens` so: `lse` and `logprobs` as
                 sample() gave them when row j drew node j + 1; of a request's last row anything.
                 Both or neither. Nothing checks them: other numbers make another law, and where
                 one is NaN q counts as unknown. They save a GPU most of the work on the draft's
                 rows, and it then multiplies `weight` by few tokens; a CPU has no use for them.

    Row parameters are of R requests, as verify() has them. `domain` is by default draft_domain().
    """
    shared = read_logit_options(scale, softcap, vocab_size)

    def make(rest: dict[str, Any], requests: int) -> tuple[LogitsSource, Request]:
        return read_head(hidden, weight, bias, shared, rest, batch=requests)

    return Proposal(make, dict(common), _drawn(drawn_lse, drawn_logprobs))


@takes_common(*NOT_OF_DRAFTS)
def proposal_logits(
    logits: Array,
    *,
    drawn_lse: Optional[Array] = None,
    drawn_logprobs: Optional[Array] = None,
    scale: float = 1.0,
    softcap: float = 0.0,
    vocab_size: Optional[int] = None,
    **common: Unpack[Common],
) -> Proposal:
    """Say that drafts were drawn from logits [n, V], by sample_logits(); else as proposal()."""
    shared = read_logit_options(scale, softcap, vocab_size)

    def make(rest: dict[str, Any], requests: int) -> tuple[LogitsSource, Request]:
        return read_logits(logits, shared, rest, batch=requests)

    return Proposal(make, dict(common), _drawn(drawn_lse, drawn_logprobs))
