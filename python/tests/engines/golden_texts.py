# SPDX-License-Identifier: Apache-2.0
"""Texts of the bundled model that engines without PyTorch are compared with."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TARGET = ROOT / "tests/models/kjv-target"
EXAMPLES = ROOT / "docs/examples"
# Prompts, their ids and those of their greedy continuations, in float32.
GREEDY = json.loads((ROOT / "tests/models/golden.json").read_text())["target"]["greedy"]
HOW = {"temperature": 0.8, "top_k": 50, "top_p": 0.95}
BUILT = [
    os.environ.get("GUMBEL_CLI"),
    ROOT / "build/dev/cli/gumbel",
    ROOT / "build/release/cli/gumbel",
]
COMMAND = next((path for path in BUILT if path and Path(path).is_file()), None)


def written(prompt, seed):
    """The 16 tokens that `gumbel generate` writes behind a prompt, by HOW."""
    if COMMAND is None:
        pytest.skip("the command is not built; GUMBEL_CLI names one")
    done = subprocess.run(
        [COMMAND, "generate", "--model", TARGET, "--prompt", prompt, "--seed", str(seed),
         "--temperature", "0.8", "--top-k", "50", "--top-p", "0.95", "--max-tokens", "16",
         "--ignore-eos", "--json"],
        check=True, capture_output=True,
    )
    return json.loads(done.stdout)["samples"][0]["ids"]
