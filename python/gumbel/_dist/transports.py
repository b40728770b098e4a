# SPDX-License-Identifier: Apache-2.0
"""Transports of a group: a callback that exchanges host memory, or NCCL for device memory."""

from __future__ import annotations

import ctypes
import re
from typing import Any, Optional

from .. import _abi
from .._device import open_device
from .._inputs.numbers import read_integer
from .abi import GATHER, NCCL_ID_BYTES, PEERS, Transport, lib
from .exchanges import AllGather, Exchange, TorchExchange, exchange_by_arrays, make_callback


def read_device_name(device: Any, torch_exchange: Optional[TorchExchange]) -> str:
    """The library's name of a group's device.

    device          a torch device or its name. None: the CPU, or the current GPU if
                    `torch_exchange` does not support CPU tensors.
    torch_exchange  the exchanges of a process group. None: the caller has its own all-gather.

    Raises ValueError for a device other than cpu or cuda:N.
    """
    if device is None and (torch_exchange is None or torch_exchange.supports("cpu")):
        return "cpu"
    name = "cuda" if device is None else str(device)
    if name == "cuda":
        import torch

        name = f"cuda:{torch.cuda.current_device()}"
    if not re.fullmatch(r"cpu|cuda:[0-9]{1,4}", name):
        raise ValueError(f"device: expected None, cpu or cuda:N, got {device!r}")
    return name


def read_peer_memory(value: Any) -> int:
    """The gumbel_peer_memory value of the argument peer_memory."""
    if value not in PEERS:
        raise ValueError(f"peer_memory: {value!r} is none of {', '.join(PEERS)}")
    return PEERS.index(value)


def _make_callback_transport(exchange: Exchange, rank: int, ranks: int) -> Transport:
    """A transport of host memory; it keeps the callback alive."""
    return Transport(rank=rank, ranks=ranks, all_gather=GATHER(make_callback(exchange)))


def find_nccl_problem() -> Optional[str]:
    """The reason why NCCL is not available; None: it is available."""
    error = _abi.Error()
    status = lib.gumbel_nccl_id(ctypes.create_string_buffer(NCCL_ID_BYTES), error)
    return None if status == _abi.OK else _abi.decode_text(error.message)


def _make_nccl_transport(torch_exchange: TorchExchange, name: str) -> Transport:
    """A transport over NCCL with its own communicator, on this rank's GPU."""
    own, error, problem = ctypes.create_string_buffer(NCCL_ID_BYTES), _abi.Error(), None
    try:
        open_device(name, None, None)
        _abi.check_status(lib.gumbel_nccl_id(own, error), error)
    except RuntimeError as found:
        problem = found
    # All ranks learn whether one lacks a GPU or NCCL before any rank blocks in NCCL.
    gathered = torch_exchange.all_gather(bytes([problem is None]) + own.raw, name)
    if problem is not None:
        raise problem
    lacking = [rank for rank, message in enumerate(gathered) if not message[0]]
    if lacking:
        raise RuntimeError(f"nccl: rank {lacking[0]} has no GPU or no NCCL")
    transport, ordinal = Transport(), int(name.partition(":")[2])
    status = lib.gumbel_nccl_transport(
        None, gathered[0][1:], torch_exchange.rank, torch_exchange.ranks, ordinal, transport, error
    )
    _abi.check_status(status, error)
    return transport


def make_transport(
    device: str,
    nccl: Optional[bool],
    torch_exchange: Optional[TorchExchange],
    all_gather: Optional[AllGather],
    rank: int,
    ranks: int,
) -> Transport:
    """The transport of a rank on `device`, by the arguments of Group."""
    rank, ranks = read_integer("rank", rank, 0, 65535), read_integer("ranks", ranks, 1, 65536)
    if torch_exchange is None:
        if nccl or all_gather is None:
            raise ValueError("nccl: requires a process group")
        return _make_callback_transport(exchange_by_arrays(all_gather, ranks), rank, ranks)
    if nccl is None:
        nccl = device != "cpu" and torch_exchange.backends.get("cuda") == "nccl"
    if nccl and device == "cpu":
        raise ValueError("nccl: requires a GPU")
    if nccl:
        return _make_nccl_transport(torch_exchange, device)
    if not torch_exchange.supports("cpu"):
        raise ValueError("process_group: must support CPU tensors if nccl is False")
    return _make_callback_transport(
        torch_exchange.exchange, torch_exchange.rank, torch_exchange.ranks
    )


def destroy_transport(transport: Transport) -> None:
    """Destroy a transport that no group owns."""
    if transport.destroy:
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(transport.destroy)(transport.context)
