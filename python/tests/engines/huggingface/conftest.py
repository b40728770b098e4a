# SPDX-License-Identifier: Apache-2.0
"""These tests use the models and helpers of the folder above."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
