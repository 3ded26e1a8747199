# SPDX-License-Identifier: Apache-2.0
"""The options of `gpu-feature-discovery`: names, aliases and precedence of NVIDIA's, 0.20."""

from __future__ import annotations

from dataclasses import fields

from nvct.agent import config_file
from nvct.agent.labels import duration
from nvct.agent.labels.compute import EXTRA
from nvct.agent.labels.facts import Rules
from nvct.agent.labels.settings import DISCOVERY, MIG_STRATEGIES, Settings
from nvct.agent.option_table import Option, Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GFD = "flags.gfd"
OUTPUTS = ("label-node", "use-node-feature-api", "output-file")
"""Options of which each names where labels are written to."""
IN_AGENT = "10m"
"""The agent's interval: on 5,000 nodes a request each minute would be 83 a second."""

OPTIONS = (
    Option(
        flags=("mig-strategy",), env=("GFD_MIG_STRATEGY", "MIG_STRATEGY"), field="mig_strategy",
        key="flags.migStrategy", choices=MIG_STRATEGIES, help="How MIG devices are labelled",
    ),
    Option(
        flags=("fail-on-init-error",), env=("GFD_FAIL_ON_INIT_ERROR", "FAIL_ON_INIT_ERROR"),
        field="fail_on_init_error", key="flags.failOnInitError", kind="switch",
        help="End if there is no driver; else wait for it",
    ),
    Option(
        flags=("oneshot",), env=("GFD_ONESHOT",), field="oneshot", key=f"{GFD}.oneshot",
        kind="switch", help="Label once, and end",
    ),
    Option(
        flags=("no-timestamp",), env=("GFD_NO_TIMESTAMP",), field="no_timestamp",
        key=f"{GFD}.noTimestamp", kind="switch", help="Do not write the label with the time",
    ),
    Option(
        flags=("sleep-interval",), env=("GFD_SLEEP_INTERVAL",), field="sleep_interval",
        key=f"{GFD}.sleepInterval", kind="duration",
        help="The longest time until labels are written again, e.g. 90s, or infinite",
    ),
    Option(
        flags=("output-file", "output", "o"), env=("GFD_OUTPUT_FILE",), field="output_file",
        key=f"{GFD}.outputFile", help="A file for the labels; empty: the standard output",
    ),
    Option(
        flags=("machine-type-file",), env=("GFD_MACHINE_TYPE_FILE",), field="machine_type_file",
        key=f"{GFD}.machineTypeFile", help="A file with the name of the machine's product",
    ),
    Option(
        flags=("config-file",), env=("GFD_CONFIG_FILE", "CONFIG_FILE"), field="",
        help="A config file, v1",
    ),
    Option(
        flags=("use-node-feature-api",),
        env=("GFD_USE_NODE_FEATURE_API", "USE_NODE_FEATURE_API"), field="use_node_feature_api",
        key="flags.useNodeFeatureAPI", kind="switch",
        help="Write a NodeFeature object, for Node Feature Discovery, instead of a file",
    ),
    Option(
        flags=("device-discovery-strategy",), env=("DEVICE_DISCOVERY_STRATEGY",),
        field="device_discovery_strategy", key="flags.deviceDiscoveryStrategy", choices=DISCOVERY,
        help="How devices are found",
    ),
    Option(
        flags=("driver-root-ctr-path", "container-driver-root"),
        env=("DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"), field="container_driver_root",
        key="flags.plugin.containerDriverRoot", help="The driver's root in this container",
    ),
    Option(
        flags=("kubeconfig",), env=("KUBECONFIG",), field="kubeconfig",
        help="A kubeconfig file; default: the pod's service account",
    ),
    Option(
        flags=("kube-api-qps",), env=("KUBE_API_QPS",), field="",
        help="No effect: there is one request for each change",
    ),
    Option(
        flags=("kube-api-burst",), env=("KUBE_API_BURST",), field="", help="No effect, same",
    ),
    Option(
        flags=("namespace",), env=("NAMESPACE",), field="namespace",
        help="The namespace of the NodeFeature object",
    ),
    Option(
        flags=("node-name",), env=("NODE_NAME",), field="node_name",
        help="The name of this node; default: the host's name",
    ),
    Option(
        flags=("pod-name",), env=("POD_NAME",), field="pod_name",
        help="The name of this pod, which then owns the NodeFeature object",
    ),
    Option(
        flags=("label-node",), env=("GFD_LABEL_NODE",), field="label_node", kind="switch",
        help="Write the labels to this node, without Node Feature Discovery",
    ),
    Option(
        flags=("remove-labels",), env=("GFD_REMOVE_LABELS",), field="remove_labels",
        kind="switch", help="Remove the labels that were written, and end",
    ),
    Option(
        flags=("labels-file",), env=("GFD_LABELS_FILE",), field="labels_file",
        help="A file with further labels: KEY: VALUE, or KEY: @LABEL for another label's value",
    ),
    Option(
        flags=("extra-labels",), env=("GFD_EXTRA_LABELS",), field="extra_labels", kind="words",
        choices=(*EXTRA, ""), help="Groups of labels that NVIDIA's program does not have",
    ),
)  # fmt: skip
TABLE = Table(
    program="gpu-feature-discovery",
    summary="Labels this node with what its NVIDIA GPUs are.",
    options=OPTIONS,
)


def resolve(
    words: Sequence[str], env: Mapping[str, str], *, in_agent: bool = False
) -> tuple[Settings, tuple[str, ...]]:
    """Return the settings, and warnings.

    Without a setting for it, the agent waits for a driver, looks every ten minutes whether its
    labels are still there, and labels its Node unless a setting names another output.

    Raises:
        UsageError, DocumentError: a value is malformed.
    """
    document = config_file.resolve(TABLE, words, env)
    values = dict(document.values)
    if in_agent:
        values.setdefault("fail-on-init-error", False)
        values.setdefault("sleep-interval", IN_AGENT)
        if not any(name in values for name in OUTPUTS):
            values["label-node"] = True
    settings = Settings(
        **TABLE.fields(values),
        gpu_names=document.gpu_names,
        mig_names=document.mig_names,
        excluded=document.excluded,
        sharing=document.sharing,
    )
    duration.seconds(settings.sleep_interval)
    return settings, document.warnings


def rules_of(settings: Settings, timestamp: int) -> Rules:
    """Return what labels depend on.

    Args:
        settings: of the program.
        timestamp: when it has started, in Unix seconds.
    """
    return Rules(
        mig_strategy=settings.mig_strategy,
        sharing=settings.sharing,
        gpu_names=settings.gpu_names,
        mig_names=settings.mig_names,
        timestamp=None if settings.no_timestamp else timestamp,
        extra=frozenset(settings.extra_labels),
    )


def help_text() -> str:
    """Return the text of --help."""
    return TABLE.help_text({field.name: field.default for field in fields(Settings)})
