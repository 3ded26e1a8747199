# SPDX-License-Identifier: Apache-2.0
"""The version as a plain string; importing it costs nothing (no importlib.metadata)."""

__version__ = "0.1.0"
TOOLKIT_VERSION = "1.20.0"
"""The version of nvidia-container-toolkit that nvct replaces: scripts require a least version."""


def text(program: str) -> str:
    """Return what --version prints: the incumbent's sentence first, then our own version."""
    return f"{program} version {TOOLKIT_VERSION}\nnvct: {__version__}\n"


PROGRAMS = {
    "nvct": f"nvct, version {__version__}\n",
    "nvidia-ctk": text("NVIDIA Container Toolkit CLI"),
}
"""What `PROGRAM --version` prints."""
