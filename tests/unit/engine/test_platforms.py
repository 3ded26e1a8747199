# SPDX-License-Identifier: Apache-2.0
"""Platforms: the right file is edited, or none, with exact advice on what to do."""

from dataclasses import replace
from pathlib import Path

import pytest

from nvct.engine import containerd, detect, status
from nvct.engine.model import Engine, Handler
from tests.unit.engine.fake_host import FakeHost

K3S = "/var/lib/rancher/k3s/agent/etc/containerd"
RKE2 = "/var/lib/rancher/rke2/agent/etc/containerd"
CONTAINERD = "/usr/bin/containerd"
V3 = "version = 3\nroot = '/var/lib/x'\n"


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def _only(host: FakeHost) -> Engine:
    (engine,) = detect.engines(host.files, host.ask, host.proc)
    assert all(len(text) <= 250 for text in engine.advice)
    return engine


def _k3s(host: FakeHost, config: str, *, folder: str = K3S, unit: str = "k3s") -> Engine:
    host.file(f"{folder}/config.toml", config)
    name = "rke2" if "rke2" in folder else "k3s"
    host.process(
        30, f"/var/lib/rancher/{name}/data/0f1e/bin/containerd",
        ["containerd", "-c", f"{folder}/config.toml", "-a", "/run/k3s/containerd/containerd.sock"],
        cgroup=f"0::/system.slice/{unit}.service",
    )  # fmt: skip
    return _only(host)


def test_k3s_without_drop_ins_is_left_to_find_the_runtime_itself(host: FakeHost) -> None:
    engine = _k3s(host, 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n', unit="k3s-agent")
    assert (engine.platform, engine.leave) == ("k3s", True)
    text = "\n".join(engine.advice)
    assert "systemctl restart k3s-agent.service" in text
    assert f'{K3S}/config.toml.tmpl after a first line {{{{ template "base" . }}}}' in text
    assert "--default-runtime=nvidia" in text


def test_k3s_that_imports_drop_ins_gets_one(host: FakeHost) -> None:
    engine = _k3s(host, f'imports = ["{K3S}/config-v3.toml.d/*.toml"]\n{V3}')
    assert not engine.leave
    assert engine.drop_in == f"{K3S}/config-v3.toml.d/99-nvidia.toml"
    assert engine.restart == ("systemctl", "restart", "k3s.service")


def test_a_pattern_of_imports_does_not_match_files_in_deeper_folders(host: FakeHost) -> None:
    engine = _k3s(host, f'imports = ["{K3S}/*.toml"]\n{V3}')
    assert (engine.leave, engine.drop_in) == (True, None)


def test_the_file_that_k3s_makes_is_not_edited(host: FakeHost) -> None:
    runtimes = (
        "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\nruntime_type = 'x'\n"
    )
    engine = _k3s(host, f'imports = ["{K3S}/config-v3.toml.d/*.toml"]\n{V3}{runtimes}')
    handler = Handler(name="nvidia", path="/usr/bin/nvidia-container-runtime")
    options = replace(status.options_for(engine), handlers=(handler,))
    assert [edit.path for edit in containerd.plan(options, host.files).edits] == [engine.drop_in]


def test_an_old_containerd_of_k3s_would_lose_its_tables_to_a_drop_in(host: FakeHost) -> None:
    host.prints = "containerd github.com/k3s-io/containerd v1.7.26-k3s1"
    imports = f'version = 2\nimports = ["{K3S}/config.toml.d/*.toml"]\n'
    assert _k3s(host, imports).leave


def test_rke2_has_its_own_folder_and_program(host: FakeHost) -> None:
    engine = _k3s(host, V3, folder=RKE2, unit="rke2-agent")
    assert (engine.platform, engine.leave) == ("RKE2", True)
    assert any("rke2 server|agent --default-runtime" in text for text in engine.advice)
    assert any(f"{RKE2}/config-v3.toml.tmpl" in text for text in engine.advice)


def _k0s(host: FakeHost, config: str) -> Engine:
    host.file("/etc/k0s/containerd.toml", config)
    host.process(
        40, "/var/lib/k0s/bin/containerd",
        ["/var/lib/k0s/bin/containerd", "--root=/var/lib/k0s/containerd",
         "--address=/run/k0s/containerd.sock", "--config=/etc/k0s/containerd.toml"],
        cgroup="0::/system.slice/k0sworker.service",
    )  # fmt: skip
    return _only(host)


def test_k0s_that_imports_its_folder_gets_a_drop_in(host: FakeHost) -> None:
    imports = 'imports = ["/etc/k0s/containerd.d/*.toml"]'
    engine = _k0s(host, f"# k0s_managed=true\nversion = 3\n{imports}\n")
    assert (engine.platform, engine.leave, engine.socket) == (
        "k0s", False, "/run/k0s/containerd.sock",
    )  # fmt: skip
    assert engine.drop_in == "/etc/k0s/containerd.d/nvidia.toml"
    assert engine.restart == ("true",)


def test_k0s_that_merges_files_gets_advice_about_its_folder(host: FakeHost) -> None:
    imports = 'imports = ["/run/k0s/containerd-cri.toml"]'
    engine = _k0s(host, f"# k0s_managed=true\nversion = 2\n{imports}\n")
    assert engine.leave
    assert "/etc/k0s/containerd.d/nvidia.toml" in engine.advice[0]


def test_a_file_that_k0s_does_not_manage_is_edited(host: FakeHost) -> None:
    engine = _k0s(host, "version = 2\n")
    assert (engine.platform, engine.leave, engine.drop_in) == ("k0s", False, None)


def test_of_microk8s_the_template_is_edited(host: FakeHost) -> None:
    args = "/var/snap/microk8s/7964/args/containerd.toml"
    host.process(
        50, "/snap/microk8s/7964/bin/containerd",
        ["/snap/microk8s/7964/bin/containerd", "--config", args,
         "--address", "/var/snap/microk8s/common/run/containerd.sock"],
        cgroup="0::/system.slice/snap.microk8s.daemon-containerd.service",
    )  # fmt: skip
    engine = _only(host)
    assert (engine.platform, engine.config, engine.leave) == ("MicroK8s", args, False)
    assert engine.edit == "/var/snap/microk8s/current/args/containerd-template.toml"
    assert engine.drop_in == ""
    assert engine.restart == ("snap", "restart", "microk8s.daemon-containerd")


def test_docker_from_snap_is_left_to_its_own_toolkit(host: FakeHost, tmp_path: Path) -> None:
    image = tmp_path / "core22"
    (image / "etc").mkdir(parents=True)
    host.process(
        60, "/snap/docker/3265/bin/dockerd",
        ["dockerd", "--config-file=/var/snap/docker/3265/config/daemon.json"],
        env={"SNAP_NAME": "docker"}, root=image,
        cgroup="0::/system.slice/snap.docker.dockerd.service",
    )  # fmt: skip
    engine = _only(host)
    assert (engine.platform, engine.leave) == ("snap", True)
    assert engine.config == "/var/snap/docker/3265/config/daemon.json"
    assert any("snap remove docker" in text for text in engine.advice)


@pytest.mark.parametrize("folder", ["/opt/docker-desktop", "/mnt/wsl/docker-desktop"])
def test_docker_desktop_has_no_file_on_this_host(host: FakeHost, folder: str) -> None:
    host.folder(folder)
    engine = _only(host)
    assert (engine.platform, engine.leave, engine.config) == ("Docker Desktop", True, "")
    assert status.of(engine, host.files).state is None


def test_nixos_makes_the_file_itself(host: FakeHost) -> None:
    config = "/nix/store/1y2z-daemon.json"
    host.process(70, "/nix/store/9-moby/bin/dockerd", ["dockerd", f"--config-file={config}"])
    engine = _only(host)
    assert (engine.platform, engine.leave, engine.config) == ("NixOS", True, config)
    assert "hardware.nvidia-container-toolkit.enable = true" in engine.advice[0]


@pytest.mark.parametrize(
    ("files", "platform", "advice", "leave"),
    [
        (["/kind/product_name"], "kind", "containerdConfigPatches", False),
        (["/etc/eks/bootstrap.sh"], "EKS", "bootstrap.sh", False),
        (["/etc/eks/image-credential-provider/config.json"], "EKS", "NodeConfig", False),
        (["/etc/kubernetes/azure.json"], "AKS", "DaemonSet", False),
        (["/home/kubernetes/bin/kubelet"], "GKE", "/home/kubernetes/bin", False),
        (["/etc/os-release:NAME=x\nID=cos\n"], "GKE", "each boot", False),
        (["/etc/os-release:ID=talos\n"], "Talos", "machine.files", True),
        (['/usr/lib/os-release:ID="bottlerocket"\n'], "Bottlerocket", "settings", True),
        (["/etc/os-release:ID=debian\n"], "", "", False),
    ],
    ids=["kind", "eks-al2", "eks-al2023", "aks", "gke-ubuntu", "gke-cos", "talos",
         "bottlerocket", "debian"],
)  # fmt: skip
def test_a_clouds_node_is_known_by_its_files(
    host: FakeHost, files: list[str], platform: str, advice: str, leave: bool
) -> None:
    for file in files:
        path, _, text = file.partition(":")
        host.file(path, text)
    host.process(80, CONTAINERD, [CONTAINERD])
    engine = _only(host)
    assert (engine.platform, engine.leave) == (platform, leave)
    assert advice in "\n".join(engine.advice)


def test_a_faked_platform_does_not_unlock_a_foreign_engine(host: FakeHost) -> None:
    args = "/x/snap/microk8s/containerd.toml"
    host.process(90, "/snap/microk8s/1/bin/containerd", ["containerd", "-c", args], uid=1000)
    assert _only(host).leave


def test_the_status_lists_registered_and_missing_runtimes(host: FakeHost) -> None:
    host.file("/usr/bin/nvidia-container-runtime", mode=0o755)
    host.file(
        "/etc/crio/crio.conf",
        '[crio.runtime]\ndefault_runtime = "nvidia"\n'
        '[crio.runtime.runtimes.nvidia]\nruntime_path = "/usr/bin/nvidia-container-runtime"\n'
        '[crio.runtime.runtimes.gpu]\nruntime_path = "/opt/nvidia-container-runtime.cdi"\n'
        '[crio.runtime.runtimes.crun]\nruntime_path = "/usr/bin/crun"\n',
    )
    host.prints = "crio version 1.34.1"
    host.process(7, "/usr/bin/crio", ["/usr/bin/crio"])
    engine = status.of(_only(host), host.files)
    assert engine.registered == ("gpu", "nvidia")
    assert engine.missing == ("gpu",)
    assert engine.is_default
    assert engine.state is not None
    assert engine.state.cdi is True


def test_a_status_of_a_broken_file_is_a_sentence(host: FakeHost) -> None:
    host.file("/etc/crio/crio.conf", "[crio\n")
    host.process(7, "/usr/bin/crio", ["/usr/bin/crio"])
    engine = status.of(_only(host), host.files)
    assert (engine.state, engine.is_default) == (None, False)
    assert "/etc/crio/crio.conf is not TOML: line 1" in engine.problem


@pytest.mark.parametrize(
    ("name", "path", "expected"),
    [
        ("nvidia", "", True),
        ("gpu", "/usr/local/nvidia/toolkit/nvidia-container-runtime", True),
        ("nvidia", "nvidia-container-runtime", True),
        ("runc", "/usr/bin/runc", False),
        ("crun", "", False),
    ],
    ids=["by-name", "by-path", "by-word", "runc", "crun"],
)
def test_nvidias_handlers_are_recognized_by_their_program(
    name: str, path: str, expected: bool
) -> None:
    assert status.is_nvidia(name, path) == expected


def test_another_users_file_is_not_read_for_a_status(host: FakeHost) -> None:
    host.file("/srv/x.json", '{"runtimes": {"nvidia": {"path": "x"}}}')
    host.process(7, "/usr/bin/dockerd", ["dockerd", "--config-file=/srv/x.json"], uid=4242)
    assert status.of(_only(host), host.files).state is None
