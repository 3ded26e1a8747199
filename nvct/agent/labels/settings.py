# SPDX-License-Identifier: Apache-2.0
"""The settings of the labels: flags, aliases and precedence are those of NVIDIA's, 0.20."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nvct.agent.core import config_file
from nvct.agent.core.config_file import UNSHARED, NamePattern, Sharing
from nvct.agent.core.settings import OfNode, Program, duration_s, option

MIG_STRATEGIES = ("none", "single", "mixed")
DISCOVERY = ("auto", "nvml", "tegra", "vfio")
VFIO = "vfio"
FEATURES_FILE = "/etc/kubernetes/node-feature-discovery/features.d/gfd"
ECC, MODELS, MEMORY, PCI = "ecc", "models", "gpu-memory", "pci"
PRESENT, OPERATOR = "present", "operator"
EXTRA = (ECC, MODELS, MEMORY, PCI, PRESENT, OPERATOR)
"""Groups of labels that NVIDIA's program does not have: gpu.ecc; a set for each model if there are
several; gpu-memory, as guides of 2018 spell gpu.memory; Node Feature Discovery's label of a node
with an NVIDIA device on its PCI bus, for clusters without Node Feature Discovery; gpu.present,
which the GPU operator sets on such a node; gpu.deploy.*, by which it chooses what runs there."""
OUTPUTS = ("label_node", "use_node_feature_api", "output_file")
"""The options that choose an output."""
IN_AGENT = "10m"  # The agent's interval: on 5,000 nodes a request each minute would be 83 a second


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(OfNode):
    """The settings.

    Attributes:
        sleep_interval: a duration as Go writes it, or "infinite".
        label_node: whether labels are written to this machine's Node; else to a NodeFeature object
            if use_node_feature_api is set, else to output_file.
    """

    mig_strategy: str = option(
        "none", "How MIG devices are labelled", env="GFD_MIG_STRATEGY MIG_STRATEGY",
        key="flags.migStrategy", choices=MIG_STRATEGIES,
    )  # fmt: skip
    fail_on_init_error: bool = option(
        True, "End if there is no driver; else wait for it",
        env="GFD_FAIL_ON_INIT_ERROR FAIL_ON_INIT_ERROR", key="flags.failOnInitError",
    )  # fmt: skip
    oneshot: bool = option(
        False, "Label once, and end", env="GFD_ONESHOT", key="flags.gfd.oneshot"
    )
    no_timestamp: bool = option(
        False, "Do not write the label with the time",
        env="GFD_NO_TIMESTAMP", key="flags.gfd.noTimestamp",
    )  # fmt: skip
    sleep_interval: str = option(
        "60s", "The longest time until labels are written again, e.g. 90s, or infinite",
        env="GFD_SLEEP_INTERVAL", key="flags.gfd.sleepInterval", kind="duration",
    )  # fmt: skip
    output_file: str = option(
        FEATURES_FILE, "A file for the labels; empty: the standard output",
        flags="output-file output o", env="GFD_OUTPUT_FILE", key="flags.gfd.outputFile",
    )  # fmt: skip
    machine_type_file: str = option(
        "/sys/class/dmi/id/product_name", "A file with the name of the machine's product",
        env="GFD_MACHINE_TYPE_FILE", key="flags.gfd.machineTypeFile",
    )  # fmt: skip
    config_file: str = option("", "A config file, v1", env="GFD_CONFIG_FILE CONFIG_FILE")
    use_node_feature_api: bool = option(
        True, "Write a NodeFeature object, for Node Feature Discovery, instead of a file",
        env="GFD_USE_NODE_FEATURE_API USE_NODE_FEATURE_API", key="flags.useNodeFeatureAPI",
    )  # fmt: skip
    device_discovery_strategy: str = option(
        "auto", "How devices are found", key="flags.deviceDiscoveryStrategy", choices=DISCOVERY
    )
    container_driver_root: str = option(
        "/driver-root", "The driver's root in this container",
        flags="driver-root-ctr-path container-driver-root",
        env="DRIVER_ROOT_CTR_PATH CONTAINER_DRIVER_ROOT", key="flags.plugin.containerDriverRoot",
    )  # fmt: skip
    kubeconfig: str = option("", "A kubeconfig file; default: the pod's service account")
    kube_api_qps: str = option("", "No effect: there is one request for each change")
    kube_api_burst: str = option("", "No effect: there is one request for each change")
    namespace: str = option("default", "The namespace of the NodeFeature object")
    node_name: str = option("", "The name of this node; default: the host's name")
    pod_name: str = option("", "The name of this pod, which then owns the NodeFeature object")
    label_node: bool = option(
        False, "Write the labels to this node, without Node Feature Discovery",
        env="GFD_LABEL_NODE",
    )  # fmt: skip
    remove_labels: bool = option(
        False, "Remove the labels that were written, and end", env="GFD_REMOVE_LABELS"
    )
    labels_file: str = option(
        "", "A file with further labels: KEY: VALUE, or KEY: @LABEL for another label's value",
        env="GFD_LABELS_FILE",
    )  # fmt: skip
    extra_labels: tuple[str, ...] = option(
        (ECC, MODELS, PRESENT), "Groups of labels that NVIDIA's program does not have",
        env="GFD_EXTRA_LABELS", choices=(*EXTRA, ""),
    )  # fmt: skip
    gpu_names: tuple[NamePattern, ...] = ()
    mig_names: tuple[NamePattern, ...] = ()
    excluded: tuple[str, ...] = ()
    sharing: Sharing = UNSHARED

    @property
    def output(self) -> tuple[object, ...]:
        """Return what determines where labels are written to."""
        return (
            self.label_node, self.use_node_feature_api, self.output_file, self.kubeconfig,
            self.namespace, self.node_name, self.pod_name, self.oneshot, self.sleep_interval,
        )  # fmt: skip


PROGRAM = Program(
    name="gpu-feature-discovery",
    title="GPU Feature Discovery",
    version="0.20.0",
    summary="Labels this node with what its NVIDIA GPUs are.",
    settings=Settings,
)


def resolve(
    words: Sequence[str], env: Mapping[str, str], *, in_agent: bool = False
) -> tuple[Settings, tuple[str, ...]]:
    """Return the settings, and warnings.

    In the agent, other defaults hold: it waits for a driver, checks its labels every ten minutes,
    and labels its Node unless a setting chooses an output.
    """
    known, warnings = config_file.resolve(PROGRAM, words, env)
    if in_agent:
        known.setdefault("fail_on_init_error", False)
        known.setdefault("sleep_interval", IN_AGENT)
        if not any(name in known for name in OUTPUTS):
            known["label_node"] = True
    settings = Settings(**known)
    seconds(settings.sleep_interval)
    return settings, warnings


INFINITE = "infinite"


def seconds(text: str) -> float:
    """Return an interval in seconds, `math.inf` for infinite; UsageError if it is malformed."""
    return math.inf if text == INFINITE else duration_s(text, "e.g. 60s, 1m30s, or infinite")
