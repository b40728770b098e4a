# SPDX-License-Identifier: Apache-2.0
"""What benches of PyTorch write about the machine, and how they write it."""

import json
import platform
import re
import subprocess
from importlib import metadata

import gumbel
import torch

PACKAGES = ("torch", "transformers", "triton", "flashinfer-python")


def machine(device):
    """GPU, driver, and the packages that take part."""
    versions = {"python": platform.python_version(), "cuda": torch.version.cuda}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            pass  # not installed, or importable from a plain folder that does not say
    found = {"version": gumbel.__version__, "gpu": "none", "versions": versions}
    if device == "cuda":
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
        done = subprocess.run(query, check=True, capture_output=True, text=True, timeout=30)
        properties = torch.cuda.get_device_properties(0)
        found["gpu"] = torch.cuda.get_device_name(0)
        found["driver"] = done.stdout.strip()
        found["multiprocessors"] = properties.multi_processor_count
        found["memory_bytes"] = properties.total_memory
    return found


def write_json(path, report):
    """Indented, each spread on a line of its own."""
    text = json.dumps(report, indent=2)
    flat = re.sub(r'\{\s*"median_us"[^{}]*\}', lambda spread: " ".join(spread[0].split()), text)
    with open(path, "w", encoding="utf-8") as file:
        file.write(flat + "\n")
