# SPDX-License-Identifier: Apache-2.0
"""Commands: nvidia-ctk cdi, by name."""

from __future__ import annotations

from nvct.cli.lazy import LazyGroup

COMMANDS = {
    "generate": (
        "nvct.cli.cdi_generate", "generate", "Write a CDI specification of this host's GPUs."
    ),
    "list": ("nvct.cli.cdi_read", "list_devices", "Print the name of every CDI device."),
    "validate": ("nvct.cli.cdi_read", "validate", "Check CDI specification files."),
}  # fmt: skip

cdi = LazyGroup("cdi", COMMANDS, "Make, list and check CDI specifications.")
