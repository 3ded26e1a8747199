# SPDX-License-Identifier: Apache-2.0
"""The hook file with which CRI-O and Podman call nvidia-container-runtime-hook (oci-hooks(5)).

The file is byte for byte the one of nvidia-ctk's `--config-mode=oci-hook` (v1.20).
"""

from __future__ import annotations

import json
import posixpath

from nvct.paths import DEFAULT_PATH_DIRS


def document(program: str) -> bytes:
    """Return a hook file that runs a program before every container's start."""
    folder = posixpath.dirname(program)
    dirs = DEFAULT_PATH_DIRS if folder in DEFAULT_PATH_DIRS else (*DEFAULT_PATH_DIRS, folder)
    content = {
        "version": "1.0.0",
        "hook": {
            "path": program,
            "args": [posixpath.basename(program), "prestart"],
            "env": ["PATH=" + ":".join(dirs)],
        },
        "when": {"always": True, "commands": [".*"]},
        "stages": ["prestart"],
    }
    return (json.dumps(content, indent=2) + "\n").encode()
