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

from . import _abi
from ._calls.drafts import draft_of, requests_of, verify_by
from ._calls.outputs import SampleOutput, VerifyOutput
from ._calls.prepared import PreparedCall, check_in_place
from ._calls.sample_calls import score_by
from ._calls.ways import Callee, WayIn, draw
from ._device import open_device
from ._dist.abi import Options, Traffic
from ._dist.abi import lib as _lib
from ._dist.exchanges import AllGather, OverTorch, seed_of_all
from ._dist.shards import OfHead, OfLogits, Shard
from ._dist.transports import destroy, device_name, peers_of, transport_of
from ._inputs.arrays import Array, taken
from ._inputs.common import Common, Request, Tokens, takes_common
from ._inputs.numbers import integer, number
from ._inputs.fresh_seeds import seed_of_row

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["AllGather", "Group"]

# What cuts a draw, so that over NCCL a thread of the group's may have to launch for it.
_CUTS = ("min_p", "top_k", "top_p")


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
                   None: if the process group uses NCCL for GPUs. A group of GPUs requires NCCL or
                   peer memory; all ranks of a group are on CPUs, or all on GPUs
    peer_memory    whether GPUs of one host exchange by each other's memory: "off", "allow" (if all
                   ranks can), "require". `nccl` and this are the same on all ranks

    Without a seed a call draws with one that all ranks know: rank 0 draws a seed from the operating
    system when the group is made, and every call counts on from it. `seed` of the output is it. In
    a CUDA graph give a seed, or capture a prepared call.

    A rank that passes other parameters than the rest, or a call that is refused, is an error on
    all, which names the parameter or the rank; the group serves on. One that does not answer within
    the time-out is a RuntimeError on all others, and then the group is spent. One call at a time.

    On GPUs that reach each other by NCCL or peer memory a call is queued on the current stream, and
    can be captured once it was made before (with capture_error_mode="thread_local", as NCCL's own
    threads look at the GPU): it does not see that a rank is gone, as wait() does, and each later
    call with peer memory. Over NCCL without peer memory a call with min_p, top_k or top_p waits for
    its stream, unless it is captured. Behind a
    graph of such a call wait() comes before `.cpu()` or `.item()`: a copy to pageable memory keeps
    other threads from launching what that call may wait for. gumbel/dist.h tells what is not to be
    had on GPUs.

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
        try:
            seconds = options.timeout_ms / 1000
            self._seed = seed_of_all(over, all_gather, ranks, self._device, seconds)
        except BaseException:
            destroy(self._transport)
            raise
        self._calls = self._prepared = 0
        queues = self._device != "cpu" and bool(self._transport.aside)
        self._runs_errands = queues and peer_memory != "require"
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
        return self._draw(OfHead(hidden, scale, softcap, vocab_size, weight, bias), common)

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
        return self._draw(OfLogits(logits, scale, softcap, vocab_size), common)

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
        by = OfHead(hidden, scale, softcap, vocab_size, weight, bias)
        return self._score(by, tokens, common)

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
        return self._score(OfLogits(logits, scale, softcap, vocab_size), tokens, common)

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
        by = OfHead(hidden, scale, softcap, vocab_size, weight, bias)
        draft = (tokens, offsets, max_nodes, nodes, parents, limit, stop)
        return self._verify(by, draft, common)

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
        draft = (tokens, offsets, max_nodes, nodes, parents, limit, stop)
        return self._verify(OfLogits(logits, scale, softcap, vocab_size), draft, common)

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
        return self._prepare(OfHead(hidden, scale, softcap, vocab_size, weight, bias), common)

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
        return self._prepare(OfLogits(logits, scale, softcap, vocab_size), common)

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

    def _made(
        self, by: Shard, common: Any, batch: Optional[int] = None
    ) -> tuple[WayIn, Request]:
        """What a call takes, which is refused where its arrays are not on the group's device."""
        self._opened()
        made = by.made(self._first, {**common, **self._on}, batch)
        place = made[1].arrays.name
        if place != self._device:
            raise ValueError(f"{by.name}: is on {place}, the group on {self._device}")
        return made

    def _draw(self, by: Shard, common: Any) -> SampleOutput:
        with self._calling(common):
            made = self._made(by, self._seeded(common))
            return draw(self._call(by.sample), *made, self._callee)

    def _score(self, by: Shard, tokens: Any, common: Any) -> SampleOutput:
        with self._calling(common):
            made = self._made(by, common)
            return score_by(self._call(by.sample), *made, tokens, self._callee)

    def _verify(self, by: Shard, draft: tuple[Any, ...], common: Any) -> VerifyOutput:
        with self._calling(common):
            made = self._made(by, self._seeded(common), requests_of(*draft[:2]))
            read = draft_of(made[1], len(by.inputs), *draft)
            return verify_by(self._call(by.verify), *made, read, self._callee)

    def _prepare(self, by: Shard, common: Any) -> PreparedCall:
        by.inputs = taken(by.name, by.inputs)
        made = self._made(by, common)
        check_in_place(made[1], common)
        self._prepared += 1
        return _PreparedCall(self, by, *made, common, seed_of_row(self._seed, self._prepared))

    def _seeded(self, common: Any) -> Any:
        """The parameters of a call, with the next seed of all ranks where they have none."""
        if common.get("seed") is not None:
            return common
        if self._device != "cpu":
            import torch

            if torch.cuda.is_current_stream_capturing():
                raise ValueError(
                    "seed: replays would repeat the seed of this call; pass seed and position as "
                    "tensors, or capture a prepared call"
                )
        return {**common, "seed": (self._seed + self._calls) % 2**64}

    def _call(self, function: Any) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            self._entered = True
            found: int = function(*arguments)
            return found

        return call

    @contextlib.contextmanager
    def _calling(self, common: Any) -> Iterator[None]:
        """Around a call: tell the other ranks where it ends before the library has seen it, and
        wait where its stream may wait for this host."""
        self._opened()
        self._entered = False
        self._calls += 1
        try:
            yield
        except Exception:
            if not self._entered:
                nothing = [None] * 5
                _lib.gumbel_group_sample_logits(self._group, *nothing, 0, None)
            raise
        self._end_errands(common)

    def _end_errands(self, common: Any) -> None:
        """Wait for a call that its stream may wait for this host in, but where it is captured."""
        if not self._runs_errands or all(common.get(name) is None for name in _CUTS):
            return
        import torch

        if not torch.cuda.is_current_stream_capturing():
            self.wait()


class _PreparedCall(PreparedCall):
    """A prepared call of a group."""

    def __init__(
        self, group: Group, by: Shard, way_in: WayIn, request: Request, common: Any, seed: int
    ) -> None:
        self._of, self._common = group, common
        super().__init__(by.sample, by.name, by.inputs, way_in, request, group._callee, seed)

    def __call__(self, inputs: Optional[Array] = None) -> SampleOutput:
        with self._of._calling(self._common):
            if inputs is not None:
                self._point_to(inputs)
            self._of._entered = True
            return super().__call__()
