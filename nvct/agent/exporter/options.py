# SPDX-License-Identifier: Apache-2.0
"""The options of `dcgm-exporter`: names, variables and defaults of NVIDIA's, 4.8."""

from __future__ import annotations

import os
import re

from nvct.agent.exporter import counters, go_regexp
from nvct.agent.exporter.settings import HOSTNAME_LABELS, ID_TYPES, Settings
from nvct.agent.option_table import Option, Table
from nvct.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

ENV = "DCGM_EXPORTER_"
DEVICES = re.compile(r"([fgi])(?::(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*))?")
PATTERNS = "kubernetes-pod-label-allowlist-regex"
SHORTEST_MS = 1000
TEXTFILES = "/run/prometheus"
"""The folder that dcgm-exporter 1.4 wrote into, shared with node-exporter."""
TEXTFILE = f"{TEXTFILES}/dcgm.prom"


def _option(flags: str, env: str, text: str, field: str = "", kind: Any = "text") -> Option:  # noqa: ANN401
    names, prefix = tuple(flags.split()), "" if env.startswith(("!",)) else ENV
    return Option(
        flags=names, env=(f"{prefix}{env.lstrip('!')}",), field=field or names[0], kind=kind,
        help=text,
    )  # fmt: skip


def _ignored(flags: str, env: str, kind: Any = "text") -> Option:  # noqa: ANN401
    return _option(flags, env, "Has no effect: nvct asks NVML alone", kind=kind)


OPTIONS = (
    _option("collectors f", "COLLECTORS", "The counter file; the built-in one if it is missing"),
    _option("address a", "LISTEN", "Where metrics are served, HOST:PORT"),
    _option("collect-interval c", "INTERVAL", "Milliseconds between two samples"),
    _option("kubernetes k", "KUBERNETES",
            "Add labels of pods; default: if the kubelet's socket exists", kind="switch"),
    _option("use-old-namespace o", "USE_OLD_NAMESPACE",
            "Use the names of labels of version 1", kind="switch"),
    _option("devices d", "DEVICES_STR",
            "f (both), g (GPUs) or i (MIG instances), with indices as g:0,2-3"),
    _option("no-hostname n", "NO_HOSTNAME", "Do not write the label Hostname", kind="switch"),
    _option("hostname-label", "!NVCT_EXPORTER_HOSTNAME_LABEL",
            "Hostname, as releases of dcgm-exporter; or hostname, as its main branch"),
    _option("kubernetes-gpu-id-type", "KUBERNETES_GPU_ID_TYPE",
            "uid or device-name; nvct understands both"),
    _option("kubernetes-enable-pod-uid", "KUBERNETES_ENABLE_POD_UID",
            "Add the label pod_uid; needs the right to list pods", kind="switch"),
    _option("pod-resources-kubelet-socket", "!DCGM_POD_RESOURCES_KUBELET_SOCKET",
            "The kubelet's socket"),
    _option("nvidia-resource-names", "!NVIDIA_RESOURCE_NAMES",
            "More names of resources that are GPUs", kind="words"),
    _option("kubernetes-virtual-gpus", "!KUBERNETES_VIRTUAL_GPUS",
            "A series for each pod that shares a GPU", kind="switch"),
    _option("xid-count-window-size x", "XID_COUNT_WINDOW_SIZE",
            "Milliseconds in which XIDs are counted"),
    _option("clock-events-count-window-size", "CLOCK_EVENTS_COUNT_WINDOW_SIZE",
            "Milliseconds in which reasons that limit clocks are counted"),
    _option("replace-blanks-in-model-name", "REPLACE_BLANKS_IN_MODEL_NAME",
            "Write - for blanks in modelName", kind="switch"),
    _option(
        "driver-root-ctr-path container-driver-root",
        "!DRIVER_ROOT_CTR_PATH",
        "The driver's root in this container",
    ),
    _option("textfile", "!NVCT_EXPORTER_TEXTFILE",
            "A file for node-exporter, written with all metrics after each sample; default: "
            "dcgm.prom in /run/prometheus if that folder exists"),
    _option("processes", "!NVCT_EXPORTER_PROCESSES",
            "Add what the processes of each container use", kind="switch"),
    _option("host-root", "!NVCT_EXPORTER_HOST_ROOT",
            "Where the host's /proc and /var are in this container, for --processes"),
    _option("web-config-file", "WEB_CONFIG_FILE",
            "TLS, users and headers, in the format of Prometheus' exporter-toolkit"),
    _option("configmap-data m", "CONFIGMAP_DATA", "Not supported: mount the file instead"),
    _option("kubernetes-enable-pod-labels", "KUBERNETES_ENABLE_POD_LABELS",
            "Add the labels of pods; needs the right to list pods", kind="switch"),
    _option(PATTERNS, "KUBERNETES_POD_LABEL_ALLOWLIST_REGEX",
            "Only labels of pods in whose name one of these finds a match", kind="words"),
    _option("kubernetes-enable-dra", "!KUBERNETES_ENABLE_DRA",
            "Add labels of claims of dynamic resource allocation", kind="switch"),
    _option("hpc-job-mapping-dir", "!DCGM_HPC_JOB_MAPPING_DIR",
            "A folder with a file of jobs for each GPU, named by its index"),
    _ignored("remote-hostengine-info r", "!DCGM_REMOTE_HOSTENGINE_INFO"),
    _ignored("switch-devices s", "OTHER_DEVICES_STR"),
    _ignored("cpu-devices p", "CPU_DEVICES_STR"),
    _ignored("fake-gpus", "USE_FAKE_GPUS", "switch"),
    _ignored("enable-dcgm-log", "ENABLE_DCGM_LOG", "switch"),
    _ignored("dcgm-log-level", "DCGM_LOG_LEVEL"),
    _ignored("debug", "DEBUG", "switch"),
    _ignored("dump-enabled", "DUMP_ENABLED", "switch"),
    _ignored("dump-directory", "DUMP_DIRECTORY"),
    _ignored("dump-retention", "DUMP_RETENTION"),
    _ignored("dump-compression", "DUMP_COMPRESSION", "switch"),
    _ignored("disable-startup-validate", "!DISABLE_STARTUP_VALIDATE", "switch"),
    _ignored("enable-gpu-bind-unbind-watch", "ENABLE_GPU_BIND_UNBIND_WATCH", "switch"),
    _ignored("gpu-bind-unbind-poll-interval", "GPU_BIND_UNBIND_POLL_INTERVAL"),
    _ignored("enable-pprof", "ENABLE_PPROF", "switch"),
    _ignored("web-systemd-socket", "SYSTEMD_SOCKET", "switch"),
)  # fmt: skip
TABLE = Table(
    program="dcgm-exporter",
    summary="Serves metrics of GPUs from NVML, with the names of NVIDIA's exporter.",
    options=OPTIONS,
)
NOT_YET = ("configmap-data",)


def help_text() -> str:
    """Return the text of --help."""
    defaults = Settings()
    return TABLE.help_text(
        {
            "collectors": defaults.collectors,
            "address": defaults.address,
            "collect-interval": int(defaults.interval_s * 1000),
            "devices": defaults.devices,
            "hostname-label": defaults.hostname_label,
            "pod-resources-kubelet-socket": defaults.socket,
            "driver-root-ctr-path": defaults.container_driver_root,
            "host-root": defaults.host_root,
            "xid-count-window-size": defaults.xid_window_ms,
            "clock-events-count-window-size": defaults.clock_window_ms,
        }
    )


def resolve(words: Sequence[str], env: Mapping[str, str]) -> tuple[Settings, list[str]]:
    """Return the settings of a command line and environment, and warnings.

    Raises:
        UsageError: an option is unknown, or its value is malformed.
    """
    given = {**TABLE.from_environment(env), **TABLE.from_command_line(words)}
    if given.get("kubernetes-gpu-id-type", ID_TYPES[0]) not in ID_TYPES:
        raise UsageError(f"--kubernetes-gpu-id-type must be one of {', '.join(ID_TYPES)}")
    label = given.get("hostname-label", HOSTNAME_LABELS[0])
    if label not in HOSTNAME_LABELS:
        hint = f"it is one of {', '.join(HOSTNAME_LABELS)}"
        raise UsageError(f"invalid --hostname-label option: {label!r}", hint=hint)
    devices, indices = _devices(given.get("devices", "f"))
    patterns, warnings = _patterns(given.get(PATTERNS, ()))
    defaults = Settings()
    collectors = given.get("collectors", defaults.collectors)
    if collectors in counters.BUILT_IN and not os.path.exists(collectors):
        collectors = str(counters.BUILT_IN[collectors])
    settings = Settings(
        collectors=collectors,
        address=given.get("address", defaults.address),
        interval_s=_milliseconds(given, "collect-interval", 30_000) / 1000,
        kubernetes=given.get("kubernetes"),
        old_namespace=given.get("use-old-namespace", False),
        devices=devices,
        indices=indices,
        hostname="" if given.get("no-hostname") else env.get("NODE_NAME") or os.uname().nodename,
        hostname_label=label,
        socket=given.get("pod-resources-kubelet-socket", defaults.socket),
        resources=given.get("nvidia-resource-names", ()),
        virtual_gpus=given.get("kubernetes-virtual-gpus", False),
        claims=given.get("kubernetes-enable-dra", False),
        pod_labels=given.get("kubernetes-enable-pod-labels", False),
        pod_uid=given.get("kubernetes-enable-pod-uid", False),
        pod_label_patterns=patterns,
        xid_window_ms=_milliseconds(given, "xid-count-window-size", defaults.xid_window_ms),
        clock_window_ms=_milliseconds(
            given, "clock-events-count-window-size", defaults.clock_window_ms
        ),
        replace_blanks=given.get("replace-blanks-in-model-name", False),
        container_driver_root=given.get("driver-root-ctr-path", defaults.container_driver_root),
        web_config=given.get("web-config-file", ""),
        processes=given.get("processes", False),
        job_folder=given.get("hpc-job-mapping-dir", ""),
        host_root=given.get("host-root", defaults.host_root),
        textfile=given.get("textfile", TEXTFILE if os.path.isdir(TEXTFILES) else ""),
    )
    warnings += [f"--{name} is not supported yet" for name in NOT_YET if given.get(name)]
    return settings, warnings


def _milliseconds(given: Mapping[str, Any], name: str, otherwise: int) -> int:
    text = str(given.get(name, otherwise))
    if not (text.isascii() and text.isdigit()) or int(text) < SHORTEST_MS:
        raise UsageError(f"--{name} must be {SHORTEST_MS} milliseconds or more, not {text!r}")
    return int(text)


def _patterns(texts: tuple[str, ...]) -> tuple[tuple[str, ...], list[str]]:
    """Return the expressions that Go reads, and a warning about each other one."""
    fitting, warnings = [], []
    for text in filter(None, texts):
        try:
            go_regexp.compiled(text)
            fitting.append(text)
        except re.error as error:
            warnings.append(f"--{PATTERNS} {text!r} is malformed and left out: {error}")
    return tuple(fitting), warnings


def _devices(text: str) -> tuple[str, frozenset[int]]:
    match = DEVICES.fullmatch(text)
    if not match:
        raise UsageError(f"--devices {text!r} is malformed", hint="as f, g, i or g:0,2-3")
    if match[1] == "f" and match[2]:
        raise UsageError(f"--devices {text!r}: f has no indices", hint="write g or i before them")
    indices: set[int] = set()
    for part in match[2].split(",") if match[2] else ():
        first, _, last = part.partition("-")
        indices.update(range(int(first), int(last or first) + 1))
    return match[1], frozenset(indices)
