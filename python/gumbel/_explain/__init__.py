# SPDX-License-Identifier: Apache-2.0
"""Explains the draw of a token: explain_draw(), and its results as a table and as a page."""
