# SPDX-License-Identifier: Apache-2.0
"""Devices: opened once for each (name, isa, threads) and kept until the process ends.

They are never closed: a daemon thread may still be inside a call when the interpreter exits.
"""

from __future__ import annotations

import ctypes
import os
import threading
from dataclasses import dataclass
from typing import Optional, Tuple

from . import _abi
from ._inputs.numbers import integer, shown

_devices: dict[tuple[str, int, int], ctypes.c_void_p] = {}
_lock = threading.Lock()


def _forget() -> None:
    """After a fork the child has the devices' memory but not their threads: it opens its own."""
    global _lock
    _devices.clear()
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _isa_values() -> dict[str, int]:
    """Every ISA by name, "auto" included, as the library lists them: 0, 1, ... up to "unknown"."""
    values: dict[str, int] = {}
    while (name := _abi.lib.gumbel_isa_name(len(values)).decode()) != "unknown":
        values[name] = len(values)
    return values


_ISAS = _isa_values()


def open_device(name: str, isa: Optional[str], threads: Optional[int]) -> ctypes.c_void_p:
    """The device "cpu" or "cuda:N" of this ISA and thread count; None: the library's own choice."""
    if isa is not None and not isinstance(isa, str):
        raise TypeError(f"isa: expected a name or None, got {type(isa).__name__}")
    if isa is not None and isa not in _ISAS:
        raise ValueError(f"isa: {shown(isa)} is none of {', '.join(_ISAS)}")
    key = (
        name,
        _ISAS["auto" if isa is None else isa],
        0 if threads is None else integer("threads", threads, 1, 2**31 - 1),
    )
    with _lock:
        if key not in _devices:
            device, error = ctypes.c_void_p(), _abi.Error()
            options = _abi.DeviceOptions(device=name.encode(), isa=key[1], threads=key[2])
            _abi.check(_abi.lib.gumbel_open(options, device, error), error)
            _devices[key] = device
        return _devices[key]


@dataclass(frozen=True)
class Info:
    """What the library is and runs on."""

    version: str  #: of the library, "MAJOR.MINOR.PATCH"
    isa: str  #: the instruction set in use
    isas: Tuple[str, ...]  #: every instruction set that can be asked for here
    threads: int  #: ways a call is split
    tile: int  #: vocabulary rows a tile
    device: str  #: "cpu"
    description: str  #: the processor's own name for itself, "" where unknown


def info(*, isa: Optional[str] = None, threads: Optional[int] = None) -> Info:
    """Describe the device that a call with the same `isa` and `threads` runs on."""
    about = _abi.DeviceInfo()
    _abi.check(_abi.lib.gumbel_describe(open_device("cpu", isa, threads), about))
    available = (n for n, v in _ISAS.items() if n != "auto" and _abi.lib.gumbel_isa_available(v))
    return Info(
        version=_abi.lib.gumbel_version_string().decode(),
        isa=_abi.lib.gumbel_isa_name(about.isa).decode(),
        isas=tuple(available),
        threads=about.threads,
        tile=about.tile,
        device=_abi.text(about.name),
        description=_abi.text(about.description),
    )
