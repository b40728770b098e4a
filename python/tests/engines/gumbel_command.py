# SPDX-License-Identifier: Apache-2.0
"""Runs `gumbel generate`, whose texts the tests of engines compare with their own."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TARGET = ROOT / "tests/models/kjv-target"
DRAFT = ROOT / "tests/models/kjv-draft"


def find_command():
    """The path of the command; skips the test if the command is not built."""
    built = ("build/dev/cli/gumbel", "build/release/cli/gumbel")
    paths = [os.environ.get("GUMBEL_CLI"), *(ROOT / path for path in built)]
    found = next((path for path in paths if path and Path(path).is_file()), None)
    if found is None:
        pytest.skip("the command is not built; GUMBEL_CLI can name it")
    return found


def run_generate(prompt, seed, tokens, temperature, top_k, top_p, *options):
    """The JSON report of `gumbel generate` with the bundled target model."""
    how = {"prompt": prompt, "seed": seed, "max-tokens": tokens, "temperature": temperature,
           "top-k": top_k, "top-p": top_p}  # fmt: skip
    given = [text for name, value in how.items() for text in (f"--{name}", str(value))]
    done = subprocess.run(
        [find_command(), "generate", "--model", TARGET, *given, "--ignore-eos", "--json", *options],
        check=True,
        capture_output=True,
    )
    return json.loads(done.stdout)
