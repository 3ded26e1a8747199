# SPDX-License-Identifier: Apache-2.0
"""The settings of `nvidia-mig-manager`: flags and variables are those of NVIDIA's, v0.15.0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nvct.agent.core.settings import OfNode, Program, option

NO_EFFECT = "No effect"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(OfNode):
    """The settings."""

    kubeconfig: str = option("", "A kubeconfig file; default: the pod's service account")
    node_name: str = option(
        "", "The name of this node; default: the host's name", flags="node-name n"
    )
    config_file: str = option(
        "", "A file of configurations besides the built-in ones; the agent ignores CONFIG_FILE",
        flags="config-file f", env="NVCT_MIG_CONFIG_FILE CONFIG_FILE",
    )  # fmt: skip
    default: str = option(
        "", "The configuration of a node without the label; default: it stays as it is",
        flags="default-config", env="NVCT_MIG_DEFAULT_CONFIG",
    )  # fmt: skip
    evicts_pods: bool = option(
        False, "Evict pods whose devices change, instead of refusing the change",
        flags="evict-pods", env="NVCT_MIG_EVICT_PODS",
    )  # fmt: skip
    host_root: str = option(
        "/host", "Where the host's root is mounted",
        flags="host-root-mount m", env="HOST_ROOT_MOUNT",
    )  # fmt: skip
    state_file: str = option(
        "/etc/systemd/system/nvidia-mig-manager.service.d/override.conf",
        "The host's drop-in of nvidia-mig-manager.service; if it exists, it gets the name of "
        "the configuration",
        flags="host-mig-manager-state-file o", env="HOST_MIG_MANAGER_STATE_FILE",
    )  # fmt: skip
    clients_file: str = option(
        "", "A file that lists the host's services that use GPUs, in systemd-services",
        flags="gpu-clients-file g", env="GPU_CLIENTS_FILE",
    )  # fmt: skip
    stops_clients: bool = option(
        False, "Stop the services of --gpu-clients-file before a change, and start them after it",
        flags="with-shutdown-host-gpu-clients d", env="WITH_SHUTDOWN_HOST_GPU_CLIENTS",
    )  # fmt: skip
    reboots: bool = option(
        False, "Reboot the node if the MIG mode cannot be changed otherwise",
        flags="with-reboot r", env="WITH_REBOOT",
    )  # fmt: skip
    driver_root: str = option(
        "/run/nvidia/driver", "Where the driver's root is mounted; / if that is not a folder",
        flags="driver-root-ctr-path a", env="DRIVER_ROOT_CTR_PATH",
    )  # fmt: skip
    nvidia_driver_root: str = option(
        "", NO_EFFECT, flags="nvidia-driver-root driver-root t",
        env="NVIDIA_DRIVER_ROOT DRIVER_ROOT",
    )  # fmt: skip
    dev_root: str = option("", NO_EFFECT, flags="dev-root b", env="NVIDIA_DEV_ROOT")
    dev_root_ctr_path: str = option("", NO_EFFECT, flags="dev-root-ctr-path j")
    cdi_enabled: bool = option(False, NO_EFFECT)
    nvidia_cdi_hook_path: str = option("", NO_EFFECT)
    reconfigure_script: str = option("", NO_EFFECT, flags="reconfigure-script s")
    host_nvidia_dir: str = option("", NO_EFFECT, flags="host-nvidia-dir i")
    host_kubelet_systemd_service: str = option(
        "", f"{NO_EFFECT}: the kubelet is never restarted",
        flags="host-kubelet-systemd-service k",
    )  # fmt: skip
    default_gpu_clients_namespace: str = option(
        "", f"{NO_EFFECT}: nvct looks for processes, not pods",
        flags="default-gpu-clients-namespace p",
    )  # fmt: skip


PROGRAM = Program(
    name="nvidia-mig-manager",
    title="NVIDIA MIG Manager",
    version="0.15.0",
    summary="Gives this node's GPUs the MIG configuration that the Node's label names.",
    settings=Settings,
)


def resolve(words: Sequence[str], env: Mapping[str, str]) -> tuple[Settings, tuple[str, ...]]:
    """Return the settings; there are no warnings."""
    return Settings(**PROGRAM.values(words, env)), ()
