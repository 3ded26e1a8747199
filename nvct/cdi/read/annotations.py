# SPDX-License-Identifier: Apache-2.0
"""Annotations of a spec, and annotations that request devices (`cdi.k8s.io/…`).

Cold. A request's key is `cdi.k8s.io/<plugin>_<device id>`, its value a comma-separated list of
qualified device names. Rules as in the CDI library, which has those for keys from Kubernetes.
"""

from __future__ import annotations

import re

from nvct.cdi import names
from nvct.cdi.read.spec_fields import shown
from nvct.errors import RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PREFIX = "cdi.k8s.io/"
NAME_LIMIT = 63
DOMAIN_LIMIT = 253
TOTAL_LIMIT = 256 << 10  # Kubernetes: of all keys and values of one object

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?", re.ASCII)
_LABEL = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*", re.ASCII)


def key(plugin: str, device_id: str) -> str:
    """Return the key by which a device plugin requests a device.

    Raises:
        RequestError: plugin and device id make no valid key: a character, or the length.
    """
    if not plugin or not device_id:
        raise RequestError(f"no annotation key without {'device id' if plugin else 'plugin'}")
    name = f"{plugin}_{device_id.replace('/', '_')}"
    _check_name(name, f"{PREFIX}{name}")
    return PREFIX + name


def value(devices: Iterable[str]) -> str:
    """Return the value that requests devices.

    Raises:
        RequestError: a name is not a qualified name.
    """
    device_names = list(devices)
    for device in device_names:
        names.parse(device)
    return ",".join(device_names)


def parse(annotations: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the keys that request devices, sorted, and the devices, each once.

    Raises:
        RequestError: an element is not a qualified name.
    """
    keys = sorted(annotation for annotation in annotations if annotation.startswith(PREFIX))
    devices: list[str] = []
    for annotation in keys:
        for device in annotations[annotation].split(","):
            try:
                names.parse(device)
            except RequestError as error:
                raise RequestError(
                    f"annotation {annotation}: {error.message}", hint=error.hint
                ) from error
            devices.append(device)
    return keys, list(dict.fromkeys(devices))


def update(annotations: dict[str, str], plugin: str, device_id: str, devices: list[str]) -> None:
    """Add a request to a container's annotations.

    Raises:
        RequestError: the request makes no valid annotation, or its key exists.
    """
    new_key = key(plugin, device_id)
    if new_key in annotations:
        raise RequestError(f"annotation {new_key} exists already: {shown(annotations[new_key])}")
    annotations[new_key] = value(devices)


def check(annotations: Mapping[str, str]) -> None:
    """Check annotations of a spec or device by the rules of Kubernetes.

    Raises:
        RequestError: a key is invalid, or the total size is too large.
    """
    total = 0
    for full_key, text in annotations.items():
        domain, slash, name = full_key.rpartition("/")
        if slash and (len(domain) > DOMAIN_LIMIT or not _DOMAIN.fullmatch(domain.lower())):
            raise RequestError(
                f"annotation key {shown(full_key)} does not begin with a domain name"
            )
        _check_name(name, full_key)
        total += len(full_key.encode()) + len(text.encode())
    if total > TOTAL_LIMIT:
        raise RequestError(f"annotations have {total} bytes, more than {TOTAL_LIMIT}")


def _check_name(name: str, full_key: str) -> None:
    if len(name) > NAME_LIMIT:
        raise RequestError(
            f"annotation key {shown(full_key)} has a name of {len(name)} characters",
            hint=f"{NAME_LIMIT} are allowed",
        )
    if not _NAME.fullmatch(name):
        raise RequestError(
            f"annotation key {shown(full_key)} is malformed",
            hint="letters, digits, and _ . - between them",
        )
