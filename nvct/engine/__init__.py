# SPDX-License-Identifier: Apache-2.0
"""Container engines: reads their configuration, changes it, and undoes the change.

read the files → plan a change (values only) → validate → write → reload → probe, or take it back.
"""
