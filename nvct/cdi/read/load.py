# SPDX-License-Identifier: Apache-2.0
"""Reads CDI spec files: JSON or YAML, of limited size, without duplicate keys, valid.

Cold side. `yaml_reader` is imported for YAML only: importing PyYAML takes longer than reading a
JSON spec.
"""

from __future__ import annotations

import os

from nvct.cdi.read import spec_fields
from nvct.cdi.read.validate import validate
from nvct.cdi.types import Spec
from nvct.errors import CdiSpecError, DocumentError
from nvct.linux.files import has_every_id, read_bytes

EXTENSIONS = (".json", ".yaml", ".yml")
SIZE_LIMIT = 16 << 20


def load_file(path: str, *, owned: bool = False, limit: int = SIZE_LIMIT) -> Spec:
    """Return the spec in a file; CdiSpecError names the file and the position.

    With `owned`, a file is refused if it is world-writable, or belongs neither to root nor to this
    user: another user could choose its mounts and hooks.
    """
    try:
        data = read_bytes(path, limit, check=_check_owner if owned else None)
    except OSError as error:
        raise CdiSpecError(f"{path} cannot be read: {error.strerror}") from error
    except CdiSpecError:
        raise
    except DocumentError as error:
        raise CdiSpecError(error.message, hint="a CDI spec is a small regular file") from error
    return loads(data, source=path)


def _check_owner(path: str, status: os.stat_result) -> None:
    mode = status.st_mode & 0o777
    if status.st_uid in {0, os.geteuid(), *unmapped_root()} and not mode & 0o002:
        return
    raise CdiSpecError(
        f"{path} belongs to uid {status.st_uid} with mode {mode:o}, so it is not used",
        hint="let only root write it: chown root, chmod 644",
    )


def unmapped_root(proc: str = "/proc") -> set[int]:
    """Return the uid that stands for the host's root in a user namespace (rootless engines)."""
    try:
        if has_every_id(proc=proc):
            return set()
        return {int(read_bytes(f"{proc}/sys/kernel/overflowuid"))}
    except (OSError, ValueError, DocumentError):
        return set()


def loads(data: bytes, *, source: str) -> Spec:
    """Return the spec in a file's content; CdiSpecError, with the position, if it is not one."""
    return validate(parse(data, source=source), source=source)


def parse(data: bytes, *, source: str) -> object:
    """Return the document in a file's content, which need not be a valid spec.

    Content that begins with a brace and is JSON is read as JSON, all else as YAML, whatever the
    file's name, as engines do. Raises CdiSpecError if it is neither, has a duplicate key, or is
    too deep or too large.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CdiSpecError(f"{source} is not UTF-8 at byte {error.start}") from error
    try:
        if text.lstrip().startswith("{"):
            return _parse_json(text, source)
        return _parse_yaml(text, source)
    except RecursionError as error:
        raise CdiSpecError(f"{source} is nested too deeply") from error


def _parse_json(text: str, source: str) -> object:
    import json  # imported here: without spec files, `cdi list` does not need it

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        table = dict(pairs)
        if len(table) != len(pairs):
            count: dict[str, int] = {}
            for key, _ in pairs:
                count[key] = count.get(key, 0) + 1
            duplicate = next(key for key in count if count[key] > 1)
            raise CdiSpecError(
                f"{source} has the duplicate key {spec_fields.shown(duplicate)} in one object"
            )
        return table

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=_refuse_constant)
    except ValueError as error:
        # YAML can begin with a brace, too. The error is JSON's, as most such files are JSON.
        try:
            return _parse_yaml(text, source)
        except CdiSpecError:
            raise CdiSpecError(f"{source} is not JSON: {error}") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _parse_yaml(text: str, source: str) -> object:
    from nvct.cdi.read import yaml_reader

    return yaml_reader.parse(text, source)
