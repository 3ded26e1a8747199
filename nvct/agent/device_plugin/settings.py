# SPDX-License-Identifier: Apache-2.0
"""The settings of the device plugin: flags, aliases and precedence are those of NVIDIA's, 0.20."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nvct.agent.core import config_file
from nvct.agent.core.config_file import UNSHARED, NamePattern, Sharing
from nvct.agent.core.settings import OfNode, Program, option
from nvct.errors import UsageError

AUTO = "auto"
STRATEGIES = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri", AUTO)
CDI = frozenset({"cdi-annotations", "cdi-cri"})
MIG_STRATEGIES = ("none", "single", "mixed")
ID_STRATEGIES = ("uuid", "index")
POLICIES = ("distributed", "packed", "distinct")
DISCOVERY = ("auto", "nvml", "tegra")
FOLDER = "/var/lib/kubelet/device-plugins"
VENDOR = "k8s.device-plugin.nvidia.com"  # Of the CDI devices that containers get
CDI_GPU = f"{VENDOR}/gpu"  # The kind of their GPUs and MIG devices
DRA_VENDOR = "k8s.gpu.nvidia.com"  # Same, for dynamic resource allocation
SPEC_FOLDER = "/var/run/cdi"
RECOVERY = ("auto", "never")  # Whether a device can become healthy again


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(OfNode):
    """The settings."""

    mig_strategy: str = option(
        "none", "How MIG devices are offered", key="flags.migStrategy", choices=MIG_STRATEGIES
    )
    fail_on_init_error: bool = option(
        True, "End if there is no driver; else wait for it", key="flags.failOnInitError"
    )
    driver_root: str = option(
        "/", "The driver's root on the host", flags="driver-root nvidia-driver-root",
        env="NVIDIA_DRIVER_ROOT", key="flags.nvidiaDriverRoot",
    )  # fmt: skip
    dev_root: str = option(
        "/", "The root of /dev on the host; default: the driver's root",
        flags="dev-root nvidia-dev-root", env="NVIDIA_DEV_ROOT", key="flags.nvidiaDevRoot",
        shown="",
    )  # fmt: skip
    pass_device_specs: bool = option(
        False, "Give the kubelet the device nodes too", key="flags.plugin.passDeviceSpecs"
    )
    device_list_strategy: tuple[str, ...] = option(
        ("envvar",), "How the runtime learns the devices; can be repeated",
        key="flags.plugin.deviceListStrategy", choices=STRATEGIES,
    )  # fmt: skip
    device_id_strategy: str = option(
        "uuid", "The form of the devices' ids",
        key="flags.plugin.deviceIDStrategy", choices=ID_STRATEGIES,
    )  # fmt: skip
    gdrcopy_enabled: bool = option(False, "Give containers GDRCopy", key="flags.gdrcopyEnabled")
    gds_enabled: bool = option(False, "Give containers GPUDirect Storage", key="flags.gdsEnabled")
    mofed_enabled: bool = option(False, "Give containers MOFED", key="flags.mofedEnabled")
    cdi_annotation_prefix: str = option(
        "cdi.k8s.io/", "The prefix of annotations with CDI names",
        key="flags.plugin.cdiAnnotationPrefix",
    )  # fmt: skip
    hook_path: str = option(
        "/usr/bin/nvidia-ctk", "The path of the hook program on the host",
        flags="nvidia-cdi-hook-path nvidia-ctk-path", env="NVIDIA_CDI_HOOK_PATH NVIDIA_CTK_PATH",
        key="flags.plugin.nvidiaCTKPath",
    )  # fmt: skip
    container_driver_root: str = option(
        "/driver-root", "The driver's root in this container",
        flags="driver-root-ctr-path container-driver-root",
        env="DRIVER_ROOT_CTR_PATH CONTAINER_DRIVER_ROOT", key="flags.plugin.containerDriverRoot",
    )  # fmt: skip
    mps_root: str = option("", "The folder of MPS on the host", key="flags.mpsRoot")
    shared_devices_allocation_policy: str = option(
        "distributed", "How the GPU of a replica or MIG device is chosen",
        key="flags.plugin.sharedDevicesAllocationPolicy", choices=POLICIES,
    )  # fmt: skip
    device_discovery_strategy: str = option(
        "auto", "How devices are found", key="flags.deviceDiscoveryStrategy", choices=DISCOVERY
    )
    imex_channel_ids: tuple[int, ...] = option(
        (), "IMEX channels of every container: none or 0", key="imex.channelIDs"
    )
    imex_required: bool = option(False, "End if a channel is missing", key="imex.required")
    kubelet_socket: str = option(
        f"{FOLDER}/kubelet.sock", "The kubelet's socket; empty: serve without registration"
    )
    startup_taint: str = option(
        "", "Key of a taint of this node, removed when pods can have its devices",
        key="flags.plugin.startupTaint",
    )  # fmt: skip
    node_name: str = option("", "This node's name, for the taint; default: the hostname")
    kubeconfig: str = option(
        "", "A kubeconfig file, for the taint; default: the pod's service account"
    )
    health_recovery: str = option(
        "auto", "Whether a device can recover; never does as NVIDIA's plugin", choices=RECOVERY
    )
    health_probation: str = option(
        "", "Seconds without an error before a device is offered again; default: 60"
    )
    health_preflight: str = option(
        "none", "Checks of each GPU before it is offered: none, default, or CHECK=EFFECT,..."
    )
    xid_table: str = option(
        "", "A file with the actions of XIDs, which has precedence over nvct's own"
    )
    config_file: str = option("", "A config file, v1")
    cdi_feature_flags: tuple[str, ...] = option((), "Feature flags of CDI specifications")
    cdi_disable_hooks: tuple[str, ...] = option(
        (), "Hooks that CDI specifications leave out, or all"
    )
    gpu_names: tuple[NamePattern, ...] = ()
    mig_names: tuple[NamePattern, ...] = ()
    excluded: tuple[str, ...] = ()  # GPUs: indices, UUIDs, and patterns of models
    sharing: Sharing = UNSHARED
    config_content: bytes = field(default=b"", compare=False, repr=False)

    @property
    def uses_cdi(self) -> bool:
        """Return whether containers get devices by CDI."""
        return bool(CDI & set(self.device_list_strategy))

    @property
    def features(self) -> Mapping[str, bool]:
        """Return which features beside GPUs containers get, by the CDI class of each."""
        return {
            "gdrcopy": self.gdrcopy_enabled,
            "gds": self.gds_enabled,
            "mofed": self.mofed_enabled,
        }


PROGRAM = Program(
    name="nvidia-device-plugin",
    title="NVIDIA Device Plugin",
    version="0.20.0",
    summary="Offers NVIDIA's GPUs to the kubelet.",
    settings=Settings,
)


def resolve(words: Sequence[str], env: Mapping[str, str]) -> tuple[Settings, tuple[str, ...]]:
    """Return the settings of command line, environment and config file, and warnings."""
    known, warnings = config_file.resolve(PROGRAM, words, env)
    if AUTO in (strategies := known.get("device_list_strategy", ())) and len(strategies) > 1:
        raise UsageError("--device-list-strategy=auto cannot be combined with other strategies")
    if known.get("kubelet_socket"):
        known["kubelet_socket"] = os.path.abspath(known["kubelet_socket"])
    if not known.get("dev_root"):
        known["dev_root"] = known.get("driver_root", "/")
    if known.get("imex_channel_ids", ()) not in ((), (0,)):
        raise UsageError("the IMEX channels must be none or 0", hint="use --imex-channel-ids=0")
    settings = Settings(**known)
    if settings.sharing.uses_mps:
        _check_mps(settings)
    return settings, warnings


def _check_mps(settings: Settings) -> None:
    """Raise UsageError if settings exclude MPS, in the incumbent's words."""
    if settings.mig_strategy == "mixed":
        raise UsageError(
            "using --mig-strategy=mixed is not supported with MPS",
            hint="share MIG devices by sharing.timeSlicing",
        )
    if not settings.mps_root:
        raise UsageError(
            "using MPS requires --mps-root to be specified",
            hint="set MPS_ROOT=/run/nvidia/mps, a folder of the host",
        )
