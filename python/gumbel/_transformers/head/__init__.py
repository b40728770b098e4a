# SPDX-License-Identifier: Apache-2.0
"""How a head is found: its modules and parameters, a probe of its logits, and what is kept."""
