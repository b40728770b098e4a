# SPDX-License-Identifier: Apache-2.0
"""The directive `plots`: the plots of docs/plots/ that the page does not name, each below its name.

bench/plot.py draws them before the site is built; without them the directive adds nothing.
"""

import pathlib

from docutils import nodes
from sphinx.util.docutils import SphinxDirective


class Plots(SphinxDirective):
    def run(self):
        page = pathlib.Path(self.env.doc2path(self.env.docname))
        text = page.read_text(encoding="utf-8")
        found = []
        for plot in sorted(page.parent.glob("*.svg")):
            if plot.name not in text:
                found += [nodes.rubric("", plot.stem), nodes.image(uri=plot.name, alt=plot.stem)]
        return found


def setup(app):
    app.add_directive("plots", Plots)
    return {"parallel_read_safe": True, "version": "1"}
