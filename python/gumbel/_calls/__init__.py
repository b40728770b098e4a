# SPDX-License-Identifier: Apache-2.0
"""The public functions, one module for each subject; library_call.py has their common parts."""
