# SPDX-License-Identifier: Apache-2.0
"""Engines: what their configuration says, what it should say, and how to change it and back.

read the files → plan a change (values only) → validate → write → reload → probe, or take it back.
"""
