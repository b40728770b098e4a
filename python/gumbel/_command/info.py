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


# Capabilities with examples of their GPUs.
KNOWN = {75: "T4, RTX 2080", 80: "A100", 86: "A10, RTX 3090", 89: "L40S, RTX 4090",
         90: "H100, H200", 100: "B200", 120: "RTX 5090"}  # fmt: skip


def describe_images(capability: str, images: tuple[tuple[str, str], ...]) -> str:
    """The kernels that serve a GPU."""
    named = ", ".join(f"{kernels} {image}" for kernels, image in images)
    return f"capability {capability}: {named or 'no kernels'}"


def describe_gpus() -> list[str]:
    """A line for each GPU; else the reason why there is none, and the GPUs that kernels serve."""
    lines = []
    try:
        while True:
            about = _device.info(device=f"cuda:{len(lines)}")
            images = describe_images(about.capability, about.cuda_images)
            text = f"{about.device}, {about.description}, {about.threads} multiprocessors"
            lines.append(f"{text}, {images}")
    except RuntimeError as error:
        if lines:
            return lines
        lines.append(f"none: {str(error).partition(': ')[2]}")
    for capability, gpus in KNOWN.items():
        images = _device.find_cuda_images(capability)
        text = describe_images(_device.format_capability(capability), images)
        if images:
            lines.append(f"{gpus}, {text}")
    return lines


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
        images = describe_images(about.capability, about.cuda_images)
        write_line(f"gpu       {about.description}, {about.threads} multiprocessors, {images}")
        return 0
    write_line(f"cpu       {about.description or 'unknown'}")
    write_line(f"isa       {about.isa} (of {' '.join(about.isas)})")
    write_line(f"threads   {about.threads}")
    write_line(f"tile      {about.tile} vocabulary rows")
    first, *others = describe_gpus()
    write_line(f"gpu       {first}")
    for number, line in enumerate(others):
        served = number == 0 and first.startswith("none: ")
        write_line(f"{'serves' if served else '':9} {line}")
    return 0
