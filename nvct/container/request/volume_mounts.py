# SPDX-License-Identifier: Apache-2.0
"""Device requests as mounts of /dev/null below /var/run/nvidia-container-devices.

Hot; loaded only where the configuration accepts them: unlike the environment, an image cannot
bring them. `<id>` names a device, `cdi/<vendor>/<class>/<device>` (or `=` for the last slash) a
CDI device, `imex/<channel>` an IMEX channel. Differs from the incumbent (v1.20) in two places:
the folder is matched by component, and a malformed CDI name is an error and not skipped, because
skipping it would hand the decision to the environment.
"""

from __future__ import annotations

from nvct.cdi import names
from nvct.container.request.visible_devices import VOLUME_MOUNT_KEY, shown
from nvct.errors import RequestError
from nvct.paths import VOLUME_MOUNT_ROOT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SOURCE = "volume mount"
SOURCE_OF_A_REQUEST = "/dev/null"
CDI = "cdi/"
IMEX = "imex/"


def devices(mounts: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the device words that the mounts stand for, in order, each once.

    Raises:
        RequestError: a mount below cdi/ makes no CDI name.
    """
    words: list[str] = []
    for request in _requests(mounts):
        if request.startswith(CDI):
            words.append(_cdi_name(request[len(CDI) :]))
        elif not request.startswith(IMEX):
            words.append(request)
    return list(dict.fromkeys(words))


def note_ignored(mounts: Sequence[Mapping[str, object]], notes: list[str]) -> None:
    """Note that mounts ask for devices where the configuration does not accept that."""
    requests = _requests(mounts)
    if requests:
        notes.append(
            f"{SOURCE} {shown(requests[0])} is ignored: {VOLUME_MOUNT_KEY} is false in config.toml"
        )


def imex_channels(mounts: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the words of the IMEX channels that the mounts stand for."""
    return [request[len(IMEX) :] for request in _requests(mounts) if request.startswith(IMEX)]


def _requests(mounts: Sequence[Mapping[str, object]]) -> list[str]:
    """Return what stands below the folder in the destinations of all requests."""
    found: list[str] = []
    for mount in mounts:
        source, destination = mount.get("source"), mount.get("destination")
        if not isinstance(source, str) or not isinstance(destination, str):
            continue
        if clean(source) != SOURCE_OF_A_REQUEST:
            continue
        path = clean(destination)
        if path.startswith(f"{VOLUME_MOUNT_ROOT}/"):
            found.append(path[len(VOLUME_MOUNT_ROOT) + 1 :])
    return list(dict.fromkeys(found))


def _cdi_name(text: str) -> str:
    if not names.is_qualified(text):
        parts = text.split("/", 2)
        if len(parts) == 3:
            text = f"{parts[0]}/{parts[1]}={parts[2]}"
    try:
        names.parse(text)
    except RequestError as error:
        raise RequestError(
            f"{SOURCE} {VOLUME_MOUNT_ROOT}/{CDI}: {error.message}",
            hint=f"mount /dev/null at {VOLUME_MOUNT_ROOT}/cdi/VENDOR/CLASS/DEVICE",
        ) from error
    return text


def clean(path: str) -> str:
    """Return a path without empty, "." and resolvable ".." components, as text alone says.

    What runtimes written in Go do with a mount's paths (filepath.Clean).
    """
    rooted = path.startswith("/")
    parts: list[str] = []
    for part in path.split("/"):
        if part in {"", "."}:
            continue
        if part != "..":
            parts.append(part)
        elif parts and parts[-1] != "..":
            parts.pop()
        elif not rooted:
            parts.append("..")
    return ("/" if rooted else "") + "/".join(parts) or "."
