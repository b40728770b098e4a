# SPDX-License-Identifier: Apache-2.0
"""The parts of gumbel.dist: C structs (abi), exchanges and transports, a rank's shard (shards)."""
