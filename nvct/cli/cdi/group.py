# SPDX-License-Identifier: Apache-2.0
"""Commands: nvidia-ctk cdi, by name."""

from __future__ import annotations

from nvct.cli.gostyle import LazyGroup

COMMANDS = {
    "check": ("nvct.cli.cdi.commands", "check", "Compare specifications with this host."),
    "diff": (
        "nvct.cli.cdi.commands", "diff", "Compare two CDI specifications, or one with the host.",
    ),
    "generate": (
        "nvct.cli.cdi.commands", "generate",
        "Write a CDI specification of this host's GPUs.",
    ),
    "list": ("nvct.cli.cdi.commands", "list_devices", "Print the name of every CDI device."),
    "transform": ("nvct.cli.cdi.commands", "transform", "Change CDI specifications."),
    "validate": ("nvct.cli.cdi.commands", "validate", "Check CDI specification files."),
}  # fmt: skip

cdi = LazyGroup("cdi", COMMANDS, "Make, list and check CDI specifications.")
