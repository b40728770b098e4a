# SPDX-License-Identifier: Apache-2.0
"""The shell commands of the README and of guides work as printed, in an environment that is empty.

The commands of each page run in a copy of the source tree. Only PATH and HOME are set, so that a
program finds its libraries by the commands alone. Stand-ins on PATH replace steps that require a
network or minutes: `pip install .` and `venv` (this Python has the package), and cmake without
kernels.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import gumbel
import pytest

ROOT = Path(__file__).resolve().parents[3]
COPIED = ("CMakeLists.txt", "CMakePresets.json", "include", "src", "script/cmake", "docs")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
ENGINE = " 269  983\n"

# Page, its sections (none: the whole page), the file of each program, the expected output (None:
# the first block of text) and how often it is printed.
PAGES = {
    "c": ("docs/guides/c.md", (), {"c": "program.c"}, None, 2),
    "examples": ("docs/examples/README.md", (), {}, ENGINE, 2),
    "readme-c": (
        "README.md",
        ("### C and C++, with CMake", "## A draw in C"),
        {"c": "draw.c"},
        None,
        1,
    ),
    "readme-python": (
        "README.md",
        ("### Python, with pip", "## A draw in Python"),
        {"python": "draw.py"},
        None,
        1,
    ),
}

CMAKE = """
{ccache}
case $1 in
--preset) exec {cmake} "$@" -DGUMBEL_CUDA=OFF ;;
*) exec {cmake} "$@" ;;
esac
"""
PYTHON = """
if [ "$1 $2" = "-m venv" ]; then
    mkdir -p "$3/bin" && : >"$3/bin/activate"
    exit
fi
PYTHONPATH={path} exec {python} "$@"
"""
PIP = 'if [ "$*" != "install ." ]; then echo "pip $*: not known here" >&2; exit 1; fi\n'


def text_of(page, headings):
    """The page, or some sections of it in this order; a section ends at the next heading."""
    text = (ROOT / page).read_text(encoding="utf-8")
    if not headings:
        return text
    assert all(f"\n{heading}\n" in text for heading in headings), f"{page}: no {headings}"
    behind = [text.partition(f"\n{heading}\n")[2] for heading in headings]
    return "".join(re.split(r"^##+ ", each, maxsplit=1, flags=re.M)[0] for each in behind)


def stand_in(folder, name, text):
    (folder / name).write_text(f"#!/bin/sh\n{text}")
    (folder / name).chmod(0o755)


def stand_ins(folder, tree):
    """Programs that come first on PATH."""
    folder.mkdir()
    ccache = ""
    if shutil.which("ccache"):
        kept = os.environ.get("CCACHE_DIR", str(Path.home() / ".cache/ccache"))
        ccache = "export CMAKE_C_COMPILER_LAUNCHER=ccache CCACHE_DIR={} CCACHE_BASEDIR={}".format(
            shlex.quote(kept), shlex.quote(str(tree))
        )
    cmake = shlex.quote(str(Path(shutil.which("cmake")).resolve()))
    stand_in(folder, "cmake", CMAKE.format(cmake=cmake, ccache=ccache))
    path = shlex.quote(str(Path(gumbel.__file__).resolve().parents[1]))
    for name in ("python", "python3"):
        stand_in(folder, name, PYTHON.format(path=path, python=shlex.quote(sys.executable)))
    stand_in(folder, "pip", PIP)


@pytest.mark.skipif(not (ROOT / "CMakeLists.txt").is_file(), reason="no source tree")
@pytest.mark.parametrize("name", PAGES)
def test_commands_work_as_printed(name, tmp_path):
    page, headings, files, printed, times = PAGES[name]
    for tool in ("cmake", "ninja", "cc", "pkg-config"):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed")
    text = text_of(page, headings)
    blocks = BLOCK.findall(text)
    tree, home = tmp_path / "tree", tmp_path / "home"
    home.mkdir()
    for each in COPIED:
        source = ROOT / each
        copy = shutil.copytree if source.is_dir() else shutil.copy
        (tree / each).parent.mkdir(parents=True, exist_ok=True)
        copy(source, tree / each)
    stand_ins(tmp_path / "bin", tree)
    for language, file in files.items():
        (tree / file).write_text(next(body for kind, body in blocks if kind == language))
    if printed is None:
        printed = next(body for kind, body in blocks if kind == "text")
    path = f"{tmp_path / 'bin'}:{Path(shutil.which('ninja')).parent}:/usr/local/bin:/usr/bin:/bin"
    commands = "".join(body for kind, body in blocks if kind == "sh")
    done = subprocess.run(
        ["sh", "-ec", commands], cwd=tree, env={"PATH": path, "HOME": str(home)},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert done.stdout.count(printed) == times, f"{page}: {done.stdout[-2000:]}"
