# SPDX-License-Identifier: Apache-2.0
"""The options of `nvidia-device-plugin`: names, aliases and precedence of NVIDIA's, 0.20."""

from __future__ import annotations

import os
from dataclasses import fields

from nvct.agent.device_plugin.list_strategy import AUTO
from nvct.agent.device_plugin.settings import (
    DISCOVERY,
    ID_STRATEGIES,
    MIG_STRATEGIES,
    POLICIES,
    STRATEGIES,
    Settings,
)
from nvct.agent.health.names import PROBATION_ENV, RECOVERY, RECOVERY_ENV, TABLE_ENV
from nvct.agent.option_table import Option, Table
from nvct.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

PLUGIN = "flags.plugin"

OPTIONS = (
    Option(
        flags=("mig-strategy",), env=("MIG_STRATEGY",), field="mig_strategy",
        key="flags.migStrategy", choices=MIG_STRATEGIES, help="How MIG devices are offered",
    ),
    Option(
        flags=("fail-on-init-error",), env=("FAIL_ON_INIT_ERROR",), field="fail_on_init_error",
        key="flags.failOnInitError", kind="switch",
        help="End if there is no driver; else wait for it",
    ),
    Option(
        flags=("driver-root", "nvidia-driver-root"), env=("NVIDIA_DRIVER_ROOT",),
        field="driver_root", key="flags.nvidiaDriverRoot", help="The driver's root on the host",
    ),
    Option(
        flags=("dev-root", "nvidia-dev-root"), env=("NVIDIA_DEV_ROOT",), field="dev_root",
        key="flags.nvidiaDevRoot", help="The root of /dev on the host; default: the driver's root",
    ),
    Option(
        flags=("pass-device-specs",), env=("PASS_DEVICE_SPECS",), field="pass_device_specs",
        key=f"{PLUGIN}.passDeviceSpecs", kind="switch",
        help="Give the kubelet the device nodes too",
    ),
    Option(
        flags=("device-list-strategy",), env=("DEVICE_LIST_STRATEGY",),
        field="device_list_strategy", key=f"{PLUGIN}.deviceListStrategy", kind="words",
        choices=STRATEGIES, help="How the runtime learns the devices; may be repeated",
    ),
    Option(
        flags=("device-id-strategy",), env=("DEVICE_ID_STRATEGY",), field="device_id_strategy",
        key=f"{PLUGIN}.deviceIDStrategy", choices=ID_STRATEGIES,
        help="The form of the devices' ids",
    ),
    Option(
        flags=("gdrcopy-enabled",), env=("GDRCOPY_ENABLED",), field="gdrcopy_enabled",
        key="flags.gdrcopyEnabled", kind="switch", help="Give containers GDRCopy",
    ),
    Option(
        flags=("gds-enabled",), env=("GDS_ENABLED",), field="gds_enabled",
        key="flags.gdsEnabled", kind="switch", help="Give containers GPUDirect Storage",
    ),
    Option(
        flags=("mofed-enabled",), env=("MOFED_ENABLED",), field="mofed_enabled",
        key="flags.mofedEnabled", kind="switch", help="Give containers MOFED",
    ),
    Option(
        flags=("cdi-annotation-prefix",), env=("CDI_ANNOTATION_PREFIX",),
        field="cdi_annotation_prefix", key=f"{PLUGIN}.cdiAnnotationPrefix",
        help="The prefix of annotations with CDI names",
    ),
    Option(
        flags=("nvidia-cdi-hook-path", "nvidia-ctk-path"),
        env=("NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"), field="hook_path",
        key=f"{PLUGIN}.nvidiaCTKPath", help="The program of hooks on the host",
    ),
    Option(
        flags=("driver-root-ctr-path", "container-driver-root"),
        env=("DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"), field="container_driver_root",
        key=f"{PLUGIN}.containerDriverRoot", help="The driver's root in this container",
    ),
    Option(
        flags=("mps-root",), env=("MPS_ROOT",), field="mps_root", key="flags.mpsRoot",
        help="The folder of MPS on the host",
    ),
    Option(
        flags=("shared-devices-allocation-policy",), env=("SHARED_DEVICES_ALLOCATION_POLICY",),
        field="shared_devices_allocation_policy", key=f"{PLUGIN}.sharedDevicesAllocationPolicy",
        choices=POLICIES, help="How the GPU of a replica or MIG device is chosen",
    ),
    Option(
        flags=("device-discovery-strategy",), env=("DEVICE_DISCOVERY_STRATEGY",),
        field="device_discovery_strategy", key="flags.deviceDiscoveryStrategy", choices=DISCOVERY,
        help="How devices are found",
    ),
    Option(
        flags=("imex-channel-ids",), env=("IMEX_CHANNEL_IDS",), field="imex_channel_ids",
        key="imex.channelIDs", kind="numbers", help="IMEX channels of every container: none or 0",
    ),
    Option(
        flags=("imex-required",), env=("IMEX_REQUIRED",), field="imex_required",
        key="imex.required", kind="switch", help="End if a channel is missing",
    ),
    Option(
        flags=("kubelet-socket",), env=("KUBELET_SOCKET",), field="kubelet_socket",
        help="The kubelet's socket; empty: serve without registration",
    ),
    Option(
        flags=("startup-taint",), env=("STARTUP_TAINT",), field="startup_taint",
        key=f"{PLUGIN}.startupTaint",
        help="Key of a taint of this node, removed when pods can have its devices",
    ),
    Option(
        flags=("node-name",), env=("NODE_NAME",), field="node_name",
        help="This node's name, for the taint; default: the hostname",
    ),
    Option(
        flags=("kubeconfig",), env=("KUBECONFIG",), field="kubeconfig",
        help="A kubeconfig file, for the taint; default: the pod's service account",
    ),
    Option(
        flags=("health-recovery",), env=(RECOVERY_ENV,), field="health_recovery",
        choices=RECOVERY, help="Whether a device can become healthy again; never: as NVIDIA's",
    ),
    Option(
        flags=("health-probation",), env=(PROBATION_ENV,), field="health_probation",
        help="Seconds without an error before a device is offered again; default: 60",
    ),
    Option(
        flags=("xid-table",), env=(TABLE_ENV,), field="xid_table",
        help="A file of what XIDs ask for, which has precedence over nvct's own",
    ),
    Option(
        flags=("config-file",), env=("CONFIG_FILE",), field="", help="A config file, v1",
    ),
    Option(
        flags=("cdi-feature-flags",), env=("CDI_FEATURE_FLAGS",), field="cdi_feature_flags",
        kind="words", help="Feature flags of CDI specifications",
    ),
    Option(
        flags=("cdi-disable-hooks",), env=("CDI_DISABLE_HOOKS",), field="cdi_disable_hooks",
        kind="words", help="Hooks that CDI specifications leave out, or all",
    ),
)  # fmt: skip
TABLE = Table(
    program="nvidia-device-plugin", summary="Offers NVIDIA's GPUs to the kubelet.", options=OPTIONS
)


def settings_of(values: Mapping[str, Any], more: Mapping[str, Any]) -> Settings:
    """Return settings from the values of flags, and fields that no flag sets.

    Raises:
        UsageError: a value is not one of its choices.
    """
    known = TABLE.fields(values)
    if AUTO in (strategies := known.get("device_list_strategy", ())) and len(strategies) > 1:
        raise UsageError("--device-list-strategy=auto goes with no other strategy")
    if known.get("kubelet_socket"):
        known["kubelet_socket"] = os.path.abspath(known["kubelet_socket"])
    if not known.get("dev_root"):
        known["dev_root"] = known.get("driver_root", "/")
    if known.get("imex_channel_ids", ()) not in ((), (0,)):
        raise UsageError("the IMEX channels must be none or 0", hint="--imex-channel-ids=0")
    return Settings(**known, **more)


def help_text() -> str:
    """Return the text of --help."""
    defaults = {field.name: field.default for field in fields(Settings)}
    return TABLE.help_text({**defaults, "dev_root": ""})
