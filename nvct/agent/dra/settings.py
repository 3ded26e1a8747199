# SPDX-License-Identifier: Apache-2.0
"""The settings of the DRA driver: flags and variables are those of NVIDIA's, 25.12."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nvct.agent.core import config_file
from nvct.agent.core.settings import OfNode, Program, option
from nvct.agent.device_plugin import settings as device_plugin
from nvct.agent.mps.place import DEFAULT_ROOT
from nvct.errors import UsageError
from nvct.mig.layout import parse_profile
from nvct.paths import CDI_DYNAMIC_DIR, HOOK_PATH

POD_RESOURCES = "/var/lib/kubelet/pod-resources/kubelet.sock"
FOLDERS = ("registry", "plugins", "cdi_root", "container_driver_root", "mps_root")
EXISTING, ON_DEMAND = "existing", "on-demand"
"""Offer the MIG devices that exist; or all that a GPU could have, made for claims."""
UNIFORM, MIXED = "uniform", "mixed"
"""Whether all shares of one GPU's memory have the same size."""
NO_EFFECT = "No effect"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(OfNode):
    """The settings.

    Attributes:
        pod_uid: part of the sockets' names, so that two pods do not share them.
        mig_profiles: those made on demand; () is all of them.
        excluded: GPUs that are not offered: indices, UUIDs, and patterns of models.
    """

    node_name: str = option("", "The name of this node; default: the host's name")
    cdi_root: str = option(CDI_DYNAMIC_DIR, "The folder of CDI specifications")
    driver_root: str = option(
        "/", "The driver's root on the host", flags="nvidia-driver-root host_driver-root",
        env="NVIDIA_DRIVER_ROOT HOST_DRIVER_ROOT",
    )  # fmt: skip
    dev_root: str = option(
        "", "The root of /dev on the host; default: the driver's root", flags="nvidia-dev-root",
        env="NVIDIA_DEV_ROOT",
    )  # fmt: skip
    container_driver_root: str = option(
        "/driver-root", "The driver's root in this container",
        env="DRIVER_ROOT_CTR_PATH CONTAINER_DRIVER_ROOT",
    )  # fmt: skip
    hook_path: str = option(
        HOOK_PATH, "The path of the hook program on the host",
        flags="nvidia-cdi-hook-path nvidia-ctk-path", env="NVIDIA_CDI_HOOK_PATH NVIDIA_CTK_PATH",
    )  # fmt: skip
    registry: str = option(
        "/var/lib/kubelet/plugins_registry", "The kubelet's folder of registration sockets",
        flags="kubelet-registrar-directory-path", env="KUBELET_REGISTRAR_DIRECTORY_PATH",
    )  # fmt: skip
    plugins: str = option(
        "/var/lib/kubelet/plugins", "The kubelet's folder of plugins' own files",
        flags="kubelet-plugins-directory-path", env="KUBELET_PLUGINS_DIRECTORY_PATH",
    )  # fmt: skip
    kubeconfig: str = option("", "A kubeconfig file; default: the pod's service account")
    pod_uid: str = option(
        "", "The uid of this pod, so that an older and a newer one can run at the same time"
    )
    mig: str = option(
        EXISTING,
        "Offer the MIG devices that exist, or make them for claims on GPUs in MIG mode",
        flags="mig-devices", env="MIG_DEVICES", choices=(EXISTING, ON_DEMAND),
    )  # fmt: skip
    mig_profiles: tuple[str, ...] = option(
        (), "The MIG profiles that are made on demand, separated by commas; default: all"
    )
    mps_root: str = option(
        DEFAULT_ROOT, "The folder of MPS on the host, for claims that share by MPS"
    )
    memory_shares: str = option(
        "",
        "Let claims share a GPU's memory by MPS: uniform for shares of one size on each GPU, "
        "mixed for any sizes, whose limits programs can evade; default: no shares",
        choices=("", UNIFORM, MIXED),
    )
    device_metadata: bool = option(
        False, "Give containers files with the attributes of their devices (KEP-5304)"
    )
    config_file: str = option(
        "", "A config file of the device plugin, v1; only resources.exclude has an effect"
    )
    namespace: str = option("", f"{NO_EFFECT}: the driver has no objects in a namespace")
    image_name: str = option("", f"{NO_EFFECT}: the driver starts no pods")
    image_pull_secrets: str = option("", f"{NO_EFFECT}: the driver starts no pods")
    image_pull_policy: str = option("", f"{NO_EFFECT}: the driver starts no pods")
    service_account_name: str = option("", f"{NO_EFFECT}: the driver starts no pods")
    app_name: str = option("", f"{NO_EFFECT}: the driver starts no pods", env="HELM_CHART_NAME")
    host_root: str = option("", f"{NO_EFFECT}: GPUs for virtual machines are not supported")
    healthcheck_port: str = option("", f"{NO_EFFECT}: see `nvct agent --ready`")
    http_endpoint: str = option("", f"{NO_EFFECT}: the agent serves metrics: --listen")
    metrics_path: str = option("", f"{NO_EFFECT}: the agent serves metrics: --listen")
    additional_xids_to_ignore: str = option("", f"{NO_EFFECT}: see DP_DISABLE_HEALTHCHECKS")
    consumable_shares: str = option("", f"{NO_EFFECT}: see --memory-shares")
    default_config: str = option("", f"{NO_EFFECT}: every GPU is offered")
    feature_gates: str = option("", f"{NO_EFFECT}: the driver has no feature gates")
    kube_api_qps: str = option("", f"{NO_EFFECT}: the driver sends few requests")
    kube_api_burst: str = option("", f"{NO_EFFECT}: the driver sends few requests")
    excluded: tuple[str, ...] = ()

    @property
    def pod_resources(self) -> str:
        """Return the path of the kubelet's PodResources socket."""
        own = f"{os.path.dirname(self.plugins)}/pod-resources/kubelet.sock"
        return own if os.path.exists(own) else POD_RESOURCES

    @property
    def specs(self) -> device_plugin.Settings:
        """Return the settings for CDI specifications, which are the device plugin's."""
        return device_plugin.Settings(
            driver_root=self.driver_root,
            dev_root=self.dev_root or self.driver_root,
            container_driver_root=self.container_driver_root,
            hook_path=self.hook_path,
        )


PROGRAM = Program(
    name="gpu-kubelet-plugin",
    title="NVIDIA DRA Driver for GPUs",
    version="25.12.0",
    summary="Offers NVIDIA's GPUs by dynamic resource allocation (DRA).",
    settings=Settings,
)


def resolve(words: Sequence[str], env: Mapping[str, str]) -> tuple[Settings, tuple[str, ...]]:
    """Return the settings, and warnings."""
    values, warnings = config_file.resolve(PROGRAM, words, env)
    known = {name: value for name, value in values.items() if value}
    for name in FOLDERS:
        if not os.path.isabs(known.get(name, "/")):
            raise UsageError(f"{known[name]!r} is not an absolute path of a folder")
    for name in known.get("mig_profiles", ()):
        parse_profile(name)
    return Settings(**known), warnings
