# SPDX-License-Identifier: Apache-2.0
"""gumbel explain: the draws of a file of logits, or which kernels serve a call."""

from __future__ import annotations

import argparse
import re
from typing import Any

import numpy as np

from .. import explain
from .explain_draw import FILE, add_options, check_no_draw, run_explain_draw
from .output import write_line

DESCRIPTION = """With a file: explain the draw of each row of its logits: the tokens that each rule
removes, the scores and the winner. Without a file: print which kernels serve a call of these sizes,
and why the kernels that come before them in the order of preference do not; nothing is drawn."""
# Options of calls without a file, and their defaults.
SIZES = {
    "batch": 1, "vocab": 151936, "hidden_size": 4096, "logits": False, "dtype": "bfloat16",
    "device": "cpu", "num_samples": 1, "top_logprobs": 0, "no_logprobs": False,
}  # fmt: skip
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}


def add_command(commands: Any) -> None:
    parser = commands.add_parser(
        "explain", help="explain draws, or which kernels serve a call", description=DESCRIPTION
    )
    add_options(parser)
    parser.add_argument("-b", "--batch", type=int, default=1, help="rows B (default 1)")
    parser.add_argument("-v", "--vocab", type=int, default=151936, help="tokens V (151936)")
    parser.add_argument("--hidden-size", type=int, default=4096, help="columns D (4096)")
    parser.add_argument("--logits", action="store_true", help="draw from logits, not from a head")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="(default bfloat16)")
    parser.add_argument("-d", "--device", default="cpu", help="cpu, or cuda:0 and so on")
    parser.add_argument("--num-samples", type=int, default=1, help="samples a row (default 1)")
    parser.add_argument("--top-k", type=int, default=0, help="0 is off (default)")
    parser.add_argument("--top-p", type=float, default=1.0, help="1 is off (default)")
    parser.add_argument("--min-p", type=float, default=0.0, help="0 is off (default)")
    parser.add_argument(
        "--top-logprobs", type=int, default=0, help="number of likeliest tokens to return"
    )
    parser.add_argument(
        "--no-logprobs", action="store_true", help="do not return log-probabilities"
    )
    parser.set_defaults(run=run_explain)


def make_empty_array(device: str, rows: int, cols: int, dtype: str) -> Any:
    """An array whose memory is reserved and never touched, on the CPU."""
    if device == "cpu":
        return np.empty((rows, cols), DTYPES[dtype])
    try:
        import torch
    except ImportError:
        needed = "require PyTorch: pip install torch"
        raise RuntimeError(f"--device: arrays on {device} {needed}") from None
    return torch.empty(rows, cols, dtype=getattr(torch, dtype), device=device)


def _format_sizes(given: argparse.Namespace) -> str:
    """The sizes of the call, defaults included."""
    hidden = "from logits" if given.logits else f"D = {given.hidden_size}"
    samples = f"S = {given.num_samples}"
    return f"B = {given.batch}, V = {given.vocab}, {hidden}, {samples}, {given.dtype}"


def _check_no_sizes(given: argparse.Namespace) -> None:
    """Raise ValueError for an option that describes a call without a file."""
    for name, default in SIZES.items():
        if getattr(given, name) != default:
            option = name.replace("_", "-")
            raise ValueError(f"--{option}: cannot be combined with {FILE}")


def run_explain(given: argparse.Namespace) -> int:
    if given.file is not None:
        _check_no_sizes(given)
        return run_explain_draw(given)
    check_no_draw(given)
    for name, most in (("batch", 2**20), ("vocab", 2**31 - 1), ("hidden_size", 2**20)):
        if not 1 <= getattr(given, name) <= most:
            option = name.replace("_", "-")
            raise ValueError(f"--{option}: {getattr(given, name)} is not in 1 to {most}")
    if not re.fullmatch(r"cpu|cuda:[0-9]{1,4}", given.device):
        raise ValueError(f"--device: {given.device!r} is none of cpu, cuda:0, cuda:1, ...")
    how = {
        "num_samples": given.num_samples, "top_k": given.top_k, "top_p": given.top_p,
        "min_p": given.min_p, "top_logprobs": given.top_logprobs, "seed": 0, "position": 0,
        "logprobs": None if given.no_logprobs else "processed",
    }  # fmt: skip
    if given.logits:
        first = [make_empty_array(given.device, given.batch, given.vocab, given.dtype)]
    else:
        first = [
            make_empty_array(given.device, given.vocab, given.hidden_size, given.dtype),
            make_empty_array(given.device, given.batch, given.hidden_size, given.dtype),
        ]
    write_line(f"sizes: {_format_sizes(given)}")
    write_line(explain(*first, **how).rstrip())
    return 0
