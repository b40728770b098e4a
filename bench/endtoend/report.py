# SPDX-License-Identifier: Apache-2.0
"""Describes the machine in results of the PyTorch benches, and writes them."""

import pathlib
import platform
import subprocess
import sys
from importlib import metadata

import gumbel
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from result_lines import write as write_json  # noqa: E402, F401

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
