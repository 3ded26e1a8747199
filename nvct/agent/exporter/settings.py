# SPDX-License-Identifier: Apache-2.0
"""The settings of the exporter; the names and defaults are those of the options."""

from __future__ import annotations

from dataclasses import dataclass

COUNTERS = "/etc/dcgm-exporter/default-counters.csv"
ID_TYPES = ("uid", "device-name")
HOSTNAME_LABELS = ("Hostname", "hostname")
"""Of dcgm-exporter up to 4.8.2, and of its main branch since May 2026."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings.

    Attributes:
        collectors: the counter file.
        address: HOST:PORT that is served.
        interval_s: between two samples.
        kubernetes: whether series have the labels of pods; None: if the kubelet's socket exists.
        devices: f (instances of GPUs in MIG mode, and other GPUs), g (GPUs), i (instances).
        indices: of the GPUs that are shown; empty for all.
        hostname: of the node, the value of a label; "" for none.
        hostname_label: its name, one of HOSTNAME_LABELS.
        socket: of the kubelet's service for pods' resources.
        resources: further names of resources whose ids are GPUs.
        claims: whether series have the labels of claims.
        pod_labels, pod_uid: whether series have the labels and the UID of their pod.
        pod_label_patterns: regular expressions of labels' names; empty for all labels.
        xid_window_ms, clock_window_ms: of the counts in a window.
        container_driver_root: where the driver's root is mounted; / is used if it is no folder.
        web_config: a file with TLS, users and headers (`web/config.py`); "" for plain HTTP.
        processes: whether there are values of containers by their processes.
        job_folder: with files that name the job of each GPU; "" for none.
        host_root: where the host's /proc and /var are.
        textfile: a file that gets all metrics after each sample; "" for none.
    """

    collectors: str = COUNTERS
    address: str = ":9400"
    interval_s: float = 30.0
    kubernetes: bool | None = None
    old_namespace: bool = False
    devices: str = "f"
    indices: frozenset[int] = frozenset()
    hostname: str = ""
    hostname_label: str = HOSTNAME_LABELS[0]
    socket: str = "/var/lib/kubelet/pod-resources/kubelet.sock"
    resources: tuple[str, ...] = ()
    virtual_gpus: bool = False
    claims: bool = False
    pod_labels: bool = False
    pod_uid: bool = False
    pod_label_patterns: tuple[str, ...] = ()
    xid_window_ms: int = 300_000
    clock_window_ms: int = 300_000
    replace_blanks: bool = False
    container_driver_root: str = "/driver-root"
    web_config: str = ""
    processes: bool = False
    job_folder: str = ""
    host_root: str = "/"
    textfile: str = ""


def node_labels(hostname: str) -> dict[str, str]:
    """Return the node's labels of nvct's own metrics: for one release they have both names."""
    return dict.fromkeys(HOSTNAME_LABELS, hostname) if hostname else {}
