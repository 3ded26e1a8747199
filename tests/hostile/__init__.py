# SPDX-License-Identifier: Apache-2.0
"""Hostile images, bundles and spec files: one attack in each test."""
