# SPDX-License-Identifier: Apache-2.0
"""The settings of the exporter: flags, variables and defaults are those of NVIDIA's, 4.8."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nvct.agent.core.settings import Program, option
from nvct.agent.exporter import counters, go_regexp
from nvct.agent.kubelet.pod_resources import SOCKET
from nvct.errors import UsageError

ID_TYPES = ("uid", "device-name")
HOSTNAME_LABELS = ("Hostname", "hostname")
"""Of dcgm-exporter up to 4.8.2, and of its main branch since May 2026."""
DEVICES = re.compile(r"([fgi])(?::(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*))?")
SHORTEST_MS = 1000
TEXTFILES = "/run/prometheus"
"""The folder that dcgm-exporter 1.4 wrote into, shared with node-exporter."""
TEXTFILE = f"{TEXTFILES}/dcgm.prom"
PATTERNS = "kubernetes-pod-label-allowlist-regex"
ENV = "DCGM_EXPORTER_"
UNUSED = "No effect: it is for DCGM or for NVIDIA's program itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings."""

    collectors: str = option(
        "/etc/dcgm-exporter/default-counters.csv",
        "The counter file; the built-in one if it is missing",
        flags="collectors f", env=f"{ENV}COLLECTORS",
    )  # fmt: skip
    address: str = option(
        ":9400", "Where metrics are served, HOST:PORT", flags="address a", env=f"{ENV}LISTEN"
    )
    interval_s: float = option(
        30.0, "Milliseconds between two samples",
        flags="collect-interval c", env=f"{ENV}INTERVAL", shown="30000",
    )  # fmt: skip
    kubernetes: bool | None = option(
        None, "Add labels of pods; default: if the kubelet's socket exists",
        flags="kubernetes k", env=f"{ENV}KUBERNETES",
    )  # fmt: skip
    old_namespace: bool = option(
        False, "Use the names of labels of version 1",
        flags="use-old-namespace o", env=f"{ENV}USE_OLD_NAMESPACE",
    )  # fmt: skip
    devices: str = option(
        "f", "f (both), g (GPUs) or i (MIG instances); g and i can have indices: g:0,2-3",
        flags="devices d", env=f"{ENV}DEVICES_STR",
    )  # fmt: skip
    no_hostname: bool = option(
        False, "Do not write the label Hostname",
        flags="no-hostname n", env=f"{ENV}NO_HOSTNAME",
    )  # fmt: skip
    hostname_label: str = option(
        HOSTNAME_LABELS[0],
        "The label of the node's name: as in releases of dcgm-exporter, or as in its main branch",
        env="NVCT_EXPORTER_HOSTNAME_LABEL", choices=HOSTNAME_LABELS,
    )  # fmt: skip
    id_type: str = option(
        ID_TYPES[0], "No effect: nvct understands both", flags="kubernetes-gpu-id-type",
        env=f"{ENV}KUBERNETES_GPU_ID_TYPE", shown="", choices=ID_TYPES,
    )  # fmt: skip
    pod_uid: bool = option(
        False, "Add the label pod_uid; needs the right to list pods",
        flags="kubernetes-enable-pod-uid", env=f"{ENV}KUBERNETES_ENABLE_POD_UID",
    )  # fmt: skip
    socket: str = option(
        SOCKET, "The kubelet's socket",
        flags="pod-resources-kubelet-socket", env="DCGM_POD_RESOURCES_KUBELET_SOCKET",
    )  # fmt: skip
    resources: tuple[str, ...] = option(
        (), "Names of more resources whose devices are GPUs",
        flags="nvidia-resource-names", env="NVIDIA_RESOURCE_NAMES",
    )  # fmt: skip
    virtual_gpus: bool = option(
        False, "Write a series for each pod that shares a GPU",
        flags="kubernetes-virtual-gpus", env="KUBERNETES_VIRTUAL_GPUS",
    )  # fmt: skip
    xid_window_ms: int = option(
        300_000, "Milliseconds in which XIDs are counted",
        flags="xid-count-window-size x", env=f"{ENV}XID_COUNT_WINDOW_SIZE",
    )  # fmt: skip
    clock_window_ms: int = option(
        300_000, "Milliseconds in which reasons that limit clocks are counted",
        flags="clock-events-count-window-size", env=f"{ENV}CLOCK_EVENTS_COUNT_WINDOW_SIZE",
    )  # fmt: skip
    replace_blanks: bool = option(
        False, "Write - for blanks in modelName",
        flags="replace-blanks-in-model-name", env=f"{ENV}REPLACE_BLANKS_IN_MODEL_NAME",
    )  # fmt: skip
    container_driver_root: str = option(
        "/driver-root", "The driver's root in this container",
        flags="driver-root-ctr-path container-driver-root", env="DRIVER_ROOT_CTR_PATH",
    )  # fmt: skip
    textfile: str = option(
        "", "A file for node-exporter, written with all metrics after each sample; default: "
        "dcgm.prom in /run/prometheus if that folder exists",
        env="NVCT_EXPORTER_TEXTFILE",
    )  # fmt: skip
    processes: bool = option(
        False, "Add what the processes of each container use", env="NVCT_EXPORTER_PROCESSES"
    )
    host_root: str = option(
        "/", "Where the host's /proc and /var are in this container, for --processes",
        env="NVCT_EXPORTER_HOST_ROOT",
    )  # fmt: skip
    web_config: str = option(
        "", "TLS, users and headers, in the format of Prometheus' exporter-toolkit",
        flags="web-config-file", env=f"{ENV}WEB_CONFIG_FILE",
    )  # fmt: skip
    configmap_data: str = option(
        "", "Not supported: mount the file instead",
        flags="configmap-data m", env=f"{ENV}CONFIGMAP_DATA",
    )  # fmt: skip
    pod_labels: bool = option(
        False, "Add the labels of pods; needs the right to list pods",
        flags="kubernetes-enable-pod-labels", env=f"{ENV}KUBERNETES_ENABLE_POD_LABELS",
    )  # fmt: skip
    pod_label_patterns: tuple[str, ...] = option(
        (), "Regular expressions; of pods' labels, only those whose name matches one are added",
        flags=PATTERNS,
        env=f"{ENV}KUBERNETES_POD_LABEL_ALLOWLIST_REGEX",
    )  # fmt: skip
    claims: bool = option(
        False, "Add labels of claims of dynamic resource allocation",
        flags="kubernetes-enable-dra", env="KUBERNETES_ENABLE_DRA",
    )  # fmt: skip
    job_folder: str = option(
        "", "A folder with a file of jobs for each GPU, named by its index",
        flags="hpc-job-mapping-dir", env="DCGM_HPC_JOB_MAPPING_DIR",
    )  # fmt: skip
    remote_hostengine_info: str = option(
        "", UNUSED, flags="remote-hostengine-info r", env="DCGM_REMOTE_HOSTENGINE_INFO"
    )
    switch_devices: str = option(
        "", UNUSED, flags="switch-devices s", env=f"{ENV}OTHER_DEVICES_STR"
    )
    cpu_devices: str = option("", UNUSED, flags="cpu-devices p", env=f"{ENV}CPU_DEVICES_STR")
    fake_gpus: bool = option(False, UNUSED, env=f"{ENV}USE_FAKE_GPUS")
    enable_dcgm_log: bool = option(False, UNUSED, env=f"{ENV}ENABLE_DCGM_LOG")
    dcgm_log_level: str = option("", UNUSED, env=f"{ENV}DCGM_LOG_LEVEL")
    debug: bool = option(False, UNUSED, env=f"{ENV}DEBUG")
    dump_enabled: bool = option(False, UNUSED, env=f"{ENV}DUMP_ENABLED")
    dump_directory: str = option("", UNUSED, env=f"{ENV}DUMP_DIRECTORY")
    dump_retention: str = option("", UNUSED, env=f"{ENV}DUMP_RETENTION")
    dump_compression: bool = option(False, UNUSED, env=f"{ENV}DUMP_COMPRESSION")
    disable_startup_validate: bool = option(False, UNUSED)
    enable_gpu_bind_unbind_watch: bool = option(
        False, UNUSED, env=f"{ENV}ENABLE_GPU_BIND_UNBIND_WATCH"
    )
    gpu_bind_unbind_poll_interval: str = option(
        "", UNUSED, env=f"{ENV}GPU_BIND_UNBIND_POLL_INTERVAL"
    )
    enable_pprof: bool = option(False, UNUSED, env=f"{ENV}ENABLE_PPROF")
    web_systemd_socket: bool = option(False, UNUSED, env=f"{ENV}SYSTEMD_SOCKET")
    indices: frozenset[int] = frozenset()  # of the GPUs that are shown; empty for all
    hostname: str = ""  # of the node, the value of a label; "" for none


PROGRAM = Program(
    name="dcgm-exporter",
    title="DCGM Exporter",
    version="4.8.2",
    summary="Serves metrics of GPUs from NVML, with the names of NVIDIA's exporter.",
    settings=Settings,
)


def resolve(words: Sequence[str], env: Mapping[str, str]) -> tuple[Settings, list[str]]:
    """Return the settings of a command line and environment, and warnings."""
    known = PROGRAM.values(words, env)
    known["devices"], known["indices"] = _devices(known.get("devices", "f"))
    known["pod_label_patterns"], warnings = _patterns(known.get("pod_label_patterns", ()))
    collectors = known.setdefault("collectors", Settings().collectors)
    if collectors in counters.BUILT_IN and not os.path.exists(collectors):
        known["collectors"] = str(counters.BUILT_IN[collectors])
    for name, flag in (
        ("interval_s", "collect-interval"),
        ("xid_window_ms", "xid-count-window-size"),
        ("clock_window_ms", "clock-events-count-window-size"),
    ):
        if name in known:
            known[name] = _milliseconds(known[name], flag)
    if "interval_s" in known:
        known["interval_s"] /= 1000
    if not known.get("no_hostname"):
        known["hostname"] = env.get("NODE_NAME") or os.uname().nodename
    known.setdefault("textfile", TEXTFILE if os.path.isdir(TEXTFILES) else "")
    if known.get("configmap_data"):
        warnings.append("--configmap-data is not supported: mount the counter file instead")
    return Settings(**known), warnings


def node_labels(hostname: str) -> dict[str, str]:
    """Return the labels of the node's name in nvct's own metrics: for one release, both names."""
    return dict.fromkeys(HOSTNAME_LABELS, hostname) if hostname else {}


def _milliseconds(text: str, flag: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < SHORTEST_MS:
        raise UsageError(f"--{flag} must be {SHORTEST_MS} milliseconds or more, not {text!r}")
    return int(text)


def _patterns(texts: tuple[str, ...]) -> tuple[tuple[str, ...], list[str]]:
    """Return the expressions that Go accepts, and a warning about each other one."""
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
        raise UsageError(f"--devices {text!r} is malformed", hint="write f, g, i or g:0,2-3")
    if match[1] == "f" and match[2]:
        raise UsageError(f"--devices {text!r}: f has no indices", hint="write g or i before them")
    indices: set[int] = set()
    for part in match[2].split(",") if match[2] else ():
        first, _, last = part.partition("-")
        indices.update(range(int(first), int(last or first) + 1))
    return match[1], frozenset(indices)
