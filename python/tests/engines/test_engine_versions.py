# SPDX-License-Identifier: Apache-2.0
"""Errors of an engine's module if the engine is absent or its version is not supported."""

import os
import pathlib
import subprocess
import sys

import gumbel
import pytest

PACKAGE = pathlib.Path(gumbel.__file__).resolve().parents[1]
ABSENT = "raise ImportError('none here')\n"


@pytest.mark.parametrize(
    "module, stubs, text",
    [
        ("torch", {"torch": ABSENT}, "gumbel.torch requires PyTorch: pip install 'torch>=2.9'"),
        ("torch", {"torch": "__version__ = '2.8.1+cu128'\n"}, "2.9 or later, not 2.8.1+cu128"),
        ("torch", {"torch": "__version__ = '1.13.0'\n"}, "PyTorch 2.9 or later, not 1.13.0"),
        ("transformers", {"torch": ABSENT}, "gumbel.transformers requires PyTorch and"),
        (
            "transformers",
            {"torch": "__version__ = '2.11.0'\n", "transformers": ABSENT},
            "pip install torch 'transformers==5.17.*'",
        ),
        (
            "transformers",
            {"torch": "__version__ = '2.11.0'\n", "transformers": "__version__ = '5.2.1'\n"},
            "supports transformers 5.16 and 5.17, not 5.2.1",
        ),
    ],
)
def test_import_errors(module, stubs, text, tmp_path):
    for name, source in stubs.items():
        (tmp_path / f"{name}.py").write_text(source)
    path = os.pathsep.join([str(tmp_path), str(PACKAGE)])
    done = subprocess.run(
        [sys.executable, "-c", f"import gumbel.{module}"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and last.startswith("ImportError: ") and text in last
