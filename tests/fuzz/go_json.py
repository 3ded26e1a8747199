# SPDX-License-Identifier: Apache-2.0
"""How a runtime written in Go reads a config.json: the other reader that ours must agree with.

A model of encoding/json (decode.go of Go 1.19 to 1.24) for the members of runtime-spec's Spec
that a request is made of: a key matches a field whatever its case, the last one counts, null
changes nothing, invalid UTF-8 and lone surrogates become U+FFFD.
"""

import json
import re
from typing import Any

Pairs = list[tuple[str, Any]]

# encoding/json, fold.go: besides upper and lower case of ASCII, the two letters outside of it
# that Unicode's simple folding takes for k and s.
FOLD = str.maketrans({"\u017f": "s", "\u212a": "k"})
NO_TEXT = re.compile("[\ud800-\udfff\ufffd]+")
ROOT = ("process", "root", "mounts", "annotations", "hooks", "linux")


class GoRefusesError(Exception):
    """Go's reader would fail."""


class _Object:
    """A JSON object with its members in order, doubles included."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: Pairs) -> None:
        self.pairs = pairs


def text(value: str) -> str:
    """Return a string as Go has it; how many U+FFFD one flaw becomes does not matter here."""
    return NO_TEXT.sub("\ufffd", value)


def _is_field(key: str, name: str) -> bool:
    return key == name or key.translate(FOLD).lower() == name.lower()


def _members(value: object, names: tuple[str, ...]) -> dict[str, list[Any]]:
    """Return the values of a struct's fields, all of them, in order."""
    found: dict[str, list[Any]] = {name: [] for name in names}
    if value is None:
        return found
    if not isinstance(value, _Object):
        raise GoRefusesError("a struct is wanted")
    for key, one in value.pairs:
        for name in names:
            if _is_field(key, name):
                found[name].append(one)
    return found


def _string(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise GoRefusesError("a string is wanted")
    return text(value)


def _last_string(values: list[Any]) -> str:
    found = ""
    for one in values:
        if one is not None:
            found = _string(one)
    return found


def _strings(values: list[Any]) -> list[str]:
    found: list[str] = []
    for one in values:
        if one is None:
            found = []
        elif isinstance(one, list):
            found = [_string(element) for element in one]
        else:
            raise GoRefusesError("an array is wanted")
    return found


def _table(values: list[Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in values:
        if one is None:
            found = {}
        elif isinstance(one, _Object):
            for key, value in one.pairs:
                found[text(key)] = _string(value)
        else:
            raise GoRefusesError("a map is wanted")
    return found


def _mounts(values: list[Any]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for one in values:
        if one is not None and not isinstance(one, list):
            raise GoRefusesError("an array is wanted")
        found = []
        for mount in one or ():
            said = _members(mount, ("destination", "source"))
            found.append((_last_string(said["destination"]), _last_string(said["source"])))
    return found


class Reading:
    """What Go would take from a config.json.

    Attributes:
        env, bounding: strings.
        mounts: (destination, source) of each.
        annotations: a table.
        root: root.path.
    """

    __slots__ = ("annotations", "bounding", "env", "mounts", "root")

    def __init__(self, data: bytes) -> None:
        """Read a document.

        Raises:
            GoRefusesError: Go's reader would fail.
        """
        try:
            whole = json.loads(
                data.decode("utf-8", "replace"), object_pairs_hook=_Object, parse_constant=_refuse
            )
        except (ValueError, RecursionError) as error:
            raise GoRefusesError(str(error)) from error
        top = _members(whole, ROOT)
        env: list[Any] = []
        bounding: list[Any] = []
        for process in top["process"]:
            said = _members(process, ("env", "capabilities"))
            env += said["env"]
            for capabilities in said["capabilities"]:
                if not isinstance(capabilities, list):  # of runtime-spec before 1.0.0-rc5
                    bounding += _members(capabilities, ("bounding",))["bounding"]
        self.env = _strings(env)
        self.bounding = _strings(bounding)
        self.mounts = _mounts(top["mounts"])
        self.annotations = _table(top["annotations"])
        paths = [path for root in top["root"] for path in _members(root, ("path",))["path"]]
        self.root = _last_string(paths)


def _refuse(name: str) -> None:
    raise ValueError(name)
