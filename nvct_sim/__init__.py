# SPDX-License-Identifier: Apache-2.0
"""Simulated nodes: driver tree, procfs, sysfs, mount namespace, a runc for containers."""
