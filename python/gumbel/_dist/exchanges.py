# SPDX-License-Identifier: Apache-2.0
"""All-gathers between ranks: by a function of the caller, or by torch.distributed."""

from __future__ import annotations

import ctypes
import datetime
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from .._inputs.fresh_seeds import fresh_seed
from .abi import WHY_BYTES

#: (bytes of this rank, time-out in seconds) -> bytes of all ranks in rank order; raises on time-out
AllGather = Callable[[NDArray[np.uint8], float], NDArray[np.uint8]]
#: An all-gather by addresses: (send, receive, bytes of a rank, time-out in milliseconds).
Exchange = Callable[[int, int, int, int], None]

_SIZES_KEPT = 16


def exchange_by_arrays(all_gather: AllGather, ranks: int) -> Exchange:
    """An Exchange that calls `all_gather`, a caller's function on arrays."""

    def exchange_arrays(send: int, receive: int, size: int, ms: int) -> None:
        own = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(send)).copy()
        found = np.ascontiguousarray(all_gather(own, ms / 1000), np.uint8)
        if found.size != ranks * size:
            raise ValueError(f"received {found.size} bytes, not {ranks} times {size}")
        ctypes.memmove(receive, found.ctypes.data, found.size)

    return exchange_arrays


def broadcast_seed(
    torch_exchange: Optional[TorchExchange],
    all_gather: Optional[AllGather],
    ranks: int,
    device: str,
    timeout: float,
) -> int:
    """Rank 0's fresh seed, on all ranks; one exchange if there is more than one rank."""
    own = fresh_seed().to_bytes(8, "little")
    if torch_exchange is not None and torch_exchange.ranks > 1:
        return int.from_bytes(torch_exchange.all_gather(own, device)[0], "little")
    if all_gather is not None and ranks > 1:
        found = np.ascontiguousarray(all_gather(np.frombuffer(own, np.uint8), timeout), np.uint8)
        if found.size != ranks * len(own):
            raise ValueError(f"received {found.size} bytes, not {ranks} times {len(own)}")
        return int.from_bytes(bytes(found.ravel()[: len(own)]), "little")
    return int.from_bytes(own, "little")


class TorchExchange:
    """All-gathers by a torch.distributed group, on CPU tensors if it supports them, as gloo does.

    Send and receive tensors are cached by size. torch owns their memory, so that an all-gather that
    completes after its time-out does not write to freed memory.
    """

    def __init__(self, process_group: Any) -> None:
        import torch.distributed as dist

        if process_group is None:
            process_group = dist.group.WORLD
        self.group = process_group
        self.rank, self.ranks = dist.get_rank(process_group), dist.get_world_size(process_group)
        self.backends = dict(
            part.partition(":")[::2] for part in dist.get_backend_config(process_group).split(",")
        )
        options: Any = dist.distributed_c10d
        self._options = options.AllgatherOptions()
        self._kept: dict[int, tuple[Any, Any, list[Any]]] = {}

    def supports(self, kind: str) -> bool:
        """Whether the group supports tensors on devices of this kind: "cpu" or "cuda"."""
        return kind in self.backends

    def all_gather(self, own: bytes, device: str) -> list[bytes]:
        """All-gather `own`, equally long on all ranks, with the time-out of the group."""
        import torch

        place = "cpu" if self.supports("cpu") else device
        sent = torch.frombuffer(bytearray(own), dtype=torch.uint8).to(place)
        found = [torch.empty_like(sent) for _ in range(self.ranks)]
        torch.distributed.all_gather(found, sent, group=self.group)
        return [bytes(tensor.cpu().numpy()) for tensor in found]

    def _get_tensors(self, size: int) -> tuple[Any, Any, list[Any]]:
        found = self._kept.get(size)
        if found is None:
            import torch

            own: Any = torch.empty(size, dtype=torch.uint8)
            everyone: Any = torch.empty(size * self.ranks, dtype=torch.uint8)
            if len(self._kept) >= _SIZES_KEPT:
                self._kept.clear()
            found = self._kept[size] = own, everyone, list(everyone.split(size))
        return found

    def exchange(self, send: int, receive: int, size: int, ms: int) -> None:
        """All-gather memory; an Exchange."""
        own, everyone, parts = self._get_tensors(size)
        ctypes.memmove(own.data_ptr(), send, size)
        # torch's own time-out ends the all-gather, so that none stays queued.
        self._options.timeout = datetime.timedelta(milliseconds=ms)
        self.group.allgather([parts], [own], self._options).wait()
        ctypes.memmove(receive, everyone.data_ptr(), size * self.ranks)


def make_callback(exchange: Exchange) -> Callable[..., int]:
    """`exchange` as a C callback. The library's call reports an exception as its error."""

    def call_exchange(
        _: Any, __: Any, send: int, receive: int, size: int, ms: int, why: int
    ) -> int:
        try:
            exchange(send, receive, size, ms)
            return 0
        except Exception as problem:
            words = str(problem).encode(errors="replace")[: WHY_BYTES - 1] + b"\0"
            ctypes.memmove(why, words, len(words))
            return 1

    return call_exchange
