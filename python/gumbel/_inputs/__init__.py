# SPDX-License-Identifier: Apache-2.0
"""Conversion of Python arguments to C: numbers, arrays, lists of tokens, common parameters."""
