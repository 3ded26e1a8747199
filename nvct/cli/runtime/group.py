# SPDX-License-Identifier: Apache-2.0
"""Commands: nvidia-ctk runtime, with configure, and nvct runtime, with more."""

from __future__ import annotations

from nvct.cli.lazy import LazyGroup

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
            "nvct.cli.runtime.explain", "explain", "Say why docker run --gpus does not work here."
        ),
        "list": ("nvct.cli.runtime.status", "list_", "List the engines of this host."),
        "plan": (CONFIGURE, "plan", "Print what configure would change, as a diff."),
        "status": ("nvct.cli.runtime.status", "status", "Say what every engine here is told."),
        "undo": ("nvct.cli.runtime.undo", "undo", "Give the engines' files their bytes back."),
    },
    "Container engines: what they are told, telling them, and taking it back.",
)  # fmt: skip
