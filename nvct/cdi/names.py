# SPDX-License-Identifier: Apache-2.0
"""Names of CDI devices: `vendor/class=device`.

Hot. The rules are those of the CDI library (v1.1.0 and later): a vendor or class begins with a
letter, ends with a letter or digit, and has only letters, digits, `_`, `.` and `-` between; a
device name begins and ends with a letter or digit and may also contain `:`. ASCII only.

One difference: a vendor or class of one letter is refused, because it crashes the library up to
1.1.0, which is in Docker 28 and nvidia-container-toolkit v1.20.
"""

from __future__ import annotations

from nvct.errors import RequestError

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
ALPHANUMERIC = LETTERS + "0123456789"
KIND_BETWEEN = "_.-"
DEVICE_BETWEEN = "_.-:"
SHOWN = 80
HINT = "write VENDOR/CLASS=DEVICE, as in nvidia.com/gpu=0"


def parse(name: str) -> tuple[str, str, str]:
    """Return vendor, class and device of a qualified name; RequestError if it is not one."""
    kind, equals, device = name.partition("=")
    vendor, slash, cls = kind.partition("/")
    if not (equals and slash and vendor and cls and device):
        raise RequestError(f"{_shown(name)} is not a CDI device name", hint=HINT)
    check_kind(vendor, cls)
    check_device_name(device)
    return vendor, cls, device


def parse_kind(kind: str) -> tuple[str, str]:
    """Return vendor and class of a kind, `vendor/class`; RequestError if it is not one."""
    vendor, slash, cls = kind.partition("/")
    if not (slash and vendor and cls):
        raise RequestError(
            f"{_shown(kind)} is not a CDI kind", hint="write VENDOR/CLASS, as in nvidia.com/gpu"
        )
    check_kind(vendor, cls)
    return vendor, cls


def qualified(kind: str, device: str) -> str:
    """Return the qualified name of a device of a kind, unchecked."""
    return f"{kind}={device}"


def is_qualified(name: str) -> bool:
    """Return whether a string is a qualified name."""
    try:
        parse(name)
    except RequestError:
        return False
    return True


def check_kind(vendor: str, cls: str) -> None:
    """Check the names of a vendor and of a class; RequestError if one breaks the rules above."""
    _check_kind_part("vendor", vendor)
    _check_kind_part("class", cls)


def check_device_name(device: str) -> None:
    """Check a device name, the part after `=`; RequestError if it breaks the rules above."""
    if not device or device[0] not in ALPHANUMERIC or device[-1] not in ALPHANUMERIC:
        raise RequestError(
            f"CDI device name {_shown(device)} does not begin and end with a letter or digit",
            hint=HINT,
        )
    _check_between("device name", device, DEVICE_BETWEEN)


def _check_kind_part(part: str, text: str) -> None:
    if not text or text[0] not in LETTERS or text[-1] not in ALPHANUMERIC:
        raise RequestError(
            f"CDI {part} {_shown(text)} does not begin with a letter "
            "and end with a letter or digit",
            hint=HINT,
        )
    if len(text) == 1:
        raise RequestError(
            f"CDI {part} {_shown(text)} has only one letter, which crashes Docker 28",
            hint="choose a longer one",
        )
    _check_between(part, text, KIND_BETWEEN)


def _check_between(part: str, text: str, between: str) -> None:
    for character in text:
        if character not in ALPHANUMERIC and character not in between:
            raise RequestError(
                f"CDI {part} {_shown(text)} has the character {character!r}",
                hint=f"letters, digits and {between} are allowed",
            )


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "...")
