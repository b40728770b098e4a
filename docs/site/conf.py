# SPDX-License-Identifier: Apache-2.0
"""How Sphinx builds the site of docs/; `script/docs` calls it."""

import os
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "script")]

import prose  # noqa: E402
from project_files import OFF_SITE  # noqa: E402
from sphinx.ext.autodoc.mock import _MockModule  # noqa: E402

HEADER = (ROOT / "include" / "gumbel" / "gumbel.h").read_text(encoding="utf-8")

project = "libgumbel"
author = copyright = "the authors of libgumbel, Apache-2.0"
release = version = ".".join(
    re.search(rf"^#define GUMBEL_VERSION_{part} (\d+)$", HEADER, re.M)[1]
    for part in ("MAJOR", "MINOR", "PATCH")
)
extensions = ["myst_parser", "sphinx.ext.autodoc", "c_header", "command_help", "result_plots"]
root_doc = "index"
exclude_patterns = list(OFF_SITE)
html_theme = "furo"
html_title = f"libgumbel {release}"
html_show_sphinx = False
myst_heading_anchors = 3
primary_domain = None
highlight_language = "text"
c_maximum_signature_line_length = 80
python_maximum_signature_line_length = 80
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
# Their names in signatures are enough; the site is built without them.
autodoc_mock_imports = ["torch", "transformers"]
_MockModule.__version__ = "5.17.0"  # a version of transformers that gumbel.transformers knows
# The command whose --help the pages show.
gumbel_command = os.environ.get("GUMBEL_CLI", str(ROOT / "build" / "dev" / "cli" / "gumbel"))


def as_rst(app, what, name, obj, options, lines):
    lines[:] = prose.to_rst(lines)


def setup(app):
    app.connect("autodoc-process-docstring", as_rst)
