# SPDX-License-Identifier: Apache-2.0
"""What containers get from the plugin, and which it refuses."""

from __future__ import annotations

import json
import re
import socket
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nvct.config.model import Config
from nvct.errors import NvctError
from nvct.host import gpu_record
from nvct.nri import nri_pb2 as api
from nvct.nri.main import Settings, say
from nvct.nri.plugin import Options, Plugin
from tests.support.kubelet_records import CONTAINER, UID, Given, write
from tests.support.policy_lab import nodes
from tests.support.shim_lab import Lab
from tests.unit.nri.fake_engine import RefusedError, connected

POD = "nvidia.cdi.k8s.io/pod"
GPU = [f"nvidia.com/gpu={index}" for index in range(3)]
CGROUP = f"/kubepods/besteffort/pod{UID}/1"
ID = "0123456789abcdef" * 4
"""Of the pod's sandbox."""
VERDICT = 1 << 13
RUNNING = 3
DENY = '[nvct.policy]\nengine-devices = "checked"\ndefault = "deny"\n'


@dataclass
class Case:
    """An engine with a plugin, on a host with three GPUs and a specification of them."""

    lab: Lab
    options: dict[str, Any] = field(default_factory=dict)
    version: str = "2.2.2"
    engine: str = "containerd"
    said: list[str] = field(default_factory=list)
    made: int = 0

    @property
    def record_folder(self) -> str:
        return str(self.lab.home / "nri")

    def enforce(self) -> None:
        """Have the rule on; the kubelet has given nothing."""
        self.options = {"rule": "enforce", **self.options}
        (self.lab.home / "kubelet").mkdir(exist_ok=True)

    def plugin(self) -> Plugin:
        path = str(self.lab.config_toml)
        options = Options(
            kubelet=str(self.lab.home / "kubelet"), record=self.record_folder, **self.options
        )
        return Plugin(Settings(path), path, options, self.said.append)

    def create(self, **more: Any) -> api.ContainerAdjustment:
        """Create a container, and return what it gets; `others` is what other plugins change.

        Raises:
            RefusedError: it must not be created.
        """
        pod = api.PodSandbox(
            id=ID, name="pod", namespace=more.pop("namespace", "default"), uid=UID,
            annotations=more.pop("annotations", {}),
            linux=api.LinuxPodSandbox(namespaces=more.pop("sandbox", ())),
        )  # fmt: skip
        others = more.pop("others", api.ContainerAdjustment())
        linux = more.pop("linux", {})
        self.made += 1
        container = api.Container(
            id=f"{self.made:064x}", name=CONTAINER, linux=api.LinuxContainer(cgroups_path=CGROUP, **linux),
            CDI_devices=[api.CDIDevice(name=name) for name in more.pop("cdi", ())], **more,
        )  # fmt: skip
        plugin = self.plugin()
        with connected(plugin) as engine:
            events = engine.start(self.engine, self.version)
            request = api.CreateContainerRequest(pod=pod, container=container)
            adjust = engine.ask("CreateContainer", request, api.CreateContainerResponse).adjust
            adjust.MergeFrom(others)
            if events & VERDICT:
                verdict = engine.ask(
                    "ValidateContainerAdjustment",
                    api.ValidateContainerAdjustmentRequest(
                        pod=pod, container=container, adjust=adjust
                    ),
                    api.ValidateContainerAdjustmentResponse,
                )
                if verdict.reject:
                    raise RefusedError(verdict.reason)
        return adjust


@pytest.fixture
def lab() -> Iterator[Lab]:
    new_lab = Lab()
    new_lab.driver(gpus=3)
    new_lab.spec(
        devices={
            **{str(index): nodes((195, index), path="/dev/nvidia") for index in range(3)},
            "all": nodes(*[(195, index) for index in range(3)]),
        }
    )
    new_lab.spec("management.json", kind="management.nvidia.com/gpu",
                 devices={"all": nodes((195, 255))})  # fmt: skip
    yield new_lab
    new_lab.remove()


@pytest.fixture
def case(lab: Lab) -> Case:
    return Case(lab)


def configure(lab: Lab, text: str) -> None:
    lab.config_toml.write_text(lab.config_toml.read_text(encoding="utf-8") + text)


def device(minor: int) -> dict[str, Any]:
    """Return linux of a container whose engine gives a GPU."""
    number = api.Number(value=minor)
    rule = api.LinuxDeviceCgroup(
        allow=True, type="c", major=api.Number(value=195), minor=number, access="rwm"
    )
    node = api.LinuxDevice(path=f"/dev/nvidia{minor}", type="c", major=195, minor=minor)
    return {"devices": [node], "resources": api.LinuxResources(devices=[rule])}


def names(adjust: api.ContainerAdjustment) -> list[str]:
    return [each.name for each in adjust.CDI_devices]


@pytest.mark.parametrize(
    ("annotations", "given"),
    [
        ({}, []),
        ({POD: GPU[0]}, GPU[:1]),
        ({POD: f"{GPU[0]}, {GPU[2]},{GPU[0]}"}, [GPU[0], GPU[2]]),
        ({"nvidia.cdi.k8s.io": GPU[1]}, GPU[1:2]),
        ({"nvidia.cdi.k8s.io": GPU[1], POD: GPU[0]}, GPU[:1]),
        ({f"nvidia.cdi.k8s.io/container.{CONTAINER}": GPU[2], POD: GPU[0]}, GPU[2:]),
        ({"nvidia.cdi.k8s.io/container.other": GPU[2]}, []),
        ({"cdi.k8s.io/x": GPU[0]}, []),  # the engine's own
    ],
)
def test_annotations_of_the_pod_name_devices(
    annotations: dict[str, str], given: list[str], case: Case
) -> None:
    assert names(case.create(annotations=annotations)) == given


@pytest.mark.parametrize(
    ("annotations", "problem"),
    [
        ({POD: "nvidia.com/gpu=7"}, "nvidia.com/gpu has no device '7'"),
        ({POD: "0"}, "annotation nvidia.cdi.k8s.io/pod: '0'"),
        ({POD: ""}, "annotation nvidia.cdi.k8s.io/pod: ''"),
        ({POD: f"{GPU[0]},"}, "annotation nvidia.cdi.k8s.io/pod: ''"),
        ({POD: "acme.com/card=1"}, "no CDI specification of this node has acme.com/card=1"),
        ({POD: "management.nvidia.com/gpu=all"}, "is not for pods of namespace 'default'"),
    ],
)
def test_what_cannot_be_had_fails_the_create(
    annotations: dict[str, str], problem: str, case: Case
) -> None:
    with pytest.raises(RefusedError) as refused:
        case.create(annotations=annotations)
    assert problem in str(refused.value)


def test_management_devices_are_for_namespaces_that_the_admin_named(case: Case) -> None:
    management = {POD: "management.nvidia.com/gpu=all"}
    case.options = {"namespace": "nvct", "management": ["monitoring"]}
    for namespace in ("nvct", "monitoring"):
        assert names(case.create(annotations=management, namespace=namespace))
    with pytest.raises(RefusedError, match="namespaces that may have it: nvct, monitoring"):
        case.create(annotations=management)


def test_an_image_s_variable_counts_only_where_the_admin_says_so(case: Case) -> None:
    env = ["NVIDIA_VISIBLE_DEVICES=all"]
    assert names(case.create(env=env)) == []
    case.options = {"takes_variable": True}
    assert names(case.create(env=env)) == ["nvidia.com/gpu=all"]
    assert names(case.create(env=["NVIDIA_VISIBLE_DEVICES=1,2"])) == GPU[1:]
    for nothing in ("void", "none", ""):
        assert names(case.create(env=[f"NVIDIA_VISIBLE_DEVICES={nothing}"])) == []


def test_volume_mounts_count_where_config_toml_accepts_them(case: Case) -> None:
    mount = api.Mount(source="/dev/null", destination="/var/run/nvidia-container-devices/1")
    assert names(case.create(mounts=[mount])) == []
    path = case.lab.config_toml
    key = "accept-nvidia-visible-devices-as-volume-mounts = true\n"
    path.write_text(key + path.read_text(encoding="utf-8"))
    assert names(case.create(mounts=[mount])) == GPU[1:2]


@pytest.mark.parametrize(
    ("engine", "version", "has_names"),
    [
        ("containerd", "v2.2.2", True),
        ("containerd", "2.1.9+unknown", True),
        ("containerd", "2.0.5", False),
        ("containerd", "1.7.30", True),
        ("containerd", "1.7.24~ds1", False),
        ("cri-o", "1.34.0", False),
        ("other", "9", False),
        ("containerd", "", False),
    ],
)
def test_an_engine_that_resolves_no_names_gets_nodes(
    engine: str,
    version: str,
    *,
    has_names: bool,
    case: Case,
) -> None:
    case.engine, case.version = engine, version

    adjust = case.create(annotations={POD: GPU[1]})

    assert bool(adjust.CDI_devices) == has_names
    if not has_names:
        (node,) = adjust.linux.devices
        assert (node.path, node.type, node.major, node.minor) == ("/dev/nvidia195-1", "c", 195, 1)
        assert [(pair.key, pair.value) for pair in adjust.env] == [("COMMON", "1")]


@pytest.mark.parametrize("version", ["2.2.2", "1.7.24"])
def test_the_policy_decides_by_numbers_whoever_gave_the_device(version: str, case: Case) -> None:
    configure(case.lab, DENY)
    case.version = version

    assert case.create() is not None
    everything = api.LinuxResources(
        devices=[api.LinuxDeviceCgroup(allow=True, type="a", access="rwm")]
    )
    for asks in (
        {"linux": device(1)},
        {"cdi": [GPU[1]]},
        {"annotations": {POD: GPU[1]}},
        {"linux": {"resources": everything}},
    ):
        with pytest.raises(RefusedError, match=r"denies .*\[not-permitted\]"):
            case.create(**asks)


def test_hooks_keep_their_time_limit(case: Case) -> None:
    hook = {"hookName": "createContainer", "path": "/bin/true", "args": ["true"], "timeout": 7}
    case.lab.spec("hooked.json", kind="acme.com/hooked",
                  devices={"a": {"hooks": [hook]}})  # fmt: skip
    case.version = "1.7.24"
    (given,) = case.create(annotations={POD: "acme.com/hooked=a"}).hooks.create_container
    assert (given.path, list(given.args), given.timeout.value) == ("/bin/true", ["true"], 7)


def test_unchecked_devices_of_an_engine_are_no_request(case: Case) -> None:
    configure(case.lab, DENY.replace('"checked"', '"unchecked"'))

    case.create(linux=device(1))
    with pytest.raises(RefusedError, match=r"denies annotation nvidia.cdi.k8s.io/pod='nvidia"):
        case.create(annotations={POD: GPU[1]})


@pytest.mark.parametrize("rule", ["off", "audit", "enforce"])
def test_a_pod_has_what_the_kubelet_gave_it(rule: str, case: Case) -> None:
    case.options = {"rule": rule}
    kubelet = case.lab.home / "kubelet"
    kubelet.mkdir()
    write(kubelet, Given(cdi=GPU[:1], devices=["0"]))
    case.create(linux=device(0))  # what it gave
    case.create(cdi=[GPU[0]])
    case.create(linux=device(1), namespace="kube-system")
    smuggled: list[dict[str, Any]] = [
        {"linux": device(1)},
        {"linux": device(0), "annotations": {POD: GPU[2]}},
        {"cdi": ["nvidia.com/gpu=all"]},
        {"cdi": ["acme.com/card=1"]},  # of a specification that is not there yet
    ]
    for asks in smuggled:
        if rule == "enforce":
            with pytest.raises(RefusedError, match=r"pods have what the kubelet gives|acme"):
                case.create(**asks)
        else:
            case.create(**asks)
    audited = [line for line in case.said if line.startswith("audit: default/pod/main: ")]
    assert len(audited) == (len(smuggled) if rule == "audit" else 0)


def test_a_device_rule_of_another_plugin_counts(case: Case) -> None:
    case.enforce()
    plugin = case.plugin()
    allows = api.LinuxResources(devices=device(2)["resources"].devices)
    for resources, is_refused in ((api.LinuxResources(), False), (allows, True)):
        linux = api.LinuxContainerAdjustment.FromString(
            b"\x12" + bytes([resources.ByteSize()]) + resources.SerializeToString()
        )
        request = api.ValidateContainerAdjustmentRequest(
            container=api.Container(name=CONTAINER, linux=api.LinuxContainer(cgroups_path=CGROUP)),
            adjust=api.ContainerAdjustment(linux=linux),
        )
        with connected(plugin) as engine:
            engine.start()
            verdict = engine.ask(
                "ValidateContainerAdjustment", request, api.ValidateContainerAdjustmentResponse
            )
        assert verdict.reject == is_refused


def test_a_record_of_the_kubelet_that_cannot_be_read_is_named(case: Case) -> None:
    case.options = {"rule": "enforce"}
    path = case.lab.home / "kubelet/device-plugins/kubelet_internal_checkpoint"
    path.parent.mkdir(parents=True)
    for text in ("{}", "{", "[]"):
        path.write_text(text)
        with pytest.raises(RefusedError, match=re.escape(str(path))):
            case.create(linux=device(1))
    assert any(str(path) in line for line in case.said)


@pytest.mark.parametrize(
    "name", ["device-plugins/kubelet_internal_checkpoint", "dra_manager_state"]
)
def test_a_record_that_takes_too_much_memory_is_refused(name: str, case: Case) -> None:
    case.options = {"rule": "enforce"}
    kubelet = case.lab.home / "kubelet"
    (kubelet / "device-plugins").mkdir(parents=True)
    ids = json.dumps(
        {"Data": {"PodDeviceEntries": [], "RegisteredDevices": {"r": ["x" * 90] * 60_000}}}
    )
    (kubelet / name).write_text(ids)
    with pytest.raises(RefusedError, match=re.escape(f"{name} is larger than")):
        case.create(linux=device(1))


def test_names_of_any_length_are_cut_in_events_and_in_the_log(
    case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RefusedError) as caught:
        case.create(annotations={POD: f"nvidia.com/gpu={'x' * 200_000}"})
    assert "has no device 'xxx" in str(caught.value)
    assert len(str(caught.value)) < 1500
    say(f"refused: {'y' * 200_000}\nforged")
    (line,) = capsys.readouterr().err.splitlines()
    assert len(line) < 1100


def test_a_refusal_that_the_engine_did_not_take_is_not_logged_as_one(case: Case) -> None:
    case.enforce()
    plugin = case.plugin()
    read = plugin.settings
    with connected(plugin) as engine:
        engine.start()

        def too_late() -> tuple[Config, NvctError | None]:
            engine.sock.shutdown(socket.SHUT_RDWR)
            return read()

        plugin.settings = too_late
        made = api.Container(name=CONTAINER, mounts=[api.Mount(source="/dev", destination="/x")])
        verdict = api.ValidateContainerAdjustmentRequest(container=made)
        with pytest.raises(AssertionError, match="closed the connection"):
            engine.ask(
                "ValidateContainerAdjustment", verdict, api.ValidateContainerAdjustmentResponse
            )
    (line,) = [line for line in case.said if "kubelet gives" in line]
    assert line.startswith("not refused: main: the engine had closed the connection before")
    record = gpu_record.read(case.record_folder, of_the_past=True)
    assert record is not None
    assert record.decisions["refused"] == 0


def test_a_config_that_breaks_leaves_the_rules_of_before(case: Case) -> None:
    configure(case.lab, DENY)
    settings = Settings(str(case.lab.config_toml))
    assert settings()[0].policy
    for text in ("[nvct\n", "#" * (11 << 20)):
        case.lab.config_toml.write_text(text)
        config, trouble = settings()
        assert config.policy
        assert trouble is None


def test_a_broken_config_fails_only_who_asks(case: Case) -> None:
    case.lab.config_toml.write_text("[nvct\n")

    assert names(case.create()) == []
    case.create(linux=device(1))
    with pytest.raises(RefusedError, match="bad-config"):
        case.create(annotations={POD: GPU[0]})
    case.lab.config_toml.write_text('engine-devices = "checked"\n[nvct\n')
    assert names(case.create()) == []
    with pytest.raises(RefusedError, match="bad-config"):
        case.create(linux=device(1))


@pytest.mark.parametrize("rule", ["audit", "enforce"])
def test_the_rule_is_not_asked_in_an_exempt_namespace(rule: str, case: Case) -> None:
    """Such as for a device of another vendor, whose folder of specifications is not seen here."""
    case.options = {"rule": rule, "exempt": ["kube-*"]}
    (case.lab.home / "kubelet").mkdir()
    case.create(namespace="kube-system", cdi=["vendor.com/net=a"])
    assert not [line for line in case.said if "connected" not in line]


def test_a_full_disk_of_the_log_ends_nothing(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod can fill it."""
    with open("/dev/full", "w", encoding="utf-8", buffering=1) as full:
        monkeypatch.setattr(sys, "stderr", full)
        say("connected")
        plugin = case.plugin()
        with connected(plugin) as engine:
            engine.start()
            monkeypatch.setattr(plugin, "settings", lambda: 1 // 0)
            for _ in range(2):  # an error of ours is printed
                with pytest.raises(RefusedError, match="division"):
                    engine.ask(
                        "CreateContainer", api.CreateContainerRequest(),
                        api.CreateContainerResponse,
                    )  # fmt: skip
        with suppress(OSError):
            full.close()


@pytest.mark.parametrize("rule", ["audit", "enforce"])
def test_what_pods_write_is_kept_in_short(
    rule: str, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plugin of the chart may have 128 MiB, and 256 refusals are remembered."""
    case.options = {"rule": rule}
    (case.lab.home / "kubelet").mkdir()
    plugin = case.plugin()
    monkeypatch.setattr(plugin, "say", lambda _: None)  # the case keeps the lines
    tracemalloc.start()
    try:
        for number in range(40):
            name = api.CDIDevice(name=f"nvidia.com/gpu={number}{'x' * 250_000}")
            made = api.Container(id=f"{number:064x}", name=f"c{number}", CDI_devices=[name])
            request = api.ValidateContainerAdjustmentRequest(container=made)
            plugin.validate(request.SerializeToString())
            plugin.answered()
        assert tracemalloc.get_traced_memory()[0] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_driver_that_is_loaded_later_finds_no_privileged_container(case: Case) -> None:
    """A driver container takes minutes on a node that has just started."""
    every = api.LinuxResources(devices=[api.LinuxDeviceCgroup(allow=True, type="a")])
    case.enforce()
    (case.lab.home / "proc/devices").write_text("Character devices:\n  1 mem\n")
    case.create(linux={"resources": every})  # there is no GPU
    gpu = case.lab.home / "sys/bus/pci/devices/0000:01:00.0"
    gpu.mkdir(parents=True)
    (gpu / "vendor").write_text("0x10de\n")
    (gpu / "class").write_text("0x030200\n")
    with pytest.raises(RefusedError, match="pods have what the kubelet gives"):
        case.create(linux={"resources": every})
    case.create()


def test_an_annotation_of_another_plugin_counts(case: Case) -> None:
    case.enforce()
    key = "org.systemd.property.DeviceAllow"
    others = api.ContainerAdjustment(annotations={key: "[('/dev/nvidia0', 'rw')]"})
    with pytest.raises(RefusedError, match=key):
        case.create(others=others)


def test_a_folder_of_specifications_that_config_toml_names_is_closed(case: Case) -> None:
    case.enforce()
    mount = api.Mount(source=str(case.lab.home / "cdi2"), destination="/x", type="bind")
    with pytest.raises(RefusedError, match="given by the mount of"):
        case.create(mounts=[mount])


def test_pods_that_an_engine_tells_take_no_memory(case: Case) -> None:
    """The plugin of the chart may have 128 MiB; 250 pods may have a megabyte of texts each."""

    def resident() -> int:
        found = re.search(r"VmRSS:\s*(\d+)", Path("/proc/self/status").read_text())
        assert found is not None
        return int(found[1]) >> 10

    plugin = case.plugin()
    before = resident()
    for number in range(40):
        pods = [api.PodSandbox(id=f"{number}", name="p", annotations={"a": "x" * 250_000})]
        running = api.Container(
            id=f"{number}", pod_sandbox_id=f"{number}", name="c", state=RUNNING,
            env=["x" * 3_500_000], linux=api.LinuxContainer(**device(0)),
        )  # fmt: skip
        told = api.SynchronizeRequest(pods=pods, containers=[running], more=number < 39)
        plugin.synchronize(told.SerializeToString())
    assert resident() - before < 60
    record = gpu_record.read(case.record_folder, of_the_past=True)
    assert record is not None
    assert [(each.id, each.pod, each.container) for each in record.holdings] == [
        (f"{number}", "p", "c") for number in range(40)
    ]


def test_so_many_variables_that_an_answer_would_be_late_are_refused(case: Case) -> None:
    env = [f"NVIDIA_{number}=" for number in range(50_001)]
    with pytest.raises(RefusedError, match="the container has more than 50000 variables"):
        case.create(env=env)
    case.create(env=[*env[1:], *(f"OTHER_{number}=" for number in range(50_000))])
