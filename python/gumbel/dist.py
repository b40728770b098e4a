# SPDX-License-Identifier: Apache-2.0
"""Ranks: a vocabulary split over processes, one token.

Every rank holds some rows of the LM head, or some columns of the logits, makes the same call with
its own, and gets the answer: to the bit the tokens, scores and log-probabilities of one process
that holds all. Not imported by `import gumbel`; CPU arrays and tensors alone.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_int32, c_int64, c_size_t, c_void_p
from typing import TYPE_CHECKING, Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from . import _abi
from ._calls.ways import SampleOutput, WayIn, from_head, from_logits, of_logits, output_of
from ._device import open_device
from ._inputs.arrays import workspace
from ._inputs.common import Common, Request, takes_common
from ._inputs.numbers import integer, number

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: bytes of this rank, seconds -> those of all ranks, in their order; raises where time is over.
AllGather = Callable[[NDArray[np.uint8], float], NDArray[np.uint8]]

_WHY_BYTES = 128
_GATHER = ctypes.CFUNCTYPE(
    c_int, c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_int64, c_void_p
)


class _Transport(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rank", c_int32),
        ("ranks", c_int32),
        ("all_gather", _GATHER),
        ("destroy", c_void_p),
        ("context", c_void_p),
        ("queue", c_void_p),
        ("wait", c_void_p),
    ]


class _Options(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("first_token", c_int64),
        ("rows", c_int64),
        ("timeout_ms", c_int64),
        ("frame_bytes", c_size_t),
    ]


class _Traffic(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        *((name, c_int64) for name in ("calls", "exchanges", "bytes", "rows", "rows_by_rows")),
    ]


def _load() -> ctypes.CDLL:
    library = ctypes.CDLL(str(_abi.find("libgumbel_dist.so")))
    for name in ("open", "traffic", "workspace_size", "sample", "sample_logits"):
        getattr(library, f"gumbel_group_{name}").restype = c_int
    library.gumbel_group_close.restype = None
    return library


_lib = _load()


def _over_torch(process_group: Any) -> tuple[int, int, AllGather]:
    import datetime

    import torch
    import torch.distributed as dist

    def gather(own: NDArray[np.uint8], seconds: float) -> NDArray[np.uint8]:
        parts = [torch.empty(len(own), dtype=torch.uint8) for _ in range(ranks)]
        work = dist.all_gather(parts, torch.from_numpy(own), process_group, async_op=True)
        if not work.wait(datetime.timedelta(seconds=seconds)):
            raise TimeoutError("a rank does not answer")
        return torch.cat(parts).numpy()

    ranks = dist.get_world_size(process_group)
    return dist.get_rank(process_group), ranks, gather


class Group:
    """Ranks that draw together; all make it, and its calls, in the same order.

    first_token, rows
                   this rank's shard: its rows of the head. Shards tile the vocabulary, in any order
                   of ranks; `rows` may be 0. Where they meet at multiples of 64 tokens, a plain
                   draw sends 48 bytes a row.
    process_group  of torch.distributed, which moves CPU tensors (gloo); None: the default one
    all_gather     instead of that, with rank and ranks: takes the bytes of this rank and seconds,
                   returns those of all ranks, one behind the other, or raises
    timeout        seconds that an exchange may take

    A rank that passes other parameters than the rest is a RuntimeError on all, which names the
    parameter; one that does not answer within the time-out too, and then the group is spent. One
    call at a time.
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
        isa: Optional[str] = None,
        threads: Optional[int] = None,
    ) -> None:
        self._group = c_void_p()
        if all_gather is None:
            rank, ranks, all_gather = _over_torch(process_group)
        self._first = integer("first_token", first_token, 0, 2**31)
        self._callback = _GATHER(self._gather_with(all_gather, ranks))
        options = _Options(
            struct_size=ctypes.sizeof(_Options),
            first_token=self._first,
            rows=integer("rows", rows, 0, 2**31),
            timeout_ms=max(1, int(1000 * number("timeout", timeout))),
        )
        transport = _Transport(
            struct_size=ctypes.sizeof(_Transport),
            rank=integer("rank", rank, 0, 65535),
            ranks=integer("ranks", ranks, 1, 65536),
            all_gather=self._callback,
        )
        self._device = open_device("cpu", isa, threads)
        error = _abi.Error()
        status = _lib.gumbel_group_open(
            ctypes.byref(transport),
            self._device,
            ctypes.byref(options),
            ctypes.byref(self._group),
            ctypes.byref(error),
        )
        _abi.check(status, error)

    @staticmethod
    def _gather_with(all_gather: AllGather, ranks: int) -> Callable[..., int]:
        def gather(_: Any, __: Any, send: int, receive: int, size: int, ms: int, why: int) -> int:
            try:
                own = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(send)).copy()
                found = np.ascontiguousarray(all_gather(own, ms / 1000), np.uint8)
                if found.size != ranks * size:
                    raise ValueError(f"{found.size} bytes came, not {ranks} times {size}")
                ctypes.memmove(receive, found.ctypes.data, found.size)
                return 0
            except Exception as problem:  # the library makes an error of the call of it
                words = str(problem).encode(errors="replace")[: _WHY_BYTES - 1] + b"\0"
                ctypes.memmove(why, words, len(words))
                return 1

        return gather

    @takes_common()
    def sample(
        self,
        hidden: NDArray[Any],
        weight: NDArray[Any],
        *,
        bias: Optional[NDArray[Any]] = None,
        scale: float = 1.0,
        softcap: float = 0.0,
        vocab_size: Optional[int] = None,
        **common: Unpack[Common],
    ) -> SampleOutput:
        """gumbel.sample() of the whole vocabulary, of which `weight` [rows, D] is this rank's.

        vocab_size  of the whole; None: where the last shard ends. Masks, bias and what penalties
                    count are looked at for this rank's tokens alone, by their ids in the whole.
        """
        shared = of_logits(scale, softcap, vocab_size, self._first)
        way_in, request = from_head(hidden, weight, bias, shared, common)
        return self._draw(_lib.gumbel_group_sample, way_in, request)

    @takes_common()
    def sample_logits(
        self,
        logits: NDArray[Any],
        *,
        scale: float = 1.0,
        softcap: float = 0.0,
        vocab_size: Optional[int] = None,
        **common: Unpack[Common],
    ) -> SampleOutput:
        """The same from this rank's columns [B, rows] of the logits."""
        shared = of_logits(scale, softcap, vocab_size, self._first)
        way_in, request = from_logits(logits, shared, common)
        return self._draw(_lib.gumbel_group_sample_logits, way_in, request)

    def _draw(self, call: Any, way_in: WayIn, request: Request) -> SampleOutput:
        if not self._group:
            raise ValueError("group: it is closed")
        result, output = output_of(request)
        size, error = c_size_t(), _abi.Error()
        of = ctypes.byref
        head, logits = (of(part) if part is not None else None for part in way_in)
        sampling = of(request.sampling)
        status = _lib.gumbel_group_workspace_size(
            self._group, head, logits, sampling, of(output), of(size), of(error)
        )
        scratch = None
        if status == _abi.OK:  # else the call says so to the other ranks
            scratch = workspace(request.arrays, size.value, True)
        status = call(
            self._group,
            None,
            head or logits,
            sampling,
            of(output),
            c_void_p(scratch.address if scratch else None),
            c_size_t(scratch.size if scratch else 0),
            of(error),
        )
        _abi.check(status, error)
        return result

    @property
    def traffic(self) -> dict[str, int]:
        """Calls, exchanges, bytes that this rank sent, rows drawn, and rows sent whole."""
        found = _Traffic(struct_size=ctypes.sizeof(_Traffic))
        _abi.check(_lib.gumbel_group_traffic(self._group, ctypes.byref(found)))
        return {name: getattr(found, name) for name, _ in _Traffic._fields_[1:]}

    def close(self) -> None:
        """Free it; no exchange is made."""
        if self._group:
            _lib.gumbel_group_close(self._group)
            self._group = c_void_p()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
