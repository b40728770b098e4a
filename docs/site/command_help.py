# SPDX-License-Identifier: Apache-2.0
"""The directive `command-help`: the --help of the built command."""

import subprocess

from docutils import nodes
from sphinx.util.docutils import SphinxDirective


class CommandHelp(SphinxDirective):
    """`.. command-help:: sample`; without a name that of the command itself."""

    optional_arguments = 1

    def run(self):
        command = [self.config.gumbel_command, *self.arguments, "--help"]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        return [nodes.literal_block(done.stdout, done.stdout, language="text")]


def setup(app):
    app.add_config_value("gumbel_command", "gumbel", "env")
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True, "version": "1"}
