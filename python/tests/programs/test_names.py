# SPDX-License-Identifier: Apache-2.0
"""The distribution is libgumbel, the import gumbel; another owner of the name is reported."""

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import gumbel
import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = "import gumbel; print(gumbel.__version__)"


def imported(folder):
    """(stdout, stderr) of a program that imports the package, `folder` first on its path."""
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**os.environ, "PYTHONPATH": path},
        check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return done.stdout, done.stderr


def installed(folder, name, version):
    """A distribution's metadata, as pip leaves them."""
    place = folder / f"{name}-{version}.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_another_distribution_of_the_name_is_reported(tmp_path):
    installed(tmp_path, "gumbel", "0.0.1")
    stdout, stderr = imported(tmp_path)
    assert stdout == f"{gumbel.__version__}\n"
    assert "the distribution `gumbel` 0.0.1 is installed beside libgumbel" in stderr
    assert "pip uninstall gumbel" in stderr


def test_other_distributions_are_not(tmp_path):
    installed(tmp_path, "gumbel_softmax", "1.0")
    installed(tmp_path, "libgumbel", gumbel.__version__)
    assert imported(tmp_path) == (f"{gumbel.__version__}\n", "")


def test_the_installed_distribution():
    try:
        found = metadata.distribution("libgumbel")
    except metadata.PackageNotFoundError:
        pytest.skip("the package is not installed: it is imported from a folder")
    assert found.version == gumbel.__version__
    assert found.metadata["License-Expression"] == "Apache-2.0"
    assert "LICENSE" in (found.metadata.get_all("License-File") or [])
    assert found.metadata["Author"] == "libgumbel developers"
    assert any("arxiv.org" in url for url in found.metadata.get_all("Project-URL"))


@pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="no source tree")
def test_no_document_installs_the_other_distribution():
    """`pip install gumbel`, also with extras, installs the package of another project."""
    wrong = re.compile(r"pip3? install\b[^`\n&;|]*?[\s'\"](?<!/)gumbel(\[|['\"`\s]|==|>=|$)", re.M)
    assert wrong.search("pip install 'gumbel[vllm]'") and wrong.search("pip install -U gumbel\n")
    found = []
    for folder in ("README.md", "docs", "python", "script", "bench", "integrations", "cli", "src"):
        for path in [ROOT / folder, *(ROOT / folder).rglob("*")]:
            if path.suffix in (".md", ".py", ".rst", ".h", ".c", ".toml", "") and path.is_file():
                text = path.read_text(encoding="utf-8", errors="replace")
                found += [f"{path}: {match[0]}" for match in wrong.finditer(text)]
    assert [each for each in found if "test_names.py" not in each] == []


@pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="no source tree")
def test_vllm_has_one_range_of_versions():
    """The extra and the error of the missing engine name one range of versions."""
    extra = re.search(r'^vllm = \["(.*)"\]$', (ROOT / "pyproject.toml").read_text(), re.M)[1]
    assert f"pip install '{extra}'" in (ROOT / "python/gumbel/vllm.py").read_text()
