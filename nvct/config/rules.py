# SPDX-License-Identifier: Apache-2.0
"""Parses the table [nvct.policy] of config.toml: rules for requests of GPUs.

Cold. ::

    [nvct.policy]
    default = "allow"                    # if no rule holds; or ignore, deny
    engine-devices = "unchecked"         # or checked: rules also judge devices the engine gives

    [[nvct.policy.rules]]                # the first rule whose conditions all hold decides
    name = "pods ask through the device plugin"
    kubernetes = true
    by = ["image-env"]
    then = "ignore"                      # allow, ignore or deny

Contract: unlike in other tables, unknown keys are errors, because a rule with a misspelt condition
would hold for more containers than intended. Each rule becomes a JSON object, so that Config stays
flat; `nvct.container.request.policy` parses it.
"""

from __future__ import annotations

import json
from typing import TypeAlias

from nvct.config.model import CHECKED, UNCHECKED
from nvct.errors import ConfigError

Table: TypeAlias = dict[str, object]

OUTCOMES = ("allow", "ignore", "deny")
BY = ("env", "image-env", "annotation", "mount", "cdi-name", "engine")
ENGINE = "engine-devices"
ASKS_FOR = (
    "all", "none", "devices", "free", "management", "mig-config", "mig-monitor", "imex", "gds",
    "mofed", "gdrcopy", "nvswitch",
)  # fmt: skip
WORDS = {"by": BY, "asks-for": ASKS_FOR}
PATTERNS = ("devices", "namespaces", "cgroups")
SWITCHES = ("kubernetes", "privileged")
TEXTS = ("name", "reason")
KUBELET = "given-by-kubelet"
CONDITIONS = (*WORDS, *PATTERNS, *SWITCHES, KUBELET, "users", "annotations", "more-gpus-than")
RULE_LIMIT = 1000
TEXT_LIMIT = 120
HINT_LIMIT = 70
ID_LIMIT = 1 << 32
CORRECT = "correct the file; docs/policy.md says what a rule can contain"


def parse(table: object, path: str) -> tuple[list[str], str]:
    """Return the rules of [nvct.policy] in order, each as a JSON object, and its engine-devices.

    ConfigError if a key is unknown, a value has the wrong type, or a condition can never hold.
    """
    where = f"{path}: nvct.policy"
    if not isinstance(table, dict):
        raise ConfigError(f"{where} is {table!r:.80}, not a table", hint=CORRECT)
    for key in table:
        if key not in ("default", "rules", ENGINE):
            raise ConfigError(
                f"{where}.{key} is unknown", hint=f"the keys are default, {ENGINE} and rules"
            )
    rules = table.get("rules", [])
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise ConfigError(
            f"{where}.rules is {rules!r:.60}, not an array of tables",
            hint="write [[nvct.policy.rules]] before each rule",
        )
    if len(rules) > RULE_LIMIT:
        raise ConfigError(f"{where}.rules has more than {RULE_LIMIT} rules", hint=CORRECT)
    parsed = [_rule(rule, number, where) for number, rule in enumerate(rules, 1)]
    names = [rule["name"] for rule in parsed]
    for name in names:
        if names.count(name) > 1 or name == "default":
            raise ConfigError(f"{where}.rules: two rules are named {name!r}", hint=CORRECT)
    default = table.get("default", "allow")
    if default not in OUTCOMES:
        raise ConfigError(f"{where}.default cannot be {default!r:.80}", hint=_names_hint(OUTCOMES))
    if default != "allow":
        parsed.append({"name": "default", "then": default})
    engine_devices = table.get(ENGINE, UNCHECKED)  # whether rules apply to what an engine gives
    if engine_devices not in (UNCHECKED, CHECKED):
        raise ConfigError(
            f"{where}.{ENGINE} cannot be {engine_devices!r:.80}",
            hint=_names_hint((UNCHECKED, CHECKED)),
        )
    return [json.dumps(rule, sort_keys=True) for rule in parsed], str(engine_devices)


def _rule(table: Table, number: int, where: str) -> Table:
    where = f"{where}.rules {number}"
    rule: Table = {"name": _text(table.get("name", f"rule {number}"), f"{where}: name", 1)}
    for key, value in table.items():
        if key == "then" or key in TEXTS:
            continue
        if key not in CONDITIONS:
            raise ConfigError(f"{where}: {key} is unknown", hint=_names_hint(CONDITIONS, key))
        rule[key] = _condition(key, value, f"{where}: {key}")
    rule["then"] = table.get("then")
    if rule["then"] not in OUTCOMES:
        raise ConfigError(
            f"{where}: then is {rule['then']!r:.80}"
            if "then" in table
            else f"{where} has no key then",
            hint=_names_hint(OUTCOMES),
        )
    reason = _text(table.get("reason", ""), f"{where}: reason")
    if reason:
        rule["reason"] = reason
    return rule


def _text(value: object, where: str, least: int = 0) -> str:
    if isinstance(value, str) and value.isprintable() and least <= len(value) <= TEXT_LIMIT:
        return value
    raise ConfigError(
        f"{where} cannot be {value!r:.80}",
        hint=f"write a text of at most {TEXT_LIMIT} characters",
    )


def _condition(key: str, value: object, where: str) -> object:
    if key in SWITCHES:
        if not isinstance(value, bool):
            raise ConfigError(f"{where} is {value!r:.80}, not true or false", hint=CORRECT)
        return value
    if key == KUBELET:
        if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
            raise ConfigError(
                f"{where} is {value!r:.80}, not the path of a folder",
                hint="write the kubelet's folder, /var/lib/kubelet unless it has a --root-dir",
            )
        return value.rstrip("/")
    if key == "more-gpus-than":
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ConfigError(f"{where} is {value!r:.80}, not a number", hint="write 0 or more")
        return value
    if key == "annotations":
        return _annotations(value, where)
    if key == "users":
        return _users(value, where)
    return _strings(value, where, WORDS.get(key))


def _strings(value: object, where: str, valid: tuple[str, ...] | None) -> list[str]:
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(word, str) for word in strings):
        raise ConfigError(f"{where} is {value!r:.80}, not an array of strings", hint=CORRECT)
    if not strings or "" in strings:
        raise ConfigError(f"{where} is {value!r:.80}: no request can match it", hint=CORRECT)
    for word in strings:
        if valid is not None and word not in valid:
            raise ConfigError(
                f"{where} has {word!r:.80}, which is unknown", hint=_names_hint(valid, word)
            )
    return list(strings)


def _annotations(value: object, where: str) -> dict[str, list[str]]:
    if not isinstance(value, dict) or not value:
        raise ConfigError(
            f"{where} is {value!r:.80}, not a table", hint='write { "KEY" = "PATTERN" }'
        )
    return {key: _strings(patterns, f"{where}.{key}", None) for key, patterns in value.items()}


def _users(value: object, where: str) -> list[list[int]]:
    """Return ranges of uids, both ends included."""
    if not isinstance(value, list):
        raise ConfigError(f"{where} is {value!r:.80}, not an array", hint=CORRECT)
    if not value:
        raise ConfigError(f"{where} is []: no request can match it", hint=CORRECT)
    return [_range(item, where) for item in value]


def _range(item: object, where: str) -> list[int]:
    first, dash, last = (str(item), "", "") if isinstance(item, int) else ("", "", "")
    if isinstance(item, str):
        first, dash, last = item.partition("-")
    ends = [first, last if dash else first]
    if not isinstance(item, bool) and all(end.isascii() and end.isdigit() for end in ends):
        low, high = int(ends[0]), int(ends[1])
        if low <= high < ID_LIMIT:
            return [low, high]
    raise ConfigError(
        f"{where} has {item!r:.80}, which is not a uid",
        hint="write numbers or FIRST-LAST; id -u NAME prints a user's",
    )


def _names_hint(names: tuple[str, ...], name: object = "") -> str:
    """Return a hint with the valid words, or with the most similar one if there are many."""
    text = f"use one of: {', '.join(names)}"
    if len(text) <= HINT_LIMIT:
        return text
    import difflib  # 4 ms

    similar = difflib.get_close_matches(str(name), names, 1)
    return f"did you mean {similar[0]}?" if similar else "docs/policy.md has a table of them"
