# SPDX-License-Identifier: Apache-2.0
"""gumbel explain LOGITS.npy: the rules, scores and winner of each row's draw."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Match, Optional

import numpy as np

from .. import DrawExplanation, explain_draw
from .output import write_line
from .samplers import read_samplers

FILE = "LOGITS.npy"
MAGIC = b"\x93NUMPY"
# Rules that the explanation of kernels lacks: {option: help}.
FLOATS = {
    "temperature": "0 is greedy (default 1)",
    "typical-p": "1 is off (default)",
    "top-n-sigma": "0 is off (default)",
    "epsilon": "0 is off (default)",
    "eta": "0 is off (default)",
    "top-a": "0 is off (default)",
    "xtc-probability": "0 is off (default)",
    "xtc-threshold": "(default 0.1)",
}
SAMPLING = (
    *(name.replace("-", "_") for name in FLOATS),
    *("order", "top_k", "top_p", "min_p", "seed", "position"),
)
# Options that have no meaning without a file.
OWN = (
    *SAMPLING[: len(FLOATS) + 1],
    *("samplers", "seed", "position", "row", "vocabulary", "json", "html"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the file of logits, and the options that require it."""
    parser.add_argument("file", metavar=FILE, nargs="?", help="logits [V] or [T, V], by numpy.save")
    group = parser.add_argument_group(f"draws of {FILE}")
    order = group.add_mutually_exclusive_group()
    order.add_argument("--order", help="as top_k,typical_p,temperature; or llama.cpp, hf, ..")
    order.add_argument("--samplers", metavar="RULE;..", help="the order in llama.cpp's words, as "
                       "'top_k;typ_p;min_p;temperature'")  # fmt: skip
    for name, text in FLOATS.items():
        group.add_argument(f"--{name}", type=float, metavar="X", help=text)
    group.add_argument("--seed", type=int, metavar="N", help="of all rows (default: a fresh one)")
    group.add_argument("--position", type=int, metavar="N", help="of row 0; row t has N + t (0)")
    group.add_argument("--row", type=int, metavar="N", help="explain this row alone")
    group.add_argument("--vocabulary", metavar="FILE", help="texts of the tokens: one a line, or "
                       "a JSON list if the file begins with [")  # fmt: skip
    group.add_argument("-j", "--json", action="store_true", default=None, help="print JSON")
    group.add_argument("--html", metavar="FILE", help="write a page, and print no table")


def check_no_draw(given: argparse.Namespace) -> None:
    """Raise ValueError for an option that requires a file of logits."""
    for name in OWN:
        if getattr(given, name) is not None:
            option = name.replace("_", "-")
            raise ValueError(f"--{option}: requires a file: gumbel explain {FILE} --{option} ...")


def load_logits(path: str) -> Any:
    """The array of a file, mapped to memory."""
    try:
        with open(path, "rb") as file:
            magic = file.read(len(MAGIC))
        if magic != MAGIC:
            raise ValueError("not a .npy file; write it by numpy.save()")
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise ValueError(f"{FILE}: cannot read {path}: {error.strerror or error}") from None
    except (ValueError, EOFError) as error:
        text = str(error)
        if "object" in text.lower() or "pickle" in text:
            text = "it holds pickled Python objects, which are not loaded; save an array of numbers"
        raise ValueError(f"{FILE}: cannot read {path}: {text}") from None
    if array.ndim not in (1, 2) or 0 in array.shape:
        raise ValueError(
            f"{FILE}: {path} has the shape {list(array.shape)}; expected [V] or [T, V], not empty"
        )
    if array.dtype not in (np.float32, np.float16, np.uint16):
        raise ValueError(
            f"{FILE}: {path} has dtype {array.dtype}; save logits.astype(numpy.float32), float16, "
            "or bfloat16 bits as uint16"
        )
    return array[None] if array.ndim == 1 else array


def load_vocabulary(path: str, count: int) -> List[Optional[str]]:
    """The texts of a vocabulary of `count` tokens."""
    try:
        text = Path(path).read_bytes().decode("utf-8")
    except OSError as error:
        raise ValueError(f"--vocabulary: cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"--vocabulary: {path} is not UTF-8 (byte {error.start})") from None
    found: List[Any]
    if text.startswith("["):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"--vocabulary: {path} begins with [ and is not a JSON list: {error}"
            ) from None
        for token, each in enumerate(found):
            if each is not None and not isinstance(each, str):
                raise ValueError(
                    f"--vocabulary: entry {token} of {path} is {type(each).__name__}; expected a "
                    "string, or null for an id without a text"
                )
    else:
        found = [line[:-1] if line.endswith("\r") else line for line in text.split("\n")]
        if found[-1] == "":
            found.pop()
    if len(found) != count:
        raise ValueError(
            f"--vocabulary: {path} has {len(found)} tokens, but the logits have {count}; write one "
            "for each token id"
        )
    return found


def write_file(path: str, text: str) -> None:
    """Write a file as a whole: its old content stays until the new one is complete.

    A link stays, and the file that it names is written. Devices and pipes are written in place.
    """
    if not path:
        raise ValueError("--html: expected the name of a file, got an empty one")
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
        else:
            _replace_file(Path(os.path.realpath(path)), text)
    except OSError as error:
        raise ValueError(f"--html: cannot write {path}: {error.strerror or error}") from None


def _replace_file(target: Path, text: str) -> None:
    """Write a file beside `target` and rename it; an existing file keeps its mode."""
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(name, _read_mode(target))
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _read_mode(target: Path) -> int:
    """The mode of an existing file, or that of a new one."""
    with contextlib.suppress(FileNotFoundError):
        return stat.S_IMODE(target.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def name_option(error: Exception, samplers: bool) -> str:
    """The message of an error with the option in place of the argument.

    samplers     whether the order is that of --samplers.
    """
    name, colon, rest = str(error).partition(": ")
    name = re.sub(r"\[\d+\]$", "", name)
    if name == "logits":
        return f"{FILE}: {rest}"
    if not colon or name not in SAMPLING:
        return str(error)
    if samplers:
        name = "samplers" if name == "order" else name
        rest = re.sub(r"\border='([^']*)'", _advise_samplers, rest)
    rest = re.sub(r"\border='([^']*)'", r"--order \1", rest)
    return f"--{name.replace('_', '-')}: {rest}"


def _advise_samplers(order: Match[str]) -> str:
    """An order of an error's advice, as --samplers."""
    return f"--samplers '{order[1].replace(',', ';')}'"


def explain_file(given: argparse.Namespace) -> DrawExplanation:
    """The draws of the rows of a file."""
    logits = load_logits(given.file)
    rows, vocab = logits.shape
    first, end = 0, rows
    if given.row is not None:
        if not 0 <= given.row < rows:
            raise ValueError(f"--row: {given.row} is not in 0 to {rows - 1}, the rows of the file")
        first, end = given.row, given.row + 1
    start = given.position or 0
    if not 0 <= start < 2**64 - rows:
        raise ValueError(f"--position: {start} is not in 0 to {2**64 - rows - 1}")
    sampling: Dict[str, Any] = {
        name: getattr(given, name) for name in SAMPLING if getattr(given, name) is not None
    }
    if given.samplers is not None:
        sampling["order"] = read_samplers(given.samplers)
    sampling["position"] = [start + row for row in range(first, end)]
    texts = None if given.vocabulary is None else load_vocabulary(given.vocabulary, vocab)
    try:
        return explain_draw(logits[first:end], vocabulary=texts, **sampling)
    except (TypeError, ValueError) as error:
        raise ValueError(name_option(error, given.samplers is not None)) from None


def run_explain_draw(given: argparse.Namespace) -> int:
    found = explain_file(given)
    if given.html is not None:
        write_file(given.html, found.to_html())
    if given.json:
        write_line(json.dumps(found.to_dict(), indent=1, allow_nan=False))
    elif given.html is None:
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        write_line(str(found).encode(encoding, "backslashreplace").decode(encoding))
    else:
        count = len(found.steps)
        write_line(f"{given.html}: {count} {'step' if count == 1 else 'steps'}")
    return 0
