# SPDX-License-Identifier: Apache-2.0
"""Writes CDI specs: atomically, deterministically, with the lowest cdiVersion.

Cold. Members have the order of `nvct.cdi.types`, array elements keep theirs. In YAML every string
that a parser may read as another type is quoted: a device "0", "0:1" or "1e3".
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable
from typing import Any

from nvct.cdi import versions
from nvct.cdi.make import yaml_writer
from nvct.cdi.read.validate import validate
from nvct.cdi.types import Spec
from nvct.errors import DocumentError, HostError, UsageError
from nvct.linux.files import read_bytes, write_atomic

FORMATS = ("yaml", "json")
STDOUT = ("", "-")
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


def dumps(
    spec: Spec,
    format: str = "yaml",  # noqa: A002  as the option
    comment: str = "",
    source: str = "the CDI spec",
) -> bytes:
    """Return a spec as a file's content, with the lowest possible `cdiVersion`.

    Args:
        spec: is checked; messages name its `source`.
        format: yaml or json.
        comment: whole lines before the YAML; JSON has no comments.

    Raises:
        CdiSpecError: the spec is invalid.
        UsageError: the format is unknown.
    """
    lowest: Any = {**spec, "cdiVersion": versions.minimum_version(spec)}
    ordered: Any = validate(lowest, source=source)
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
    is_stream = follow and _is_stream(path)
    ending = os.path.splitext(path)[1]
    if not is_stream and ending not in {".json", ".yaml", ".yml"}:
        path += f".{format or 'yaml'}"
    usual = "json" if ending == ".json" and not is_stream else "yaml"
    data = dumps(spec, format or usual, comment, source=path)
    try:
        if is_stream:
            with open(path, "wb") as file:
                file.write(data)
            return path
        os.makedirs(os.path.dirname(path) or ".", mode=FOLDER_MODE, exist_ok=True)
        # Engines that watch the folder would read all files again.
        if not _holds(path, data, follow=follow):
            write_atomic(path, data, mode=MODE, follow=follow)
    except OSError as error:
        raise HostError(
            f"CDI spec {path} cannot be written: {error.strerror}",
            hint="choose another --output, or run as root",
        ) from error
    return path


def is_in_folder_of_engines(output: str, spec_dirs: Iterable[str]) -> bool:
    """Return whether a file is in a CDI folder, where it keeps the view that it names."""
    if output in STDOUT:
        return False
    folder = os.path.realpath(os.path.dirname(output) or ".")
    return folder in {os.path.realpath(path) for path in spec_dirs}


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
