# SPDX-License-Identifier: Apache-2.0
"""Watermarks of drawn tokens, and their detection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Sequence, Union

import numpy as np
from numpy.typing import NDArray

from .. import _abi
from .._inputs.arguments import INT32_MAX, read_row_integers, read_row_tokens
from .._inputs.arrays import NumpyArrays, address_of, arrays_of, layout_of
from .._inputs.fixed_arrays import FixedArrays
from .._inputs.fresh_seeds import fresh_seed
from .._inputs.history import SlotRows
from .._inputs.numbers import get_length, read_integer
from .._inputs.parameters import RowIntegers
from .._inputs.recent import Recent
from .._inputs.row_state import derive_row_seeds, read_distinct_slots
from .._inputs.tensors import to_numpy
from .drafts import count_requests, read_draft_arrays

Key = Union[bytes, str]  #: 16 bytes, or their 32 hexadecimal digits

UINT32_MAX = 2**32 - 1


class Watermark(FixedArrays):
    """Seeds and positions by which each row's tokens are drawn with a watermark.

    >>> recent = gumbel.Recent(num_slots=B, capacity=4096)
    >>> recent.start()
    >>> watermark = gumbel.Watermark(num_slots=B, key=secrets.token_bytes(16))
    >>> watermark.update(recent, position=step)
    >>> out = gumbel.sample_logits(logits, seed=watermark.seed, position=watermark.position)
    >>> recent.append(out.tokens)

    Each token is drawn with noise of a secret key and of the last `context` tokens; over random
    keys it has the distribution of any other draw. detect_watermark() finds the watermark in a
    text by the key. The first `context` tokens of a text, and tokens after a context that the text
    had before, are drawn by `seed` and the position alone.

    num_slots    number of slots; in calls without `slots` row b uses slot b.
    key          secret: 16 random bytes, as of secrets.token_bytes(16), or 32 hexadecimal digits.
                 One for all slots, or a list of one for each.
    context      0 to 16, one or [num_slots]: tokens that determine the noise of the next. 0: the
                 slot has no watermark, and keeps its seed and position. Default 4.
    seed         < 2**64, one or [num_slots]; one gives each row its own seed, as in sample().
                 None: a fresh seed from the operating system.
    text_start   one or [num_slots]: the tokens of the ring before the text, such as its prompt.
                 Default 0.
    like         a torch tensor on the device of the calls. None: the CPU, for NumPy arrays and
                 tensors.

    The capacity of the rings must be at least `context`, and at least the length of a text. Pass
    the arrays `seed` and `position` to every draw; prepared calls and captured graphs read them in
    place. On CUDA calls are queued on the current stream; update() allocates and copies nothing if
    its arguments are tensors of the library's dtypes. Raises TypeError or ValueError naming the
    argument. Unstable: may change in a minor release; see docs/compatibility.md.
    """

    seed: NDArray[np.uint64]  #: [num_slots], of the next draw; int64 on a GPU
    position: NDArray[np.uint64]  #: [num_slots], of the next draw; int64 on a GPU
    watermarked: NDArray[np.int32]  #: [num_slots]: element b is 1 if row b of the latest update()
    #: is drawn with the watermark
    _fixed = ("seed", "position", "watermarked")

    def __init__(
        self,
        num_slots: int,
        key: Union[Key, Sequence[Key]],
        *,
        context: RowIntegers = _abi.CONTEXT_DEFAULT,
        seed: Optional[RowIntegers] = None,
        text_start: RowIntegers = 0,
        like: Optional[Any] = None,
    ) -> None:
        self.num_slots = read_integer("num_slots", num_slots, 1, INT32_MAX)
        arrays = arrays_of({"like": np.empty(0) if like is None else like}, None, None)
        self.device = arrays.name
        self._struct = _abi.Watermark()
        host = NumpyArrays(None, None)
        lengths, _ = read_row_integers("context", context, self.num_slots, np.int32, host)
        if (lengths > _abi.CONTEXT_MAX).any():
            raise ValueError(f"context: {lengths.max()} is not in [0, {_abi.CONTEXT_MAX}]")
        self._longest_context = int(lengths.max())
        starts, _ = read_row_integers("text_start", text_start, self.num_slots, np.uint64, host)
        own, stride = read_row_integers(
            "seed", fresh_seed() if seed is None else seed, self.num_slots, np.uint64, host
        )
        if stride == _abi.SAME:
            own = derive_row_seeds(int(own[0]), range(self.num_slots))
        self._keys = arrays.to_device(_read_keys(key, self.num_slots))
        self._contexts = arrays.to_device(self._fill(lengths, np.int32))
        self._starts = arrays.to_device(self._fill(starts, np.uint64))
        self._seeds = arrays.to_device(np.array(own, np.uint64))
        self._struct.key = address_of(self._keys)
        for name, rows in (
            ("context", self._contexts),
            ("text_start", self._starts),
            ("seed", self._seeds),
        ):
            setattr(self._struct, name, _abi.Rows(address_of(rows), 1))
        self.seed = arrays.to_device(np.zeros(self.num_slots, np.uint64))
        self.position = arrays.to_device(np.zeros(self.num_slots, np.uint64))
        self.watermarked = arrays.zeros((self.num_slots,), np.int32)

    def start(
        self,
        text_start: RowIntegers,
        *,
        seed: Optional[RowIntegers] = None,
        slots: Optional[Any] = None,
    ) -> None:
        """Begin new texts in `slots`, int32 [B] without repeats. None: all slots.

        text_start   one or [B]: the tokens of the ring before the text.
        seed         < 2**64, one or [B]. None: the slots keep their seeds.
        """
        arrays, count = self._get_arrays(), self.num_slots
        where: Any = slice(None)
        if slots is not None:
            found = read_distinct_slots(slots, self.num_slots)
            count, where = len(found), arrays.to_device(found.astype(np.int64))
        given = [("text_start", text_start, self._starts)]
        if seed is not None:
            given.append(("seed", seed, self._seeds))
        for name, value, into in given:
            numbers, _ = read_row_integers(name, value, count, np.uint64, NumpyArrays(None, None))
            rows = np.array(np.broadcast_to(numbers, (count,)))
            into[where] = arrays.to_device(rows)

    def update(
        self,
        recent: Recent,
        position: RowIntegers,
        *,
        drafts: Optional[Any] = None,
        slots: Optional[Any] = None,
        live_rows: Optional[Any] = None,
    ) -> None:
        """Write `seed`, `position` and `watermarked` of the next draw of each row.

        recent       the rings; they end in the token before the draw, or before the `drafts`.
        position     < 2**64, one or [num_slots]: the position of the token after the ring.
        drafts       int32 [B, K]: tokens after the ring. A drafter draws its next draft so.
        slots        int32 [B], without repeats: the slots of these rows. None: all slots, row b
                     being slot b.
        live_rows    as in sample(): other rows are not written.
        """
        arrays = self._get_arrays()
        batch, struct, held = self._read_rows(recent, position, slots, live_rows, arrays)
        if drafts is not None:
            found = read_row_tokens("drafts", drafts, ((batch, None),), arrays)
            held.append(found)
            struct.num_drafts = read_integer("drafts", found.shape[1], 0, _abi.NODES_MAX - 1)
            struct.drafts = address_of(found)
        into = _abi.WatermarkDraws(
            seed=address_of(self.seed),
            position=address_of(self.position),
            watermarked=address_of(self.watermarked),
        )
        error, where = _abi.Error(), (arrays.device, arrays.stream)
        status = _abi.lib.gumbel_watermark_rows(
            *where, struct, recent.to_struct(), batch, into, error
        )
        _abi.check_status(status, error)

    def update_nodes(
        self,
        recent: Recent,
        tokens: Any,
        position: RowIntegers,
        *,
        offsets: Optional[Any] = None,
        max_nodes: Optional[int] = None,
        nodes: Optional[Any] = None,
        parents: Optional[Any] = None,
        slots: Optional[Any] = None,
        live_rows: Optional[Any] = None,
    ) -> Any:
        """Write `seed`, and return the positions [n] of the nodes of drafts.

        >>> nodes = watermark.update_nodes(recent, tokens, position)
        >>> out = gumbel.verify_logits(
        ...     logits, tokens, seed=watermark.seed, position=position, node_position=nodes)
        >>> recent.append(out.tokens, counts=out.emitted)

        The text is then that of single steps by update(), whatever was drafted.

        recent       the rings of the requests, which end in the roots.
        tokens, offsets, max_nodes, nodes, parents
                     as in verify().
        position, slots, live_rows
                     as in update(), of the requests.
        """
        arrays = self._get_arrays()
        requests = count_requests(tokens, offsets)
        batch, struct, held = self._read_rows(recent, position, slots, live_rows, arrays)
        if batch != requests:
            wanted = f"{batch} requests, one for each slot"
            raise ValueError(f"tokens: expected {wanted}, got {requests}")
        rows = int(np.prod(layout_of("tokens", tokens).shape))
        draft = read_draft_arrays(
            arrays, requests, rows, tokens, offsets, max_nodes, nodes, parents, None, None
        )
        found = arrays.to_device(np.zeros(rows, np.uint64))
        into = _abi.WatermarkDraws(seed=address_of(self.seed), position=address_of(found))
        error, where = _abi.Error(), (arrays.device, arrays.stream)
        status = _abi.lib.gumbel_watermark_nodes(
            *where, struct, recent.to_struct(), draft.struct, rows, into, error
        )
        _abi.check_status(status, error)
        return found

    def _get_arrays(self) -> NumpyArrays:
        return arrays_of({"watermarked": self.watermarked}, None, None)

    def _fill(self, numbers: Any, dtype: type) -> Any:
        return np.array(np.broadcast_to(numbers, (self.num_slots,)), dtype)

    def _read_rows(
        self, recent: Any, position: Any, slots: Any, live_rows: Any, arrays: NumpyArrays
    ) -> tuple[int, _abi.Watermark, list[Any]]:
        """The number of rows of a call, its struct, and the arrays that it uses."""
        if not isinstance(recent, Recent):
            raise TypeError(f"recent: expected a gumbel.Recent, got {type(recent).__name__}")
        if recent.device != self.device:
            raise ValueError(f"recent: is on {recent.device}, the watermark on {self.device}")
        if recent.num_slots != self.num_slots:
            raise ValueError(f"recent: has {recent.num_slots} slots, expected {self.num_slots}")
        if recent.capacity < self._longest_context:
            raise ValueError(
                f"recent: keeps {recent.capacity} tokens, but the context has "
                f"{self._longest_context}"
            )
        batch, places, held = SlotRows(arrays, self.num_slots, True).read_slots(slots)
        own, stride = read_row_integers("position", position, self.num_slots, np.uint64, arrays)
        struct = _abi.Watermark.from_buffer_copy(self._struct)
        struct.position = _abi.Rows(address_of(own), stride)
        struct.slots = places or _abi.Slots()
        held.append(own)
        if live_rows is not None:
            live, _ = read_row_integers("live_rows", live_rows, 1, np.int32, arrays)
            struct.live_rows = address_of(live)
            held.append(live)
        return batch, struct, held


@dataclass(frozen=True)
class WatermarkDetection:
    """The result of detect_watermark()."""

    scored: int  #: tokens that have a score
    statistic: float  #: the sum of their scores; its mean is `scored` without a watermark
    p_value: float  #: the probability of this sum or more in a text that does not depend on the key
    log10_p: float  #: its decimal logarithm, also where p_value is 0
    scores: NDArray[np.float64]  #: [N], of each token; NaN: not scored


def detect_watermark(
    tokens: Any,
    key: Key,
    *,
    context: int = _abi.CONTEXT_DEFAULT,
    first: int = 0,
    sample: int = 0,
    domain: int = 0,
) -> WatermarkDetection:
    """Search for the watermark of `key` in a text; returns a WatermarkDetection.

    >>> gumbel.detect_watermark(tokens, key).p_value

    tokens       [N] token ids: the text as it was generated, or a part of it, without the prompt.
    key          16 bytes, or 32 hexadecimal digits, as of the Watermark.
    context      1 to 16: the `context` of the Watermark.
    first        tokens before this one are not scored: those of a prompt that was text for the
                 generator (text_start=0).
    sample, domain
                 as of the draws: `first_sample` and `domain`.

    With m keys, call this once for each, and compare m * p_value with the level of the test.
    Raises TypeError or ValueError naming the argument. Unstable: may change in a minor release; see
    docs/compatibility.md.
    """
    found, host = to_numpy("tokens", tokens), NumpyArrays(None, None)
    count = get_length(found)
    if count is None:
        raise TypeError(f"tokens: expected a list of token ids, got {type(tokens).__name__}")
    text = read_row_tokens("tokens", found, ((count,),), host)
    scores = np.empty(len(text), np.float64)
    low, high = _read_key("key", key)
    detector = _abi.Detector(
        context=read_integer("context", context, 1, _abi.CONTEXT_MAX),
        sample=read_integer("sample", sample, 0, UINT32_MAX),
        domain=read_integer("domain", domain, 0, 2**31 - 1),
        first=read_integer("first", first, 0, len(text)),
    )
    detector.key[0], detector.key[1] = low, high
    result, error = _abi.Detection(), _abi.Error()
    status = _abi.lib.gumbel_detect_watermark(
        detector, address_of(text), len(text), address_of(scores), result, error
    )
    _abi.check_status(status, error)
    return WatermarkDetection(
        result.scored, result.statistic, result.p_value, result.log10_p, scores
    )


def _read_key(name: str, key: Any) -> tuple[int, int]:
    """The two words of a key."""
    if isinstance(key, str):
        try:
            key = bytes.fromhex(key)
        except ValueError:
            raise ValueError(f"{name}: expected 32 hexadecimal digits") from None
    if not isinstance(key, (bytes, bytearray)):
        raise TypeError(f"{name}: expected 16 bytes, or 32 hexadecimal digits")
    if len(key) != 16:
        raise ValueError(f"{name}: expected 16 bytes, got {len(key)}")
    return int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")


def _read_keys(keys: Any, num_slots: int) -> NDArray[np.uint64]:
    """Keys as [num_slots, 2]."""
    if isinstance(keys, (bytes, bytearray, str)):
        return np.array([_read_key("key", keys)] * num_slots, np.uint64)
    try:
        keys = list(keys)
    except TypeError:
        kind = type(keys).__name__
        raise TypeError(f"key: expected bytes, hexadecimal digits or a list, got {kind}") from None
    if len(keys) != num_slots:
        raise ValueError(f"key: expected one key, or {num_slots} of them, got {len(keys)}")
    return np.array([_read_key(f"key[{i}]", key) for i, key in enumerate(keys)], np.uint64)
