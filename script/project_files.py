# SPDX-License-Identifier: Apache-2.0
"""The project's files, for script/style, script/words and the docs site."""

import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Files and folders of docs/ that are no pages of the site.
OFF_SITE = ("README.md", "CONTRIBUTING.md", "reference/README.md", "examples", "site")
C_SUFFIXES = {".c", ".h", ".cpp", ".hpp", ".cu", ".cuh"}
_LANGUAGES = {
    **dict.fromkeys(C_SUFFIXES, "c"), ".rs": "rust", ".md": "prose", ".txt": "prose",
    **dict.fromkeys((".py", ".sh", ".cmake", ".toml", ".yml", ".yaml"), "hash")}
_NOT_CODE = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)


def list_files(*paths):
    """The files under `paths` (default: all) that git tracks or does not ignore; no links."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *paths]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [name for name in sorted(set(listed.split("\0")))
            if name and (ROOT / name).is_file() and not (ROOT / name).is_symlink()]


def language_of(name):
    """"c", "rust", "hash" (comments begin with #) or "prose"; None for data."""
    path = ROOT / name
    if path.name == "CMakeLists.txt":
        return "hash"
    if path.suffix in _LANGUAGES:
        return _LANGUAGES[path.suffix]
    with path.open("rb") as file:
        return "hash" if file.read(2) == b"#!" else None


def strip_code(text):
    """C code without comments, strings and characters; every line stays where it is."""
    return _NOT_CODE.sub(lambda match: "\n" * match[0].count("\n") or " ", text)


def find_line(text, offset):
    """The number of the line at `offset`, from 1 on."""
    return text.count("\n", 0, offset) + 1
