# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from typing import Any

import pytest

from nvct.container.plan import inject
from nvct.container.plan.model import no_edits
from nvct.errors import DocumentError
from nvct.oci.bundle import Bundle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.plan.model import DeviceNode, Edits


def edits(**parts: Any) -> Edits:
    return no_edits() | parts  # type: ignore[return-value]  # tests name the parts


def node(path: str, minor: int = 0, **more: Any) -> DeviceNode:
    entry = {"path": path, "type": "c", "major": 195, "minor": minor} | more
    rule = {"allow": True, "type": "c", "major": 195, "minor": minor, "access": "rw"}
    return {"path": path, "host": path, "node": dumps(entry), "rule": dumps(rule)}


def mount(destination: str, source: str = "ours") -> list[str]:
    return [destination, dumps({"destination": destination, "source": source})]


def dumps(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def applied(document: object, *edits_list: Edits) -> Any:
    text = document if isinstance(document, str) else json.dumps(document, indent=1)
    bundle = Bundle("config.json", text)
    inject.apply(bundle, list(edits_list))
    return json.loads(bundle.document.render())


def env_of(before: object, *entries: str) -> object:
    return applied({"process": {"env": before}}, edits(env=list(entries)))["process"]["env"]


def order(before: list[str], *destinations: str) -> list[str]:
    document = {"mounts": [{"destination": d, "source": "theirs"} for d in before]}
    after = applied(document, edits(mounts=[mount(d) for d in destinations]))
    sign = {"ours": "+", "theirs": ""}
    return [sign[m["source"]] + m["destination"] for m in after["mounts"]]


def test_without_edits_the_text_is_unchanged() -> None:
    bundle = Bundle("config.json", "{ }")
    inject.apply(bundle, [edits(), edits()])
    assert not bundle.document.changed


def test_missing_members_are_created() -> None:
    edits_with_all = edits(
        env=["A=1"],
        nodes=[node("/dev/nvidia0")],
        mounts=[mount("/m")],
        hooks={"createContainer": ['{"path":"/h"}']},
        gids=[44],
        net={"eth0": '{"name":"eth1"}'},
        rdt='{"closID":"x"}',
    )
    expected = {
        "process": {"env": ["A=1"], "user": {"additionalGids": [44]}},
        "linux": {
            "devices": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}],
            "resources": {
                "devices": [{"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rw"}]
            },
            "netDevices": {"eth0": {"name": "eth1"}},
            "intelRdt": {"closID": "x"},
        },
        "mounts": [{"destination": "/m", "source": "ours"}],
        "hooks": {"createContainer": [{"path": "/h"}]},
    }
    nulls = {"process": None, "linux": None, "mounts": None, "hooks": None}
    for before in ({}, nulls, {"linux": {"resources": None, "devices": None}, "hooks": {}}):
        assert applied(before, edits_with_all) == expected


@pytest.mark.parametrize(
    ("before", "entries", "after"),
    [
        (["A=1", "B=2", "C=3"], ["B=x"], ["A=1", "B=x", "C=3"]),
        (["AB=1"], ["A=x"], ["AB=1", "A=x"]),
        (["A"], ["A=x"], ["A=x"]),
        (["A=0"], ["A=1", "B=1", "A=2"], ["A=2", "B=1"]),
        ([None, 5, "A=1"], ["A=x"], [None, 5, "A=x"]),
        ([None, ""], ["=x"], [None, "=x"]),
        (None, ['A="\\\n\x00é'], ['A="\\\n\x00é']),
    ],
)
def test_env_is_replaced_by_key_and_each_variable_occurs_once(
    before: object, entries: list[str], after: list[object]
) -> None:
    assert env_of(before, *entries) == after


def test_the_visible_devices_occur_once_with_any_edits() -> None:
    name = "NVIDIA_VISIBLE_DEVICES"
    assert env_of([f"{name}=all", "A=1", f"{name}=0"], "B=2") == [f"{name}=0", "A=1", "B=2"]
    assert env_of([f"{name}=all", f"{name}=0"], f"{name}=void") == [f"{name}=void"]
    assert env_of(["A=1", "A=2", f"{name}=0"], "B=2") == ["A=1", "A=2", f"{name}=0", "B=2"]


def test_a_later_edit_wins_over_an_earlier_one_and_other_entries_keep_their_text() -> None:
    after = applied({}, edits(env=["A=1"], rdt='{"a":1}'), edits(env=["A=2"], rdt='{"a":2}'))
    assert after == {"process": {"env": ["A=2"]}, "linux": {"intelRdt": {"a": 2}}}
    text = '{"process":{"env":["\\u0041=1" , "\\ud800","B=2"]}}'
    bundle = Bundle("config.json", text)
    inject.apply(bundle, [edits(env=["B=3"])])
    assert bundle.document.render() == '{"process":{"env":["\\u0041=1","\\ud800","B=3"]}}'


@pytest.mark.parametrize(
    ("user", "given", "expected"),
    [
        (None, {}, {}),
        ({"uid": 1000, "gid": 50}, {}, {"uid": 1000, "gid": 50}),
        ({"uid": 0, "gid": 50}, {}, {"gid": 50}),
        ({"uid": 1000, "gid": 50}, {"uid": 7, "gid": 8}, {"uid": 7, "gid": 8}),
        ({"uid": 1000, "gid": 50}, {"uid": 0}, {"uid": 0, "gid": 50}),
        ({"uid": True, "gid": "5"}, {}, {}),
    ],
)
def test_a_device_node_without_an_owner_belongs_to_the_process(
    user: object, given: dict[str, int], expected: dict[str, int]
) -> None:
    path = '/dev/x,"uid":'  # looks like a member but is a part of the path
    after = applied({"process": {"user": user}}, edits(nodes=[node(path, **given)]))
    (device,) = after["linux"]["devices"]
    assert {k: device[k] for k in ("uid", "gid") if k in device} == expected
    assert device["path"] == path


def test_a_device_node_replaces_one_with_the_same_path() -> None:
    before = [
        {"path": "/dev/a", "fileMode": 1},
        {"path": "/dev/nvidia0", "major": 1},
        {"path": "/dev/nvidia0", "major": 2},
        {"path": ["/dev/nvidia0"]},
        {"path": {}},
        None,
        "x",
    ]
    after = applied({"linux": {"devices": before}}, edits(nodes=[node("/dev/nvidia0")]))
    assert after["linux"]["devices"] == [
        before[0],
        *before[3:],
        {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0},
    ]


def rules_after(before: list[object]) -> list[Any]:
    document = {"linux": {"resources": {"devices": before}}}
    rules: list[Any] = applied(document, edits(nodes=[node("/dev/nvidia0")]))["linux"][
        "resources"
    ]["devices"]
    return rules


OURS = json.loads(node("/dev/nvidia0")["rule"])
DENY = {"allow": False, "access": "rwm"}


@pytest.mark.parametrize(
    ("before", "added"),
    [
        ([DENY], True),
        ([DENY, OURS], False),
        ([DENY, dict(reversed(OURS.items()))], False),
        ([OURS, DENY], True),
        ([OURS, {"access": "rwm"}], True),  # allow defaults to false
        ([OURS | {"access": "r"}], True),
        ([OURS | {"minor": 1}], True),
        ([None, 5], True),
    ],
)
def test_a_device_rule_is_added_unless_it_is_in_force(before: list[object], added: bool) -> None:
    assert rules_after(before) == before + [OURS] * added


@pytest.mark.parametrize(
    ("before", "destinations", "after"),
    [
        ([], ["/a/b/c", "/a", "/a/b"], ["+/a", "+/a/b", "+/a/b/c"]),
        (["/a/", "//a", "/./a", "/b/../a", "/.."], ["/a"], ["/..", "+/a"]),
        (["/a//x", "/a/./x/y"], ["/a"], ["+/a", "/a//x", "/a/./x/y"]),
        (["/ab", "/a.b"], ["/a"], ["/ab", "/a.b", "+/a"]),
        (["/"], ["/a"], ["/", "+/a"]),
        (["/a/x", "/a", "/b"], ["/a"], ["/b", "+/a", "/a/x"]),
        (["/a/b/c/d", "/a/b"], ["/a", "/a/b/c"], ["+/a", "+/a/b/c", "/a/b/c/d", "/a/b"]),
        (["/a/b", "/a/b/c/d"], ["/a", "/a/b/c"], ["+/a", "/a/b", "+/a/b/c", "/a/b/c/d"]),
        (["a/x"], ["/a"], ["+/a", "a/x"]),
    ],
)
def test_mounts_are_replaced_by_destination_and_mounts_below_follow(
    before: list[str], destinations: list[str], after: list[str]
) -> None:
    assert order(before, *destinations) == after


def test_malformed_mounts_are_kept() -> None:
    malformed = [None, 5, {"destination": 7}, {"source": "/a"}, {"destination": "/a/x"}]
    after = applied({"mounts": malformed}, edits(mounts=[mount("/a")]))
    injected = {"destination": "/a", "source": "ours"}
    assert after["mounts"] == [*malformed[:4], injected, malformed[4]]


def test_hooks_are_appended_in_order() -> None:
    first = edits(hooks={"createContainer": ["1", "2"], "poststop": ["9"]})
    second = edits(hooks={"createContainer": ["3"], "prestart": ["8"]})
    after = applied({"hooks": {"createContainer": [0], "poststart": [5]}}, first, second)
    assert after["hooks"] == {
        "createContainer": [0, 1, 2, 3], "poststart": [5], "poststop": [9], "prestart": [8],
    }  # fmt: skip


def test_net_devices_and_rdt_are_set_and_replaced() -> None:
    edits_list = [
        edits(net={"eth0": '{"name":"a"}', "ib0": "{}"}, rdt='{"closID":"1"}'),
        edits(net={"eth0": '{"name":"b"}'}, rdt='{"closID":"2"}'),
    ]
    expected = {"netDevices": {"eth0": {"name": "b"}, "ib0": {}}, "intelRdt": {"closID": "2"}}
    assert applied({}, *edits_list)["linux"] == expected
    before = {"netDevices": {"eth0": {"name": "x"}, "lo": {}}, "intelRdt": {"closID": "x"}, "z": 1}
    expected["netDevices"]["lo"] = {}  # type: ignore[index]  # a dict of dicts
    assert applied({"linux": before}, *edits_list)["linux"] == {**expected, "z": 1}


@pytest.mark.parametrize(
    "document",
    [
        {"process": {"env": {}}},
        {"process": {"user": []}},
        {"process": {"user": {"additionalGids": "x"}}},
        {"linux": {"devices": {}}},
        {"linux": {"resources": {"devices": "x"}}},
        {"linux": {"netDevices": []}},
        {"mounts": {}},
        {"hooks": {"createContainer": {}}},
    ],
)
def test_a_member_of_another_type_is_a_document_error(document: object) -> None:
    edits_with_all = edits(
        env=["A=1"], nodes=[node("/x")], mounts=[mount("/m")], gids=[1], net={"e": "{}"},
        hooks={"createContainer": ["1"]},
    )  # fmt: skip
    with pytest.raises(DocumentError, match=r"^config.json: [\w.]+ is not an (array|object)$"):
        applied(document, edits_with_all)


def hooks_without(*paths: object) -> tuple[bool, list[Any]]:
    document = {"hooks": {"prestart": [{"path": p} for p in paths], "poststop": [{"path": "x"}]}}
    bundle = Bundle("config.json", json.dumps(document))
    removed = inject.remove_nvidia_hooks(bundle)
    after = json.loads(bundle.document.render())["hooks"]
    assert after["poststop"] == document["hooks"]["poststop"]
    return removed, [hook["path"] for hook in after["prestart"]]


def test_the_incumbents_prestart_hooks_are_removed_and_no_others() -> None:
    legacy = "/usr/bin/nvidia-container-runtime-hook"
    assert hooks_without(legacy) == (True, [])
    assert hooks_without("/a", legacy, "nvidia-container-toolkit", "/b") == (True, ["/a", "/b"])
    others = ["/a", f"{legacy}/x", f"{legacy}.sh", f"x{legacy[9:]}", None, 5, ["x"]]
    assert hooks_without(*others) == (False, others)
    for text in ("{}", '{"hooks":null}', '{"hooks":{"prestart":[null,"x",{}]}}'):
        bundle = Bundle("config.json", text)
        assert inject.remove_nvidia_hooks(bundle) is False
        assert not bundle.document.changed


def in_user_namespace(*nodes: DeviceNode, **linux: object) -> Any:
    spaces = {"namespaces": [{"type": "mount"}, {"type": "user"}]} | linux
    return applied({"process": {}, "mounts": [], "linux": spaces}, edits(nodes=list(nodes)))


def test_in_a_user_namespace_a_node_open_to_all_is_a_bind_mount() -> None:
    devices = [{"path": "/dev/nvidia0", "type": "c", "major": 1, "minor": 3}]
    device = node("/dev/nvidia0", fileMode=0o666)
    device["host"] = "/driver/dev/nvidia0"

    document = in_user_namespace(device, devices=devices)

    assert document["linux"]["devices"] == []
    assert document["mounts"] == [
        {
            "destination": "/dev/nvidia0",
            "type": "bind",
            "source": "/driver/dev/nvidia0",
            "options": ["bind", "nosuid", "noexec", "rprivate"],
        }
    ]
    assert [rule["minor"] for rule in document["linux"]["resources"]["devices"]] == [0]


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("user", {"fileMode": 0o660}),
        ("user", {"fileMode": 0o444}),
        ("user", {"fileMode": 0o666, "uid": 5}),
        ("user", {}),
        ("pid", {"fileMode": 0o666}),
    ],
)
def test_other_nodes_and_those_of_other_namespaces_are_left_to_the_runtime(
    kind: str, more: dict[str, int]
) -> None:
    namespaces = [{"type": "mount"}, {"type": kind}]

    document = in_user_namespace(node("/dev/nvidia0", **more), namespaces=namespaces)

    assert [n["path"] for n in document["linux"]["devices"]] == ["/dev/nvidia0"]
    assert document["mounts"] == []


def test_a_group_that_a_user_namespace_lacks_is_left_out() -> None:
    def groups(*mappings: dict[str, int]) -> object:
        document = {"process": {"user": {}}, "linux": {"gidMappings": list(mappings)}}
        return applied(document, edits(gids=[44, 105]))["process"]["user"].get("additionalGids")

    assert groups({"containerID": 0, "hostID": 200000, "size": 44}) in (None, [])
    assert groups({"containerID": 0, "hostID": 200000, "size": 45}) == [44]
    assert groups(
        {"containerID": 0, "hostID": 5, "size": 1}, {"containerID": 100, "hostID": 9, "size": 9}
    ) == [105]
    assert groups() == [44, 105]


def test_work_becomes_a_hook_after_those_of_the_container() -> None:
    work = {
        "links": [["libcuda.so.580", "/lib/libcuda.so.1"]], "folders": ["/lib"],
        "compat": {"driver": "580.1"}, "params": True, "profile": False,
    }  # fmt: skip
    program = {"path": "/opt/nvidia-ctk", "args": ["nvidia-ctk", "hook", "apply"], "env": ["A=B"]}
    other_hook = {"path": "/theirs"}

    document = applied(
        {"hooks": {"createContainer": [other_hook]}},
        edits(hook={"program": program, "work": work}),
    )

    words = ["--link", "libcuda.so.580::/lib/libcuda.so.1", "--host-driver-version=580.1"]
    words += ["--folder", "/lib", "--mask-params"]
    assert document["hooks"]["createContainer"] == [
        other_hook,
        {"path": "/opt/nvidia-ctk", "args": [*program["args"], *words], "env": ["A=B"]},
    ]
