# SPDX-License-Identifier: Apache-2.0
"""CDI specs written: the same spec gives the same bytes, in one step, with the lowest version.

Cold. Members come in the order of `nvct.cdi.spec_fields`, array elements stay in theirs. In YAML
every string that some reader could take for something else is quoted: a device "0", "0:1" or
"1e3".
"""

from __future__ import annotations

import json
import os
import stat
from typing import Any

from nvct.cdi import spec_fields as form
from nvct.cdi import versions, yaml_writer
from nvct.cdi.validate import validate
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
        UsageError: the format is none.
    """
    if name.lower() not in FORMATS:
        raise UsageError(f"{name!r} is no format of a CDI spec", hint="yaml or json")
    return name.lower()


def dumps(spec: Spec, format: str = "yaml", comment: str = "") -> bytes:  # noqa: A002  as the option
    """Return a spec as a file's content; `cdiVersion` is the lowest that it needs.

    Args:
        spec: to write.
        format: yaml or json.
        comment: whole lines to put before YAML; JSON has no comments.

    Raises:
        UsageError: the format is none.
    """
    ordered = _ordered(spec)
    if format == "json":
        return json.dumps(ordered, indent=2, ensure_ascii=False).encode() + b"\n"
    check_format(format)
    return f"{comment}{yaml_writer.dumps(ordered)}".encode()


def save(spec: Spec, path: str, format: str | None = None, comment: str = "") -> str:  # noqa: A002
    """Write a spec to a file, mode 0644, in one step; return the file's path.

    Args:
        spec: checked before anything is written.
        path: gets the ending .yaml or .json if it has none of these nor .yml: engines read no
            other files. A pipe or a character device, as /dev/stdout may be, is written into.
        format: yaml or json; by the path's ending if None, which is left as it is.
        comment: as in `dumps`.

    Raises:
        CdiSpecError: it is no valid spec.
        UsageError: the format is none.
        HostError: the file cannot be written.
        UnsafePathError: no regular file is there.
    """
    if _is_stream(path):
        return _stream(spec, path, format or "yaml", comment)
    ending = os.path.splitext(path)[1]
    if ending not in {".json", ".yaml", ".yml"}:
        path += f".{format or 'yaml'}"
    data = dumps(spec, format or ("json" if ending == ".json" else "yaml"), comment)
    validate(_ordered(spec), source=path)
    try:
        os.makedirs(os.path.dirname(path) or ".", mode=FOLDER_MODE, exist_ok=True)
        if not _holds(path, data):  # engines that watch the folder would read it all again
            write_atomic(path, data, mode=MODE)
    except OSError as error:
        raise _not_written(path, error) from error
    return path


def _holds(path: str, data: bytes) -> bool:
    try:
        found = os.stat(path)
        return stat.S_IMODE(found.st_mode) == MODE and read_bytes(path) == data
    except (OSError, DocumentError):
        return False


def _is_stream(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def _stream(spec: Spec, path: str, form: str, comment: str) -> str:
    data = dumps(spec, form, comment)
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
    edits = _order(form.EDITS)
    found = _sorted(spec, _order(form.SPEC))
    found["cdiVersion"] = versions.minimum_version(spec)
    found = _sorted(found, _order(form.SPEC))
    if "containerEdits" in found:
        found["containerEdits"] = _edits(found["containerEdits"], edits)
    found["devices"] = [_sorted(device, _order(form.DEVICE)) for device in found["devices"]]
    for device in found["devices"]:
        if "containerEdits" in device:
            device["containerEdits"] = _edits(device["containerEdits"], edits)
    return found


def _edits(edits: Mapping[str, Any], order: dict[str, int]) -> dict[str, Any]:
    found = _sorted(edits, order)
    for key, fields in (
        ("deviceNodes", form.DEVICE_NODE),
        ("netDevices", form.NET_DEVICE),
        ("hooks", form.HOOK),
        ("mounts", form.MOUNT),
    ):
        if key in found:
            found[key] = [_sorted(one, _order(fields)) for one in found[key]]
    if "intelRdt" in found:
        found["intelRdt"] = _sorted(found["intelRdt"], _order(form.INTEL_RDT))
    return found


def _order(fields: Mapping[str, object]) -> dict[str, int]:
    return {name: place for place, name in enumerate(fields)}


def _sorted(table: Mapping[str, Any], order: dict[str, int]) -> dict[str, Any]:
    keys = sorted(table, key=lambda key: (order.get(key, len(order)), key))
    found = {key: table[key] for key in keys}
    if "annotations" in found:
        found["annotations"] = dict(sorted(found["annotations"].items()))
    return found
