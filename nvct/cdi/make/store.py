# SPDX-License-Identifier: Apache-2.0
"""Writes CDI specs: atomically, deterministically, with the lowest cdiVersion.

Cold. Members have the order of `spec_fields`, array elements keep theirs. In YAML every string
that a parser may read as another type is quoted: a device "0", "0:1" or "1e3".
"""

from __future__ import annotations

import json
import os
import stat
from typing import Any

from nvct.cdi import versions
from nvct.cdi.make import yaml_writer
from nvct.cdi.read import spec_fields
from nvct.cdi.read.validate import validate
from nvct.errors import DocumentError, HostError, UsageError
from nvct.linux.files import read_bytes, write_atomic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from nvct.cdi.types import Spec

FORMATS = ("yaml", "json")
MODE = 0o644
FOLDER_MODE = 0o755


def check_format(name: str) -> str:
    """Return the name of a format in lower case.

    Raises:
        UsageError: the format is unknown.
    """
    if name.lower() not in FORMATS:
        raise UsageError(f"{name!r} is no format of a CDI spec", hint="yaml or json")
    return name.lower()


def dumps(spec: Spec, format: str = "yaml", comment: str = "") -> bytes:  # noqa: A002  as the option
    """Return a spec as a file's content, with the lowest possible `cdiVersion`.

    Args:
        spec: the CDI spec.
        format: yaml or json.
        comment: whole lines before the YAML; JSON has no comments.

    Raises:
        UsageError: the format is unknown.
    """
    ordered = _ordered(spec)
    if format == "json":
        return json.dumps(ordered, indent=2, ensure_ascii=False).encode() + b"\n"
    check_format(format)
    return f"{comment}{yaml_writer.dumps(ordered)}".encode()


def save(
    spec: Spec,
    path: str,
    format: str | None = None,  # noqa: A002
    comment: str = "",
    *,
    follow: bool = False,
) -> str:
    """Write a spec to a file atomically, mode 0644; return the file's path.

    Args:
        spec: validated before the file is written.
        path: .yaml or .json is added if it has no extension that nvct reads: engines read no
            other files.
        format: yaml or json; None means by the extension of the path, which then stays.
        comment: as in `dumps`.
        follow: a link at the path is followed, and a pipe or character device, such as
            /dev/stdout, is written directly. Not in a folder that engines read: a device plugin
            without other rights may write there.

    Raises:
        CdiSpecError: the spec is invalid.
        UsageError: the format is unknown.
        HostError: the file cannot be written.
        UnsafePathError: the path is not a regular file.
    """
    if follow and _is_stream(path):
        return _stream(spec, path, format or "yaml", comment)
    ending = os.path.splitext(path)[1]
    if ending not in {".json", ".yaml", ".yml"}:
        path += f".{format or 'yaml'}"
    data = dumps(spec, format or ("json" if ending == ".json" else "yaml"), comment)
    validate(_ordered(spec), source=path)
    try:
        os.makedirs(os.path.dirname(path) or ".", mode=FOLDER_MODE, exist_ok=True)
        if not _holds(
            path, data, follow=follow
        ):  # engines that watch the folder would read all files again
            write_atomic(path, data, mode=MODE, follow=follow)
    except OSError as error:
        raise _not_written(path, error) from error
    return path


def _holds(path: str, data: bytes, *, follow: bool) -> bool:
    try:
        status = os.stat(path, follow_symlinks=follow)
        return status.st_mode == stat.S_IFREG | MODE and read_bytes(path) == data
    except (OSError, DocumentError):
        return False


def _is_stream(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def _stream(spec: Spec, path: str, format_name: str, comment: str) -> str:
    data = dumps(spec, format_name, comment)
    validate(_ordered(spec), source=path)
    try:
        with open(path, "wb") as file:
            file.write(data)
    except OSError as error:
        raise _not_written(path, error) from error
    return path


def _not_written(path: str, error: OSError) -> HostError:
    return HostError(
        f"CDI spec {path} cannot be written: {error.strerror}",
        hint="choose another --output, or run as root",
    )


def _ordered(spec: Spec) -> dict[str, Any]:
    """Return the spec with its lowest version, members in order, unknown ones last, by name."""
    edits = _order(spec_fields.EDITS)
    ordered = _sorted(spec, _order(spec_fields.SPEC))
    ordered["cdiVersion"] = versions.minimum_version(spec)
    ordered = _sorted(ordered, _order(spec_fields.SPEC))
    if "containerEdits" in ordered:
        ordered["containerEdits"] = _edits(ordered["containerEdits"], edits)
    ordered["devices"] = [
        _sorted(device, _order(spec_fields.DEVICE)) for device in ordered["devices"]
    ]
    for device in ordered["devices"]:
        if "containerEdits" in device:
            device["containerEdits"] = _edits(device["containerEdits"], edits)
    return ordered


def _edits(edits: Mapping[str, Any], order: dict[str, int]) -> dict[str, Any]:
    ordered = _sorted(edits, order)
    for key, fields in (
        ("deviceNodes", spec_fields.DEVICE_NODE),
        ("netDevices", spec_fields.NET_DEVICE),
        ("hooks", spec_fields.HOOK),
        ("mounts", spec_fields.MOUNT),
    ):
        if key in ordered:
            ordered[key] = [_sorted(entry, _order(fields)) for entry in ordered[key]]
    if "intelRdt" in ordered:
        ordered["intelRdt"] = _sorted(ordered["intelRdt"], _order(spec_fields.INTEL_RDT))
    return ordered


def _order(fields: Mapping[str, object]) -> dict[str, int]:
    return {name: index for index, name in enumerate(fields)}


def _sorted(table: Mapping[str, Any], order: dict[str, int]) -> dict[str, Any]:
    keys = sorted(table, key=lambda key: (order.get(key, len(order)), key))
    ordered = {key: table[key] for key in keys}
    if "annotations" in ordered:
        ordered["annotations"] = dict(sorted(ordered["annotations"].items()))
    return ordered
