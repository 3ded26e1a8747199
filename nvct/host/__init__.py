# SPDX-License-Identifier: Apache-2.0
"""What this machine has: discovery, its options, its platforms."""
