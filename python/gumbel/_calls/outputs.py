# SPDX-License-Identifier: Apache-2.0
"""Results of the calls, and the status values of rows."""

from __future__ import annotations

import enum
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from .._inputs.tensors import is_tensor, to_numpy

_ROWS_NAMED = 8  # a repr lists the statuses of this many rows, and counts those of more


class RowStatus(enum.IntEnum):
    """Values of `status`, one for each row. A row whose status is not OK has no token.

    >>> out.status == gumbel.RowStatus.NAN      # which rows have a NaN logit
    """

    OK = 0  #: the row has its tokens
    NAN = 1  #: a logit is NaN
    INFINITE = 2  #: a logit is +inf
    EMPTY = 3  #: all logits are -inf: there is no token to draw
    TEMPERATURE = 4  #: on a GPU: the temperature is negative or not finite
    SLOT = 5  #: on a GPU: the slot does not exist
    UNUSED = 6  #: the row is beyond `live_rows`, or its request has no nodes
    DRAFT = 7  #: on a GPU: the draft is not valid
    LISTS = 8  #: a list of the row has no room for its ids


class ArrayRepr:
    """A repr with the dtype, shape and values of each array; fields that are None are omitted."""

    def __repr__(self) -> str:
        parts = [
            f"{name}={_format_status(value) if name == 'status' else format_array(value)}"
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


def _format_status(value: Any) -> str:
    names = [_status_name(int(row)) for row in np.asarray(to_numpy("status", value)).ravel()]
    if len(names) <= _ROWS_NAMED:
        return f"[{', '.join(names)}]"
    return f"[{', '.join(f'{count} x {name}' for name, count in Counter(names).items())}]"


def _status_name(status: int) -> str:
    try:
        return RowStatus(status).name
    except ValueError:  # a status of a later version, or memory that no call has written to yet
        return str(status)


class KeptSets(NamedTuple):
    """Sets of tokens, one after the other: set i is ids[offsets[i] : offsets[i + 1]].

    NumPy arrays, or tensors on the device of the draw. Unstable: may change in a minor release; see
    docs/compatibility.md.
    """

    offsets: NDArray[np.int64]  #: [sets + 1], from 0 to the number of ids
    ids: NDArray[np.int32]  #: ids, ascending in each set
    logprobs: Optional[NDArray[np.float32]]  #: their log-probabilities; None without `logprobs`


def list_kept_sets(out: Any, rows: Any = None) -> KeptSets:
    """The kept sets of an output's rows; `rows`: of these, in this order."""
    if out.kept_ids is None:
        raise ValueError("kept_ids: pass the number of places of a row to the draw")
    counts, tables = out.kept, [out.kept_ids, out.kept_logprobs]
    if rows is not None:
        rows = rows.long() if is_tensor(rows) else rows
        counts = counts[rows]
        tables = [None if table is None else table[rows] for table in tables]
    places = out.kept_ids.shape[1]
    numbers = np.arange(len(counts)) if rows is None else np.asarray(to_numpy("path", rows))
    over = numbers[np.asarray(to_numpy("kept", counts)) > places]
    if len(over):
        raise ValueError(f"kept_ids: {_name_rows(over)} more than {places} tokens")
    if is_tensor(counts):
        torch = sys.modules["torch"]
        used = torch.arange(places, device=counts.device) < counts.unsqueeze(1)
        offsets = counts.new_zeros(len(counts) + 1, dtype=torch.int64)
        torch.cumsum(counts, 0, out=offsets[1:])
    else:
        used = np.arange(places) < counts[:, np.newaxis]
        offsets = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
    ids, logprobs = tables
    return KeptSets(offsets, ids[used], None if logprobs is None else logprobs[used])


def _name_rows(rows: Any) -> str:
    """The first rows by number, and the verb of an error message."""
    if len(rows) == 1:
        return f"row {rows[0]} keeps"
    names = ", ".join(str(row) for row in rows[:_ROWS_NAMED])
    more = f" and {len(rows) - _ROWS_NAMED} more" if len(rows) > _ROWS_NAMED else ""
    return f"rows {names}{more} keep"


@dataclass(frozen=True, eq=False, repr=False)
class SampleOutput(ArrayRepr):
    """Results of a draw: NumPy arrays, or torch tensors if the inputs are tensors.

    A row whose status is not 0 has token -1 and NaN in its float arrays. Outputs that were not
    requested are None.
    """

    tokens: NDArray[np.int32]  #: [B, num_samples] token ids
    logprobs: Optional[NDArray[np.float32]]  #: [B, num_samples] log-probability of each token
    lse: Optional[NDArray[np.float32]]  #: [B] log-normaliser: ln(sum of exp(transformed logits))
    status: NDArray[np.int32]  #: [B] a RowStatus: 0 is OK
    ranks: Optional[NDArray[np.int32]] = None  #: [B, num_samples] 1 + number of likelier tokens
    kept: Optional[NDArray[np.int32]] = None  #: [B] number of tokens that truncation kept
    top_ids: Optional[NDArray[np.int32]] = None  #: [B, top_logprobs] the likeliest tokens, best
    #: first; -1 after the last that can be drawn without truncation
    top_logprobs: Optional[NDArray[np.float32]] = None  #: [B, top_logprobs] log-probabilities of
    #: top_ids; -inf for truncated tokens
    kept_ids: Optional[NDArray[np.int32]] = None  #: [B, N] the tokens that `kept` counts, by
    #: ascending id; kept_sets() lists them. Places after the first `kept` of a row are undefined,
    #: and all places of a row that keeps more than N tokens
    kept_logprobs: Optional[NDArray[np.float32]] = None  #: [B, N] log-probabilities of kept_ids
    best_ids: Optional[NDArray[np.int32]] = None  #: [B, num_best] the tokens with the best scores
    #: of the draw, best first: draws without replacement; -1 after the last that can be drawn
    best_scores: Optional[NDArray[np.float32]] = None  #: [B, num_best] scores; -inf after the last
    entropy: Optional[NDArray[np.float32]] = None  #: [B] entropy in nats of the distribution of the
    #: log-probabilities
    seed: Optional[Any] = None  #: the seed of the draw, passed or fresh, as `seed=` takes it; None
    #: if nothing was drawn

    def kept_sets(self) -> KeptSets:
        """The tokens that truncation kept in each row, for calls with `kept_ids`.

        On CUDA this waits for the device. Raises ValueError naming the rows that keep more tokens
        than there are places, and without `kept_ids`.

        Unstable: may change in a minor release; see docs/compatibility.md.
        """
        return list_kept_sets(self)


@dataclass(frozen=True, eq=False, repr=False)
class VerifyOutput(ArrayRepr):
    """Results of verify(): NumPy arrays, or torch tensors if the inputs are tensors.

    R requests with at most M nodes each.
    """

    tokens: NDArray[np.int32]  #: [R, M] emitted tokens; -1 after the last
    emitted: NDArray[np.int32]  #: [R] their number; the last of them is the root of the next call
    accepted: NDArray[np.int32]  #: [R] number of accepted drafts: emitted - 1, or 0
    path: NDArray[np.int32]  #: [R, M] rows of the root and of the accepted drafts, whose keys and
    #: values stay in the KV cache; -1 after the last
    last_row: NDArray[np.int32]  #: [R] the last row of `path`, or -1
    position: NDArray[np.uint64]  #: [R] or [num_slots], for the next call; int64 in torch. Only
    #: slots of live requests are written
    finished: NDArray[np.int32]  #: [R] 0: not finished; 1: stop token emitted; 2: limit reached
    status: NDArray[np.int32]  #: [R] a RowStatus: that of the row at which the request stopped
    logprobs: Optional[NDArray[np.float32]] = None  #: [R, M] of the emitted tokens
    kept: Optional[NDArray[np.int32]] = None  #: [n] of each row of hidden states or logits, as
    #: SampleOutput.kept
    kept_ids: Optional[NDArray[np.int32]] = None  #: [n, N] as SampleOutput.kept_ids
    kept_logprobs: Optional[NDArray[np.float32]] = None  #: [n, N] log-probabilities of kept_ids
    entropy: Optional[NDArray[np.float32]] = None  #: [n] as SampleOutput.entropy, of each row
    seed: Optional[Any] = None  #: as SampleOutput.seed

    def kept_sets(self) -> KeptSets:
        """The tokens that truncation kept for each emitted token: those of request 0 first.

        Otherwise as SampleOutput.kept_sets(). The number of sets is the sum of `emitted`.
        """
        return list_kept_sets(self, self.path[self.path >= 0])
