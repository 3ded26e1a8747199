# SPDX-License-Identifier: Apache-2.0
"""Command: nvidia-ctk info, a group without commands, as in the incumbent's v1.20."""

from __future__ import annotations

from nvct.cli.lazy import LazyGroup

TEXT = "Nothing yet, as the incumbent's; nvct status says how a node stands."

info = LazyGroup("info", {}, TEXT)
