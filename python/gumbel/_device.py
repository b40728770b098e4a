# SPDX-License-Identifier: Apache-2.0
"""Devices: opened once for each (name, isa, threads) and kept until the process ends.

They are never closed: a daemon thread may still be inside a call when the interpreter exits.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
from dataclasses import dataclass
from typing import Optional, Tuple

from . import _abi
from ._inputs.numbers import format_value, read_integer

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
        raise ValueError(f"isa: {format_value(isa)} is none of {', '.join(_ISAS)}")
    key = (
        name,
        _ISAS["auto" if isa is None else isa],
        0 if threads is None else read_integer("threads", threads, 1, _abi.THREADS_MOST),
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
    """Description of the library, of its build and of one device."""

    version: str  #: of the library, "MAJOR.MINOR.PATCH"
    isa: str  #: the instruction set in use; "" for a CUDA device
    isas: Tuple[str, ...]  #: every instruction set that can be requested on this machine's CPU
    threads: int  #: threads that a call is split into; a CUDA device's multiprocessors
    tile: int  #: vocabulary rows a tile
    device: str  #: "cpu" or "cuda:N"
    description: str  #: the name that the processor or GPU has for itself, "" if unknown
    cuda_architectures: Tuple[str, ...]
    """GPU architectures of the build's kernels, as in ("sm_80", "sm_90", "sm_90a", "compute_90");
    compute_NN is PTX, which the driver compiles for later GPUs. A build without kernels has ()."""

    @property
    def cuda_kernels(self) -> bool:
        """Whether the build has CUDA kernels."""
        return bool(self.cuda_architectures)


def info(*, device: str = "cpu", isa: Optional[str] = None, threads: Optional[int] = None) -> Info:
    """Describe the library, its build, and the device that a call runs on.

    device       "cpu", or "cuda:N" for a GPU.
    isa          an instruction set of the CPU, as in "avx2"; None: the best of this machine.
    threads      threads of the CPU; None: the CPUs that this process may use.

    Raises RuntimeError if the device is not available: the message says whether the build has no
    kernels, or the machine has no driver or no such GPU.
    """
    if not isinstance(device, str):
        raise TypeError(f"device: expected a name, got {type(device).__name__}")
    if not re.fullmatch(r"cpu|cuda:[0-9]{1,4}", device):
        raise ValueError(f"device: {format_value(device)} is none of cpu, cuda:0, cuda:1, ...")
    about = _abi.DeviceInfo()
    _abi.check(_abi.lib.gumbel_describe(open_device(device, isa, threads), about))
    available = (n for n, v in _ISAS.items() if n != "auto" and _abi.lib.gumbel_isa_available(v))
    isa_in_use = _abi.lib.gumbel_isa_name(about.isa).decode()
    return Info(
        version=_abi.lib.gumbel_version_string().decode(),
        isa="" if isa_in_use == "auto" else isa_in_use,
        isas=tuple(available),
        threads=about.threads,
        tile=about.tile,
        device=_abi.text(about.name),
        description=_abi.text(about.description),
        cuda_architectures=tuple(_abi.lib.gumbel_cuda_architectures().decode().split()),
    )
