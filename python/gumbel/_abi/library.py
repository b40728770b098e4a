# SPDX-License-Identifier: Apache-2.0
"""Loads the library, and raises exceptions for its statuses."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

from .._names import use_python_names, get_parameter_name
from .prototypes import PROTOTYPES
from .structs import (
    ERROR_ARGUMENT,
    ERROR_DEVICE,
    ERROR_GROUP,
    ERROR_MEMORY,
    ERROR_UNSUPPORTED,
    OK,
    Error,
)


def find_file(name: str) -> Path:
    """The path of a library or header in the package; ImportError if it is missing."""
    # An editable install has two folders: the sources, and the results of the build.
    folders = [Path(folder) for folder in sys.modules[__package__.rpartition(".")[0]].__path__]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    raise ImportError(
        f"{name} is not in the package (looked in {', '.join(map(str, folders))}); "
        "`pip install .` at the root of the source tree builds and installs both"
    )


def _load_library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(find_file("libgumbel.so")))
    for function, (result, arguments) in PROTOTYPES.items():
        getattr(library, function).restype = result
        getattr(library, function).argtypes = arguments
    return library


lib = _load_library()


def decode_text(found: bytes) -> str:
    """A text of the library as str; it may quote arbitrary bytes of the environment."""
    return found.decode(errors="surrogateescape")


def check_status(
    status: int, error: Error | None = None, renamed: dict[str, str] | None = None
) -> None:
    """Raise the exception of a status that is not OK, with the message "argument: text".

    ValueError: an argument is invalid. RuntimeError: the device or build does not support the call,
    or the driver failed. MemoryError: out of memory.
    `renamed` maps names of arguments to the names that the caller uses.
    """
    if status == OK:
        return
    if error is not None and error.message:
        name, message = get_parameter_name(decode_text(error.field)), decode_text(error.message)
        if status == ERROR_ARGUMENT:
            message = use_python_names(message)
        message = f"{(renamed or {}).get(name, name)}: {message}"
    else:
        message = decode_text(lib.gumbel_status_string(status))
    kinds = {ERROR_MEMORY: MemoryError}
    kinds.update(dict.fromkeys((ERROR_UNSUPPORTED, ERROR_DEVICE, ERROR_GROUP), RuntimeError))
    raise kinds.get(status, ValueError)(message)
