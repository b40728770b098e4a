# SPDX-License-Identifier: Apache-2.0
"""The command `gumbel` of the Python package, and `python -m gumbel`."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
import sysconfig
from pathlib import Path
from typing import Any, List, NoReturn, Optional

from . import __version__
from ._abi import find_file
from ._command import explain, info, verify
from ._command.output import OutputError, check_output, write_line

DESCRIPTION = """Draw tokens from language models exactly: the command of the Python package.

  gumbel info                   version, processor, GPU, kernels
  gumbel verify                 check the draws on this machine
  gumbel explain LOGITS.npy     how the tokens of these logits are drawn
  gumbel explain                which kernels serve a call
  cc program.c $(gumbel --cflags --libs)"""
FULL = ("generate", "sample", "bench")
BUILD = """gumbel {command}: not part of the Python package. The full command, in C, has it.
Build that program at the root of libgumbel's source tree:
    script/setup        # installs CMake, Ninja, Jansson, PCRE2, utf8proc by apt
    cmake --preset release -DGUMBEL_BUILD_TOOLS=ON
    cmake --build build/release --target gumbel_cli
    build/release/cli/gumbel {command} --help
"""


def _find_other_commands() -> List[str]:
    """Other programs named gumbel on PATH, such as the full command in C."""
    own = {Path(sys.argv[0]).resolve(), Path(sysconfig.get_path("scripts"), "gumbel").resolve()}
    folders = os.environ.get("PATH", "").split(os.pathsep)
    found = [Path(folder) / "gumbel" for folder in dict.fromkeys(folders) if folder]
    return [str(each) for each in found if os.access(each, os.X_OK) and each.is_file()
            and each.resolve() not in own]  # fmt: skip


def _print_version() -> None:
    write_line(f"gumbel {__version__} (Python package in {Path(__file__).parent})")
    for other in _find_other_commands():
        write_line(f"another gumbel: {other}")


def _list_compiler_flags(cflags: bool, libs: bool) -> List[str]:
    """Compiler and linker flags for C programs that use the package's headers and library."""
    flags = []
    if cflags:
        flags.append(f"-I{find_file('include/gumbel/gumbel.h').parents[1]}")
    if libs:
        folder = find_file("libgumbel.so").parent
        flags += [f"-L{folder}", f"-Wl,-rpath,{folder}", "-lgumbel"]
    return flags


class _HelpParser(argparse.ArgumentParser):
    """A parser that reports a failed write of its help text, which argparse ignores."""

    def print_help(self, file: Any = None) -> None:
        check_output()
        write_line(self.format_help().rstrip("\n"))


def _make_parser() -> argparse.ArgumentParser:
    parser = _HelpParser(
        prog="gumbel",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Exit codes: 0 done, 1 a check or the output failed, 2 wrong input or usage.",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.add_argument("--cflags", action="store_true", help="print C compiler flags and exit")
    parser.add_argument("--libs", action="store_true", help="print linker flags and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for module in (info, verify, explain):
        module.add_command(commands)
    return parser


def _write_error(text: str) -> None:
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.write(text)


def _run_command(arguments: List[str]) -> int:
    """Run a command line; returns the exit code."""
    if arguments[:1] and arguments[0] in FULL:
        _write_error(BUILD.format(command=arguments[0]))
        return 2
    parser = _make_parser()
    given = parser.parse_args(arguments)
    check_output()
    if given.version:
        _print_version()
    elif given.command:
        code: int = given.run(given)
        return code
    elif given.cflags or given.libs:
        write_line(shlex.join(_list_compiler_flags(given.cflags, given.libs)))
    else:
        parser.error("a command, --cflags, --libs or --version is missing (see gumbel --help)")
    return 0


def main(arguments: Optional[List[str]] = None) -> NoReturn:
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        try:
            code = _run_command(arguments)
        except SystemExit as ended:  # of argparse
            code = int(ended.code or 0)
        if code == 0:
            check_output()
    except KeyboardInterrupt:
        code = 130
    except OutputError as error:
        code = 1
        if not error.reader_left:
            _write_error(f"gumbel: {error}\n")
    except (TypeError, ValueError, RuntimeError, OSError, MemoryError) as error:
        code = 2
        command = arguments[0] if arguments else ""
        _write_error(f"gumbel {command}: {error}\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
