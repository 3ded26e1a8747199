# SPDX-License-Identifier: Apache-2.0
"""Containers that try to bypass a policy: every form of a request for a refused device."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvct.config import toml
from tests.support import kubelet_records
from tests.support.host_tree import BUSES, HostTree
from tests.support.kubelet_records import Given
from tests.support.policy_lab import cap, decided, nodes, part, refusal, requested
from tests.support.shim_lab import Lab

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

V = "NVIDIA_VISIBLE_DEVICES="
UUID, MIG_GPU, MIG = HostTree.uuid(0), HostTree.uuid(2), "MIG-00000002-0001-0000-cccc-000000000000"
DENIED: dict[str, object] = {
    "devices": [f"nvidia.com/gpu={UUID}", f"nvidia.com/gpu={MIG_GPU}"], "then": "deny",
}  # fmt: skip
ALLOWED: dict[str, object] = {"devices": ["nvidia.com/gpu=1"], "then": "allow"}
REFUSED = ("deny", "bad-request", "unknown-device", "not-permitted", "nothing")
FOLDER = "/var/run/nvidia-container-devices"
USER = {"namespaces": [{"type": "user"}]}


def mount(source: str) -> dict[str, Any]:
    return {"mounts": [{"hostPath": source, "containerPath": "/x", "options": ["bind"]}]}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """A node: GPU 0 is refused, GPU 1 is ordinary, GPU 2 is in MIG mode and refused."""
    new_lab = Lab()
    host = new_lab.driver(gpus=3)
    for gi, ci, caps in ((1, 0, (12, 13)), (2, 0, (21, 22))):
        host.instance(2, gi, ci, caps)
    for library in host.driver.rglob("libnvidia-ml.so*"):
        library.unlink()  # a file of headers alone
    for number in (1, 2):
        host.write(f"dev/nvidia-caps/nvidia-cap{number}")
    (new_lab.home / "tree/dev/deep").mkdir(parents=True)
    (new_lab.home / "tree/dev/deep/link").symlink_to("/dev/null")
    new_lab.spec(
        devices={
            "0": nodes((195, 0)), UUID: nodes((195, 0)), "1": nodes((195, 1)),
            "2:0": part(2, 12, 13), MIG: part(2, 12, 13), "2:1": part(2, 21, 22),
            "gpu0": nodes((195, 0)), "mig2:0": part(2, 12, 13),
            "all": nodes((195, 0), (195, 1), (195, 2)),
        }
    )  # fmt: skip
    unbuffered = {"path": "/dev/y", "type": "u", "major": 195, "minor": 0}
    new_lab.spec(
        "other.json",
        kind="example.com/other",
        devices={
            "node": nodes((195, 0)), "alias": nodes((195, 0), path="/dev/nvidia1"),
            "unbuffered": {"deviceNodes": [unbuffered]}, "drm": nodes((226, 128)),
            "part": part(2, 21, 22), "bare-part": {"deviceNodes": [part(2, 1, 1)["deviceNodes"][0]]},
            "both": nodes((195, 1), (195, 0)), "one": nodes((195, 1)),
            "config": {"deviceNodes": [cap(1)]}, "all": nodes((195, 0), (195, 1)),
        },
    )  # fmt: skip
    new_lab.spec(
        "plugin.json", kind="k8s.device-plugin.nvidia.com/gpu", devices={UUID: nodes((195, 0))}
    )
    new_lab.spec("common.json", kind="example.com/common", common=nodes((195, 0)))
    new_lab.spec("null.json", kind="acme.com/null", devices={
        "it": nodes((1, 3)), "mounted": mount("/dev/null"), "folder": mount("/dev"),
        "root": mount("/"), "tree": mount(str(new_lab.home / "tree")),
        "tree-dev": mount(str(new_lab.home / "tree/dev")), "deep": mount(str(new_lab.home / "tree/dev/deep")),
        "link": mount(str(new_lab.home / "tree/dev/deep/link")), "zero": mount("/dev/zero"),
    })  # fmt: skip
    yield new_lab
    new_lab.remove()


REQUESTS: dict[str, list[str]] = {
    "index": ["0"],
    "uuid": [UUID],
    "uuid in upper case": [UUID.upper()],
    "uuid in lower case": [UUID.lower()],
    "bus id": [f"0000:{BUSES[0]}:00.0"],
    "bus id, short": [f"0:{BUSES[0]}:0"],
    "bus id, long": [f"00000000:{BUSES[0].upper()}:00.0"],
    "bus id, another function": [f"0000:{BUSES[0]}:00.1"],
    "all": ["all"],
    "all in between": ["1,all"],
    "a list": ["1,0"],
    "twice": ["1,1,0,0"],
    "blanks": ["1 ,\t0 ,"],
    "a name": ["nvidia.com/gpu=0"],
    "names": [f"nvidia.com/gpu=1,nvidia.com/gpu={UUID}"],
    "all by name": ["nvidia.com/gpu=all"],
    "the incumbent's name": ["runtime.nvidia.com/gpu=0"],
    "the incumbent's name for all": ["runtime.nvidia.com/gpu=all"],
    "a name of the type": ["gpu0"],
    "its full name": ["nvidia.com/gpu=gpu0"],
    "a name of the type, of MIG": ["mig2:0"],
    "MIG by index": ["nvidia.com/gpu=2:0"],
    "MIG by uuid": [f"nvidia.com/gpu={MIG}"],
    "MIG beside a GPU": [f"nvidia.com/gpu=1,nvidia.com/gpu={MIG}"],
    "the GPU in MIG mode": ["2"],
    "the GPU in MIG mode by uuid": [MIG_GPU],
    "MIG of before R470": [f"MIG-{MIG_GPU}/1/0"],
    "another kind": ["example.com/other=node"],
    "another path": ["example.com/other=alias"],
    "an unbuffered node": ["example.com/other=unbuffered"],
    "its render node": ["example.com/other=drm"],
    "another kind's MIG": ["example.com/other=part"],
    "only the GPU of MIG": ["example.com/other=bare-part"],
    "two nodes": ["example.com/other=both"],
    "all of another kind": ["example.com/other=all"],
    "what a whole spec brings": ["example.com/common=1"],
    "beside an allowed one": ["nvidia.com/gpu=1,example.com/other=node"],
    "the last one wins": ["1", "0"],
}


@pytest.mark.parametrize("mode", ["auto", "legacy", "cdi", "jit-cdi"])
@pytest.mark.parametrize("device", REQUESTS)
def test_no_variable_gets_past_a_rule(device: str, mode: str, lab: Lab) -> None:
    lab.asks(*[V + value for value in REQUESTS[device]])

    assert decided(lab, DENIED, mode=mode) in REFUSED
    assert decided(lab, ALLOWED, mode=mode, default="deny") in REFUSED


@pytest.mark.parametrize("device", REQUESTS)
def test_no_annotation_or_mount_gets_past_a_rule(device: str, lab: Lab) -> None:
    for value in REQUESTS[device]:
        lab.asks(annotations={"cdi.k8s.io/x": value}, mounts=[])
        refused = [decided(lab, DENIED, mode=mode) for mode in ("auto", "cdi")]
        mounts = []
        for word in value.split(","):
            mount_name = f"cdi/{word.replace('=', '/')}" if "=" in word else word.strip()
            mounts.append(
                {"source": "/dev/../dev/null", "destination": f"{FOLDER}/./{mount_name}"}
            )
        lab.asks(V + "1", mounts=mounts)
        refused.append(decided(lab, DENIED, accept_volume_mounts=True))
        if (device, value) != ("the last one wins", "1"):
            assert set(refused) <= set(REFUSED), refused


def test_a_request_that_no_rule_refuses_is_delivered(lab: Lab) -> None:
    """The other side: a policy that refused everything would pass all tests of this file."""
    for value in ("1", HostTree.uuid(1), "example.com/other=one", "nvidia.com/gpu=1", "none"):
        lab.asks(V + value)
        assert decided(lab, DENIED) == "allow", value
    lab.asks(V + "0", V + "1")
    assert decided(lab, DENIED) == "allow"
    lab.asks(V + "1")
    assert decided(lab, ALLOWED, default="deny") == "allow"


@pytest.mark.parametrize(
    "name", ["mounted", "folder", "root", "tree", "tree-dev", "deep", "link", "it"]
)
def test_a_mounted_node_is_recognized_by_its_numbers(name: str, lab: Lab) -> None:
    lab.asks(f"{V}acme.com/null={name}")
    rule: dict[str, object] = {"devices": ["acme.com/null=it"], "then": "deny"}
    assert decided(lab, rule) == "deny"
    lab.asks(f"{V}acme.com/null=zero")
    assert decided(lab, rule) == "allow"


EXTRAS = (
    "NVIDIA_IMEX_CHANNELS=0", "NVIDIA_IMEX_CHANNELS=channel0,1", "NVIDIA_GDS=enabled",
    "NVIDIA_MOFED=enabled", "NVIDIA_GDRCOPY=enabled", "NVIDIA_NVSWITCH=enabled",
    "NVIDIA_MIG_CONFIG_DEVICES=all", "NVIDIA_MIG_MONITOR_DEVICES=all",
)  # fmt: skip
PRIVILEGED = {"args": ["x"], "capabilities": {"bounding": ["CAP_SYS_ADMIN"]}}


@pytest.mark.parametrize("mode", ["auto", "legacy", "jit-cdi"])
@pytest.mark.parametrize("extra", EXTRAS)
def test_no_extra_comes_with_an_allowed_gpu(extra: str, mode: str, lab: Lab) -> None:
    for env in ([V + "1", extra], [extra, V + "1"], [extra, V + "1", extra]):
        lab.asks(process={**PRIVILEGED, "env": env})
        assert decided(lab, ALLOWED, mode=mode, default="deny") == "deny"
    lab.asks(process={**PRIVILEGED, "env": [V + "none", extra]})
    assert decided(lab, ALLOWED, mode=mode, default="deny") == "deny"


def test_a_mig_capability_gives_no_refused_gpu(lab: Lab) -> None:
    """With it a container gets GPUs in MIG mode as a whole, which have no device else."""
    for value in ("all", "2", MIG_GPU):
        lab.asks(process={**PRIVILEGED, "env": [V + value, "NVIDIA_MIG_CONFIG_DEVICES=all"]})
        assert decided(lab, DENIED, mode="jit-cdi") == "deny", value
    lab.asks(process={**PRIVILEGED, "env": [V + "1", "NVIDIA_MIG_CONFIG_DEVICES=all"]})
    assert decided(lab, DENIED, mode="jit-cdi") == "allow"


@pytest.mark.parametrize("caps", [{"bounding": ["CAP_SYS_ADMIN"]}, ["CAP_SYS_ADMIN"]], ids=str)
@pytest.mark.parametrize(
    "linux",
    [USER, {"namespaces": [{"type": "user", "path": "/proc/1/ns/user"}]},
     {"uidMappings": [{"containerID": 0, "hostID": 0, "size": 4294967295}]}],
    ids=str,
)  # fmt: skip
def test_root_of_a_user_namespace_is_an_unprivileged_user(
    linux: dict[str, Any], caps: object, lab: Lab
) -> None:
    process = {"capabilities": caps, "env": [V + "1", "NVIDIA_MIG_CONFIG_DEVICES=all"]}
    lab.asks(process=process, linux=linux)
    rule: dict[str, object] = {"privileged": True, "then": "allow"}

    assert decided(lab, rule, default="deny") == "deny"
    assert decided(lab, accept_envvar_when_unprivileged=False) == "nothing"
    lab.asks(process=process, linux={})
    assert decided(lab, rule, default="deny") == "allow"


POD = {
    "io.kubernetes.cri.container-type": "container",
    "io.kubernetes.cri.sandbox-namespace": "gpu-operator",
    "io.kubernetes.cri-o.ContainerType": "container",
    "io.kubernetes.pod.namespace": "gpu-operator",
}


@pytest.mark.parametrize(
    "cgroup",
    ["/docker/x", "", "system.slice:kubepods:x", "/x/kubepods.slice.d/y", "user-1000.slice"],
)
def test_annotations_alone_do_not_put_a_container_in_a_namespace(cgroup: str, lab: Lab) -> None:
    lab.asks(V + "1", annotations=POD, linux={"cgroupsPath": cgroup})
    for condition in ({"namespaces": ["gpu-*"]}, {"kubernetes": True}):
        assert decided(lab, {**condition, "then": "allow"}, default="ignore") == "nothing"
    assert decided(lab, {"kubernetes": False, "then": "ignore"}) == "nothing"


def test_gpus_are_counted_under_any_name(lab: Lab) -> None:
    rule: dict[str, object] = {"more-gpus-than": 1, "then": "deny"}
    for value in ("all", "0,1", "example.com/other=both", "example.com/other=all",
                  "nvidia.com/gpu=all", "nvidia.com/gpu=1,example.com/other=node"):  # fmt: skip
        lab.asks(V + value)
        assert decided(lab, rule) == "deny", value
    lab.asks(f"{V}example.com/other=one")
    assert decided(lab, rule) == "allow"


def test_the_default_kind_does_not_bypass_a_rule(lab: Lab, tmp_path: Path) -> None:
    del tmp_path
    for word in ("node", "alias", "part", "both", "all"):
        lab.asks(V + word)
        assert decided(lab, DENIED, mode="cdi", default_kind="example.com/other") == "deny", word
    lab.asks(V + "one")
    assert decided(lab, DENIED, mode="cdi", default_kind="example.com/other") == "allow"


RULES = Path(__file__).parents[2] / "packaging/helm/nvct/policy/pods.toml"
MODES = {"nvidia": "auto", "nvidia-cdi": "cdi", "nvidia-legacy": "legacy"}
"""What the chart's runtimes do, by RuntimeClass."""
IN_POD = {
    "cgroupsPath": f"kubepods-besteffort-pod{kubelet_records.UID.replace('-', '_')}.slice:cri-containerd:1"
}
NAMES = {
    "io.kubernetes.cri.container-name": kubelet_records.CONTAINER,
    "io.kubernetes.container.name": kubelet_records.CONTAINER,
}
IGNORED = ("all", "0", "0,1", f"{UUID},all", "none", "nvidia.com/gpu=0", "nvidia.com/gpu=all")
"""Values that an image can have without knowing the node."""
NAMED = (
    UUID, f"{UUID},{HostTree.uuid(1)}", MIG, f"nvidia.com/gpu={UUID}", f"nvidia.com/gpu={MIG}",
    f"k8s.device-plugin.nvidia.com/gpu={UUID}", f"runtime.nvidia.com/gpu={UUID}",
)  # fmt: skip
ASKING: dict[str, dict[str, str]] = {
    "nothing": {},
    "cdi": {"cdi.k8s.io/x": f"nvidia.com/gpu={UUID}"},
    "plugin": {"cdi.k8s.io/x": f"k8s.device-plugin.nvidia.com/gpu={UUID}"},
    "all": {"cdi.k8s.io/x": "nvidia.com/gpu=all"},
}
MOUNTS: dict[str, list[dict[str, str]]] = {
    "nothing": [],
    "uuid": [{"source": "/dev/null", "destination": f"{FOLDER}/{UUID}"}],
    "name": [{"source": "/dev/null", "destination": f"{FOLDER}/cdi/nvidia.com/gpu/{UUID}"}],
}


def of_chart(lab: Lab, *given: Given) -> list[dict[str, Any]]:
    """Return the rules that the chart installs, where a kubelet has given something to pods."""
    kubelet = lab.home / "kubelet"
    kubelet.mkdir(exist_ok=True)
    kubelet_records.write(kubelet, *given)
    text = RULES.read_text().replace("/var/lib/kubelet", str(kubelet))
    rules: list[dict[str, Any]] = [*toml.loads(text)["nvct"]["policy"]["rules"]]
    return rules


OTHER_POD = Given(env={V[:-1]: UUID}, uid=kubelet_records.UID.replace("ac09", "0000"))
OTHER_CONTAINER = Given(env={V[:-1]: UUID}, container="sidecar")
BY_ENGINE = Given(cdi=[f"k8s.device-plugin.nvidia.com/gpu={HostTree.uuid(1)}"])


@pytest.mark.parametrize("mounts", MOUNTS)
@pytest.mark.parametrize("asking", ASKING)
@pytest.mark.parametrize("runtime_class", MODES)
def test_no_pod_gets_a_gpu_that_it_did_not_request(
    runtime_class: str, asking: str, mounts: str, lab: Lab
) -> None:
    """RuntimeClass, variable, annotation and mount, by the rules that the chart has by default."""
    rules = of_chart(lab, OTHER_POD, OTHER_CONTAINER, BY_ENGINE)
    values = ["", *IGNORED, *NAMED, UUID.upper(), f"MIG-{MIG_GPU}/1/0", f"0000:{BUSES[0]}:00.0"]
    variables = [*([V + value] for value in values), ["CUDA_VERSION=9"]]
    for env in variables:
        lab.asks(
            *env,
            annotations={**POD, **NAMES, **ASKING[asking]},
            mounts=MOUNTS[mounts],
            linux=IN_POD,
        )
        outcome = decided(lab, *rules, mode=MODES[runtime_class])
        assert outcome in REFUSED, (env, outcome)


@pytest.mark.parametrize("runtime_class", MODES)
def test_what_an_image_may_say_is_ignored_and_a_named_gpu_fails_the_pod(
    runtime_class: str, lab: Lab
) -> None:
    rules = of_chart(lab, OTHER_POD)
    for value in (*IGNORED, *NAMED):
        lab.asks(V + value, annotations={**POD, **NAMES}, linux=IN_POD)
        outcome = decided(lab, *rules, mode=MODES[runtime_class])
        assert outcome in (REFUSED[:4] if value in NAMED else ("nothing",)), value
        assert outcome == "deny" or value != UUID


@pytest.mark.parametrize("runtime_class", ["nvidia", "nvidia-legacy"])
def test_nothing_adds_to_what_the_kubelet_has_given(runtime_class: str, lab: Lab) -> None:
    """GPU 1, by variable: no other variable, annotation or mount gets another one."""
    given = HostTree.uuid(1)
    rules = of_chart(lab, OTHER_POD, Given(env={V[:-1]: given}))
    lab.asks(V + given, annotations={**POD, **NAMES}, linux=IN_POD)
    assert requested(lab, *rules, mode=MODES[runtime_class]) == [given]
    for value in ("", *IGNORED, *NAMED, f"{given},{UUID}"):
        for asking in ASKING.values():
            lab.asks(V + value, annotations={**POD, **NAMES, **asking}, linux=IN_POD)
            ids = requested(lab, *rules, mode=MODES[runtime_class])
            assert ids in (None, [given]), (value, asking)


def test_the_charts_rules_leave_containers_without_a_pod_alone(lab: Lab) -> None:
    lab.asks(V + UUID, linux={"cgroupsPath": "/docker/x"})
    assert decided(lab, *of_chart(lab)) == "allow"


def test_the_refusal_says_what_to_do(lab: Lab) -> None:
    lab.asks(V + UUID, annotations=POD, linux=IN_POD)
    error = refusal(lab, *of_chart(lab))
    assert error.message == f"policy rule 'pods ask Kubernetes for GPUs' denies {V[:-1]}='{UUID}'"
    assert error.hint == "remove it from the pod, and request nvidia.com/gpu or a claim"


def test_annotations_of_the_device_plugin_are_believed(lab: Lab) -> None:
    lab.asks(annotations={**POD, **NAMES, **ASKING["plugin"]}, linux=IN_POD)
    assert decided(lab, *of_chart(lab)) == "nothing"
    assert decided(lab, *of_chart(lab, Given(annotations=ASKING["plugin"]))) == "allow"


def test_the_documented_rules_for_kai(lab: Lab) -> None:
    """A namespace that they name may take GPUs by UUID; others, and images, get none."""
    of_chart(lab)
    page = (RULES.parents[4] / "docs/policy.md").read_text()
    page = page.replace("/var/lib/kubelet", str(lab.home / "kubelet"))
    block = page.partition("### Pods of KAI")[2].partition("```toml")[2].partition("```")[0]
    rules: list[dict[str, Any]] = [*toml.loads(block)["nvct"]["policy"]["rules"]]

    def outcome(value: str, namespace: str) -> str:
        of_pod = {key: namespace if key.endswith("namespace") else POD[key] for key in POD}
        lab.asks(V + value, annotations=of_pod, linux=IN_POD)
        return decided(lab, *rules)

    assert outcome(UUID, "team-a") == outcome(UUID, "notebooks-1") == "allow"
    assert outcome(UUID, "team-b") == "deny"
    assert outcome("all", "team-a") == outcome("all", "team-b") == "nothing"
