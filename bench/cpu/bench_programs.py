#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long do draws by programs take on the CPU, compared with orders, with reading the row alone,
and with llama.cpp's own chain?

usage: bench/cpu/bench_programs.py [--rounds N] [--json FILE] [--commit TEXT]

Builds bench_programs.c with the package gumbel, or with GUMBEL_FLAGS, as
GUMBEL_FLAGS="-Iinclude build/release/src/libgumbel.a -lpthread -ldl". The chain of llama.cpp takes
part if llama-cpp-python is installed, or LLAMA_PREFIX has include/ and lib/. Prints medians with
p10 and p90, of rows in the level-2 and in the level-3 cache, and how many times as fast as
llama.cpp's chain each program is.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "integrations" / "llama.cpp"))
sys.path.insert(0, str(ROOT / "bench"))
sys.path.insert(0, str(ROOT / "bench" / "cpu"))
import bench_llama_cpp  # noqa: E402
import llama_harness as harness  # noqa: E402
import result_lines  # noqa: E402

LLAMA = "llama.cpp: "


def build(out):
    """Compile the benchmark, with llama.cpp if there is one."""
    folders = harness.llama_folders()
    command = ["cc", "-std=c17", "-O3", "-march=native", "-D_GNU_SOURCE", *harness.WARNINGS,
               ROOT / "bench/cpu/bench_programs.c", "-o", out, *harness.gumbel_flags("--cflags"),
               *harness.gumbel_flags("--libs"), "-lm"]
    if folders:
        command += ["-DBENCH_LLAMA", f"-I{folders[0]}", f"-L{folders[1]}",
                    f"-Wl,-rpath,{folders[1]}", "-lllama", "-lggml", "-lggml-base"]
    subprocess.run(command, check=True)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--commit", default="")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = build(pathlib.Path(folder) / "bench")
        done = subprocess.run([program, str(arguments.rounds)], check=True, capture_output=True)
    measured = json.loads(done.stdout)
    places = {place: measured.pop(place) for place in ("L2", "L3")}
    ratios = {name: [round(us[LLAMA + name][0] / us[name][0], 2) for us in places.values()]
              for name in places["L2"] if LLAMA + name in places["L2"]}
    for name in places["L2"]:
        shown = (f"{place} {us[name][0]:7.1f} us ({us[name][1]:.1f}..{us[name][2]:.1f})"
                 for place, us in places.items())
        print(f"{name:75}", *shown)
    for name, ratio in ratios.items():
        print(f"{name:75} {ratio[0]}, {ratio[1]} times as fast as llama.cpp's chain")
    if arguments.json:
        result = {
            "question": "how long do draws by programs take on the CPU?",
            "version": bench_llama_cpp.find_version("gumbel"), "commit": arguments.commit,
            "llama-cpp-python": bench_llama_cpp.find_version("llama-cpp-python"),
            "cpu": result_lines.cpu_name(), "times": "us: median, p10, p90", **measured,
            "ratios": ratios,
            "results": [{"rules": name, **{place: us[name] for place, us in places.items()}}
                        for name in places["L2"]],
        }
        result_lines.write(arguments.json, result)


if __name__ == "__main__":
    main()
