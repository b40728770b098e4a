#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much time do llama.cpp's own sampler chain and gumbel's sampler take?

usage: bench/cpu/bench_llama_cpp.py [--dtype bf16|f32] [--steps N] [--json FILE] [--commit TEXT]

Requires a Python with llama-cpp-python, gguf and gumbel, as script/test-engines installs. Builds
bench_llama_cpp.c, and converts kjv-target with an LM head padded to 151936 rows. Prints medians
with p10 and p90, and how many times as fast as llama.cpp's own chain each sampler is.
"""

import argparse
import importlib.metadata
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "integrations" / "llama.cpp"))
sys.path.insert(0, str(ROOT / "bench"))
import llama_harness as harness  # noqa: E402
import result_lines  # noqa: E402

VOCAB_ROWS = 151936
RATIOS = {
    "a token by llama_sampler_sample": "llama_sampler_sample, ours",
    "a token from the row": "gumbel_llama_sample",
}


def find_version(package):
    """The version of an installed package; None if LLAMA_PREFIX or GUMBEL_FLAGS selects a build."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "f32"])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--commit", default="")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        model = harness.write_gguf(ROOT / "tests/models/kjv-target", folder / "m.gguf",
                                   arguments.dtype, VOCAB_ROWS)
        program = harness.build(ROOT / "bench/cpu/bench_llama_cpp.c", folder / "bench")
        command = [program, model, str(arguments.steps)]
        measured = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    us = measured["us"]
    for name, (median, low, high) in us.items():
        print(f"{name:45} {median:9.1f} us ({low:.1f}..{high:.1f})")
    llama_us = us["llama_sampler_sample, llama.cpp's chain"][0]
    ratios = {name: round(llama_us / us[way][0], 2) for name, way in RATIOS.items()}
    ratios["apply alone"] = round(us["apply, llama.cpp's chain"][0] / us["apply, ours"][0], 2)
    step_us = us["llama_decode"][0] + llama_us
    ratios["a step, drawn from the row"] = round(
        step_us / (us["llama_decode"][0] + us["gumbel_llama_sample"][0]), 3)
    ratios["a step, drawn in the graph"] = round(
        step_us / us["llama_decode, ours in the graph"][0], 3)
    ratios["a step, fused"] = round(step_us / us["llama_decode, ours fused"][0], 3)
    for name, ratio in ratios.items():
        print(f"{name:45} {ratio:9.2f} times as fast as llama.cpp's own chain")
    if arguments.json:
        result = {
            "question": "how much time do llama.cpp's own samplers take, and how much ours?",
            "version": find_version("gumbel"), "commit": arguments.commit,
            "llama-cpp-python": find_version("llama-cpp-python"),
            "cpu": result_lines.cpu_name(), "weights": arguments.dtype, "times": "median, p10, p90",
            **measured, "ratios": ratios,
        }
        result_lines.write(arguments.json, result)


if __name__ == "__main__":
    main()
