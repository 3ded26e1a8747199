# SPDX-License-Identifier: Apache-2.0
"""The settings of the labels, after command line, environment and config file."""

from __future__ import annotations

from dataclasses import dataclass

from nvct.agent.labels.compute import ECC, MODELS, PRESENT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.agent.config_file import NamePattern, Sharing

MIG_STRATEGIES = ("none", "single", "mixed")
DISCOVERY = ("auto", "nvml", "tegra", "vfio")
VFIO = "vfio"
FEATURES_FILE = "/etc/kubernetes/node-feature-discovery/features.d/gfd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings; the names and defaults are those of the options.

    Attributes:
        sleep_interval: a duration as Go writes it, or "infinite".
        output_file: "" for the standard output.
        label_node: whether labels are written to the own Node; else to a NodeFeature object if
            use_node_feature_api is set, else to output_file.
        node_name: of the own Node; "" for the host's name.
    """

    mig_strategy: str = "none"
    fail_on_init_error: bool = True
    oneshot: bool = False
    no_timestamp: bool = False
    sleep_interval: str = "60s"
    output_file: str = FEATURES_FILE
    machine_type_file: str = "/sys/class/dmi/id/product_name"
    use_node_feature_api: bool = True
    device_discovery_strategy: str = "auto"
    container_driver_root: str = "/driver-root"
    kubeconfig: str = ""
    namespace: str = "default"
    node_name: str = ""
    pod_name: str = ""
    label_node: bool = False
    remove_labels: bool = False
    labels_file: str = ""
    extra_labels: tuple[str, ...] = (ECC, MODELS, PRESENT)
    gpu_names: tuple[NamePattern, ...] = ()
    mig_names: tuple[NamePattern, ...] = ()
    excluded: tuple[str, ...] = ()
    sharing: Sharing | None = None

    @property
    def output(self) -> tuple[object, ...]:
        """Return what determines where labels are written to."""
        return (
            self.label_node, self.use_node_feature_api, self.output_file, self.kubeconfig,
            self.namespace, self.node_name, self.pod_name, self.oneshot, self.sleep_interval,
        )  # fmt: skip
