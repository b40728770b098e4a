#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: test_ptx.py NVCC IMAGES ROOT FLAG...

Assembles the PTX of every portable and cluster kernel for Blackwell, as the driver does when a
device is opened there: IMAGES lists the sources, below ROOT/src/cuda, and FLAGs are the build's. A
normal run takes the sources that compile within seconds; GUMBEL_NIGHTLY takes all of them. Exits
77 if nvcc is too old to know these GPUs.
"""

import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile

GPUS = ("sm_100", "sm_120")
# Minutes in all; their PTX uses the same headers as that of other kernels.
SLOW = {"draw_allowed", "fused_sm80", "logits", "program_blocks", "program_cluster",
        "program_grid", "program_pivots", "truncated_blocks", "truncated_cluster", "truncated_grid",
        "truncated_naive", "truncated_two_pass"}  # fmt: skip


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def assemble(nvcc, source, flags, folder):
    """The number of kernels in the PTX of `source`."""
    ptx = folder / f"{source.stem}.ptx"
    run(nvcc, *flags, "-ptx", "-arch=compute_90", "-o", str(ptx), str(source))
    for gpu in GPUS:
        run(str(pathlib.Path(nvcc).with_name("ptxas")), "--Ofast-compile=max", f"-arch={gpu}",
            "-o", str(folder / f"{source.stem}.{gpu}"), str(ptx))  # fmt: skip
    kernels = ptx.read_text().count(".entry ")
    if not kernels:
        raise RuntimeError(f"the PTX of {source} has no kernel")
    return kernels


def main():
    nvcc, images, root, *flags = sys.argv[1:]
    known = run(nvcc, "--list-gpu-code").split()
    if missing := [gpu for gpu in GPUS if gpu not in known]:
        print(f"skipped: {nvcc} does not know {' '.join(missing)}")
        return 77
    lines = [line.split() for line in pathlib.Path(images).read_text().splitlines()]
    sources = [pathlib.Path(root, "src/cuda", name + ".cu") for name, group, *_ in lines
               if group != "hopper"]  # fmt: skip
    if not os.environ.get("GUMBEL_NIGHTLY"):
        sources = [each for each in sources if each.stem not in SLOW]
    with tempfile.TemporaryDirectory() as folder:
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            jobs = [pool.submit(assemble, nvcc, each, flags, pathlib.Path(folder))
                    for each in sources]  # fmt: skip
            kernels = sum(job.result() for job in jobs)
    print(f"{kernels} kernels of {len(sources)} sources are assembled for {' and '.join(GPUS)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
