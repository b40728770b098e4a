# SPDX-License-Identifier: Apache-2.0
"""Subcommands of the Python package's command `gumbel`."""
