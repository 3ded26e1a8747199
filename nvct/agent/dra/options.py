# SPDX-License-Identifier: Apache-2.0
"""The options of `gpu-kubelet-plugin`: names and variables of NVIDIA's DRA driver, 25.12."""

from __future__ import annotations

import os
from dataclasses import fields

from nvct.agent import config_file
from nvct.agent.dra.settings import EXISTING, ON_DEMAND, Settings
from nvct.agent.option_table import Option, Table
from nvct.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NO_EFFECT = "No effect"
FOLDERS = ("registry", "plugins", "cdi_root", "container_driver_root", "mps_root")


def _ignored(name: str, env: str, why: str) -> Option:
    return Option(flags=(name,), env=(env,), field="", help=f"{NO_EFFECT}: {why}")


OPTIONS = (
    Option(
        flags=("node-name",), env=("NODE_NAME",), field="node_name",
        help="The name of this node; default: the host's name",
    ),
    Option(
        flags=("cdi-root",), env=("CDI_ROOT",), field="cdi_root",
        help="The folder of CDI specifications",
    ),
    Option(
        flags=("nvidia-driver-root", "host_driver-root"),
        env=("NVIDIA_DRIVER_ROOT", "HOST_DRIVER_ROOT"), field="driver_root",
        help="The driver's root on the host",
    ),
    Option(
        flags=("nvidia-dev-root",), env=("NVIDIA_DEV_ROOT",), field="dev_root",
        help="The root of /dev on the host; default: the driver's root",
    ),
    Option(
        flags=("container-driver-root",), env=("DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"),
        field="container_driver_root", help="The driver's root in this container",
    ),
    Option(
        flags=("nvidia-cdi-hook-path", "nvidia-ctk-path"),
        env=("NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"), field="hook_path",
        help="The program of hooks on the host",
    ),
    Option(
        flags=("kubelet-registrar-directory-path",), env=("KUBELET_REGISTRAR_DIRECTORY_PATH",),
        field="registry", help="The kubelet's folder of registration sockets",
    ),
    Option(
        flags=("kubelet-plugins-directory-path",), env=("KUBELET_PLUGINS_DIRECTORY_PATH",),
        field="plugins", help="The kubelet's folder of plugins' own files",
    ),
    Option(
        flags=("kubeconfig",), env=("KUBECONFIG",), field="kubeconfig",
        help="A kubeconfig file; default: the pod's service account",
    ),
    Option(
        flags=("pod-uid",), env=("POD_UID",), field="pod_uid",
        help="The uid of this pod, so that an older and a newer one can run at the same time",
    ),
    Option(
        flags=("mig-devices",), env=("MIG_DEVICES",), field="mig", choices=(EXISTING, ON_DEMAND),
        help="Offer the MIG devices that exist, or make them for claims on GPUs in MIG mode",
    ),
    Option(
        flags=("mps-root",), env=("MPS_ROOT",), field="mps_root",
        help="The folder of MPS on the host, for claims that share by MPS",
    ),
    Option(
        flags=("config-file",), env=("CONFIG_FILE",), field="",
        help="A config file of the device plugin, v1; resources.exclude has an effect",
    ),
    _ignored("namespace", "NAMESPACE", "the driver has no objects in a namespace"),
    _ignored("image-name", "IMAGE_NAME", "the driver starts no pods"),
    _ignored("image-pull-secrets", "IMAGE_PULL_SECRETS", "same"),
    _ignored("image-pull-policy", "IMAGE_PULL_POLICY", "same"),
    _ignored("service-account-name", "SERVICE_ACCOUNT_NAME", "same"),
    _ignored("app-name", "HELM_CHART_NAME", "same"),
    _ignored("host-root", "HOST_ROOT", "GPUs for virtual machines are not supported"),
    _ignored("healthcheck-port", "HEALTHCHECK_PORT", "see `nvct agent --ready`"),
    _ignored("http-endpoint", "HTTP_ENDPOINT", "the agent serves metrics: --listen"),
    _ignored("metrics-path", "METRICS_PATH", "same"),
    _ignored("additional-xids-to-ignore", "ADDITIONAL_XIDS_TO_IGNORE", "XIDs set no taint"),
    _ignored("consumable-shares", "CONSUMABLE_SHARES", "a GPU is one device"),
    _ignored("default-config", "DEFAULT_CONFIG", "every GPU is offered"),
    _ignored("feature-gates", "FEATURE_GATES", "there are none"),
    _ignored("kube-api-qps", "KUBE_API_QPS", "there are few requests"),
    _ignored("kube-api-burst", "KUBE_API_BURST", "same"),
)  # fmt: skip
TABLE = Table(
    program="gpu-kubelet-plugin",
    summary="Offers NVIDIA's GPUs by dynamic resource allocation (DRA).",
    options=OPTIONS,
)


def resolve(words: Sequence[str], env: Mapping[str, str]) -> tuple[Settings, tuple[str, ...]]:
    """Return the settings, and warnings.

    Raises:
        UsageError, DocumentError: a value is malformed.
    """
    document = config_file.resolve(TABLE, words, env)
    known = {key: value for key, value in TABLE.fields(document.values).items() if value}
    for name in FOLDERS:
        if not os.path.isabs(known.get(name, "/")):
            raise UsageError(f"{known[name]!r} is no absolute path of a folder")
    return Settings(**known, excluded=document.excluded), document.warnings


def help_text() -> str:
    """Return the text of --help."""
    return TABLE.help_text({field.name: field.default for field in fields(Settings)})
