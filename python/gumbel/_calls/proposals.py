# SPDX-License-Identifier: Apache-2.0
"""The distributions that drew drafts, for the verification rules "rejection" and "block"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Optional

from .. import _abi
from .._inputs.arguments import Shape, read_row_float32
from .._inputs.arrays import Array, NumpyArrays
from .._inputs.common import takes_common
from .._inputs.numbers import read_integer
from .._inputs.parameters import Common
from .._inputs.request import Request
from .library_call import LogitsSource, read_head, read_logit_options, read_logits

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Parameters that the target's call provides, or that a proposal does not have.
TARGET_PARAMETERS = (
    "seed",
    "position",
    "first_sample",
    "num_samples",
    "given",
    "token_ids",
    "slots",
    "num_slots",
    "live_rows",
    "logprobs",
    "top_logprobs",
    "ranks",
    "kept",
    "kept_ids",
    "num_best",
    "entropy",
    "isa",
    "threads",
)


def draft_domain(step: int = 0) -> int:
    """The `domain` to draw drafts with for the rules "rejection" and "block".

    step         for "block": the index of the token in its draft, 0 to 1022. A position that is
                 drafted again, after a shortened block, then gets unused noise.

    Unstable: may change in a minor release; see docs/compatibility.md.
    """
    return _abi.DOMAIN_DRAFT | read_integer("step", step, 0, _abi.NODES_MAX - 2) << 8


@dataclass(frozen=True, eq=False)
class Proposal:
    """The distributions that drew drafts, for verify(); built by proposal() or proposal_logits().

    Unstable: may change in a minor release; see docs/compatibility.md.
    """

    read_source: Callable[..., tuple[LogitsSource, Request]]
    common: dict[str, Any]
    drawn: dict[str, Any]  # drawn_lse and drawn_logprobs, or both None

    def read(self, requests: int, slots: dict[str, Any]) -> tuple[LogitsSource, Request]:
        """The C structs; row parameters have `requests` rows, or one for each slot."""
        try:
            return self.read_source({"domain": _abi.DOMAIN_DRAFT, **self.common, **slots}, requests)
        except (TypeError, ValueError) as wrong:
            raise type(wrong)(f"proposal.{wrong}") from wrong

    def read_drawn(self, shapes: Sequence[Shape], arrays: NumpyArrays) -> dict[str, Any]:
        """{field of the C struct: array} of drawn_lse and drawn_logprobs."""
        return {
            name[len("drawn_") :]: read_row_float32(f"proposal.{name}", value, shapes, arrays)
            for name, value in self.drawn.items()
            if value is not None
        }


def _check_drawn(lse: Optional[Array], logprobs: Optional[Array]) -> dict[str, Any]:
    if (lse is None) != (logprobs is None):
        given, other = ("drawn_lse", "drawn_logprobs")[:: 1 if logprobs is None else -1]
        raise ValueError(f"{given}: requires {other}")
    return {"drawn_lse": lse, "drawn_logprobs": logprobs}


@takes_common(*TARGET_PARAMETERS)
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
    """Describe drafts that sample() drew with these arguments, for verify().

    hidden       [n, D]: as many rows as the target's. Row j of a request drew node j + 1; the row
                 of its last node is ignored.
    weight       [V, D]: the draft's own head, over the target's tokens.
    drawn_lse, drawn_logprobs
                 float32 [n], or [R, M] if `tokens` of verify() is [R, M]: `lse` and `logprobs` of
                 the call of sample() in which row j drew node j + 1. The entries of a request's
                 last row are ignored. Pass both or neither. The values are not checked: wrong
                 ones change the distribution of the emitted tokens, and NaN means unknown. They
                 save a GPU most of the product with `weight`; a CPU ignores them.

    Row parameters have one entry for each of the R requests, as in verify(). The default `domain`
    is draft_domain(). Unstable: may change in a minor release; see docs/compatibility.md.
    """
    shared = read_logit_options(scale, softcap, vocab_size)

    def read_source(rest: dict[str, Any], requests: int) -> tuple[LogitsSource, Request]:
        return read_head(hidden, weight, bias, shared, rest, batch=requests)

    return Proposal(read_source, dict(common), _check_drawn(drawn_lse, drawn_logprobs))


@takes_common(*TARGET_PARAMETERS)
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
    """Describe drafts that sample_logits() drew from logits [n, V]; otherwise as proposal().

    Unstable: may change in a minor release; see docs/compatibility.md.
    """
    shared = read_logit_options(scale, softcap, vocab_size)

    def read_source(rest: dict[str, Any], requests: int) -> tuple[LogitsSource, Request]:
        return read_logits(logits, shared, rest, batch=requests)

    return Proposal(read_source, dict(common), _check_drawn(drawn_lse, drawn_logprobs))
