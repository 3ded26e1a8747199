# SPDX-License-Identifier: Apache-2.0
"""Write the dashboard for Grafana, packaging/helm/nvct/monitoring/dashboard.json.

::

    python3 packaging/monitoring/dashboard.py [FILE]

A GPU in MIG mode, and one that pods share, may have a value in several series. So each query takes
the maximum of a GPU or MIG instance before it adds them up. No query depends on the recording
rules.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, TypeAlias

    Panel: TypeAlias = dict[str, Any]

TARGET = Path(__file__).parents[1] / "helm/nvct/monitoring/dashboard.json"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24
"""Columns of Grafana's grid."""
NODE = 'Hostname=~"$node"'
GPU = f'{NODE},gpu=~"$gpu"'
POD = f'{NODE},namespace=~"$namespace",pod!=""'
BY_GPU = "max by (Hostname, gpu, UUID)"
BY_DEVICE = "max by (Hostname, gpu, UUID, GPU_I_ID)"
BY_POD = "max by (namespace, pod, Hostname, UUID, GPU_I_ID)"
ONE_GPU = "{{Hostname}} {{gpu}}"
ONE_POD = "{{namespace}}/{{pod}}"
ONE_INSTANCE = "{{Hostname}} {{gpu}}/{{GPU_I_ID}} {{GPU_I_PROFILE}}"


def stat(title: str, query: str, unit: str = "none", **more: Any) -> Panel:  # noqa: ANN401
    """Return a panel with one number."""
    return {"type": "stat", "w": 4, "h": 4, "title": title, "unit": unit, "queries": [(query, "")],
            **more}  # fmt: skip


def graph(title: str, query: str, legend: str, unit: str = "none", **more: Any) -> Panel:  # noqa: ANN401
    """Return a panel with lines over time."""
    return {"type": "timeseries", "w": 8, "h": 8, "title": title, "unit": unit,
            "queries": [(query, legend)], **more}  # fmt: skip


def table(title: str, query: str, **more: Any) -> Panel:  # noqa: ANN401
    """Return a panel with a row for each series."""
    return {"type": "table", "w": 8, "h": 8, "title": title, "unit": "none",
            "queries": [(query, "")], **more}  # fmt: skip


ROWS: dict[str, list[Panel]] = {
    "Fleet": [
        stat("GPUs", f"count(group by (Hostname, UUID) (DCGM_FI_DEV_XID_ERRORS{{{NODE}}}))"),
        stat("Nodes", f"count(group by (Hostname) (DCGM_FI_DEV_XID_ERRORS{{{NODE}}}))"),
        stat(
            "Devices with a pod",
            f"count(group by (Hostname, UUID, GPU_I_ID) (nvct_gpu_pod_info{{{NODE}}}))"
            " or vector(0)",
        ),
        stat("Mean utilization", f"avg({BY_GPU} (DCGM_FI_DEV_GPU_UTIL{{{NODE}}}))", "percent"),
        stat(
            "Memory in use, share",
            f"sum({BY_DEVICE} (DCGM_FI_DEV_FB_USED{{{NODE}}}))"
            f" / sum({BY_DEVICE} (DCGM_FI_DEV_FB_USED{{{NODE}}} + DCGM_FI_DEV_FB_FREE{{{NODE}}}))",
            "percentunit",
        ),
        stat("Total power", f"sum({BY_GPU} (DCGM_FI_DEV_POWER_USAGE{{{NODE}}}))", "watt"),
        graph(
            "GPUs by model",
            "count by (modelName) (group by (Hostname, UUID, modelName)"
            f" (DCGM_FI_DEV_XID_ERRORS{{{NODE}}}))",
            "{{modelName}}",
        ),
        graph(
            "Devices by namespace",
            "count by (namespace) (group by (namespace, Hostname, UUID, GPU_I_ID)"
            f" (nvct_gpu_pod_info{{{POD}}}))",
            "{{namespace}}",
        ),
        table(
            "Alerts",
            'max by (alertname, severity, Hostname, gpu, UUID) (ALERTS{alertname=~"Nvct.*",'
            'alertstate="firing"})',
        ),
    ],
    "Nodes": [
        graph(
            "Utilization by node",
            f"avg by (Hostname) ({BY_GPU} (DCGM_FI_DEV_GPU_UTIL{{{NODE}}}))",
            "{{Hostname}}",
            "percent",
        ),
        graph(
            "Memory in use by node",
            f"sum by (Hostname) ({BY_DEVICE} (DCGM_FI_DEV_FB_USED{{{NODE}}}))",
            "{{Hostname}}",
            "mbytes",
        ),
        graph(
            "Power by node",
            f"sum by (Hostname) ({BY_GPU} (DCGM_FI_DEV_POWER_USAGE{{{NODE}}}))",
            "{{Hostname}}",
            "watt",
        ),
    ],
    "GPUs": [
        graph("Utilization", f"{BY_GPU} (DCGM_FI_DEV_GPU_UTIL{{{GPU}}})", ONE_GPU, "percent"),
        graph(
            "Memory in use",
            f"sum by (Hostname, gpu) ({BY_DEVICE} (DCGM_FI_DEV_FB_USED{{{GPU}}}))",
            ONE_GPU,
            "mbytes",
        ),
        graph("Power", f"{BY_GPU} (DCGM_FI_DEV_POWER_USAGE{{{GPU}}})", ONE_GPU, "watt"),
        graph("Temperature", f"{BY_GPU} (DCGM_FI_DEV_GPU_TEMP{{{GPU}}})", ONE_GPU, "celsius"),
        graph(
            "Temperature of the memory",
            f"{BY_GPU} (DCGM_FI_DEV_MEMORY_TEMP{{{GPU}}})",
            ONE_GPU,
            "celsius",
        ),
        graph("SM clock", f"{BY_GPU} (DCGM_FI_DEV_SM_CLOCK{{{GPU}}} * 1e6)", ONE_GPU, "hertz"),
        graph(
            "Tensor cores active (Hopper and later)",
            f"avg by (Hostname, gpu) ({BY_DEVICE} (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{GPU}}}))",
            ONE_GPU,
            "percentunit",
        ),
        graph(
            "Memory interface active (Hopper and later)",
            f"avg by (Hostname, gpu) ({BY_DEVICE} (DCGM_FI_PROF_DRAM_ACTIVE{{{GPU}}}))",
            ONE_GPU,
            "percentunit",
        ),
        graph(
            "NVLink, sent and received",
            f"{BY_GPU} (DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL{{{GPU}}}) * 1024000",
            ONE_GPU,
            "Bps",
        ),
    ],
    "Pods": [
        graph(
            "Utilization by pod",
            f"avg by (namespace, pod) ({BY_POD} (DCGM_FI_DEV_GPU_UTIL{{{POD}}}))",
            ONE_POD,
            "percent",
        ),
        graph(
            "Memory of GPUs in use by pod",
            f"sum by (namespace, pod) ({BY_POD} (DCGM_FI_DEV_FB_USED{{{POD}}}))",
            ONE_POD,
            "mbytes",
        ),
        graph(
            "Graphics engine active by pod (Hopper and later)",
            f"avg by (namespace, pod) ({BY_POD} (DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{POD}}}))",
            ONE_POD,
            "percentunit",
        ),
        graph(
            "Utilization by a container's processes (--processes)",
            f"sum by (namespace, pod, container) (nvct_container_gpu_utilization_ratio{{{NODE}}})",
            "{{namespace}}/{{pod}} {{container}}",
            "percentunit",
        ),
        graph(
            "Memory in use by a container's processes (--processes)",
            f"sum by (namespace, pod, container) (nvct_container_gpu_memory_used_bytes{{{NODE}}})",
            "{{namespace}}/{{pod}} {{container}}",
            "bytes",
        ),
        table(
            "Why series have no pods",
            f"max by (Hostname, reason) (nvct_pod_mapping_up{{{NODE}}})",
        ),
        table(
            "Devices of pods",
            "max by (namespace, pod, container, Hostname, gpu, GPU_I_ID)"
            f" (nvct_gpu_pod_info{{{POD}}})",
            w=24,
        ),
    ],
    "Health": [
        graph(
            "GPUs by state",
            "sum by (state) (max by (UUID, state)"
            ' (nvct_health_state{GPU_I_ID="",state!="healthy"}))',
            "{{state}}",
        ),
        graph(
            "Failures of GPUs in an hour",
            "sum by (UUID, GPU_I_ID) (max by (UUID, GPU_I_ID, GPU_CI_ID)"
            " (increase(nvct_health_failures_total[1h])))",
            "{{UUID}} {{GPU_I_ID}}",
        ),
        table(
            "XID errors since the exporter's start",
            f"max by (Hostname, UUID, GPU_I_ID, xid) (nvct_xid_errors_total{{{NODE}}})",
        ),
        graph(
            "Remapped rows, uncorrectable",
            f"{BY_GPU} (DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS{{{GPU}}})",
            ONE_GPU,
        ),
        graph(
            "Failures to remap a row",
            f"{BY_GPU} (DCGM_FI_DEV_ROW_REMAP_FAILURE{{{GPU}}})",
            ONE_GPU,
        ),
        graph(
            "PCIe replays in an hour",
            f"{BY_GPU} (increase(DCGM_FI_DEV_PCIE_REPLAY_COUNTER{{{GPU}}}[1h]))",
            ONE_GPU,
        ),
        graph(
            "Samples without a GPU",
            "max by (Hostname, gpu) (increase(nvct_exporter_gpu_skipped_total"
            f"{{{GPU}}}[$__rate_interval]))",
            ONE_GPU,
        ),
        graph(
            "Age of samples",
            f"max by (Hostname) (nvct_exporter_sample_age_seconds{{{NODE}}})",
            "{{Hostname}}",
            "s",
        ),
        graph(
            "Devices offered to the kubelet",
            "sum by (instance, resource, health) (nvct_device_plugin_devices)",
            "{{instance}} {{resource}} {{health}}",
        ),
        table(
            "Metrics that NVML does not give",
            "max by (metric, reason) (nvct_metric_unavailable)",
            w=16,
        ),
    ],
    "MIG": [
        graph(
            "Instances by profile",
            "count by (GPU_I_PROFILE) (group by (Hostname, UUID, GPU_I_ID, GPU_I_PROFILE)"
            f' (DCGM_FI_DEV_XID_ERRORS{{{GPU},GPU_I_ID!=""}}))',
            "{{GPU_I_PROFILE}}",
        ),
        graph(
            "Memory in use by instance",
            "max by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)"
            f' (DCGM_FI_DEV_FB_USED{{{GPU},GPU_I_ID!=""}})',
            ONE_INSTANCE,
            "mbytes",
        ),
        graph(
            "Graphics engine active by instance (Hopper and later)",
            "max by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)"
            f' (DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{GPU},GPU_I_ID!=""}})',
            ONE_INSTANCE,
            "percentunit",
        ),
    ],
}
VARIABLES = {
    "node": ("Node", "label_values(DCGM_FI_DEV_XID_ERRORS, Hostname)"),
    "gpu": ("GPU", 'label_values(DCGM_FI_DEV_XID_ERRORS{Hostname=~"$node"}, gpu)'),
    "namespace": ("Namespace", "label_values(nvct_gpu_pod_info, namespace)"),
}


def dashboard() -> dict[str, Any]:
    """Return the dashboard in the form that Grafana imports."""
    return {
        "title": "NVIDIA GPUs (nvct)",
        "uid": "nvct-gpus",
        "tags": ["gpu", "nvct"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_source(), *(_variable(name) for name in VARIABLES)]},
        "panels": list(_panels()),
    }


def _source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource",
            "query": "prometheus"}  # fmt: skip


def _variable(name: str) -> dict[str, Any]:
    label, query = VARIABLES[name]
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "sort": 3,
    }


def _panels() -> Iterator[dict[str, Any]]:
    y = number = 0
    for title, panels in ROWS.items():
        number += 1
        yield {"id": number, "type": "row", "title": title, "collapsed": False,
               "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1}, "panels": []}  # fmt: skip
        y, x, height = y + 1, 0, 0
        for panel in panels:
            if x + panel["w"] > WIDTH:
                x, y, height = 0, y + height, 0
            number += 1
            yield _panel(panel, number, {"x": x, "y": y, "w": panel["w"], "h": panel["h"]})
            x, height = x + panel["w"], max(height, panel["h"])
        y += height


def _panel(panel: Panel, number: int, position: dict[str, int]) -> dict[str, Any]:
    is_table = panel["type"] == "table"
    made: dict[str, Any] = {
        "id": number,
        "type": panel["type"],
        "title": panel["title"],
        "gridPos": position,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": panel["unit"]}, "overrides": []},
        "options": _options(panel["type"]),
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": SOURCE,
                "expr": query,
                "legendFormat": legend,
                "instant": panel["type"] != "timeseries",
                "range": panel["type"] == "timeseries",
                "format": "table" if is_table else "time_series",
            }
            for index, (query, legend) in enumerate(panel["queries"])
        ],
    }
    if is_table:
        made["transformations"] = [
            {"id": "organize", "options": {"excludeByName": {"Time": True}}}
        ]
    return made


def _options(kind: str) -> dict[str, Any]:
    if kind == "stat":
        return {"reduceOptions": {"values": False, "calcs": ["lastNotNull"], "fields": ""}}
    if kind == "timeseries":
        return {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
                "tooltip": {"mode": "multi", "sort": "desc"}}  # fmt: skip
    return {"showHeader": True}


def main() -> None:
    """Write the file."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    target.write_text(json.dumps(dashboard(), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
