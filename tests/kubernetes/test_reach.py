# SPDX-License-Identifier: Apache-2.0
"""SECURITY.md's table of what each container of the chart reaches is that of the rendered chart."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes import reach
from tests.kubernetes.rendering import rendered
from tests.kubernetes.test_chart_values import MATRIX

pytestmark = pytest.mark.slow
DOCUMENT = Path(__file__).parents[2] / "SECURITY.md"
BEGIN, END = "<!-- make golden KIND=reach -->\n", "<!-- end -->\n"
DIFFERING: Mapping[str, Mapping[str, Any]] = {
    "agent.privileged": MATRIX["privileged"],
    "cdi.enabled=false": {"cdi": {"enabled": False}},
    "condition.podEvents": {"condition": {"podEvents": True}},
    "dcgmExporter.podLabels": {"dcgmExporter": {"podLabels": True}},
    "devicePlugin.config.name": MATRIX["config"],
    "dcgmExporter.config.create": MATRIX["counters"],
    "dra.enabled": {"dra": {"enabled": True}},
    "health.remediation": {"health": {"remediation": "reset"}},
    "migManager.config.name": {"migManager": {"config": {"name": "mig-parted"}}},
    "migManager.evictPods": {"migManager": {"evictPods": True}},
    "nri.enabled": {"nri": {"enabled": True}},
}
"""Values that give containers more, or less."""


def rows(values: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return reach.rows(list(rendered(values).values()))


def written() -> str:
    """Return the table, and what values change of it."""
    default = rows({})
    parts = [reach.table(default)]
    for name, values in DIFFERING.items():
        changed = [row for row in rows(values) if row not in default]
        if changed:
            parts.append(f"\nWith `{name}` also:\n\n{reach.table(changed)}")
    return "\n" + "".join(parts) + "\n"


def test_the_document_has_what_each_container_reaches(request: pytest.FixtureRequest) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    listed, end, tail = rest.partition(END)
    if request.config.getoption("--update-golden"):
        DOCUMENT.write_text(head + BEGIN + written() + end + tail, encoding="utf-8")
        return
    assert end
    assert listed == written(), "make golden KIND=reach, and look at what it changes"


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)
def test_the_sentences_about_attackers_say_who_becomes_root(values: Mapping[str, Any]) -> None:
    objects = list(rendered(values).values())
    for placed in reach.containers(objects):
        gains = reach.GAINS[reach.name_of(placed)]
        assert gains.startswith(reach.ROOT) is reach.is_root(placed), reach.name_of(placed)


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)
def test_only_who_is_root_anyway_writes_cdi_specifications(values: Mapping[str, Any]) -> None:
    objects = list(rendered(values).values())
    names = {
        reach.name_of(each)
        for each in reach.containers(objects)
        if reach.CDI in reach.folders(each).values() and not each.context.get("privileged")
    }
    assert names == set()


def test_a_new_mount_right_or_privilege_changes_the_table() -> None:
    def pod(**container: Any) -> dict[str, Any]:
        volumes = [{"name": "a", "hostPath": {"path": "/etc"}}]
        spec = {
            "serviceAccountName": "nvct", "automountServiceAccountToken": False,
            "volumes": volumes, "containers": [{"name": "agent", **container}],
        }  # fmt: skip
        return {
            "kind": "DaemonSet",
            "metadata": {"name": "nvct"},
            "spec": {"template": {"spec": spec}},
        }

    def right(verb: str) -> list[dict[str, Any]]:
        name, reference = {"name": "nvct-agent"}, {"kind": "ClusterRole", "name": "nvct-agent"}
        subjects = [{"kind": "ServiceAccount", "name": "nvct"}]
        rules = [{"resources": ["pods"], "verbs": [verb]}]
        return [
            {"kind": "ClusterRole", "metadata": name, "rules": rules},
            {"kind": "ClusterRoleBinding", "metadata": name, "roleRef": reference,
             "subjects": subjects},
        ]  # fmt: skip

    mount = {"name": "a", "mountPath": "/x"}
    shown = [
        reach.rows([pod(), *right("get")]),
        reach.rows([pod(volumeMounts=[mount]), *right("get")]),
        reach.rows([pod(volumeMounts=[{**mount, "readOnly": True}]), *right("get")]),
        reach.rows([pod(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}})]),
        reach.rows([pod(securityContext={"allowPrivilegeEscalation": False})]),
        reach.rows([pod(securityContext={"privileged": True})]),
    ]
    tables = [reach.table(each) for each in shown]
    assert len(set(tables)) == len(tables)
    with_token = pod()
    with_token["spec"]["template"]["spec"]["automountServiceAccountToken"] = True
    assert "delete: pods" in reach.table(reach.rows([with_token, *right("delete")]))
    unknown = pod()
    unknown["spec"]["template"]["spec"]["containers"][0]["name"] = "new"
    with pytest.raises(KeyError):
        reach.rows([unknown])


def test_a_mount_that_is_added_is_attacked() -> None:
    """The folders are those of the manifest: a writable one that is new is planted with links."""
    pod_spec = {
        "volumes": [
            {"name": "new", "hostPath": {"path": "/opt/new"}},
            {"name": "seen", "hostPath": {"path": "/opt/seen"}},
            {"name": "own", "emptyDir": {}},
        ]
    }
    mounts = [
        {"name": "new", "mountPath": "/new"},
        {"name": "seen", "mountPath": "/seen", "readOnly": True},
        {"name": "own", "mountPath": "/own"},
    ]
    placed = reach.Placed("DaemonSet nvct", "agent", pod_spec, {"volumeMounts": mounts})
    assert reach.folders(placed) == {"/new": "/opt/new"}
