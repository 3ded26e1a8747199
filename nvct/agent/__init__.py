# SPDX-License-Identifier: Apache-2.0
"""The node agent: its process, and the table of its tasks (Python 3.11, extra `agent`)."""
