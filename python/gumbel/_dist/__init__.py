# SPDX-License-Identifier: Apache-2.0
"""What gumbel.dist is made of: libgumbel_dist's structs (abi), and how ranks reach each other
(exchanges)."""
