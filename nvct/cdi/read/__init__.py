# SPDX-License-Identifier: Apache-2.0
"""Reads and checks CDI folders and files."""
