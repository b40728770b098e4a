# SPDX-License-Identifier: Apache-2.0
"""The subcommands of `gumbel`, the command of the Python package."""
