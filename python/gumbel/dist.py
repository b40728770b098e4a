# SPDX-License-Identifier: Apache-2.0
"""Ranks: a vocabulary split over processes, one token.

Every rank holds some rows of the LM head, or some columns of the logits, makes the same call with
its own, and gets the answer: to the bit the tokens, scores and log-probabilities of one process
that holds all. Not imported by `import gumbel`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from ctypes import c_void_p
from typing import TYPE_CHECKING, Any, Callable, Optional

import numpy as np

from . import _abi
from ._calls.drafts import VerifyOutput, draft_of, requests_of, verify_by
from ._calls.prepared import PreparedCall, check_in_place
from ._calls.sample_calls import score_by
from ._calls.ways import Callee, SampleOutput, WayIn, draw, from_head, from_logits, of_logits
from ._device import open_device
from ._dist.abi import Options, Traffic
from ._dist.abi import lib as _lib
from ._dist.exchanges import AllGather, OverTorch
from ._dist.transports import destroy, device_name, peers_of, transport_of
from ._inputs.arrays import Array, layout, taken
from ._inputs.common import Common, Request, Tokens, takes_common
from ._inputs.numbers import integer, number
from ._inputs.tensors import is_tensor

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["AllGather", "Group"]


def _sizes(function: Any) -> Any:
    """A count of workspace that leaves it to the call to say what is wrong, and to all ranks."""

    def counted(*arguments: Any) -> int:
        if function(*arguments) != _abi.OK:
            arguments[-2].value = 0
        return _abi.OK

    return counted


class Group:
    """Ranks that draw together; all make it, and its calls, in the same order.

    first_token, rows
                   this rank's shard: its rows of the head. Shards tile the vocabulary, in any order
                   of ranks; `rows` may be 0. Where they meet at multiples of 64 tokens, a plain
                   draw sends 48 bytes a row.
    process_group  of torch.distributed; None: the default one
    all_gather     instead of that, with rank and ranks: takes the bytes of this rank and seconds,
                   returns those of all ranks, one behind the other, or raises
    timeout        seconds that an exchange may take
    frame_bytes    what a call's first exchange carries, the same on all ranks: 256 and 48 a row of
                   a plain draw, or as gumbel/dist.h tells for others. What does not fit goes with
                   an exchange more.
    isa, threads   of the CPU that every call of the group runs on
    device         of this rank, as torch names it; arrays of its calls lie there. None: the CPU, or
                   where the process group moves no CPU tensors the current GPU
    nccl           on a GPU: ranks reach each other by NCCL, with a communicator of the group's own.
                   None: where the process group does. Without it what ranks say lies in host
                   memory, and some may be on CPUs
    peer_memory    GPUs of one host can do without both, by each other's memory: "off", "allow",
                   "require". `nccl` and this are the same on all ranks

    A rank that passes other parameters than the rest, or a call that is refused, is an error on
    all, which names the parameter or the rank; the group serves on. One that does not answer within
    the time-out is a RuntimeError on all others, and then the group is spent. One call at a time.

    On GPUs that reach each other by NCCL or peer memory a call is queued on the current stream, and
    can be captured once it was made before (with capture_error_mode="thread_local", as NCCL's own
    threads look at the GPU): it does not see that a rank is gone, as wait() does, and each later
    call with peer memory. Where messages lie in host memory a call waits for its stream.
    gumbel/dist.h tells what is not to be had on GPUs.

    Masks, `logit_bias`, `banned` and what penalties count are looked at for this rank's tokens
    alone, by their ids in the whole: a mask has bits, and a History tokens, up to where the shard
    ends, of which those of the shard count. Lists may be whole.
    """

    def __init__(
        self,
        first_token: int,
        rows: int,
        *,
        process_group: Any = None,
        all_gather: Optional[AllGather] = None,
        rank: int = 0,
        ranks: int = 1,
        timeout: float = 30.0,
        frame_bytes: int = 4096,
        isa: Optional[str] = None,
        threads: Optional[int] = None,
        device: Any = None,
        nccl: Optional[bool] = None,
        peer_memory: str = "off",
    ) -> None:
        self._group, self._entered = c_void_p(), False
        over = OverTorch(process_group) if all_gather is None else None
        self._first = integer("first_token", first_token, 0, 2**31)
        self._device = device_name(device, over)
        options = Options(
            first_token=self._first,
            rows=integer("rows", rows, 0, 2**31),
            timeout_ms=max(1, int(1000 * number("timeout", timeout))),
            frame_bytes=integer("frame_bytes", frame_bytes, 256, 2**30),
            peer_memory=peers_of(peer_memory),
        )
        self._on = {"isa": isa, "threads": threads}
        self._transport = transport_of(self._device, nccl, over, all_gather, rank, ranks)
        error, opened = _abi.Error(), open_device(self._device, isa, threads)
        status = _lib.gumbel_group_open(self._transport, opened, options, self._group, error)
        if status != _abi.OK:
            destroy(self._transport)
        _abi.check(status, error)
        self._callee = Callee(
            self._group,
            _sizes(_lib.gumbel_group_workspace_size),
            _sizes(_lib.gumbel_group_verify_workspace_size),
        )

    # ------------------------------------------------------------------------------- calls ----

    @takes_common("isa", "threads")
    def sample(
        self,
        hidden: Array,
        weight: Array,
        *,
        bias: Optional[Array] = None,
        scale: float = 1.0,
        softcap: float = 0.0,
        vocab_size: Optional[int] = None,
        **common: Unpack[Common],
    ) -> SampleOutput:
        """gumbel.sample() of the whole vocabulary, of which `weight` [rows, D] is this rank's.

        vocab_size  of the whole; None: where the last shard ends.
        """
        with self._telling():
            made = self._head(hidden, weight, bias, scale, softcap, vocab_size, common)
            return draw(self._call(_lib.gumbel_group_sample), *made, self._callee)

    @takes_common("isa", "threads")
    def sample_logits(
        self,
        logits: Array,
        *,
        scale: float = 1.0,
        softcap: float = 0.0,
        vocab_size: Optional[int] = None,
        **common: Unpack[Common],
    ) -> SampleOutput:
        """The same from this rank's columns [B, rows] of the logits."""
        with self._telling():
            made = self._logits(logits, scale, softcap, vocab_size, common)
            return draw(self._call(_lib.gumbel_group_sample_logits), *made, self._callee)

    @takes_common("isa", "threads", "given", "num_samples", "ranks", "num_best")
    def score(
        self,
        hidden: Array,
        weight: Array,
        tokens: Array,
        *,
        bias: Optional[Array] = None,
        scale: float = 1.0,
        softcap: float = 0.0,
        vocab_size: Optional[int] = None,
        **common: Unpack[Common],
    ) -> SampleOutput:
        """gumbel.score() of the whole vocabulary; `tokens` are of that. Ranks send whole rows."""
        with self._telling():
            made = self._head(hidden, weight, bias, scale, softcap, vocab_size, common)
            call = self._call(_lib.gumbel_group_sample)
            return score_by(call, *made, tokens, self._callee)

    @takes_common("isa", "threads", "given", "num_samples", "ranks", "num_best")
    def score_logits(
        self,
        logits: Array,
        tokens: Array,
        *,
        scale: float = 1.0,
        softcap: float = 0.0,
        vocab_size: Optional[int] = None,
        **common: Unpack[Common],
    ) -> SampleOutput:
        """The same by this rank's columns [B, rows] of the logits."""
        with self._telling():
            made = self._logits(logits, scale, softcap, vocab_size, common)
            call = self._call(_lib.gumbel_group_sample_logits)
            return score_by(call, *made, tokens, self._callee)

    @takes_common("isa", "threads", "num_samples", "given", "top_logprobs", "ranks", "kept",
                  "num_best")
    def verify(
        self,
        hidden: Array,
        weight: Array,
        tokens: Array,
        *,
        offsets: Optional[Any] = None,
        max_nodes: Optional[int] = None,
        nodes: Optional[Any] = None,
        parents: Optional[Any] = None,
        limit: Optional[Any] = None,
        stop: Optional[Tokens] = None,
        bias: Optional[Array] = None,
        scale: float = 1.0,
        softcap: float = 0.0,
        vocab_size: Optional[int] = None,
        **common: Unpack[Common],
    ) -> VerifyOutput:
        """gumbel.verify() of the whole vocabulary, by its rule "coupled". All pass one draft."""
        with self._telling():
            shape = (scale, softcap, vocab_size)
            batch = requests_of(tokens, offsets)
            made = self._head(hidden, weight, bias, *shape, common, batch)
            draft = (tokens, offsets, max_nodes, nodes, parents, limit, stop)
            return self._verify(_lib.gumbel_group_verify, made, len(hidden), draft)

    @takes_common("isa", "threads", "num_samples", "given", "top_logprobs", "ranks", "kept",
                  "num_best")
    def verify_logits(
        self,
        logits: Array,
        tokens: Array,
        *,
        offsets: Optional[Any] = None,
        max_nodes: Optional[int] = None,
        nodes: Optional[Any] = None,
        parents: Optional[Any] = None,
        limit: Optional[Any] = None,
        stop: Optional[Tokens] = None,
        scale: float = 1.0,
        softcap: float = 0.0,
        vocab_size: Optional[int] = None,
        **common: Unpack[Common],
    ) -> VerifyOutput:
        """The same by this rank's columns [n, rows] of the logits."""
        with self._telling():
            batch = requests_of(tokens, offsets)
            made = self._logits(logits, scale, softcap, vocab_size, common, batch)
            draft = (tokens, offsets, max_nodes, nodes, parents, limit, stop)
            return self._verify(_lib.gumbel_group_verify_logits, made, len(logits), draft)

    # ---------------------------------------------------------------------------- prepared ----

    @takes_common("isa", "threads")
    def prepare_sample(
        self,
        hidden: Array,
        weight: Array,
        *,
        bias: Optional[Array] = None,
        scale: float = 1.0,
        softcap: float = 0.0,
        vocab_size: Optional[int] = None,
        **common: Unpack[Common],
    ) -> PreparedCall:
        """gumbel.prepare_sample() of the whole vocabulary; the call is one of the group's.

        Nothing is exchanged before it is called, and what is wrong with it is said then.
        """
        hidden = taken("hidden", hidden)
        made = self._head(hidden, weight, bias, scale, softcap, vocab_size, common)
        return self._prepare(_lib.gumbel_group_sample, "hidden", hidden, made, common)

    @takes_common("isa", "threads")
    def prepare_sample_logits(
        self,
        logits: Array,
        *,
        scale: float = 1.0,
        softcap: float = 0.0,
        vocab_size: Optional[int] = None,
        **common: Unpack[Common],
    ) -> PreparedCall:
        """The same from this rank's columns [B, rows] of the logits."""
        logits = taken("logits", logits)
        made = self._logits(logits, scale, softcap, vocab_size, common)
        return self._prepare(_lib.gumbel_group_sample_logits, "logits", logits, made, common)

    # -------------------------------------------------------------------------------- rest ----

    def wait(self) -> None:
        """Wait until all that is queued on the current stream is done, within the time-out.

        RuntimeError where it is not, as another rank did not come: then the group is spent, and no
        kernel of this rank hangs. On a CPU there is nothing to wait for.
        """
        stream, error = None, _abi.Error()
        if self._device != "cpu":
            import torch

            stream = torch.cuda.current_stream(self._device).cuda_stream
        _abi.check(_lib.gumbel_group_wait(self._opened(), stream, error), error)

    @property
    def traffic(self) -> dict[str, int]:
        """Calls, exchanges, bytes that this rank sent, rows drawn, and rows sent whole."""
        found = Traffic()
        _abi.check(_lib.gumbel_group_traffic(self._opened(), found))
        return {name: getattr(found, name) for name, _ in Traffic._fields_[1:]}

    def close(self) -> None:
        """Free it; no exchange is made. Calls that were prepared are refused from now on."""
        if self._group:
            _lib.gumbel_group_close(self._group)
            self._group.value = None

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _opened(self) -> c_void_p:
        if not self._group:
            raise ValueError("group: it is closed")
        return self._group

    def _head(
        self, hidden: Any, weight: Any, bias: Any, scale: float, softcap: float,
        vocab_size: Optional[int], common: Any, batch: Optional[int] = None,
    ) -> tuple[WayIn, Request]:
        self._opened()
        shared = of_logits(scale, softcap, vocab_size, self._first)
        made = from_head(hidden, weight, bias, shared, {**common, **self._on}, batch=batch)
        return self._placed("hidden", made)

    def _logits(
        self, logits: Any, scale: float, softcap: float, vocab_size: Optional[int], common: Any,
        batch: Optional[int] = None,
    ) -> tuple[WayIn, Request]:
        self._opened()
        shared = of_logits(scale, softcap, vocab_size, self._first)
        logits, common = taken("logits", logits), {**common, **self._on}
        if layout("logits", logits).shape[1:] != (0,):
            return self._placed("logits", from_logits(logits, shared, common, batch=batch))
        # A rank without tokens has no element to point to, and none that a mask could allow.
        shape = (len(logits), 1)
        none = logits.new_zeros(shape) if is_tensor(logits) else np.zeros(shape, np.float32)
        made = from_logits(none, shared, {**common, "mask": None}, batch=batch)
        way_in: Any = made[0][1]
        way_in.logits.cols = 0
        return made

    def _placed(self, name: str, made: tuple[WayIn, Request]) -> tuple[WayIn, Request]:
        """A call, which is refused where its arrays are not on the group's device."""
        if made[1].arrays.name != self._device:
            raise ValueError(f"{name}: is on {made[1].arrays.name}, the group on {self._device}")
        return made

    def _verify(
        self, function: Any, made: tuple[WayIn, Request], rows: int, draft: Any
    ) -> VerifyOutput:
        read = draft_of(made[1], rows, *draft)
        return verify_by(self._call(function), *made, read, self._callee)

    def _prepare(
        self, function: Any, name: str, inputs: Any, made: tuple[WayIn, Request], common: Any
    ) -> PreparedCall:
        check_in_place(made[1], common)
        return _PreparedCall(self, function, name, inputs, *made)

    def _call(self, function: Any) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            self._entered = True
            found: int = function(*arguments)
            return found

        return call

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Tell the other ranks where a call ends before the library has seen it."""
        self._opened()
        self._entered = False
        try:
            yield
        except Exception:
            if not self._entered:
                nothing = [None] * 5
                _lib.gumbel_group_sample_logits(self._group, *nothing, 0, None)
            raise


class _PreparedCall(PreparedCall):
    """A prepared call of a group."""

    def __init__(
        self,
        group: Group,
        function: Any,
        name: str,
        inputs: Any,
        way_in: WayIn,
        request: Request,
    ) -> None:
        self._of = group
        super().__init__(function, name, inputs, way_in, request, group._callee)

    def __call__(self, inputs: Optional[Array] = None) -> SampleOutput:
        group = self._of
        if inputs is None:
            group._opened()
            return super().__call__()
        with group._telling():
            self._point_to(inputs)
            group._entered = True
            return super().__call__()
