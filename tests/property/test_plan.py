# SPDX-License-Identifier: Apache-2.0
"""Edits of any config.json: their contract, and that a second application changes nothing."""

from __future__ import annotations

import json
import posixpath
from typing import Any, cast

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvct.container.cdi_hook import main as hooks
from nvct.container.plan import fingerprints, hook_command, inject, model
from nvct.container.plan import hook_command as flags
from nvct.oci.bundle import Bundle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvct.container.plan.model import Edits, Work

relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # busy machines

keys = st.sampled_from(["A", "AB", "B", "NVIDIA_VISIBLE_DEVICES", "é", ""])
env = st.builds(lambda k, v: f"{k}={v}", keys, st.text(max_size=3)) | keys
names = st.sampled_from(["/dev/a", "/dev/b", "/dev/c"])
steps = st.lists(st.sampled_from(["a", "b", "ab", "c"]), min_size=1, max_size=4)
destinations = steps.map(lambda parts: "/" + "/".join(parts))
sloppy = st.builds(
    lambda parts, slash, end: slash.join(["", *parts]) + end,
    steps, st.sampled_from(["/", "//", "/./"]), st.sampled_from(["", "/", "/."]),
)  # fmt: skip
rules = st.fixed_dictionaries(
    {
        "allow": st.booleans(),
        "type": st.just("c"),
        "major": st.just(195),
        "minor": st.integers(0, 2),
    }
)
gids = st.lists(st.integers(-1, 5), max_size=4)
odd: st.SearchStrategy[Any] = st.sampled_from([None, 5, "x", {}])


def with_odd(good: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | st.lists(good | odd, max_size=5)


configs = st.fixed_dictionaries(
    {"ociVersion": st.just("1.0.2")},
    optional={
        "process": st.none() | st.fixed_dictionaries(
            {},
            optional={
                "env": with_odd(env),
                "args": st.lists(st.text(max_size=3), max_size=3),
                "user": st.fixed_dictionaries(
                    {},
                    optional={
                        "uid": st.integers(0, 2), "gid": st.integers(0, 2),
                        "additionalGids": st.none() | gids,
                    },
                ),
            },
        ),
        "mounts": with_odd(st.fixed_dictionaries({"destination": destinations | sloppy})),
        "hooks": st.none() | st.fixed_dictionaries({}, optional={"prestart": st.none() | st.just([1])}),
        "linux": st.none() | st.fixed_dictionaries(
            {},
            optional={
                "devices": with_odd(st.fixed_dictionaries({"path": names})),
                "resources": st.none() | st.fixed_dictionaries({}, optional={"devices": with_odd(rules)}),
                "seccomp": st.just({"x": [1.50, {"y": None}]}),
            },
        ),
        "é\n": st.text(max_size=5),
    },
)  # fmt: skip


def compiled(
    env: list[str], nodes: list[tuple[str, int, bool]], mounts: list[str], gids: list[int]
) -> Edits:
    edits: Edits = {
        "env": env, "nodes": [], "hooks": {}, "gids": gids, "net": {}, "rdt": "",
        "mounts": [[d, json.dumps({"destination": d, "source": "ours"})] for d in mounts],
    }  # fmt: skip
    for path, minor, owned in nodes:
        rule = {"allow": True, "type": "c", "major": 195, "minor": minor}
        entry = {"path": path, "minor": minor} | ({"uid": 9, "gid": 9} if owned else {})
        edits["nodes"].append(
            {"path": path, "host": path, "node": json.dumps(entry, separators=(",", ":")),
             "rule": json.dumps(rule)}
        )  # fmt: skip
    return edits


node = st.tuples(names, st.integers(0, 2), st.booleans())
edits = st.builds(
    compiled,
    st.lists(st.builds(lambda k, v: f"{k}={v}", keys, st.text(max_size=3)), max_size=4),
    st.lists(node, max_size=4),
    st.lists(destinations | sloppy, max_size=4),
    gids,
)


def apply(text: str, edits_list: list[Edits]) -> str:
    bundle = Bundle("config.json", text)
    inject.apply(bundle, edits_list)
    return bundle.document.render()


def applied(config: dict[str, Any], edits_list: list[Edits]) -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads(apply(json.dumps(config), edits_list)))


def member(document: Any, *path: str) -> Any:
    for key in path:
        document = (document or {}).get(key)
    return document or []


def key(entry: object) -> object:
    return entry.partition("=")[0] if isinstance(entry, str) else None


def clean(mount: Any) -> str | None:
    destination = mount.get("destination") if isinstance(mount, dict) else None
    return (
        posixpath.normpath("/" + destination.lstrip("/")) if isinstance(destination, str) else None
    )


@relaxed
@given(configs, st.lists(edits, max_size=3))
def test_env_equals_a_dictionary_that_was_updated(
    config: dict[str, Any], edits_list: list[Edits]
) -> None:
    before, after = (
        member(config, "process", "env"),
        member(applied(config, edits_list), "process", "env"),
    )
    expected = {key(e): e for edit in edits_list for e in edit["env"]}
    assert {key(e): e for e in after if key(e) in expected} == expected
    assert len([e for e in after if key(e) in expected]) == len(expected)
    others = [e for e in without_duplicates(before, inject.ONCE) if key(e) not in expected]
    assert [e for e in after if key(e) not in expected] == others


def without_duplicates(env: list[Any], names: Iterable[str]) -> list[Any]:
    """Return an environment in which variables occur once: at the first place, the last value.

    An entry without "=" is no value of a variable; alone beside one value, it stays.
    """
    last: dict[object, str] = {}
    for name in names:
        values = [
            entry for entry in env if isinstance(entry, str) and entry.startswith(f"{name}=")
        ]
        if len(values) > 1:
            last[name] = values[-1]
    kept: list[Any] = []
    for entry in env:
        if key(entry) not in last:
            kept.append(entry)
        elif last[key(entry)] not in kept:
            kept.append(last[key(entry)])
    return kept


@relaxed
@given(configs, st.lists(edits, max_size=3))
def test_nodes_occur_once_and_each_has_a_rule(
    config: dict[str, Any], edits_list: list[Edits]
) -> None:
    result = applied(config, edits_list)
    before, after = member(config, "linux", "devices"), member(result, "linux", "devices")
    expected = {
        node["path"]: json.loads(node["node"])["minor"]
        for edit in edits_list
        for node in edit["nodes"]
    }
    injected = [d for d in after if isinstance(d, dict) and d.get("path") in expected]
    assert {d["path"]: d["minor"] for d in injected} == expected
    assert len(injected) == len(expected)
    assert [d for d in after if d not in injected] == [
        d for d in before if not (isinstance(d, dict) and d.get("path") in expected)
    ]
    there = member(config, "linux", "resources", "devices")
    rules = member(result, "linux", "resources", "devices")
    assert rules[: len(there)] == there
    for minor in expected.values():
        assert allowed(rules, minor)


def allowed(rules: list[Any], minor: int) -> bool:
    """Tell what the kernel would: the last rule that fits decides."""
    verdict = False
    for rule in rules:
        if isinstance(rule, dict) and rule.get("minor", minor) == minor:
            verdict = rule.get("allow") is True
    return verdict


@relaxed
@given(configs, st.lists(edits, max_size=3))
def test_mounts_keep_their_order_and_no_mount_hides_another(
    config: dict[str, Any], edits_list: list[Edits]
) -> None:
    before = member(config, "mounts")
    after = member(applied(config, edits_list), "mounts")
    expected = {clean({"destination": m[0]}): m[0] for edit in edits_list for m in edit["mounts"]}
    injected = [m for m in after if isinstance(m, dict) and m.get("source") == "ours"]
    assert {clean(m): m["destination"] for m in injected} == expected
    assert len(injected) == len(expected)
    untouched = [m for m in before if clean(m) not in expected]
    others = [m for m in after if m not in injected]
    below = [m for m in untouched if any(is_below(clean(m), d) for d in expected)]
    assert [m for m in others if m in below] == [m for m in untouched if m in below]
    assert [m for m in others if m not in below] == [m for m in untouched if m not in below]
    targets = [clean(m) for m in after]
    for destination in expected:
        at = max(i for i, target in enumerate(targets) if target == destination)
        hidden = [p for p in targets[:at] if is_below(p, destination)]
        assert hidden == []


def is_below(path: str | None, parent: str | None) -> bool:
    return path is not None and parent is not None and path.startswith(parent.rstrip("/") + "/")


@relaxed
@given(configs, st.lists(edits, max_size=3))
def test_groups_occur_once_and_never_root(config: dict[str, Any], edits_list: list[Edits]) -> None:
    path = ("process", "user", "additionalGids")
    before, after = member(config, *path), member(applied(config, edits_list), *path)
    gids = {g for edit in edits_list for g in edit["gids"] if g > 0}
    assert after[: len(before)] == before
    added = after[len(before) :]
    assert sorted(added) == sorted(gids - set(before))


@relaxed
@given(configs, st.lists(edits, max_size=3), st.sampled_from([None, 1]))
def test_a_second_time_changes_nothing(
    config: dict[str, Any], edits_list: list[Edits], indent: int | None
) -> None:
    once = apply(json.dumps(config, indent=indent), edits_list)
    assert json.loads(apply(once, edits_list)) == json.loads(once)


@relaxed
@given(configs, st.lists(edits, max_size=3))
def test_all_other_members_survive(config: dict[str, Any], edits_list: list[Edits]) -> None:
    result = applied(config, edits_list)
    assert strip(result) == strip(config)


def strip(config: dict[str, Any]) -> dict[str, Any]:
    """Remove the members that edits may change."""
    others = json.loads(json.dumps(config))
    others.pop("mounts", None)
    for name, keys in (("process", ("env", "user")), ("linux", ("devices", "resources"))):
        for part in keys:
            (others.get(name) or {}).pop(part, None)
        if not others.get(name):
            others.pop(name, None)
    return cast("dict[str, Any]", others)


json_like = st.recursive(
    st.none() | st.integers() | st.text(max_size=4)
    | st.sampled_from(["stat", "absent", "text", "list", "node", "hash", "/", "/dev/null", "\0"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=8,
)  # fmt: skip


@relaxed
@given(st.lists(json_like, max_size=3))
def test_damaged_fingerprints_never_match_and_never_crash(damaged: list[Any]) -> None:
    assert model.is_current({"nvct-plan": 1, "facts": damaged}) in (True, False)
    for fact in damaged:
        if not (isinstance(fact, list) and len(fact) == 3):
            assert fingerprints.broken([fact])


words = st.text(st.characters(exclude_characters=":\0", exclude_categories=["Cs"]), min_size=1)
versions = st.from_regex(r"\d{1,3}\.\d{1,3}", fullmatch=True)
compats: st.SearchStrategy[Any] = st.just({}) | st.one_of(
    st.fixed_dictionaries({"driver": versions, "cuda": st.just(""), "folder": st.just("")}),
    st.fixed_dictionaries(
        {"driver": st.just(""), "cuda": versions, "folder": st.just("") | words}
    ),
)
links = st.tuples(words, words.filter(lambda word: word.strip("/") != "")).map(list)
works: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {
        "links": st.lists(links, max_size=4, unique_by=tuple),
        "folders": st.lists(words, max_size=4, unique=True),
        "compat": compats,
        "params": st.booleans(),
        "profile": st.booleans(),
    }
)


@relaxed
@given(works)
def test_the_hook_parses_its_rendered_options(work: Work) -> None:
    program: model.Program = {"path": "/h", "args": ["nvidia-cdi-hook", "apply"], "env": ["A=B"]}
    entry = json.loads(hook_command.text({"program": program, "work": work}))

    assert entry["args"][:2] == program["args"]
    given = flags.read(entry["args"][2:], hooks.HOOKS["apply"] | hooks.COMMON)
    assert flags.work(given) == work


@relaxed
@given(st.lists(works, max_size=4))
def test_merged_work_has_each_link_and_folder_once(several: list[Work]) -> None:
    merged = model.merge(several)

    links = [tuple(link) for link in merged["links"]]
    assert len(set(links)) == len(links)
    assert set(links) == {tuple(link) for work in several for link in work["links"]}
    assert len(set(merged["folders"])) == len(merged["folders"])
    assert set(merged["folders"]) == {f for work in several for f in work["folders"]}
    assert merged["params"] == any(work["params"] for work in several)
    assert model.merge([merged, merged]) == merged
