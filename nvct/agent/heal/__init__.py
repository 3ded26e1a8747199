# SPDX-License-Identifier: Apache-2.0
"""Heals GPUs that have failed, without a person; off by default."""
