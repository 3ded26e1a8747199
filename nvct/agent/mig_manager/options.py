# SPDX-License-Identifier: Apache-2.0
"""Settings and options of `nvidia-mig-manager`: names and variables of NVIDIA's, v0.15.0."""

from __future__ import annotations

from dataclasses import dataclass, fields

from nvct.agent.option_table import Option, Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NO_EFFECT = "Has no effect"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings; the names are those of the options.

    Attributes:
        config_file: the user's configurations, "" for none.
        default: the configuration of a node without the label, "" to leave such a node alone.
        host_root: where the host's root is mounted.
        state_file: the host's drop-in of its unit nvidia-mig-manager.service.
        clients_file: lists services of the host that use GPUs.
        driver_root: where the driver's root is mounted.
    """

    kubeconfig: str = ""
    node_name: str = ""
    config_file: str = ""
    default: str = ""
    evicts_pods: bool = False
    host_root: str = "/host"
    state_file: str = "/etc/systemd/system/nvidia-mig-manager.service.d/override.conf"
    clients_file: str = ""
    stops_clients: bool = False
    reboots: bool = False
    driver_root: str = "/run/nvidia/driver"


OPTIONS = (
    Option(
        flags=("kubeconfig",), env=("KUBECONFIG",), field="kubeconfig",
        help="A kubeconfig file; default: the pod's service account",
    ),
    Option(
        flags=("node-name", "n"), env=("NODE_NAME",), field="node_name",
        help="The name of this node; default: the host's name",
    ),
    Option(
        flags=("config-file", "f"), env=("NVCT_MIG_CONFIG_FILE", "CONFIG_FILE"),
        field="config_file",
        help="Configurations besides those of the hardware; CONFIG_FILE only for the program",
    ),
    Option(
        flags=("default-config",), env=("NVCT_MIG_DEFAULT_CONFIG",), field="default",
        help="The configuration of a node without the label; default: it stays as it is",
    ),
    Option(
        flags=("evict-pods",), env=("NVCT_MIG_EVICT_PODS",), field="evicts_pods", kind="switch",
        help="Evict pods that have a device which changes, instead of refusing",
    ),
    Option(
        flags=("host-root-mount", "m"), env=("HOST_ROOT_MOUNT",), field="host_root",
        help="Where the host's root is mounted",
    ),
    Option(
        flags=("host-mig-manager-state-file", "o"), env=("HOST_MIG_MANAGER_STATE_FILE",),
        field="state_file",
        help="The host's drop-in of nvidia-mig-manager.service; if it exists, it gets the name of "
        "the configuration",
    ),
    Option(
        flags=("gpu-clients-file", "g"), env=("GPU_CLIENTS_FILE",), field="clients_file",
        help="The file that lists the host's services which use GPUs: systemd-services",
    ),
    Option(
        flags=("with-shutdown-host-gpu-clients", "d"), env=("WITH_SHUTDOWN_HOST_GPU_CLIENTS",),
        field="stops_clients", kind="switch",
        help="Stop these services before a change, and start them after it",
    ),
    Option(
        flags=("with-reboot", "r"), env=("WITH_REBOOT",), field="reboots", kind="switch",
        help="Reboot the node if the MIG mode cannot be changed otherwise",
    ),
    Option(
        flags=("driver-root-ctr-path", "a"), env=("DRIVER_ROOT_CTR_PATH",), field="driver_root",
        help="Where the driver's root is mounted; / is used if that is no folder",
    ),
    Option(
        flags=("nvidia-driver-root", "driver-root", "t"),
        env=("NVIDIA_DRIVER_ROOT", "DRIVER_ROOT"), field="", help=NO_EFFECT,
    ),
    Option(flags=("dev-root", "b"), env=("NVIDIA_DEV_ROOT",), field="", help=NO_EFFECT),
    Option(flags=("dev-root-ctr-path", "j"), env=("DEV_ROOT_CTR_PATH",), field="", help=NO_EFFECT),
    Option(
        flags=("cdi-enabled",), env=("CDI_ENABLED",), field="", kind="switch", help=NO_EFFECT
    ),
    Option(
        flags=("nvidia-cdi-hook-path",), env=("NVIDIA_CDI_HOOK_PATH",), field="", help=NO_EFFECT
    ),
    Option(
        flags=("reconfigure-script", "s"), env=("RECONFIGURE_SCRIPT",), field="", help=NO_EFFECT
    ),
    Option(
        flags=("host-nvidia-dir", "i"), env=("HOST_NVIDIA_DIR",), field="", help=NO_EFFECT
    ),
    Option(
        flags=("host-kubelet-systemd-service", "k"), env=("HOST_KUBELET_SYSTEMD_SERVICE",),
        field="", help=f"{NO_EFFECT}: the kubelet is never restarted",
    ),
    Option(
        flags=("default-gpu-clients-namespace", "p"), env=("DEFAULT_GPU_CLIENTS_NAMESPACE",),
        field="", help=f"{NO_EFFECT}: processes are looked for, not pods",
    ),
)  # fmt: skip
TABLE = Table(
    program="nvidia-mig-manager",
    summary="Gives this node's GPUs the MIG configuration that the Node's label names.",
    options=OPTIONS,
)


def resolve(words: Sequence[str], env: Mapping[str, str]) -> Settings:
    """Return the settings; the command line takes precedence over the environment.

    Raises:
        UsageError: a value is malformed.
    """
    values = {**TABLE.from_environment(env), **TABLE.from_command_line(words)}
    return Settings(**TABLE.fields(values))


def help_text() -> str:
    """Return the text of --help."""
    return TABLE.help_text({field.name: field.default for field in fields(Settings)})
