# SPDX-License-Identifier: Apache-2.0
"""`promtool check metrics` finds fault with names of the incumbent's alone, all listed here."""

import io
from pathlib import Path

from nvct.agent.core.logs import Log
from nvct.agent.exporter import counters, usage
from nvct.agent.exporter.counters import Counter
from nvct.agent.exporter.history import History
from nvct.agent.exporter.pods import PodDevices
from nvct.agent.exporter.settings import Settings
from nvct.agent.exporter.task import Exporter
from nvct.agent.nvml.client import NvmlClient
from nvct.agent.web import exposition
from nvct.host.nvml.sample_model import VALUES, NvmlSamples, ProcessSample, XidCount
from tests.monitoring import agent_metrics
from tests.monitoring.prometheus import promtool
from tests.unit.agent.exporter.test_series import NOW, gpu, text, twice

LABEL = "label names should be written in 'snake_case' not 'camelCase'"
"""Of modelName."""
NO_TOTAL = 'counter metrics should have "_total" suffix'
OTHERS = {
    ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", NO_TOTAL),
    ("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", NO_TOTAL),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", NO_TOTAL),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "metric name should not include type 'counter'"),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", NO_TOTAL),
    ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", NO_TOTAL),
}
"""With the types and names of dcgm-exporter's default counter file."""
PROCESSES = (ProcessSample(pid=1, memory=1, sm=1),)


def lints(text: str) -> set[tuple[str, str]]:
    """Return metric and fault of each lint."""
    done = promtool("check", "metrics", text=text)
    assert done.returncode in (0, 3), done.stderr
    found = [line.partition(" ") for line in (done.stdout + done.stderr).splitlines()]
    return {(name, fault) for name, _, fault in found}


def test_the_default_metrics_have_the_faults_of_the_incumbents_names() -> None:
    default, _ = counters.read(str(counters.DEFAULT))
    names = {counter.name for counter in default if counter.kind != "label"}
    full = gpu(values=dict.fromkeys(VALUES, 5.0), errors={})

    found = lints(text(full, history=twice(full)))

    assert found == OTHERS | {
        (name, LABEL) for name in names if not counters.why_not(name, is_label=False)
    }


def test_all_other_fields_have_no_other_faults_as_gauges() -> None:
    some = [
        Counter(name, "gauge", "Help.", name) for name in (*counters.FIELDS, *counters.COMPUTED)
    ]
    full = gpu(values=dict.fromkeys(VALUES, 5.0), errors={})

    found = lints(text(full, history=twice(full), counters=tuple(some)))

    faults = {fault for _, fault in found}
    assert faults - {"metric name should not include type 'counter'"} == {LABEL}  # by older ones


def own_metrics(folder: Path) -> str:
    """Return the metrics of nvct's own, those of the agent, its plugin and its exporter."""
    log = Log(target=io.StringIO())

    settings = Settings(collectors=str(counters.DEFAULT), hostname="node-1", kubernetes=False)
    exporter = Exporter(
        lambda: settings, NvmlClient(None), log, lambda known: PodDevices(known, log), lambda _: ""
    )
    errors = (XidCount(xid=79, count=1, at=NOW),)
    samples = NvmlSamples(watch_start=1.0, gpus=(gpu(xids=errors),), unanswered={"1": "slow"})
    exporter._samples = samples
    exporter._history = History()
    exporter._history.add(samples, NOW, 600)
    unavailable = [line for line in text(gpu()).splitlines() if "nvct_metric_unavailable" in line]
    used = usage.usages(NvmlSamples(gpus=(gpu(processes=PROCESSES),)), lambda _pid: {})
    containers = usage.families(used, "node-1")
    own = exposition.text([*agent_metrics.families(folder), *exporter.metrics(), *containers])
    return own + "\n".join([*unavailable, ""])


def test_metrics_of_nvct_have_no_fault(tmp_path: Path) -> None:
    metrics = own_metrics(tmp_path)

    assert metrics.count("# HELP nvct_") >= 31
    assert lints(metrics) == set()
