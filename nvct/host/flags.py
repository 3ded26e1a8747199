# SPDX-License-Identifier: Apache-2.0
"""The feature flags of `nvidia-ctk cdi generate --feature-flag`.

Contract: only this module parses them. The names are those of nvidia-container-toolkit
(pkg/nvcdi/api.go of v1.20), which accepts unknown flags silently. An unknown flag is a warning
here.
"""

from __future__ import annotations

from collections.abc import Iterable

EXPLICIT_LIBRARIES = "enable-explicit-driver-libraries"
COHERENT = "enable-coherent-annotations"
ONE_CSV_DEVICE = "disable-multiple-csv-devices"
NO_GIDS = "no-additional-gids-for-device-nodes"
NO_IPC = "disable-ipc-discoverer"
NO_SANDBOXUTILS = "disable-nvsandboxutils"
KNOWN = (EXPLICIT_LIBRARIES, COHERENT, ONE_CSV_DEVICE, NO_GIDS, NO_IPC, NO_SANDBOXUTILS)
# nvidia-container-toolkit before v1.17.5 used this name and still accepts it.
ALIASES = {"disable-nvsandbox-utils": NO_SANDBOXUTILS}
TRUTH = {"true": True, "false": False}


def parse(words: Iterable[str]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the flags that are on, and a warning for each unknown word.

    A flag may be written NAME=true or NAME=false. If a flag occurs twice, the last one counts.
    """
    state: dict[str, bool] = {}
    warnings = []
    for word in words:
        name, equals, value = word.strip().partition("=")
        name = ALIASES.get(name, name)
        is_on = TRUTH.get(value.lower()) if equals else True
        if name not in KNOWN or is_on is None:
            warnings.append(
                f"feature flag {word!r} is unknown and has no effect: known are {', '.join(KNOWN)}"
            )
            continue
        state[name] = is_on
    return frozenset(name for name, is_on in state.items() if is_on), tuple(warnings)
