# SPDX-License-Identifier: Apache-2.0
"""Check that all parts of an installed libgumbel report the version of its header.

usage: versions.py PREFIX
"""

import gzip
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PARTS = ("MAJOR", "MINOR", "PATCH")


def of_header(path):
    text = path.read_text(encoding="utf-8")
    return ".".join(re.search(rf"^#define GUMBEL_VERSION_{p} (\d+)$", text, re.M)[1] for p in PARTS)


def output_of(*command, **environment):
    done = subprocess.run(command, check=True, capture_output=True, text=True,
                          env={**os.environ, **environment})
    return done.stdout.strip()


def one_of(prefix, pattern):
    found = sorted(prefix.rglob(pattern))
    assert found, f"no {pattern} in {prefix}"
    return found[0]


def of_pyproject():
    """By the rule that the build of the Python package reads it with."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    table = text.partition("[tool.scikit-build.metadata.version]")[2].partition("\n[")[0]
    source = re.search(r'^input = "(.*)"', table, re.M)[1]
    rule = re.search(r"^regex = '''(.*?)'''", table, re.M | re.S)[1]
    found = re.search(rule, (ROOT / source).read_text(encoding="utf-8")).groupdict()
    return ".".join(found[part.lower()] for part in PARTS)


def of_pages(prefix):
    """Of each manual page; without help2man there is none."""
    pages = sorted(prefix.rglob("man1/gumbel*.1*"))
    if not pages and not shutil.which("help2man"):
        print("no manual pages, as help2man is not installed")
    elif len(pages) != 8:
        raise AssertionError(f"manual pages: {pages}")
    for page in [*pages, one_of(prefix, "man3/gumbel.3*")]:
        text = (gzip.decompress if page.suffix == ".gz" else bytes)(page.read_bytes()).decode()
        yield page.name, re.search(r'^\.TH \S+ "?[13]"? "[^"]*" "libgumbel ([^"]*)"', text, re.M)[1]


def main():
    prefix = pathlib.Path(sys.argv[1])
    config = one_of(prefix, "gumbelConfigVersion.cmake")
    pkgconfig = one_of(prefix, "gumbel.pc").parent
    found = {
        "installed header": of_header(prefix / "include" / "gumbel" / "gumbel.h"),
        "command": output_of(prefix / "bin" / "gumbel", "--version").partition(" ")[2],
        "pkg-config": output_of("pkg-config", "--modversion", "gumbel",
                                PKG_CONFIG_PATH=str(pkgconfig)),
        "CMake": re.search(r'^set\(PACKAGE_VERSION "([^"]*)"', config.read_text(), re.M)[1],
        "library": one_of(prefix, "libgumbel.so.*.*.*").name.partition(".so.")[2],
        "pyproject.toml": of_pyproject(),
        **dict(of_pages(prefix)),
    }
    version = of_header(ROOT / "include" / "gumbel" / "gumbel.h")
    wrong = {place: text for place, text in found.items() if text != version}
    short = ".".join(version.split(".")[:2])
    if f"\nVersion {short}:" not in (ROOT / "README.md").read_text(encoding="utf-8"):
        wrong["README.md"] = "another version"
    print(f"the header has {version}; {len(found)} parts checked; different: {wrong or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
