# SPDX-License-Identifier: Apache-2.0
"""The chart's rules: a container of a pod gets what the kubelet has given it, and nothing else."""

import base64
from pathlib import Path

import pytest

from nvct.config.load import from_toml
from nvct.config.model import Config
from nvct.container.request.kubelet_record import pod_uid
from nvct.container.request.model import VISIBLE_DEVICES
from nvct.errors import NotPermittedError
from nvct.paths import VOLUME_MOUNT_ROOT
from tests.support.kubelet_records import UID, Given, write
from tests.support.policies import CONTAINERD, CRIO, MIG, Container, policy
from tests.support.policies import UUID as GPU

RULES = Path(__file__).parents[4] / "packaging/helm/nvct/policy/pods.toml"
OTHER = GPU.replace("8a56", "0000")
CDI_NAME = f"k8s.device-plugin.nvidia.com/gpu={GPU}"
ANNOTATION = "cdi.k8s.io/nvidia-device-plugin_1"
CGROUP = f"/kubepods/burstable/pod{UID}/1"


@pytest.fixture
def pod(tmp_path: Path) -> Container:
    """Return a container of a pod, with containerd; the kubelet has given it nothing."""
    container = Container(tmp_path)
    container.annotations = {**CONTAINERD, "io.kubernetes.cri.container-name": "main"}
    container.linux = {"cgroupsPath": CGROUP}
    write(tmp_path)
    return container


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return with_rules(tmp_path)


def with_rules(kubelet: Path, **values: object) -> Config:
    text = RULES.read_text().replace("/var/lib/kubelet", str(kubelet))
    return from_toml(text.encode(), "/c").replaced(**values)


def visible(value: str) -> str:
    return f"{VISIBLE_DEVICES}={value}"


def ids(container: Container, config: Config, *env: str) -> list[str] | None:
    request, _ = container.decide(config, *env)
    return None if request is None else request.ids


@pytest.mark.parametrize("value", ["0", "1,0", "0:1", GPU, f"{GPU},{MIG}"])
def test_what_the_kubelet_gave_by_the_variable_is_given(
    value: str, pod: Container, config: Config, tmp_path: Path
) -> None:
    write(tmp_path, Given(env={VISIBLE_DEVICES: value}))
    assert ids(pod, config, visible(value)) == value.split(",")


@pytest.mark.parametrize("value", ["all", "0", "1", "none", "fooo"])
def test_what_an_image_asks_for_is_replaced_by_what_was_given(
    value: str, pod: Container, config: Config, tmp_path: Path
) -> None:
    assert ids(pod, config, visible(value)) is None
    write(tmp_path, Given(env={VISIBLE_DEVICES: "3"}))
    assert ids(pod, config, visible(value)) == ["3"]
    assert ids(pod, config, visible(value), "NVIDIA_DRIVER_CAPABILITIES=utility") == ["3"]
    write(tmp_path, Given(cdi=[CDI_NAME]))
    assert ids(pod, config, visible(value)) is None, "the engine gives it"
    write(tmp_path, Given(annotations={ANNOTATION: CDI_NAME}))
    assert ids(pod, config, visible(value)) is None, "the engine has read the annotation"


@pytest.mark.parametrize("value", [OTHER, f"{GPU},{OTHER}", f"nvidia.com/gpu={GPU}", MIG])
def test_another_gpu_than_the_one_that_was_given_is_refused(
    value: str, pod: Container, config: Config, tmp_path: Path
) -> None:
    write(tmp_path, Given(env={VISIBLE_DEVICES: GPU}))
    with pytest.raises(NotPermittedError, match=f"given this container '{GPU}'"):
        pod.decide(config, visible(value))


def test_the_entries_of_others_do_not_count(
    pod: Container, config: Config, tmp_path: Path
) -> None:
    given = {VISIBLE_DEVICES: GPU}
    write(
        tmp_path,
        Given(env=given, container="sidecar"),
        Given(env=given, uid=UID.replace("ac09", "0000")),
    )
    with pytest.raises(NotPermittedError, match="pods ask Kubernetes for GPUs"):
        pod.decide(config, visible(GPU))
    write(tmp_path, Given(env=given))
    pod.linux["cgroupsPath"] = "/user.slice/1"
    pod.annotations["io.kubernetes.cri.sandbox-uid"] = UID
    assert ids(pod, policy(""), visible(GPU)) == [GPU]
    assert "cgroup is not that of a pod" in str(rules_of(pod, config, GPU))


def test_where_the_engine_names_no_container_those_of_the_pod_count(
    pod: Container, config: Config, tmp_path: Path
) -> None:
    """Docker with cri-dockerd."""
    pod.annotations = {}
    write(
        tmp_path,
        Given(env={VISIBLE_DEVICES: "1"}, container="sidecar"),
        Given(env={VISIBLE_DEVICES: GPU}),
    )
    assert ids(pod, config, visible(GPU)) == [GPU]
    assert ids(pod, config, visible("1")) == ["1"]
    assert ids(pod, config, visible("all")) is None
    with pytest.raises(NotPermittedError):
        pod.decide(config, visible(OTHER))


def rules_of(container: Container, config: Config, value: str) -> list[str]:
    with pytest.raises(NotPermittedError):
        container.decide(config, visible(value))
    assert container.origin is not None
    return [result.why for result in container.origin.results]


@pytest.mark.parametrize(("one", "other"), [(GPU, MIG), ("0", "1:0")])
def test_a_container_gets_what_two_resources_gave(
    one: str, other: str, pod: Container, config: Config, tmp_path: Path
) -> None:
    """The kubelet passes one of two variables of the same name on."""
    write(tmp_path, Given(env={VISIBLE_DEVICES: one}), Given(env={VISIBLE_DEVICES: other}))
    assert ids(pod, config, visible(one)) == [one, other]
    assert ids(pod, config, visible(other)) == [one, other]


def test_mounts_are_compared_as_well(pod: Container, tmp_path: Path) -> None:
    config = with_rules(tmp_path, accept_volume_mounts=True)
    path = f"{VOLUME_MOUNT_ROOT}/{GPU}"
    pod.mounts = [{"source": "/dev/null", "destination": path}]
    root = visible(VOLUME_MOUNT_ROOT)
    with pytest.raises(NotPermittedError, match="denies volume mount"):
        pod.decide(config, root)
    write(tmp_path, Given(env={VISIBLE_DEVICES: VOLUME_MOUNT_ROOT}, mounts=[("/dev/null", path)]))
    assert ids(pod, config, root) == [GPU]
    pod.mounts.append({"source": "/dev/null", "destination": f"{VOLUME_MOUNT_ROOT}/{OTHER}"})
    with pytest.raises(NotPermittedError, match=f"given this container '{GPU}'"):
        pod.decide(config, root)


def test_annotations_of_the_author_are_told_from_those_of_the_plugin(
    pod: Container, config: Config, tmp_path: Path
) -> None:
    """CRI-O has both in config.json."""
    pod.annotations = {**CRIO, "io.kubernetes.container.name": "main", ANNOTATION: CDI_NAME}
    assert ids(pod, config) is None
    write(tmp_path, Given(annotations={ANNOTATION: CDI_NAME}))
    assert ids(pod, config) == [CDI_NAME]
    pod.annotations["cdi.k8s.io/mine"] = f"nvidia.com/gpu={OTHER}"
    assert ids(pod, config) == [CDI_NAME]
    write(tmp_path, Given(env={VISIBLE_DEVICES: GPU}))
    assert ids(pod, config, visible(GPU)) == [GPU]


def test_extras_that_were_not_given_are_refused(
    pod: Container, config: Config, tmp_path: Path
) -> None:
    channel = "NVIDIA_IMEX_CHANNELS=1"
    write(tmp_path, Given(env={VISIBLE_DEVICES: GPU}))
    with pytest.raises(NotPermittedError):
        pod.decide(config, visible(GPU), channel)
    write(tmp_path, Given(env={VISIBLE_DEVICES: GPU, "NVIDIA_IMEX_CHANNELS": "1"}))
    request, _ = pod.decide(config, visible(GPU), channel)
    assert request is not None
    assert request.extras.imex == [1]
    request, _ = pod.decide(config, visible("all"), channel)
    assert request is not None
    assert (request.ids, request.extras.imex) == ([GPU], [1])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"Data": {"PodDeviceEntries": [{}]}}', "\xff"])
def test_a_record_that_cannot_be_read_fails_the_create(
    text: str, pod: Container, config: Config, tmp_path: Path
) -> None:
    record = write(tmp_path)
    record.write_text(text, encoding="latin-1")
    for value in ("all", "0", GPU):
        with pytest.raises(NotPermittedError) as caught:
            pod.decide(config, visible(value))
        assert value == GPU or str(record) in caught.value.message
    record.unlink()
    assert ids(pod, config, visible("all")) is None, "nobody has got a device yet"
    record.parent.rmdir()
    with pytest.raises(NotPermittedError, match="does not exist"):
        pod.decide(config, visible("all"))


@pytest.mark.parametrize("answer", [b"\n", b"\n\xff", b"\x0a\x05ab", b"\x09" + bytes(8)])
def test_an_answer_that_is_no_message_fails_the_create(
    answer: bytes, pod: Container, config: Config, tmp_path: Path
) -> None:
    record = write(tmp_path, Given(env={VISIBLE_DEVICES: GPU}))
    whole = record.read_text()
    good = whole.partition('AllocResp": "')[2].partition('"')[0]
    record.write_text(whole.replace(good, base64.b64encode(answer).decode()))
    with pytest.raises(NotPermittedError, match="not a kubelet checkpoint"):
        pod.decide(config, visible("all"))


@pytest.mark.parametrize(
    ("cgroup", "uid"),
    [
        (CGROUP, UID),
        (f"/kubepods/pod{UID}/1", UID),
        (f"/own/kubepods/besteffort/pod{UID}/crio-1", UID),
        (f"kubepods-burstable-pod{UID.replace('-', '_')}.slice:cri-containerd:1", UID),
        (f"own-kubepods-pod{UID.replace('-', '_')}.slice:crio:1", UID),
        (f"/kubepods/pod{UID.replace('-', '')}/1", UID.replace("-", "")),
        (f"/kubepods/burstable/{UID}", ""),
        ("/kubepods/burstable/pod/1", ""),
        ("", ""),
    ],
)
def test_the_uid_of_a_pod_is_in_its_cgroup(cgroup: str, uid: str) -> None:
    assert pod_uid(cgroup) == uid
