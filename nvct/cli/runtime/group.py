# SPDX-License-Identifier: Apache-2.0
"""Commands: nvidia-ctk runtime, with configure, and nvct runtime, with more."""

from __future__ import annotations

from nvct.cli.gostyle import LazyGroup

CONFIGURE = "nvct.cli.runtime.configure"

runtime_ctk = LazyGroup(
    "runtime",
    {"configure": (CONFIGURE, "configure_ctk", "Register the runtime nvidia with an engine.")},
    "Container engines: register the runtime.",
)
runtime = LazyGroup(
    "runtime",
    {
        "configure": (CONFIGURE, "configure", "Register the runtimes, reload the engine."),
        "explain": (
            "nvct.cli.runtime.status", "explain", "Explain why docker run --gpus fails here."
        ),
        "list": ("nvct.cli.runtime.status", "list_", "List the engines of this host."),
        "plan": (CONFIGURE, "plan", "Print what configure would change, as a diff."),
        "status": ("nvct.cli.runtime.status", "status", "Show the status of the engines."),
        "undo": ("nvct.cli.runtime.configure", "undo", "Restore the engines' files."),
    },
    "Container engines: show and change their configuration, and undo it.",
)  # fmt: skip
