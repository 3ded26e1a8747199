# SPDX-License-Identifier: Apache-2.0
"""The differences between two CDI specs, by device. No I/O.

Contract: entries are compared by identity: a node's path, a mount's target, a variable's name, a
hook's purpose. The order of nodes and mounts, which engines do not keep, and the declared version
do not count.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from nvct.cdi import versions
from nvct.cdi.make import generate, naming, provenance
from nvct.cdi.types import Spec

Parts: TypeAlias = dict[str, dict[str, str]]  # an entry's name -> its parts, as text

COMMON = "every container"
NAMED = (
    ("deviceNodes", "node", "path"),
    ("mounts", "mount", "containerPath"),
    ("netDevices", "network interface", "hostInterfaceName"),
)
"""Member of edits, the word for one of its entries, and the key that identifies an entry."""
TYPE_INDEX = re.compile(r"(gpu|mig)[0-9]+(:[0-9]+)?")


def differences(old: Spec, new: Spec) -> list[tuple[str, list[str]]]:
    """Return (where, sentences) of the differences: the spec, the common edits, then the devices.

    Devices with the same differences, as the two names of one GPU have, are one entry. A sentence
    begins with "+" for entries of the new spec, "-" for the old one's, "~" for changed ones.
    """
    commons = (old.get("containerEdits", {}), new.get("containerEdits", {}))
    sections = [
        ("the spec", _changed(_head(old), _head(new))),
        (COMMON, _changed(*(_parts(edits) for edits in commons))),
    ]
    before = {device["name"]: device for device in old["devices"]}
    after = {device["name"]: device for device in new["devices"]}
    names_by_lines: dict[tuple[str, ...], list[str]] = {}
    for name in sorted({*before, *after}):
        if name not in after:
            lines = ["- the device"]
        elif name not in before:
            lines = ["+ the device"]
        else:
            lines = _changed(_device(before[name]), _device(after[name]))
        names_by_lines.setdefault(tuple(lines), []).append(name)
    sections += [
        (f"device {', '.join(names)}", list(lines)) for lines, names in names_by_lines.items()
    ]
    return [(where, lines) for where, lines in sections if lines]


def options_like(spec: Spec, *, hook_path: str) -> generate.Options:
    """Return options that make a spec for this host with names and nodes as in the given spec."""
    vendor, _, cls = spec["kind"].partition("/")
    names = [device["name"] for device in spec["devices"]]
    strategies = [
        strategy
        for strategy, pattern in (
            ("index", naming.INDEX),
            ("uuid", naming.UUID_WORD),
            ("type-index", TYPE_INDEX),
        )
        if any(pattern.fullmatch(name) for name in names)
    ]
    hooks = list(versions.objects(spec, "hooks"))
    return generate.Options(
        vendor=vendor,
        cls=cls,
        device_name_strategies=strategies or ("index", "uuid"),
        all_device="all" in names,
        hook_path=hooks[0]["path"] if hooks else hook_path,
        disabled_hooks=() if hooks else ("all",),
        node_numbers=any("major" in node for node in versions.objects(spec, "deviceNodes")),
        gid_groups=any(edits.get("additionalGids") for edits in versions.all_edits(spec)),
        allow_builds=generate.ALLOW_BUILDS in spec.get("annotations", {}),
    )


def _head(spec: Spec) -> Parts:
    parts: Parts = {"kind": {"": spec["kind"]}}
    parts.update(_annotations(spec))
    return parts


def _device(device: Mapping[str, Any]) -> Parts:
    return {**_annotations(device), **_parts(device["containerEdits"])}


def _annotations(holder: Mapping[str, Any]) -> Parts:
    """Return the annotations except nvct's own, which do not affect a container."""
    return {
        f"annotation {key}": {"": text}
        for key, text in holder.get("annotations", {}).items()
        if not key.startswith(provenance.DOMAIN)
    }


def _parts(edits: Mapping[str, Any]) -> Parts:
    pairs: list[tuple[str, dict[str, str]]] = []
    for entry in edits.get("env", ()):
        name, _, value = entry.partition("=")
        pairs.append((f"env {name}", {"": value}))
    for member, word, identity in NAMED:
        pairs += [
            (f"{word} {entry[identity]}", _texts(entry, identity))
            for entry in edits.get(member, ())
        ]
    pairs += [_hook(hook) for hook in edits.get("hooks", ())]
    pairs += [(f"group {gid}", {}) for gid in edits.get("additionalGids", ())]
    if "intelRdt" in edits:
        pairs.append(("intelRdt", _texts(edits["intelRdt"], "")))
    named: Parts = {}
    seen: Counter[str] = Counter()
    for name, parts in pairs:
        seen[name] += 1
        named[name if seen[name] == 1 else f"{name} (number {seen[name]})"] = parts
    return named


def _texts(entry: Mapping[str, Any], skipped: str) -> dict[str, str]:
    texts: dict[str, str] = {}
    for key, value in entry.items():
        if key == "fileMode":
            texts[key] = f"{value:04o}"
        elif key != skipped:
            texts[key] = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    if skipped == "path":
        texts.setdefault("hostPath", entry["path"])
    return texts


def _hook(hook: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Return a hook's purpose, which is its first argument after program names, and its parts."""
    args = list(hook.get("args", ()))
    words = [word for word in args[1:2] if word != "hook"] or args[2:3]
    parts = {
        "path": hook["path"],
        "env": " ".join(hook.get("env", ())),
        "timeout": str(hook.get("timeout", "")),
    }
    counted = Counter(_with_values(args[1:]))
    parts.update({f"argument {arg}": "x" * count for arg, count in counted.items()})
    name = " ".join(words) or os.path.basename(hook["path"])
    return f"hook {hook['hookName']} {name}", {key: text for key, text in parts.items() if text}


def _with_values(args: Iterable[str]) -> list[str]:
    """Return arguments in which each option is joined with the value after it."""
    joined: list[str] = []
    for arg in args:
        last = joined[-1] if joined else ""
        if last.startswith("--") and " " not in last and "=" not in last and arg[:2] != "--":
            joined[-1] = f"{last} {arg}"
        else:
            joined.append(arg)
    return joined


def _changed(old: Parts, new: Parts) -> list[str]:
    lines = [f"- {name}{_shown(old[name])}" for name in old if name not in new]
    lines += [f"+ {name}{_shown(new[name])}" for name in new if name not in old]
    for name, parts in old.items():
        for key in sorted({*parts, *new.get(name, parts)}):
            line = _one_change(name, key, parts.get(key), new.get(name, parts).get(key))
            lines += [line] if line else []
    return sorted(lines, key=lambda line: (line[2:].split(" ", 2)[:2], line[2:], line[0]))


def _one_change(name: str, key: str, old: str | None, new: str | None) -> str:
    if old == new:
        return ""
    if key.startswith("argument "):
        return f"~ {name}: {'+' if len(new or '') > len(old or '') else '-'} {key[9:]}"
    label = f" {key}" if key else ""
    return f"~ {name}:{label} {old or 'none'} -> {new or 'none'}"


def _shown(parts: Mapping[str, str]) -> str:
    if "" in parts:
        return f"={parts['']}"
    source = parts.get("hostPath", "")
    return f" ({source})" if source else ""
