# SPDX-License-Identifier: Apache-2.0
"""The options of nvct install: names, variables and defaults of the incumbent's installer."""

from __future__ import annotations

import click

from nvct import version
from nvct.cli.gostyle import Adds
from nvct.cli.options import all_of, drop_in_option, words
from nvct.engine.modules import SUITS_ENGINE

DRIVER_ROOT = "/run/nvidia/driver"
RUNTIME_TYPE = "io.containerd.runc.v2"


def _switch(*names: str, env: str | list[str] | None, text: str, hidden: bool = False,
            default: bool | None = False) -> Adds:  # fmt: skip
    """Return a switch; --NAME=false turns off a switch that is on by default."""
    if default:
        names = (f"{names[0]}/--no-{names[0][2:]}", *names[1:])
    return click.option(*names, is_flag=True, envvar=env, help=text, hidden=hidden,
                        default=default)  # fmt: skip


def _value(*names: str, env: str | list[str] | None, text: str, default: str | None = None,
           hidden: bool = False) -> Adds:  # fmt: skip
    shown = bool(default) and default != SUITS_ENGINE
    return click.option(*names, envvar=env, help=text, default=default, show_default=shown,
                        hidden=hidden)  # fmt: skip


_GENERAL: list[Adds] = [
    _switch("--no-daemon", "-n", "no_daemon", env="NO_DAEMON",
            text="Exit after the installation, and leave it in place."),
    _switch("--no-runtime-config", "no_runtime_config", env="NO_RUNTIME_CONFIG",
            text="Install the programs; leave the engine alone."),
    _switch("--undo-runtime-config", "undo_engine", env="NVCT_UNDO_RUNTIME_CONFIG",
            text="The same, and undo an earlier installation's changes of the engine."),
    _value("--runtime", "-r", "engine", env="RUNTIME", default="docker",
           text="The engine: containerd, crio or docker; auto: the one that runs this container, "
           "with the files that it reads."),
    _value("--toolkit-install-dir", "--root", "install_dir", env=["TOOLKIT_INSTALL_DIR", "ROOT"],
           default="/usr/local/nvidia",
           text="The programs go into DIR/toolkit, the same path here and on the host."),
    _value("--toolkit-source-root", "source", env="TOOLKIT_SOURCE_ROOT",
           text="The tree to install.  [default: this program's own bundle]"),
    _value("--toolkit-package-type", "package_type", env="TOOLKIT_PACKAGE_TYPE", default="auto",
           text="No effect: one tree serves every host."),
    _value("--pid-file", "pid_file", env=["TOOLKIT_PID_FILE", "PID_FILE"],
           default="/run/nvidia/toolkit/toolkit.pid", text="Locked while this program runs."),
    _value("--state-dir", "state_dir", env="NVCT_STATE_DIR",
           text="Folder for the engine's former files.  [default: in DIR/toolkit]"),
    _value("--driver-ready-file", "driver_ready", env="NVCT_DRIVER_READY_FILE",
           text="Take the driver root and device root from this file of nvct validate driver."),
    _switch("--find-driver", "find_driver", env="NVCT_FIND_DRIVER",
            text="Find the driver, the host's or a driver container's in --driver-root, and write "
            "--driver-ready-file."),
    _switch("--gpu-nodes-only", "gpu_nodes_only", env="NVCT_GPU_NODES_ONLY",
            text="Do nothing on a machine without an NVIDIA GPU."),
    _switch("--publish", "publish", env="NVCT_PUBLISH",
            text="Publish the CDI specification of the host's GPUs, as nvct publish does, unless "
            "another program has."),
    _value("--farm-dir", "farm_dir", env="NVCT_FARM_DIR",
           text="Folder for views of the driver, best on the file system of the driver's files.  "
           "[default: /var/lib/nvct/farm]"),
    _value("--policy-file", "policy_file", env="NVCT_POLICY_FILE",
           text="A TOML file with the table [nvct.policy], for config.toml."),
    _switch("--uninstall", "uninstall", env=None,
            text="Undo an installation with the same options, list what stays, and exit."),
    _switch("--debug", "debug", env="TOOLKIT_DEBUG", text="Show the traceback of a bug."),
    click.version_option(version.__version__, "--version", "-v",
                         message=version.text("nvidia-ctk-installer").rstrip()),
]  # fmt: skip

_TOOLKIT: list[Adds] = [
    _value("--driver-root", "--nvidia-driver-root", "driver_root",
           env=["NVIDIA_DRIVER_ROOT", "DRIVER_ROOT"], default=DRIVER_ROOT,
           text="Where the driver's files are on the host."),
    _value("--driver-root-ctr-path", "driver_root_mount", env="DRIVER_ROOT_CTR_PATH",
           default=DRIVER_ROOT, text="The same folder, as this process sees it."),
    _value("--dev-root", "dev_root", env=["NVIDIA_DEV_ROOT", "DEV_ROOT"],
           text="Where dev/ is on the host.  [default: in the driver root, else in /]"),
    _value("--dev-root-ctr-path", "dev_root_mount", env="DEV_ROOT_CTR_PATH",
           text="The same folder, as this process sees it."),
    _value("--nvidia-container-runtime.debug", "--nvidia-container-runtime-debug", "runtime_debug",
           env="NVIDIA_CONTAINER_RUNTIME_DEBUG", text="The runtime's log file."),
    _value("--nvidia-container-runtime.log-level", "--nvidia-container-runtime-debug-log-level",
           "log_level", env="NVIDIA_CONTAINER_RUNTIME_LOG_LEVEL", text="The runtime's log level."),
    _value("--nvidia-container-runtime.mode", "--nvidia-container-runtime-mode", "mode",
           env="NVIDIA_CONTAINER_RUNTIME_MODE", text="auto, jit-cdi, cdi, csv or legacy."),
    _value("--nvidia-container-runtime.modes.cdi.default-kind", "default_kind",
           env="NVIDIA_CONTAINER_RUNTIME_MODES_CDI_DEFAULT_KIND",
           text="Kind of devices that are named without one."),
    words("--nvidia-container-runtime.modes.cdi.annotation-prefixes",
          "--nvidia-container-runtime-modes.cdi.annotation-prefixes", "prefixes",
          env="NVIDIA_CONTAINER_RUNTIME_MODES_CDI_ANNOTATION_PREFIXES",
          text="Prefixes of annotations that name devices; containerd passes them on."),
    words("--nvidia-container-runtime.runtimes", "runtimes",
          env="NVIDIA_CONTAINER_RUNTIME_RUNTIMES",
          text="Low-level runtimes.  [default: the engine's, runc, crun]"),
    _switch("--nvidia-container-runtime-hook.skip-mode-detection", "skip_mode_detection",
            env="NVIDIA_CONTAINER_RUNTIME_HOOK_SKIP_MODE_DETECTION", default=True,
            text="The prestart hook works in any mode.  [default: on; =false]"),
    _value("--nvidia-container-cli.debug", "--nvidia-container-cli-debug", "cli_debug",
           env="NVIDIA_CONTAINER_CLI_DEBUG", text="The log file of nvidia-container-cli."),
    _switch("--accept-nvidia-visible-devices-envvar-when-unprivileged", "accept_env",
            env="ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED", default=True,
            text="Unprivileged containers can ask by variables.  [default: on; =false]"),
    _switch("--accept-nvidia-visible-devices-as-volume-mounts", "accept_mounts",
            env="ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS",
            text="Containers can ask by volume mounts."),
    _switch("--cdi-enabled", "--enable-cdi", "cdi_enabled", env=["CDI_ENABLED", "ENABLE_CDI"],
            text="Write a CDI specification for containers that manage the driver."),
    _value("--cdi-output-dir", "cdi_output_dir", env="CDI_OUTPUT_DIR", default="/var/run/cdi",
           text='Folder of that specification; "" writes none.'),
    _value("--cdi-kind", "cdi_kind", env="CDI_KIND", default="management.nvidia.com/gpu",
           text="Vendor and class of its devices."),
    words("--create-device-nodes", "device_nodes", env="CREATE_DEVICE_NODES",
          default=("control",), text="With --cdi-enabled: control, or none.  [default: control]"),
    _switch("--ignore-errors", "ignore_errors", env=None, hidden=True,
            text="If installing the programs fails, warn and go on."),
    words("--opt-in-features", "features", env="NVIDIA_CONTAINER_TOOLKIT_OPT_IN_FEATURES",
          text="Keys of config.toml's table features to switch on."),
]  # fmt: skip

_ENGINE: list[Adds] = [
    _value("--config", "config", env=["RUNTIME_CONFIG", "CONTAINERD_CONFIG", "DOCKER_CONFIG"],
           default=SUITS_ENGINE, text="The engine's main file.  [default: its usual one]"),
    drop_in_option(env="RUNTIME_DROP_IN_CONFIG"),
    _value("--drop-in-config-host-path", "drop_in_host", env="RUNTIME_DROP_IN_CONFIG_HOST_PATH",
           default="", text="Path of the drop-in on the host, if it differs."),
    _value("--executable-path", "executable", env="RUNTIME_EXECUTABLE_PATH", default="",
           text="The engine's program on the host.  [default: found on its PATH]"),
    _value("--socket", "socket", env=["RUNTIME_SOCKET", "CONTAINERD_SOCKET", "DOCKER_SOCKET"],
           default=SUITS_ENGINE, text="The engine's socket.  [default: its usual one]"),
    _value("--restart-mode", "restart", env="RUNTIME_RESTART_MODE", default=SUITS_ENGINE,
           text="How the engine is reloaded: signal, systemd or none.  "
           "[default: signal; systemd for crio]"),
    _switch("--enable-cdi-in-runtime", "cdi", env="RUNTIME_ENABLE_CDI", default=None,
            text="Switch the engine's own CDI on.  [default: as --cdi-enabled]"),
    _value("--host-root", "host_root", env="HOST_ROOT_MOUNT", default="/host",
           text="The host's root, as this process sees it."),
    _value("--runtime-name", "--nvidia-runtime-name", "--runtime-class", "name",
           env=["NVIDIA_RUNTIME_NAME", "CONTAINERD_RUNTIME_CLASS", "DOCKER_RUNTIME_NAME"],
           default="nvidia", text="Name of the runtime; nvidia-cdi and nvidia-legacy are added."),
    _switch("--set-as-default", "default", default=True,
            env=["NVIDIA_RUNTIME_SET_AS_DEFAULT", "CONTAINERD_SET_AS_DEFAULT",
                 "DOCKER_SET_AS_DEFAULT"],
            text="Make this the default runtime.  [default: on; =false]"),
    words("--config-source", "--config-sources", "sources",
          env=["RUNTIME_CONFIG_SOURCES", "RUNTIME_CONFIG_SOURCE"],
          text="Where to read the engine's configuration: file, command or file=PATH; the first "
          "that works counts.  [default: file]"),
    _value("--hooks-dir", "hooks_dir", env="CRIO_HOOKS_DIR",
           default="/usr/share/containers/oci/hooks.d", text="With --config-mode=hook."),
    _value("--hook-filename", "hook_filename", env="CRIO_HOOK_FILENAME",
           default="oci-nvidia-hook.json", text="With --config-mode=hook."),
    _value("--config-mode", "config_mode", env="CRIO_CONFIG_MODE", default="config",
           text="For CRI-O: config; hook is deprecated."),
]  # fmt: skip

_NRI: list[Adds] = [
    _switch("--enable-nri-plugin", "-p", "nri", env="ENABLE_NRI_PLUGIN",
            text="Give containers GPUs by the NRI plugin nvct-nri; the engine's files are not "
            "changed, and it is not reloaded."),
    _value("--nri-plugin-index", "nri_plugin_index", env="NRI_PLUGIN_INDEX",
           text="With -p: the plugin's index.  [default: 10]"),
    _value("--nri-socket", "nri_socket", env="NRI_SOCKET",
           text="With -p: the engine's NRI socket.  [default: /var/run/nri/nri.sock]"),
    _value("--nri-namespace", "nri_namespace", env="NRI_NAMESPACE",
           text="With -p: nvct's own namespace."),
    _value("--nri-management-cdi-device-namespaces", "nri_management_cdi_device_namespaces",
           env="NRI_MANAGEMENT_CDI_DEVICE_NAMESPACES",
           text="With -p: further namespaces whose pods may have management devices."),
]  # fmt: skip

_WITHOUT_EFFECT: list[Adds] = [
    _switch("--use-legacy-config", "legacy_config", env="CONTAINERD_USE_LEGACY_CONFIG",
            hidden=True, text="No effect: containerd's file keeps its version."),
    _value("--runtime-type", "runtime_type", env="CONTAINERD_RUNTIME_TYPE", hidden=True,
           default=RUNTIME_TYPE,
           text="Type of nvct's runtimes if containerd's default runtime has none."),
    _value("--runtime-config-override", "override", hidden=True, default="{}",
           env=["RUNTIME_CONFIG_OVERRIDE", "CONTAINERD_RUNTIME_CONFIG_OVERRIDE"],
           text="No effect, as in the incumbent."),
]  # fmt: skip

options = all_of(*_GENERAL, *_TOOLKIT, *_ENGINE, *_NRI, *_WITHOUT_EFFECT)
