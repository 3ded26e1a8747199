# SPDX-License-Identifier: Apache-2.0
"""Fuzzing: one target per parser of something that others write; `python -m tests.fuzz --help`."""
