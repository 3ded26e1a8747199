# SPDX-License-Identifier: Apache-2.0
"""Device requests as mounts of /dev/null below /var/run/nvidia-container-devices.

Hot; loaded only if the configuration accepts them. Unlike variables, an image cannot contain
them. `<id>` names a device, `cdi/<vendor>/<class>/<device>` (or `=` for the last slash) a CDI
device, `imex/<channel>` an IMEX channel. Two things differ from the incumbent (v1.20): the
folder is compared by component, and a malformed CDI name is an error: if it were skipped, the
environment would decide.
"""

from __future__ import annotations

from nvct.cdi import names
from nvct.container.request.visible_devices import VOLUME_MOUNT_KEY, shown
from nvct.errors import RequestError
from nvct.oci.bundle import clean
from nvct.paths import VOLUME_MOUNT_ROOT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SOURCE = "volume mount"
MOUNT_SOURCE = "/dev/null"
CDI = "cdi/"
IMEX = "imex/"


def devices(mounts: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the distinct device words of mounts, in order; RequestError for a bad CDI name."""
    words: list[str] = []
    for request in _requests(mounts):
        if request.startswith(CDI):
            words.append(_cdi_name(request[len(CDI) :]))
        elif not request.startswith(IMEX):
            words.append(request)
    return list(dict.fromkeys(words))


def note_ignored(mounts: Sequence[Mapping[str, object]], notes: list[str]) -> None:
    """Add a note about mounts that request devices; the configuration does not accept them."""
    requests = _requests(mounts)
    if requests:
        notes.append(
            f"{SOURCE} {shown(requests[0])} is ignored: {VOLUME_MOUNT_KEY} is false in config.toml"
        )


def imex_channels(mounts: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the words of the IMEX channels that the mounts request."""
    return [request[len(IMEX) :] for request in _requests(mounts) if request.startswith(IMEX)]


def _requests(mounts: Sequence[Mapping[str, object]]) -> list[str]:
    requests: list[str] = []
    for mount in mounts:
        source, destination = mount.get("source"), mount.get("destination")
        if not isinstance(source, str) or not isinstance(destination, str):
            continue
        if clean(source) != MOUNT_SOURCE:
            continue
        path = clean(destination)
        if path.startswith(f"{VOLUME_MOUNT_ROOT}/"):
            requests.append(path[len(VOLUME_MOUNT_ROOT) + 1 :])
    return list(dict.fromkeys(requests))


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
