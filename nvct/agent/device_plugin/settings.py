# SPDX-License-Identifier: Apache-2.0
"""The settings of the device plugin, after command line, environment and config file."""

from __future__ import annotations

from dataclasses import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from nvct.agent.config_file import NamePattern, Replicas

STRATEGIES = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri", "auto")
CDI = frozenset({"cdi-annotations", "cdi-cri"})
MIG_STRATEGIES = ("none", "single", "mixed")
ID_STRATEGIES = ("uuid", "index")
POLICIES = ("distributed", "packed", "distinct")
DISCOVERY = ("auto", "nvml", "tegra")
FOLDER = "/var/lib/kubelet/device-plugins"
VENDOR = "k8s.device-plugin.nvidia.com"
"""Of the CDI devices that containers get."""
CDI_GPU = f"{VENDOR}/gpu"
"""The kind of their GPUs and MIG devices."""
DRA_VENDOR = "k8s.gpu.nvidia.com"
"""Same, for dynamic resource allocation."""
SPEC_FOLDER = "/var/run/cdi"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings; the names and defaults are those of the options.

    Attributes:
        driver_root: on the host, as dev_root.
        container_driver_root: where the driver root is mounted here.
        one_each: refuse a container that asks for more than one replica.
        mps: whether replicas are shared by MPS, else by time.
        mps_root: on the host, where MPS has its folders.
        config_content: the bytes of the config file.
    """

    mig_strategy: str = "none"
    fail_on_init_error: bool = True
    driver_root: str = "/"
    dev_root: str = "/"
    container_driver_root: str = "/driver-root"
    pass_device_specs: bool = False
    device_list_strategy: tuple[str, ...] = ("envvar",)
    device_id_strategy: str = "uuid"
    gdrcopy_enabled: bool = False
    gds_enabled: bool = False
    mofed_enabled: bool = False
    cdi_annotation_prefix: str = "cdi.k8s.io/"
    hook_path: str = "/usr/bin/nvidia-ctk"
    shared_devices_allocation_policy: str = "distributed"
    device_discovery_strategy: str = "auto"
    imex_channel_ids: tuple[int, ...] = ()
    imex_required: bool = False
    kubelet_socket: str = f"{FOLDER}/kubelet.sock"
    startup_taint: str = ""
    node_name: str = ""
    kubeconfig: str = ""
    health_recovery: str = "auto"
    health_probation: str = ""
    xid_table: str = ""
    cdi_feature_flags: tuple[str, ...] = ()
    cdi_disable_hooks: tuple[str, ...] = ()
    gpu_names: tuple[NamePattern, ...] = ()
    mig_names: tuple[NamePattern, ...] = ()
    excluded: tuple[str, ...] = ()
    replicas: tuple[Replicas, ...] = ()
    one_each: bool = False
    mps: bool = False
    mps_root: str = ""
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
