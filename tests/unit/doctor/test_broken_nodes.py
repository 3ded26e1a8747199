# SPDX-License-Identifier: Apache-2.0
"""Each check beside discovery: a host with its fault, and the same host in order."""

import json
import time
from pathlib import Path

import pytest

from nvct.doctor import gpu_health, hardware, incumbent, kubelet, parts, security
from nvct.doctor.node import Log, kernel_log
from nvct.doctor.reasons import Reason
from nvct.kernel.kmsg import RECORD_LIMIT
from tests.unit.doctor import broken_nodes as hosts
from tests.unit.doctor.broken_nodes import BUILDERS


@pytest.mark.parametrize("name", BUILDERS)
def test_a_broken_host_fails_with_the_evidence(name: str, tmp_path: Path) -> None:
    reason, build, evidence = BUILDERS[name]

    part = build(tmp_path, True)  # noqa: FBT003 - broken

    (finding, *_) = [one for one in part.findings if one.is_fault]
    assert finding.reason.name == reason
    assert evidence in finding.evidence
    assert finding.evidence in part.lines
    assert finding.to_dict()["remedy"]
    assert part.health == "attention"


@pytest.mark.parametrize("name", BUILDERS)
def test_the_same_host_in_order_has_no_fault(name: str, tmp_path: Path) -> None:
    part = BUILDERS[name][1](tmp_path, False)  # noqa: FBT003 - in order

    assert [one for one in part.findings if one.is_fault] == []
    assert part.lines
    assert part.health != "attention"


def test_an_xid_of_an_application_is_no_fault_and_an_old_one_does_not_count(
    tmp_path: Path,
) -> None:
    application = hosts.health(tmp_path, hosts.said(hosts.xid(31)))
    old = hosts.health(tmp_path, hosts.said(hosts.xid(79), age_s=7200))

    assert [one.severity for one in application.findings] == ["note"]
    assert old.findings == ()
    assert old.lines == ("1 GPU, none with an error that needs an action",)


@pytest.mark.parametrize(
    ("modes", "line"),
    [
        ({}, "no device node of the driver"),
        ({"nvidia0": 0o666, "nvidiactl": 0o666, "nvidia-modeset": 0o600}, "2 device nodes, for"),
        ({"nvidia0": 0o666, "nvidia-uvm": 0o660}, "/dev/nvidia-uvm has mode 0660 and group "),
        ({"nvidia0": 0o660, "nvidiactl": 0o660}, "to open it, like 1 more"),
        ({"nvidia0": 0o600}, "only its owner can open it"),
    ],
)
def test_who_can_open_the_nodes(modes: dict[str, int], line: str, tmp_path: Path) -> None:
    for name, mode in modes.items():
        hosts.write(tmp_path, f"dev/{name}").chmod(mode)

    part = hardware.node_modes(hosts.node_of(tmp_path))

    assert line in part.lines[0]
    assert not any(finding.is_fault for finding in part.findings)


def test_a_gpu_that_the_driver_excludes_is_no_fault(tmp_path: Path) -> None:
    text = "Device Minor: \t 1\nGPU Excluded:\t Yes\n"
    hosts.write(tmp_path, "proc/driver/nvidia/gpus/0000:19:00.0/information", text)

    assert hosts.health(tmp_path).findings == ()


def test_a_gpu_that_cannot_be_started_is_told_in_the_drivers_words(tmp_path: Path) -> None:
    log = hosts.said("NVRM: GPU 0000:18:00.0: RmInitAdapter failed! (0x24:0x65:1416)")

    part = hosts.health(tmp_path, log)

    assert part.findings[0].evidence.startswith("NVRM: GPU 0000:18:00.0: RmInitAdapter failed!")
    assert part.findings[0].is_fault


def test_messages_that_may_not_be_read_are_said_to_be_unseen(tmp_path: Path) -> None:
    part = hosts.health(tmp_path, Log(problem="/dev/kmsg cannot be read: Permission denied"))

    assert [one.severity for one in part.findings] == ["unknown"]
    assert part.lines[-1] == "XIDs: /dev/kmsg cannot be read: Permission denied"
    assert part.health == "ok"


def test_programs_cannot_write_messages_of_the_kernel(tmp_path: Path) -> None:
    at_us = time.monotonic_ns() // 1000
    records = [f"{priority},1,{at_us},-;{hosts.xid(79)}\n" for priority in (3, 11)]
    path = tmp_path / "kmsg"
    path.write_bytes(b"".join(one.encode().ljust(RECORD_LIMIT, b"\0") for one in records))

    log = kernel_log({"NVCT_KMSG": str(path)})

    assert [message.facility for message in log.messages] == [0]
    assert kernel_log({"NVCT_KMSG": str(tmp_path / "no")}).problem


def test_a_yml_file_is_told_though_no_engine_is_known(tmp_path: Path) -> None:
    path = hosts.write(tmp_path, "cdi/nvidia.yml", "{}")

    part = parts.versions_of(hosts.with_specs(tmp_path, path.parent))

    assert part.findings[0].reason is Reason.SpecificationTooNew
    assert part.findings[0].remedy == f"Rename it to {tmp_path}/cdi/nvidia.yaml."


@pytest.mark.parametrize(
    ("nodes", "capabilities", "evidence"),
    [
        (["nvidia0"], "0", ""),
        (["nvidia0", "nvidia1"], "0", "also has nvidia1"),
        (["nvidia1"], "0", "lacks nvidia0 and also has nvidia1"),
        (["nvidia0", "nvidia1"], "000001ffffffffff", ""),
    ],
)
def test_a_container_has_the_devices_that_the_kubelet_gave_it(
    nodes: list[str], capabilities: str, evidence: str, tmp_path: Path
) -> None:
    """A privileged one sees all of the host's."""
    part = hosts.pod_with(tmp_path, nodes, capabilities)

    said = f"the kubelet gave {hosts.UUID} to ml/train/main, which {evidence}"
    assert [finding.evidence for finding in part.findings] == ([said] if evidence else [])


@pytest.mark.parametrize("text", ["", "[]", '{"Data": 1}', '{"Data": {"RegisteredDevices": []}}'])
def test_a_checkpoint_that_is_none_is_no_crash(text: str, tmp_path: Path) -> None:
    statuses = hosts.node_of_kubernetes(tmp_path, [])
    hosts.write(tmp_path, f"{kubelet.FOLDERS[0]}/{kubelet.CHECKPOINT}", text)

    assert kubelet.check(hosts.of_kubernetes(tmp_path, 1, statuses)).lines


@pytest.mark.parametrize(
    "text", ["", "[1]", '{"config": 1}', '{"config": {"Env": 7}}', "[" * 5000]
)
def test_an_image_whose_configuration_is_damaged_asks_for_nothing(
    text: str, tmp_path: Path
) -> None:
    folder = "var/lib/docker/image/overlay2"
    hosts.write(tmp_path, f"{folder}/imagedb/content/sha256/{hosts.ID}", text)
    hosts.write(tmp_path, f"{folder}/repositories.json", text)
    hosts.write(tmp_path, "var/lib/containers/storage/overlay-images/images.json", text)

    part = security.images_ask_for_all(hosts.with_images(tmp_path))

    assert part.health == "absent"


def test_images_are_looked_for_in_dockers_data_root(tmp_path: Path) -> None:
    assert hosts.an_image_that_asks_for_all(tmp_path, broken=True).health == "attention"
    (tmp_path / "data").mkdir()
    (tmp_path / "var/lib/docker").rename(tmp_path / "data/docker")
    hosts.write(tmp_path, "etc/docker/daemon.json", '{"data-root": "/data/docker"}')

    part = security.images_ask_for_all(hosts.with_images(tmp_path))

    assert "nvidia/cuda:12.4-base" in part.lines[0]


def test_a_removed_package_is_not_installed(tmp_path: Path) -> None:
    package = (
        "Package: nvidia-container-toolkit\nStatus: deinstall ok config-files\nVersion: 1.16.0-1\n"
    )
    hosts.write(tmp_path, "var/lib/dpkg/status", f"{package}\nPackage: z\nVersion: 1.2.3\n")

    assert incumbent.check(hosts.node_of(tmp_path)).health == "absent"


def test_a_dra_driver_needs_no_extended_resource(tmp_path: Path) -> None:
    statuses = hosts.node_of_kubernetes(tmp_path, [])
    path = f"{kubelet.FOLDERS[0]}/plugins_registry/gpu.nvidia.com-reg.sock"
    (server,) = hosts.listening(tmp_path, path, alive=True)
    part = kubelet.check(hosts.of_kubernetes(tmp_path, 1, statuses))
    server.close()

    assert not any(one.is_fault for one in part.findings)


def test_a_host_without_a_gpu_lacks_nothing_in_the_kernels_messages(tmp_path: Path) -> None:
    log = Log(problem="/dev/kmsg cannot be read: Operation not permitted")

    part = gpu_health.check(hosts.node_of(tmp_path, log=log))

    assert (part.health, part.findings) == ("absent", ())


@pytest.mark.parametrize(
    ("name", "words", "folder"),
    [
        ("k0s", b"k0s\0worker\0", "var/lib/k0s/kubelet"),
        ("kubelite", b"kubelite\0", "var/snap/microk8s/common/var/lib/kubelet"),
        ("kubelet", b"kubelet\0--root-dir=/data/kubelet\0--v=2\0", "data/kubelet"),
        ("kubelet", b"kubelet\0--root-dir\0/data/kubelet/\0", "data/kubelet"),
    ],
)
def test_the_folder_of_the_kubelet_is_found(
    name: str, words: bytes, folder: str, tmp_path: Path
) -> None:
    hosts.write(tmp_path, "proc/77/comm", f"{name}\n")
    (tmp_path / "proc/77/cmdline").write_bytes(words)
    data = {"Data": {"RegisteredDevices": {"nvidia.com/gpu": ["GPU-1", "GPU-2"]}}}
    hosts.write(tmp_path, f"{folder}/{kubelet.CHECKPOINT}", json.dumps(data))

    part = kubelet.check(hosts.of_kubernetes(tmp_path, 2, []))

    assert part.lines == ("the kubelet has 2 of nvidia.com/gpu",)
    assert part.findings == ()
