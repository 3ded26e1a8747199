# SPDX-License-Identifier: Apache-2.0
"""Commands: nvidia-ctk cdi, by name."""

from __future__ import annotations

from nvct.cli.gostyle import LazyGroup

COMMANDS = {
    "check": ("nvct.cli.cdi.check", "check", "Compare specifications with this host."),
    "diff": ("nvct.cli.cdi.diff", "diff", "Compare two CDI specifications, or one with the host."),
    "generate": (
        "nvct.cli.cdi.generate_command", "generate",
        "Write a CDI specification of this host's GPUs.",
    ),
    "list": ("nvct.cli.cdi.read", "list_devices", "Print the name of every CDI device."),
    "transform": ("nvct.cli.cdi.transform", "transform", "Change CDI specifications."),
    "validate": ("nvct.cli.cdi.read", "validate", "Check CDI specification files."),
}  # fmt: skip

cdi = LazyGroup("cdi", COMMANDS, "Make, list and check CDI specifications.")
