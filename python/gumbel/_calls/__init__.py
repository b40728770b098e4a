# SPDX-License-Identifier: Apache-2.0
"""The calls of the library, a file a subject; what they share is in library_call.py."""
