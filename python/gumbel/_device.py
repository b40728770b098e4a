# SPDX-License-Identifier: Apache-2.0
"""Devices: opened once for each (name, isa, threads), and never closed.

Closing them is unsafe: a daemon thread may be inside a call when the interpreter exits.
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


def _reset_after_fork() -> None:
    """Drop the devices in a child of fork(), which does not have their threads."""
    global _lock
    _devices.clear()
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


def _isa_values() -> dict[str, int]:
    """{name: value} of every ISA of the library, "auto" included."""
    values: dict[str, int] = {}
    while (name := _abi.lib.gumbel_isa_name(len(values)).decode()) != "unknown":
        values[name] = len(values)
    return values


_ISAS = _isa_values()


def open_device(name: str, isa: Optional[str], threads: Optional[int]) -> ctypes.c_void_p:
    """The handle of "cpu" or "cuda:N", opened at its first use; None is the library's default.

    Raises TypeError or ValueError for an invalid isa or threads, and RuntimeError if the device is
    not available.
    """
    if isa is not None and not isinstance(isa, str):
        raise TypeError(f"isa: expected a name or None, got {type(isa).__name__}")
    if isa is not None and isa not in _ISAS:
        raise ValueError(f"isa: {format_value(isa)} is none of {', '.join(_ISAS)}")
    key = (
        name,
        _ISAS["auto" if isa is None else isa],
        0 if threads is None else read_integer("threads", threads, 1, _abi.THREADS_MAX),
    )
    with _lock:
        if key not in _devices:
            device, error = ctypes.c_void_p(), _abi.Error()
            options = _abi.DeviceOptions(device=name.encode(), isa=key[1], threads=key[2])
            _abi.check_status(_abi.lib.gumbel_open(options, device, error), error)
            _devices[key] = device
        return _devices[key]


KERNELS = ("portable", "tensor", "clusters", "hopper")  # as gumbel_cuda_architecture() names them


@dataclass(frozen=True)
class Info:
    """Description of the library, of its build and of one device."""

    version: str  #: version of the library, "MAJOR.MINOR.PATCH"
    isa: str  #: the instruction set in use; "" for a CUDA device
    isas: Tuple[str, ...]  #: all instruction sets that this machine's CPU supports
    threads: int  #: number of threads of a call; of multiprocessors for a CUDA device
    tile: int  #: number of vocabulary rows of a tile
    device: str  #: "cpu" or "cuda:N"
    description: str  #: model name of the processor or GPU, "" if unknown
    cuda_architectures: Tuple[str, ...]
    """GPU architectures of the build's kernels, as in ("sm_80", "sm_90", "sm_90a", "compute_90");
    compute_NN is PTX, which the driver compiles for later GPUs. () for a build without kernels."""

    capability: str
    """Compute capability of a CUDA device, as in "9.0"; "" for a CPU."""
    cuda_images: Tuple[Tuple[str, str], ...]
    """The kernels that serve this GPU, and the architecture that each is compiled for: "portable",
    products by "tensor" cores, those with thread-block "clusters", and those for "hopper" alone.
    (("portable", "sm_80"), ("tensor", "sm_80")) on an A100; () for a CPU."""

    @property
    def cuda_kernels(self) -> bool:
        """Whether the build has CUDA kernels."""
        return bool(self.cuda_architectures)


def find_cuda_images(capability: int) -> Tuple[Tuple[str, str], ...]:
    """Info.cuda_images of a GPU of this capability, 10 * major + minor."""
    find = _abi.lib.gumbel_cuda_architecture
    images = ((name, find(name.encode(), capability).decode()) for name in KERNELS)
    return tuple((name, image) for name, image in images if image)


def format_capability(capability: int) -> str:
    """10 * major + minor as "major.minor"; "" for 0."""
    return f"{capability // 10}.{capability % 10}" if capability else ""


def info(*, device: str = "cpu", isa: Optional[str] = None, threads: Optional[int] = None) -> Info:
    """Describe the library, its build, and the device that a call runs on.

    device       "cpu", or "cuda:N" for a GPU.
    isa          an instruction set of the CPU, such as "avx2"; None: the best of this machine.
    threads      number of CPU threads; None: the CPUs that this process may use.

    Raises RuntimeError if the device is not available; the message states whether kernels, the
    driver or the GPU are missing.
    """
    if not isinstance(device, str):
        raise TypeError(f"device: expected a name, got {type(device).__name__}")
    if not re.fullmatch(r"cpu|cuda:[0-9]{1,4}", device):
        raise ValueError(f"device: {format_value(device)} is none of cpu, cuda:0, cuda:1, ...")
    about = _abi.DeviceInfo()
    opened = open_device(device, isa, threads)
    _abi.check_status(_abi.lib.gumbel_describe(opened, about))
    capability = _abi.lib.gumbel_device_capability(opened)
    available = (n for n, v in _ISAS.items() if n != "auto" and _abi.lib.gumbel_isa_available(v))
    isa_in_use = _abi.lib.gumbel_isa_name(about.isa).decode()
    return Info(
        version=_abi.lib.gumbel_version_string().decode(),
        isa="" if isa_in_use == "auto" else isa_in_use,
        isas=tuple(available),
        threads=about.threads,
        tile=about.tile,
        device=_abi.decode_text(about.name),
        description=_abi.decode_text(about.description),
        cuda_architectures=tuple(_abi.lib.gumbel_cuda_architectures().decode().split()),
        capability=format_capability(capability),
        cuda_images=find_cuda_images(capability),
    )
