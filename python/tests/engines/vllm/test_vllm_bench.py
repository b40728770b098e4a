# SPDX-License-Identifier: Apache-2.0
"""bench_vllm_gpu.py measures vLLM on a CPU, with a small model; its times mean nothing."""

import json
import subprocess
import sys

from vllm_jobs import LIMIT, ROOT, need_vllm

need_vllm()


def test_every_measurement(tmp_path):
    command = [
        sys.executable, ROOT / "bench/endtoend/bench_vllm_gpu.py", "--tiny", "--device", "cpu",
        "--dtype", "float32", "--runner", "V1", "--kind", "greedy,penalties_logprobs",
        "--requests", "1,4", "--tokens", "33", "--rounds", "2", "--check", "--drafts", "--host",
        "--profile", "top_p:2", "--memory", "60", "--seconds", str(LIMIT), "--start-seconds", "400",
        "--json", tmp_path / "vllm.json", "--cache", tmp_path / "cache",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT + 60)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads((tmp_path / "vllm.json").read_text())
    assert found["skipped"] == []
    lengths = {"vllm": 4, "host": 4, "kernels": 1, "memory": 2, "texts": 15}
    assert {name: len(found[name]) for name in lengths} == lengths
    for point in found["vllm"]:
        assert point["counts"]["stock"] == point["counts"]["processed"] == 0
        assert point["counts"]["steps"] >= 2 * (33 + 1)
    for point in found["host"]:
        head_and_sample = point["plugin_head_and_sample"]["median_us"]
        assert head_and_sample >= point["plugin_sample"]["median_us"] > 0
    assert [point["steps"] for point in found["memory"]] == [60, 60]
