# SPDX-License-Identifier: Apache-2.0
"""Standard output of the command. OutputError distinguishes failed writes from failed reads."""

from __future__ import annotations

import os
import sys


class OutputError(Exception):
    """Standard output cannot be written. `reader_left`: its pipe was closed by the reader."""

    def __init__(self, problem: str, reader_left: bool = False) -> None:
        super().__init__(f"cannot write to standard output: {problem}")
        self.reader_left = reader_left


def write_line(line: str) -> None:
    """Print a line at once."""
    try:
        print(line, flush=True)
    except OSError as error:
        raise _discard_output(error) from None


def check_output() -> None:
    """Raise OutputError if standard output is closed, or if printed text cannot be written."""
    if sys.stdout is None:
        raise OutputError("it is closed")
    try:
        sys.stdout.flush()
    except OSError as error:
        raise _discard_output(error) from None


def _discard_output(error: OSError) -> OutputError:
    """The OutputError of a write. Discards buffered output, which would fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return OutputError(error.strerror or str(error), isinstance(error, BrokenPipeError))
