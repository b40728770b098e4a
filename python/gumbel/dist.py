# SPDX-License-Identifier: Apache-2.0
"""Draws over a vocabulary that is split across ranks (processes).

Each rank holds some rows of the LM head, or some columns of the logits, and all ranks make the same
calls with their own parts. Every rank gets the results: bit for bit the tokens, scores and
log-probabilities of one process with the whole vocabulary. Not imported by `import gumbel`.

Unstable: may change in a minor release; see docs/compatibility.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from ctypes import c_void_p
from typing import TYPE_CHECKING, Any, Callable, Optional

from . import _abi
from ._calls.drafts import count_requests, read_draft, verify_draft
from ._calls.library_call import Callee, LogitsSource, draw_request
from ._calls.outputs import SampleOutput, VerifyOutput
from ._calls.prepared import PreparedCall, check_in_place
from ._calls.sample_calls import score_tokens
from ._device import open_device
from ._dist.abi import Options, Traffic, lib as _lib
from ._dist.exchanges import AllGather, TorchExchange, broadcast_seed
from ._dist.shards import HeadShard, LogitsShard, Shard
from ._dist.transports import destroy_transport, read_device_name, read_peer_memory, make_transport
from ._inputs.arrays import Array, import_array
from ._inputs.common import takes_common
from ._inputs.fresh_seeds import derive_row_seed
from ._inputs.numbers import read_integer, read_number
from ._inputs.parameters import Common, Tokens
from ._inputs.programs import PARAMETERS as PROGRAM_PARAMETERS
from ._inputs.request import Request

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["AllGather", "Group"]

# Over NCCL a draw with one of these parameters may require a host-assisted collective.
_TRUNCATION = ("min_p", "top_k", "top_p", *PROGRAM_PARAMETERS)
# Parameters of other calls that a group does not have, and the reasons.
_EXCLUDED = {
    **dict.fromkeys(("isa", "threads"), "it is an argument of Group()"),
    "token_ids": "ranks hold shards of the vocabulary",
}


def _ignore_errors(size_function: Any) -> Any:
    """Wrap a workspace-size function to return 0 on errors, so that the call fails on all ranks."""

    def get_size(*arguments: Any) -> int:
        if size_function(*arguments) != _abi.OK:
            arguments[-2].value = 0
        return _abi.OK

    return get_size


class Group:
    """Ranks that draw together. All ranks construct it and make its calls in the same order.

    first_token, rows
                   this rank's shard: its rows of the head. The shards of all ranks cover the
                   vocabulary without overlap, in any order of ranks; `rows` may be 0. If shards
                   begin at multiples of 64 tokens, a plain draw sends 48 bytes a row.
    process_group  a torch.distributed process group; None: the default one.
    all_gather     a function that replaces the process group; requires `rank` and `ranks`. Called
                   with this rank's bytes and a time-out in seconds, it returns the bytes of all
                   ranks, concatenated in rank order, or raises an exception.
    timeout        time-out of an exchange, in seconds.
    frame_bytes    size of a call's first exchange, equal on all ranks. A plain draw needs 256 bytes
                   and 48 for each row; gumbel/dist.h lists other calls. Larger messages take
                   another exchange.
    isa, threads   CPU instruction set and thread count of all calls of the group.
    device         this rank's device, as torch names it; arrays of calls must be on it. None: the
                   CPU, or the current GPU if the process group does not support CPU tensors.
    nccl           on a GPU: whether ranks communicate by NCCL, with the group's own communicator.
                   None: True if the process group uses NCCL. A group of GPUs requires NCCL or peer
                   memory. The ranks of a group are all on CPUs, or all on GPUs.
    peer_memory    whether GPUs of one host exchange through each other's memory: "off", "allow" (if
                   all ranks can), "require". `nccl` and `peer_memory` must be equal on all ranks.

    **Seeds.** Rank 0 draws a seed from the operating system when the group is constructed. Calls
    without a seed use that seed plus the number of the call, and return it as `seed` of the output.
    During CUDA graph capture, pass a seed or capture a prepared call.

    **Errors.** If parameters differ between ranks, or a rank's call is invalid, the call fails on
    all ranks; the error names the parameter or the rank, and the group stays usable. If a rank
    does not respond within the time-out, the call raises RuntimeError on all other ranks, and the
    group is unusable. Make one call at a time.

    **GPUs.** With NCCL or peer memory a call is queued on the current stream, and can be captured
    after an equal call has run, with capture_error_mode="thread_local" because NCCL's threads use
    the GPU. A queued call does not report a lost rank; wait() does, and with peer memory each later
    call. Over NCCL without peer memory a call with min_p, top_k or top_p waits for its stream,
    unless it is captured. After launching a graph with such a call, call wait() before `.cpu()` or
    `.item()`: a copy to pageable memory prevents other threads from launching kernels that the call
    may wait for. gumbel/dist.h lists the calls that are not supported on GPUs.

    **Token lists.** Masks, `logit_bias`, `banned` and counted tokens use global ids, and only those
    of this rank's shard have an effect. Masks and histories end where the shard ends; lists may
    contain all ids.

    Unstable: may change in a minor release; see docs/compatibility.md.
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
        self._group, self._called_library = c_void_p(), False
        torch_exchange = TorchExchange(process_group) if all_gather is None else None
        self._first_token = read_integer("first_token", first_token, 0, 2**31)
        self._device = read_device_name(device, torch_exchange)
        options = Options(
            first_token=self._first_token,
            rows=read_integer("rows", rows, 0, 2**31),
            timeout_ms=max(1, int(1000 * read_number("timeout", timeout))),
            frame_bytes=read_integer("frame_bytes", frame_bytes, 256, 2**30),
            peer_memory=read_peer_memory(peer_memory),
        )
        self._cpu_options = {"isa": isa, "threads": threads}
        self._transport = make_transport(
            self._device, nccl, torch_exchange, all_gather, rank, ranks
        )
        try:
            seconds = options.timeout_ms / 1000
            self._seed = broadcast_seed(torch_exchange, all_gather, ranks, self._device, seconds)
        except BaseException:
            destroy_transport(self._transport)
            raise
        self._calls = self._prepared = 0
        has_blocking_gather = self._device != "cpu" and bool(self._transport.blocking_all_gather)
        error, opened = _abi.Error(), open_device(self._device, isa, threads)
        status = _lib.gumbel_group_open(self._transport, opened, options, self._group, error)
        if status != _abi.OK:
            destroy_transport(self._transport)
        _abi.check_status(status, error)
        self._may_need_host = has_blocking_gather and not self.peer_memory
        self._callee = Callee(
            self._group,
            _ignore_errors(_lib.gumbel_group_workspace_size),
            _ignore_errors(_lib.gumbel_group_verify_workspace_size),
        )

    # ------------------------------------------------------------------------------- calls ----

    @takes_common(*_EXCLUDED, reasons=_EXCLUDED)
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
        """gumbel.sample() over the whole vocabulary; `weight` [rows, D] is this rank's shard.

        vocab_size  size of the whole vocabulary; None: the end of the last shard.
        """
        return self._draw_request(
            HeadShard(hidden, scale, softcap, vocab_size, weight, bias), common
        )

    @takes_common(*_EXCLUDED, reasons=_EXCLUDED)
    def sample_logits(
        self,
        logits: Array,
        *,
        scale: float = 1.0,
        softcap: float = 0.0,
        vocab_size: Optional[int] = None,
        **common: Unpack[Common],
    ) -> SampleOutput:
        """As sample(), from this rank's columns [B, rows] of the logits."""
        return self._draw_request(LogitsShard(logits, scale, softcap, vocab_size), common)

    @takes_common(
        *(*_EXCLUDED, "given", "num_samples", "ranks", "num_best"), reasons=_EXCLUDED
    )
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
        """gumbel.score() over the whole vocabulary; `tokens` are global ids.

        Ranks send whole rows of logits.
        """
        shard = HeadShard(hidden, scale, softcap, vocab_size, weight, bias)
        return self._score_tokens(shard, tokens, common)

    @takes_common(
        *(*_EXCLUDED, "given", "num_samples", "ranks", "num_best"), reasons=_EXCLUDED
    )
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
        """As score(), from this rank's columns [B, rows] of the logits."""
        return self._score_tokens(LogitsShard(logits, scale, softcap, vocab_size), tokens, common)

    @takes_common(
        *(*_EXCLUDED, "num_samples", "given", "top_logprobs", "ranks", "kept", "num_best"),
        reasons=_EXCLUDED,
    )
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
        """gumbel.verify() over the whole vocabulary, with the rule "coupled".

        All ranks pass the same draft.
        """
        shard = HeadShard(hidden, scale, softcap, vocab_size, weight, bias)
        draft = (tokens, offsets, max_nodes, nodes, parents, limit, stop)
        return self._verify_draft(shard, draft, common)

    @takes_common(
        *(*_EXCLUDED, "num_samples", "given", "top_logprobs", "ranks", "kept", "num_best"),
        reasons=_EXCLUDED,
    )
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
        """As verify(), from this rank's columns [n, rows] of the logits."""
        draft = (tokens, offsets, max_nodes, nodes, parents, limit, stop)
        return self._verify_draft(LogitsShard(logits, scale, softcap, vocab_size), draft, common)

    # ---------------------------------------------------------------------------- prepared ----

    @takes_common(*_EXCLUDED, reasons=_EXCLUDED)
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
        """gumbel.prepare_sample() over the whole vocabulary; its calls are calls of the group.

        Preparation exchanges nothing; errors are raised by the calls.
        """
        return self._prepare_call(
            HeadShard(hidden, scale, softcap, vocab_size, weight, bias), common
        )

    @takes_common(*_EXCLUDED, reasons=_EXCLUDED)
    def prepare_sample_logits(
        self,
        logits: Array,
        *,
        scale: float = 1.0,
        softcap: float = 0.0,
        vocab_size: Optional[int] = None,
        **common: Unpack[Common],
    ) -> PreparedCall:
        """As prepare_sample(), from this rank's columns [B, rows] of the logits."""
        return self._prepare_call(LogitsShard(logits, scale, softcap, vocab_size), common)

    # -------------------------------------------------------------------------------- rest ----

    def wait(self) -> None:
        """Wait for all work queued on the current stream, at most for the time-out.

        Raises RuntimeError if another rank did not take part: no kernel of this rank then hangs,
        but the group is unusable. Returns at once on a CPU.
        """
        stream, error = None, _abi.Error()
        if self._device != "cpu":
            import torch

            stream = torch.cuda.current_stream(self._device).cuda_stream
        _abi.check_status(_lib.gumbel_group_wait(self._get_group(), stream, error), error)

    @property
    def peer_memory(self) -> bool:
        """Whether the ranks exchange through each other's memory, and not by NCCL or a process
        group."""
        return bool(_lib.gumbel_group_has_peer_memory(self._get_group()))

    @property
    def traffic(self) -> dict[str, int]:
        """Counts of calls, exchanges, bytes sent by this rank, rows drawn, and rows sent whole."""
        found = Traffic()
        _abi.check_status(_lib.gumbel_group_traffic(self._get_group(), found))
        return {name: getattr(found, name) for name, _ in Traffic._fields_[1:]}

    def close(self) -> None:
        """Free the group, without an exchange. Later prepared calls raise an error."""
        if self._group:
            _lib.gumbel_group_close(self._group)
            self._group.value = None

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _get_group(self) -> c_void_p:
        if not self._group:
            raise ValueError("group: is closed")
        return self._group

    def _read_inputs(
        self, shard: Shard, common: Any, batch: Optional[int] = None
    ) -> tuple[LogitsSource, Request]:
        """The source and the request of a call; ValueError if it is not on the group's device."""
        self._get_group()
        source, request = shard.read(self._first_token, {**common, **self._cpu_options}, batch)
        place = request.arrays.name
        if place != self._device:
            raise ValueError(f"{shard.name}: is on {place}, the group on {self._device}")
        return source, request

    def _draw_request(self, shard: Shard, common: Any) -> SampleOutput:
        with self._start_call(common):
            source, request = self._read_inputs(shard, self._add_seed(common))
            return draw_request(self._wrap_call(shard.sample), source, request, self._callee)

    def _score_tokens(self, shard: Shard, tokens: Any, common: Any) -> SampleOutput:
        with self._start_call(common):
            source, request = self._read_inputs(shard, common)
            return score_tokens(
                self._wrap_call(shard.sample), source, request, tokens, self._callee
            )

    def _verify_draft(self, shard: Shard, draft: tuple[Any, ...], common: Any) -> VerifyOutput:
        with self._start_call(common):
            source, request = self._read_inputs(
                shard, self._add_seed(common), count_requests(*draft[:2])
            )
            struct = read_draft(request, len(shard.inputs), *draft)
            return verify_draft(
                self._wrap_call(shard.verify), source, request, struct, self._callee
            )

    def _prepare_call(self, shard: Shard, common: Any) -> PreparedCall:
        shard.inputs = import_array(shard.name, shard.inputs)
        source, request = self._read_inputs(shard, common)
        check_in_place(request, common)
        self._prepared += 1
        seed = derive_row_seed(self._seed, self._prepared)
        return _PreparedCall(self, shard, source, request, common, seed)

    def _add_seed(self, common: Any) -> Any:
        """The parameters of a call, with the group's next seed if they have none."""
        if common.get("seed") is not None:
            return common
        if self._device != "cpu":
            import torch

            if torch.cuda.is_current_stream_capturing():
                raise ValueError(
                    "seed: required during CUDA graph capture, because replays would repeat a "
                    "fresh seed; pass seed and position as tensors, or capture a prepared call"
                )
        return {**common, "seed": (self._seed + self._calls) % 2**64}

    def _wrap_call(self, function: Any) -> Callable[..., int]:
        """Wrap `function` to record that the library was called."""

        def call_library(*arguments: Any) -> int:
            self._called_library = True
            found: int = function(*arguments)
            return found

        return call_library

    @contextlib.contextmanager
    def _start_call(self, common: Any) -> Iterator[None]:
        """Context of a call.

        If the call fails before the library is called, fails it on the other ranks, too. If its
        stream may wait for this host, waits for it.
        """
        self._get_group()
        self._called_library = False
        self._calls += 1
        try:
            yield
        except Exception:
            if not self._called_library:
                nothing = [None] * 5
                _lib.gumbel_group_sample_logits(self._group, *nothing, 0, None)
            raise
        self._finish_host_collectives(common)

    def _finish_host_collectives(self, common: Any) -> None:
        """Wait for a truncated call that may need host-assisted collectives, unless captured."""
        if not self._may_need_host or all(common.get(name) is None for name in _TRUNCATION):
            return
        import torch

        if not torch.cuda.is_current_stream_capturing():
            self.wait()


class _PreparedCall(PreparedCall):
    """A PreparedCall of a group."""

    def __init__(
        self,
        group: Group,
        shard: Shard,
        source: LogitsSource,
        request: Request,
        common: Any,
        seed: int,
    ) -> None:
        self._owner, self._common = group, common
        super().__init__(
            shard.sample, shard.name, shard.inputs, source, request, group._callee, seed
        )

    def __call__(self, inputs: Optional[Array] = None) -> SampleOutput:
        with self._owner._start_call(self._common):
            self._use_inputs(inputs)
            self._owner._called_library = True
            return super().__call__()
