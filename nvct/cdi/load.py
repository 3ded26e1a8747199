# SPDX-License-Identifier: Apache-2.0
"""Reads CDI spec files: JSON or YAML, with a limit, without duplicate keys, and valid.

Cold. `nvct.cdi.yaml_reader` is imported for YAML alone: PyYAML costs more than a JSON spec takes
to read.
"""

from __future__ import annotations

import os

from nvct.cdi import spec_fields
from nvct.cdi.validate import validate
from nvct.errors import CdiSpecError, DocumentError
from nvct.linux.files import read_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.cdi.types import Spec

EXTENSIONS = (".json", ".yaml", ".yml")
SIZE_LIMIT = 16 << 20
WHOLE_MAP = ["0", "0", "4294967295"]


def load_file(path: str, *, owned: bool = False) -> Spec:
    """Return the spec in a file.

    Args:
        path: of the file.
        owned: refuse what is not root's or ours, or may be written by everybody: its mounts and
            hooks would be somebody else's.

    Raises:
        CdiSpecError: it cannot be read or is no valid spec; names the file and the place.
    """
    try:
        data = read_bytes(path, SIZE_LIMIT, check=_check_owner if owned else None)
    except OSError as error:
        raise CdiSpecError(f"{path} cannot be read: {error.strerror}") from error
    except CdiSpecError:
        raise
    except DocumentError as error:
        raise CdiSpecError(error.message, hint="a CDI spec is a small regular file") from error
    return loads(data, source=path)


def _check_owner(path: str, found: os.stat_result) -> None:
    mode = found.st_mode & 0o777
    if found.st_uid in {0, os.geteuid(), *_unmapped_root()} and not mode & 0o002:
        return
    raise CdiSpecError(
        f"{path} belongs to uid {found.st_uid} with mode {mode:o}, so it is not used",
        hint="make it root's alone to write: chown root, chmod 644",
    )


def _unmapped_root() -> set[int]:
    """Return what the host's root looks like in a user namespace (rootless engines)."""
    try:
        if read_bytes("/proc/self/uid_map").decode().split() == WHOLE_MAP:
            return set()
        return {int(read_bytes("/proc/sys/kernel/overflowuid"))}
    except (OSError, ValueError, DocumentError):
        return set()


def loads(data: bytes, *, source: str) -> Spec:
    """Return the spec in a file's content.

    Raises:
        CdiSpecError: it is no valid spec; names the file and the place.
    """
    return validate(parse(data, source=source), source=source)


def parse(data: bytes, *, source: str) -> object:
    """Return the document in a file's content, which need not be a valid spec.

    JSON where it begins with a brace and is some, else YAML, whatever the file is called, as
    engines do.

    Raises:
        CdiSpecError: it is neither, has a key twice, or is too deep or too large.
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
    import json  # only here: where there is no spec, `cdi list` is done without it

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) != len(pairs):
            count: dict[str, int] = {}
            for key, _ in pairs:
                count[key] = count.get(key, 0) + 1
            twice = next(key for key in count if count[key] > 1)
            raise CdiSpecError(
                f"{source} has the key {spec_fields.shown(twice)} twice in one object"
            )
        return found

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=_refuse_constant)
    except ValueError as error:
        # YAML may begin with a brace too; the complaint is JSON's, which most such files are.
        try:
            return _parse_yaml(text, source)
        except CdiSpecError:
            raise CdiSpecError(f"{source} is no JSON: {error}") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _parse_yaml(text: str, source: str) -> object:
    from nvct.cdi import yaml_reader

    return yaml_reader.parse(text, source)
