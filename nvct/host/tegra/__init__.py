# SPDX-License-Identifier: Apache-2.0
"""Jetson: JetPack's lists of files."""
