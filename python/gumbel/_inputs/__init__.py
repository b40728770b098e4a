# SPDX-License-Identifier: Apache-2.0
"""What comes from Python, read: numbers, arrays, lists of tokens, the parameters of every call."""
