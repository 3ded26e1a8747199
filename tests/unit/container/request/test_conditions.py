# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path
from typing import Any

import pytest

from nvct.container.plan_devices import names_of
from nvct.container.request.model import VISIBLE_DEVICES, Request
from tests.support.policies import (
    ALL,
    BUS_ID,
    CONTAINERD,
    CRIO,
    MIG,
    ROOT,
    UUID,
    Container,
    Plans,
    policy,
)


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path)


def mounted(name: str) -> list[dict[str, object]]:
    mount_point = f"/var/run/nvidia-container-devices/{name}"
    return [{"source": "/dev/null", "destination": mount_point}]


KUBELET = "kubepods-burstable-pod1.slice:cri-containerd:2"
BY = {
    "env": ["env", "image-env"],
    "uuid": ["env"],
    "cdi": ["env", "image-env", "cdi-name"],
    "cdi-uuid": ["env", "cdi-name"],
    "annotation": ["annotation", "cdi-name"],
    "mount": ["mount"],
    "mount-cdi": ["mount", "cdi-name"],
    "legacy": ["env", "image-env"],
    "swarm": ["env", "image-env"],
}
WORDS = ["env", "image-env", "annotation", "mount", "cdi-name"]


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("variable", BY)
def test_by_matches_the_source_of_the_request(
    variable: str, word: str, container: Container
) -> None:
    env = {
        "env": [ALL],
        "uuid": [f"{VISIBLE_DEVICES}={UUID}"],
        "cdi": [f"{VISIBLE_DEVICES}=nvidia.com/gpu=0"],
        "cdi-uuid": [f"{VISIBLE_DEVICES}=nvidia.com/gpu={UUID}"],
        "legacy": ["CUDA_VERSION=10"],
        "swarm": ["SWARM=0"],
    }.get(variable, [])
    if variable == "annotation":
        container.annotations = {"cdi.k8s.io/x": "nvidia.com/gpu=0"}
    if variable.startswith("mount"):
        container.mounts = mounted("0" if variable == "mount" else "cdi/nvidia.com/gpu/0")
    config = policy(
        f'by = ["{word}"]\nthen = "deny"', accept_volume_mounts=True, swarm_resource=["SWARM"]
    )

    assert container.outcome(config, *env) == ("deny" if word in BY[variable] else "allow")


ASKED = [
    ("all", ["all"], ()),
    ("0", ["devices"], ()),
    ("none", ["none"], ()),
    ("management.nvidia.com/gpu=all", ["all", "management"], ()),
    ("management.nvidia.com/gpu=0", ["management"], ()),
    ("xmanagement.nvidia.com/gpu=0", ["devices"], ()),
    ("nvidia.com/gpu=0,nvidia.com/gpu=all", ["all", "devices"], ()),
    ("nvidia.com/imex-channel=3", ["imex"], ()),
    ("runtime.nvidia.com/gpu=all", ["all"], ()),
    ("0", ["devices", "gds"], ("NVIDIA_GDS=enabled",)),
    ("0", ["devices", "mofed"], ("NVIDIA_MOFED=enabled",)),
    ("0", ["devices", "gdrcopy"], ("NVIDIA_GDRCOPY=enabled",)),
    ("0", ["devices", "nvswitch"], ("NVIDIA_NVSWITCH=enabled",)),
    ("0", ["devices", "imex"], ("NVIDIA_IMEX_CHANNELS=1",)),
    ("0", ["devices", "mig-config"], ("NVIDIA_MIG_CONFIG_DEVICES=all",)),
    ("0", ["devices", "mig-monitor"], ("NVIDIA_MIG_MONITOR_DEVICES=all",)),
]
ASKS_FOR = ["all", "none", "devices", "management", "mig-config", "mig-monitor", "imex", "gds", "mofed",
            "gdrcopy", "nvswitch"]  # fmt: skip


@pytest.mark.parametrize("word", ASKS_FOR)
@pytest.mark.parametrize(("value", "words", "more"), ASKED, ids=str)
def test_asks_for_matches_the_requested_things(
    value: str, words: list[str], more: tuple[str, ...], word: str, container: Container
) -> None:
    container.bounding = ["CAP_SYS_ADMIN"]
    config = policy(f'asks-for = ["{word}"]\nthen = "deny"', mode="auto")

    outcome = container.outcome(config, f"{VISIBLE_DEVICES}={value}", *more)

    assert outcome == ("deny" if word in words else "allow")


@pytest.mark.parametrize(
    ("words", "value", "more", "allowed"),
    [
        ("management", "management.nvidia.com/gpu=all", "", True),
        ("management", "management.nvidia.com/gpu=all,nvidia.com/gpu=0", "", False),
        ("management devices", "management.nvidia.com/gpu=all,nvidia.com/gpu=0", "", True),
        ("all", "management.nvidia.com/gpu=all", "", False),
        ("devices", "all", "", False),
        ("devices", "0", "NVIDIA_GDS=enabled", False),
        ("gds", "0", "NVIDIA_GDS=enabled", False),
        ("gds devices", "0", "NVIDIA_GDS=enabled", True),
        ("none", "none", "NVIDIA_IMEX_CHANNELS=1", False),
        ("imex", "none", "NVIDIA_IMEX_CHANNELS=1", False),
        ("none imex", "none", "NVIDIA_IMEX_CHANNELS=1", True),
        ("mig-config", "all", "NVIDIA_MIG_CONFIG_DEVICES=all", False),
    ],
)  # fmt: skip
def test_a_rule_that_allows_a_part_of_the_request_does_not_hold(
    words: str, value: str, more: str, *, allowed: bool, container: Container
) -> None:
    container.bounding = ["CAP_SYS_ADMIN"]
    asks_for = str(words.split()).replace("'", '"')
    config = policy(f'asks-for = {asks_for}\nthen = "allow"', default="deny", mode="auto")

    outcome = container.outcome(config, f"{VISIBLE_DEVICES}={value}", more)

    assert outcome == ("allow" if allowed else "deny")


def test_the_uncovered_part_of_the_request_is_in_the_reason(container: Container) -> None:
    config = policy('asks-for = ["management"]\nthen = "allow"', mode="auto")
    value = "management.nvidia.com/gpu=all,nvidia.com/gpu=0,nvidia.com/gds=all"

    container.outcome(config, f"{VISIBLE_DEVICES}={value}")

    assert container.origin is not None
    (step,) = container.origin.results
    assert step.why == (
        "asks-for: it asks for devices, gds besides management, which counts against it"
    )


@pytest.mark.parametrize(
    ("patterns", "value", "mode", "holds"),
    [
        ("nvidia.com/gpu=*", "0", "auto", True),
        ("nvidia.com/gpu=1", "nvidia.com/gpu=0,nvidia.com/gpu=1", "auto", True),
        ("nvidia.com/gpu=1", "0,2", "auto", False),
        ("nvidia.com/gpu=0", UUID, "auto", True),
        ("nvidia.com/gpu=" + UUID, "0", "auto", True),
        ("nvidia.com/gpu=" + UUID, "00000000:18:00.0", "auto", True),
        ("nvidia.com/gpu=0", BUS_ID, "auto", True),
        ("nvidia.com/gpu=" + BUS_ID, "0", "auto", True),
        ("nvidia.com/gpu=0000*", BUS_ID, "auto", False),
        ("nvidia.com/gpu=0", "all", "auto", True),
        ("nvidia.com/gpu=9", "all", "auto", False),
        ("nvidia.com/gpu=0", "none", "auto", False),
        ("*gpu=10", "0", "auto", False),
        ("example.com/x=0", "0", "cdi", True),
        ("nvidia.com/gpu=0", "0", "cdi", False),
    ],
)
def test_devices_match_by_their_full_names(
    patterns: str, value: str, mode: str, *, holds: bool, container: Container
) -> None:
    config = policy(
        f'devices = ["{patterns}"]\nthen = "deny"', mode=mode, default_kind="example.com/x"
    )

    outcome = container.outcome(config, f"{VISIBLE_DEVICES}={value}")

    assert outcome == ("deny" if holds else "allow")


@pytest.mark.parametrize(
    ("value", "outcome"),
    [("0", "allow"), (UUID, "allow"), ("0,1", "deny"), ("all", "deny"), ("1", "deny"),
     (f"{UUID},1", "deny")],
)  # fmt: skip
def test_a_rule_that_allows_a_device_allows_no_other_device(
    value: str, outcome: str, container: Container
) -> None:
    config = policy('devices = ["nvidia.com/gpu=0"]\nthen = "allow"', "deny")

    assert container.outcome(config, f"{VISIBLE_DEVICES}={value}") == outcome


@pytest.mark.parametrize("then", ["allow", "deny"])
def test_unknown_device_names_count_against_the_container(then: str, container: Container) -> None:
    container.plans.number = 0
    config = policy(f'devices = ["nvidia.com/gpu=0"]\nthen = "{then}"', "deny")

    assert container.outcome(config, f"{VISIBLE_DEVICES}={UUID}") == "deny"


@pytest.mark.parametrize(
    ("annotations", "outcome"),
    [
        ({}, "ignore"),
        (CONTAINERD, "allow"),
        (CRIO, "allow"),
        ({**CONTAINERD, "io.kubernetes.cri.sandbox-namespace": "xml-train"}, "ignore"),
        ({"io.kubernetes.cri.container-type": "container"}, "ignore"),
        ({"io.kubernetes.cri.sandbox-namespace": "ml-train"}, "ignore"),
        # CRI-O passes annotations of a pod on; containerd may be configured to.
        ({**CRIO, **CONTAINERD}, "allow"),
        ({**CRIO, "io.kubernetes.pod.namespace": "web", **CONTAINERD}, "ignore"),
        ({**CRIO, **CONTAINERD, "io.kubernetes.cri.sandbox-namespace": "web"}, "ignore"),
        ({**CONTAINERD, "io.kubernetes.pod.namespace": "web"}, "allow"),
    ],
    ids=str,
)
def test_a_rule_that_allows_a_namespace_requires_proof_of_it(
    annotations: dict[str, str], outcome: str, container: Container
) -> None:
    container.annotations = annotations
    container.linux = {"cgroupsPath": KUBELET}
    config = policy('namespaces = ["ml-*"]\nthen = "allow"', "ignore")

    assert container.outcome(config, ALL) == outcome


@pytest.mark.parametrize("annotations", [CONTAINERD, CRIO, {**CONTAINERD, **CRIO}], ids=str)
@pytest.mark.parametrize(
    "cgroup",
    [None, "", "/docker/1", "system.slice:docker:kubepods", "/x/notkubepods/1", "kubepodsy.slice:a:b",
     "user.slice:kubepods:1", "/a/kubepods.d/x"],
)  # fmt: skip
def test_annotations_alone_prove_no_namespace(
    cgroup: str | None, annotations: dict[str, str], container: Container
) -> None:
    """Docker and Podman set any annotation that their user names."""
    container.annotations = annotations
    container.linux = {} if cgroup is None else {"cgroupsPath": cgroup}

    for rule in ('namespaces = ["ml-*"]', "kubernetes = true", "kubernetes = false"):
        assert container.outcome(policy(f'{rule}\nthen = "allow"', "ignore"), ALL) == "ignore"
        assert container.outcome(policy(f'{rule}\nthen = "ignore"'), ALL) == "ignore"
    config = policy('namespaces = ["web"]\nthen = "allow"', "ignore")
    assert container.outcome(config, ALL) == "ignore"


@pytest.mark.parametrize(
    "cgroup",
    ["/kubepods/besteffort/pod1/2", "/kubepods/pod1/2", "/custom/root/kubepods/burstable/pod1/2",
     "kubepods-besteffort-pod1.slice:cri-containerd:2", "kubepods-pod1.slice:crio:2",
     "kubelet-kubepods-burstable-pod1.slice:cri-containerd:2", "/kubelet/kubepods/pod1/2"],
)  # fmt: skip
def test_annotations_and_the_cgroup_of_the_kubelet_prove_a_namespace(
    cgroup: str, container: Container
) -> None:
    container.annotations = CONTAINERD
    container.linux = {"cgroupsPath": cgroup}

    for rule in ('namespaces = ["ml-*"]', "kubernetes = true"):
        assert container.outcome(policy(f'{rule}\nthen = "allow"', "ignore"), ALL) == "allow"
    config = policy('kubernetes = false\nthen = "ignore"')
    assert container.outcome(config, ALL) == "allow"


@pytest.mark.parametrize(
    ("annotations", "outcome"),
    [
        ({}, "allow"),
        (CONTAINERD, "ignore"),
        ({**CONTAINERD, "io.kubernetes.cri.sandbox-namespace": "web"}, "allow"),
        ({"io.kubernetes.cri.container-type": "container"}, "ignore"),
        ({**CRIO, "io.kubernetes.pod.namespace": "web", **CONTAINERD}, "ignore"),
    ],
    ids=str,
)
def test_a_rule_against_a_namespace_holds_in_case_of_doubt(
    annotations: dict[str, str], outcome: str, container: Container
) -> None:
    container.annotations = annotations
    config = policy('namespaces = ["ml-*"]\nthen = "ignore"')

    assert container.outcome(config, ALL) == outcome


@pytest.mark.parametrize(
    ("annotations", "cgroup", "is_pod"),
    [
        ({}, None, False),
        ({}, "/docker/1", False),
        (CONTAINERD, "/kubepods/besteffort/pod1/2", True),
        (CRIO, "/kubepods/besteffort/pod1/2", True),
        # cri-dockerd writes no annotations.
        ({}, "/kubepods/besteffort/pod1/2", True),
        ({}, "kubepods-besteffort-pod1.slice:docker:2", True),
    ],
)
def test_a_pods_container_is_recognized(
    annotations: dict[str, str], cgroup: str | None, *, is_pod: bool, container: Container
) -> None:
    container.annotations = annotations
    container.linux = {} if cgroup is None else {"cgroupsPath": cgroup}

    yes = container.outcome(policy('kubernetes = true\nthen = "ignore"'), ALL)
    no = container.outcome(policy('kubernetes = false\nthen = "ignore"'), ALL)

    assert (yes, no) == (("ignore", "allow") if is_pod else ("allow", "ignore"))


@pytest.mark.parametrize(
    ("path", "outcome"),
    [
        ("/slurm/job1/x", "allow"),
        ("/slurm/../other/x", "deny"),
        ("/other/../slurm/x", "allow"),
        ("/slurmy/x", "deny"),
        ("system.slice:docker:1", "allow"),
        (None, "deny"),
        (1, "deny"),
    ],
)
def test_cgroups_are_compared_with_config_json(
    path: object, outcome: str, container: Container
) -> None:
    container.linux = {} if path is None else {"cgroupsPath": path}
    config = policy('cgroups = ["/slurm/*", "system.slice:*"]\nthen = "allow"', "deny")

    assert container.outcome(config, ALL) == outcome


USER = [{"type": "mount"}, {"type": "user"}]
MAPPED = [{"containerID": 0, "hostID": 100000, "size": 65536}]
JOINED = [{"type": "user", "path": "/proc/1/ns/user"}]


@pytest.mark.parametrize(
    ("uid_map", "linux", "owner"),
    [
        (ROOT, {}, 0),
        (ROOT, {"namespaces": USER, "uidMappings": MAPPED}, 100000),
        # Without a user namespace a mapping has no effect.
        (ROOT, {"uidMappings": MAPPED}, 0),
        (ROOT, {"namespaces": JOINED}, None),
        (ROOT, {"namespaces": USER, "uidMappings": "x"}, None),
        (ROOT, {"namespaces": USER, "uidMappings": [{"containerID": 1, "hostID": 1}]}, None),
        # A rootless engine: with any mapping, the owner is the engine's user.
        ("0 1000 1\n1 100000 65536\n", {}, 1000),
        ("0 1000 1\n1 100000 65536\n", {"namespaces": USER, "uidMappings": [
            {"containerID": 0, "hostID": 1, "size": 1000}]}, 1000),
        # Root in a user namespace of its own that maps it to root.
        ("0 0 1\n1 100000 65536\n", {"namespaces": USER, "uidMappings": [
            {"containerID": 0, "hostID": 5, "size": 1000}]}, 100004),
        ("", {}, None),
        ("damaged\n", {}, None),
        (None, {}, None),
    ],
)  # fmt: skip
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_the_owner_is_the_user_of_the_engine_or_the_mapped_root(
    uid_map: str | None, linux: dict[str, Any], owner: int | None, container: Container
) -> None:
    if uid_map is None:
        container.uid_map.unlink()
    else:
        container.uid_map.write_text(uid_map)
    container.linux = linux
    container.decide(policy(""), ALL)

    assert container.origin is not None
    assert container.origin.owner() == owner


@pytest.mark.parametrize(
    ("then", "users", "outcome"),
    [
        ("allow", "[0]", "allow"),
        ("allow", '["1-9"]', "deny"),
        ("deny", '[5, "0-1"]', "deny"),
        ("deny", "[5]", "allow"),
    ],
)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_users_are_ranges_of_host_ids(
    then: str, users: str, outcome: str, container: Container
) -> None:
    default = "deny" if then == "allow" else "allow"

    assert container.outcome(policy(f'users = {users}\nthen = "{then}"', default), ALL) == outcome


@pytest.mark.parametrize(("then", "default"), [("allow", "ignore"), ("ignore", "allow")])
def test_an_unknown_user_counts_against_the_container(
    then: str, default: str, container: Container
) -> None:
    container.uid_map.unlink()

    outcome = container.outcome(policy(f'users = [0]\nthen = "{then}"', default), ALL)

    assert outcome == "ignore"
    assert container.origin is not None
    why = container.origin.results[0].why
    assert why == "users: the host user is not known, which counts against it"


def test_all_annotations_of_a_rule_must_match(container: Container) -> None:
    container.annotations = {"image": "nvcr.io/x", "team": "a"}
    text = 'annotations = {{ image = "nvcr.io/*", team = [{}] }}\nthen = "deny"'

    assert container.outcome(policy(text.format('"a", "b"')), ALL) == "deny"
    assert container.outcome(policy(text.format('"b"')), ALL) == "allow"
    container.annotations = {"team": "a"}
    assert container.outcome(policy(text.format('"a"')), ALL) == "allow"


@pytest.mark.parametrize(
    ("value", "gpus", "most", "outcome"),
    [
        ("0", 8, 1, "allow"),
        ("0,1", 8, 1, "deny"),
        ("all", 1, 1, "allow"),
        ("all", 2, 1, "deny"),
        ("nvidia.com/gpu=all", 8, 7, "deny"),
        ("nvidia.com/gpu=all,nvidia.com/imex-channel=0", 8, 8, "deny"),
        (f"{MIG},{UUID}", 8, 1, "deny"),
    ],
)
def test_the_number_of_gpus_is_bounded(
    value: str, gpus: int, most: int, outcome: str, container: Container
) -> None:
    container.plans.number = gpus
    config = policy(f'more-gpus-than = {most}\nthen = "deny"')

    assert container.outcome(config, f"{VISIBLE_DEVICES}={value}") == outcome


def test_gpus_are_counted_in_their_plan_and_only_for_all(container: Container) -> None:
    config = policy('more-gpus-than = 8\nthen = "deny"')

    container.outcome(config, f"{VISIBLE_DEVICES}=0,1,2")
    assert container.plans.counted == []
    container.outcome(config, ALL)
    container.outcome(config, f"{VISIBLE_DEVICES}=nvidia.com/gpu=all")
    assert container.plans.counted == ["runtime.nvidia.com/gpu", "nvidia.com/gpu"]


def test_gpus_are_not_counted_where_another_condition_does_not_hold(container: Container) -> None:
    config = policy('more-gpus-than = 1\nprivileged = true\nthen = "deny"')

    assert container.outcome(config, ALL) == "allow"
    assert container.plans.counted == []


def test_two_names_of_a_device_are_one_device() -> None:
    def device(edits: int) -> dict[str, object]:
        return {"spec": 0, "edits": edits, "facts": [], "refuse": ""}

    plan: Any = {
        "devices": {
            "nvidia.com/gpu=0": device(0),
            f"nvidia.com/gpu={UUID}": device(0),
            "nvidia.com/gpu=1": device(1),
            "nvidia.com/gpu=all": device(2),
            "other.com/gpu=5": device(3),
        }
    }

    both = ["nvidia.com/gpu=0", f"nvidia.com/gpu={UUID}"]
    assert names_of(plan, f"nvidia.com/gpu={UUID}") == [both]
    assert names_of(plan, "nvidia.com/gpu=all") == [both, ["nvidia.com/gpu=1"]]
    assert names_of(plan, "nvidia.com/gpu=7") == []


class OfAnother(Plans):
    """Those of a host with a spec of another vendor that names devices by PCI bus id only."""

    def aliases(self, request: Request, name: str) -> list[list[str]] | None:
        del self, request
        return [[name]]


def test_a_device_that_has_no_name_but_a_bus_id_fits_patterns_by_it(container: Container) -> None:
    container.plans = OfAnother()
    config = policy('devices = ["x.com/nic=0000:03*"]\nthen = "deny"', mode="cdi")

    assert container.outcome(config, f"{VISIBLE_DEVICES}=x.com/nic=0000:03:00.0") == "deny"
    assert container.outcome(config, f"{VISIBLE_DEVICES}=x.com/nic=0000:04:00.0") == "allow"


def test_devices_of_two_specs_are_distinct_with_equal_edits() -> None:
    def device(spec: int) -> dict[str, object]:
        return {"spec": spec, "edits": 0, "facts": [], "refuse": ""}

    plan: Any = {"devices": {"x.com/y=0": device(0), "x.com/y=root": device(1)}}

    assert names_of(plan, "x.com/y=root") == [["x.com/y=root"]]
    assert names_of(plan, "x.com/y=all") == [["x.com/y=0"], ["x.com/y=root"]]


def test_all_has_unknown_devices_if_it_is_the_only_name(container: Container) -> None:
    plan: Any = {"devices": {"nvidia.com/gpu=all": {"spec": 0, "edits": 0}}}  # WSL's GPUs
    config = policy('devices = ["nvidia.com/gpu=0"]\nthen = "deny"')

    assert names_of(plan, "nvidia.com/gpu=all") is None
    container.plans.number = 0
    assert container.outcome(config, ALL) == "deny"
