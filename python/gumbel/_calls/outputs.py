# SPDX-License-Identifier: Apache-2.0
"""Results of the calls, and the names of what can be wrong with a row."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from .._inputs.tensors import to_numpy

_ROWS_NAMED = 8  # rows whose status a repr names one by one


class RowStatus(enum.IntEnum):
    """Values of `status`, one a row. A row that is not OK has no token.

    >>> out.status == gumbel.RowStatus.NAN      # which rows have a NaN logit
    """

    OK = 0  #: the row has its tokens
    NAN = 1  #: a logit is NaN
    INFINITE = 2  #: a logit is +inf
    EMPTY = 3  #: every logit is -inf: there is no token to draw
    TEMPERATURE = 4  #: on a GPU: the temperature is negative or not finite
    SLOT = 5  #: on a GPU: the slot does not exist
    UNUSED = 6  #: the row is not one of `live_rows`, or a request without nodes
    DRAFT = 7  #: on a GPU: the draft is not valid


class Shown:
    """A repr with the dtype, shape and values of each array; fields that are None are left out."""

    def __repr__(self) -> str:
        parts = [
            f"{name}={_status(value) if name == 'status' else format_array(value)}"
            for name, value in vars(self).items()
            if value is not None
        ]
        return f"{type(self).__name__}({', '.join(parts)})"


def format_array(value: Any) -> str:
    """The dtype, shape and values of an array; the repr of anything else."""
    if not hasattr(value, "shape"):
        return repr(value)
    array = np.asarray(to_numpy("array", value))
    if array.ndim == 0:
        return str(array[()])
    values = np.array2string(array, precision=4, separator=", ", threshold=16, edgeitems=3)
    return f"{array.dtype}{list(array.shape)} {' '.join(values.split())}"


def _status(value: Any) -> str:
    names = [_name(int(row)) for row in np.asarray(to_numpy("status", value)).ravel()]
    if len(names) <= _ROWS_NAMED:
        return f"[{', '.join(names)}]"
    return f"[{', '.join(f'{count} x {name}' for name, count in Counter(names).items())}]"


def _name(status: int) -> str:
    try:
        return RowStatus(status).name
    except ValueError:  # a status of a later version, or memory that no call has written yet
        return str(status)


@dataclass(frozen=True, eq=False, repr=False)
class SampleOutput(Shown):
    """Results of a draw: NumPy arrays, or torch tensors where the inputs are tensors.

    A row whose status is not 0 has token -1 and NaN in its float arrays. Outputs that were not
    requested are None.
    """

    tokens: NDArray[np.int32]  #: [B, num_samples] token ids
    logprobs: Optional[NDArray[np.float32]]  #: [B, num_samples] log-probability of each token
    lse: Optional[NDArray[np.float32]]  #: [B] log-normaliser: ln(sum of exp(transformed logits))
    status: NDArray[np.int32]  #: [B] a RowStatus: 0 is OK
    ranks: Optional[NDArray[np.int32]] = None  #: [B, num_samples] 1 + how many are likelier
    kept: Optional[NDArray[np.int32]] = None  #: [B] how many tokens truncation kept
    top_ids: Optional[NDArray[np.int32]] = None  #: [B, top_logprobs] the likeliest tokens, best
    #: first; -1 after the last that can be drawn without truncation
    top_logprobs: Optional[NDArray[np.float32]] = None  #: theirs; -inf where truncated
    best_ids: Optional[NDArray[np.int32]] = None  #: [B, num_best] the tokens of the best scores of
    #: the draw, best first: draws without replacement; -1 after the last that can be drawn
    best_scores: Optional[NDArray[np.float32]] = None  #: their scores; -inf after the last
    seed: Optional[Any] = None  #: the seed of the draw, as `seed=` takes it: the one that was
    #: passed, or the fresh one. None where nothing was drawn


@dataclass(frozen=True, eq=False, repr=False)
class VerifyOutput(Shown):
    """Results of verified drafts, as arrays of the kind that the call was given.

    R requests, of M nodes at most.
    """

    tokens: NDArray[np.int32]  #: [R, M] what is emitted; -1 behind the last
    emitted: NDArray[np.int32]  #: [R] how many; the last of them is the next call's root
    accepted: NDArray[np.int32]  #: [R] drafts among them: emitted - 1, or 0
    path: NDArray[np.int32]  #: [R, M] rows of the root and of accepted drafts, whose keys and
    #: values stay in a cache; -1 behind the last
    last_row: NDArray[np.int32]  #: [R] the last of these, or -1
    position: NDArray[np.uint64]  #: [R, or slots] for the next call; int64 in torch. Of slots,
    #: those of live requests alone are written
    finished: NDArray[np.int32]  #: [R] 0, 1: a stop token was emitted, 2: the limit was reached
    status: NDArray[np.int32]  #: [R] a RowStatus, of the row at which a request stopped
    logprobs: Optional[NDArray[np.float32]] = None  #: [R, M] of the emitted tokens
    seed: Optional[Any] = None  #: as SampleOutput.seed
