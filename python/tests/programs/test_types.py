# SPDX-License-Identifier: Apache-2.0
"""The types of the public API: mypy --strict accepts a correct program and reports wrong types."""

import pathlib
import runpy
import subprocess
import sys

import pytest

PROGRAM = pathlib.Path(__file__).parent / "typed_program.py"


@pytest.fixture(scope="module")
def mypy(tmp_path_factory):
    """The messages of mypy --strict for a file, with the installed package."""
    pytest.importorskip("mypy")
    folder = tmp_path_factory.mktemp("mypy")

    def check(path):
        command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary"]
        command += ["--cache-dir", str(folder / "cache"), str(path)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode in (0, 1), done.stdout + done.stderr
        return done.stdout.splitlines()

    return check


def test_a_program_has_types(mypy):
    assert mypy(PROGRAM) == []


WRONG = {
    "gumbel.sample_logits(logits, temprature=1.0)": "call-arg",
    'gumbel.sample_logits(logits, num_samples="2")': "arg-type",
    "gumbel.top_k(logits)": "call-arg",
    "gumbel.sample_logits(logits).token": "attr-defined",
    'gumbel.sample_logits("words")': "arg-type",
    "gumbel.sample_logits(logits).logprobs.mean()": "union-attr",
}


def test_wrong_types_are_detected(mypy, tmp_path):
    """Each line has one error, which mypy would miss without py.typed or if types were Any."""
    head = ["import gumbel", "import numpy as np", "logits = np.zeros((2, 3), np.float32)"]
    (tmp_path / "wrong.py").write_text("\n".join([*head, *WRONG]) + "\n")
    found = mypy(tmp_path / "wrong.py")
    seen = {int(line.split(":")[1]): line for line in found if ": error: " in line}
    for number, (call, kind) in enumerate(WRONG.items(), len(head) + 1):
        assert f"[{kind}]" in seen.get(number, ""), (call, found)


def test_the_program_runs():
    runpy.run_path(str(PROGRAM), run_name="__main__")
