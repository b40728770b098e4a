# SPDX-License-Identifier: Apache-2.0
"""Finding a model's head: its modules and parameters, a probe of its logits, cached objects."""
