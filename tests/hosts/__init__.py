# SPDX-License-Identifier: Apache-2.0
"""Hosts as their distributions make them, as trees, with the specs that they lead to."""
