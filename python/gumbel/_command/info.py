# SPDX-License-Identifier: Apache-2.0
"""gumbel info: the library, its build, the processor and a GPU."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from .. import _device
from .output import write_line


def add_command(commands: Any) -> None:
    text = "show the version, the processor, the kernels of the build and the GPU"
    parser = commands.add_parser("info", help=text, description=text)
    parser.add_argument("-d", "--device", default="cpu", help="cpu, or cuda:0 and so on")
    parser.add_argument("-i", "--isa", help="instruction set of the CPU (default: the best)")
    parser.add_argument("-t", "--threads", type=int, help="threads of the CPU")
    parser.add_argument("-j", "--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run_info)


def describe_gpu() -> str:
    """The name of the first GPU, or the reason why there is none."""
    try:
        about = _device.info(device="cuda:0")
    except RuntimeError as error:
        return f"none: {str(error).partition(': ')[2]}"
    return f"cuda:0, {about.description}, {about.threads} multiprocessors"


def run_info(given: argparse.Namespace) -> int:
    about = _device.info(device=given.device, isa=given.isa, threads=given.threads)
    if given.json:
        found = {**dataclasses.asdict(about), "cuda_kernels": about.cuda_kernels}
        write_line(json.dumps(found, indent=1))
        return 0
    kernels = " ".join(about.cuda_architectures) or "none: this build supports CPUs only"
    write_line(f"version   {about.version} (Python package)")
    write_line(f"kernels   {kernels}")
    if about.device != "cpu":
        write_line(f"gpu       {about.description}, {about.threads} multiprocessors")
        return 0
    write_line(f"cpu       {about.description or 'unknown'}")
    write_line(f"isa       {about.isa} (of {' '.join(about.isas)})")
    write_line(f"threads   {about.threads}")
    write_line(f"tile      {about.tile} vocabulary rows")
    write_line(f"gpu       {describe_gpu()}")
    return 0
