# SPDX-License-Identifier: Apache-2.0
"""Counter files: what is read, that a malformed line is named, and which GPUs have values."""

import re
from pathlib import Path

import pytest

from nvct.agent.exporter import counters, series
from nvct.agent.exporter import settings as options
from nvct.agent.exporter.history import History
from nvct.agent.exporter.settings import Settings
from nvct.errors import DocumentError, UsageError
from nvct_sim import node_changes, tree
from tests.support.nvml_node import CACHE
from tests.unit.agent.exporter.test_series import DEFAULT, NOW
from tests.unit.agent.test_samples import ask, twice


def test_lines_are_read_as_nvidias_exporter_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "counters.csv"
    path.write_text(
        "\ufeff# comment\n\nDCGM_FI_DEV_DEC_UTIL ,     gauge, Decoder utilization (in %).\n"
        'dcgm_gpu_temp, gauge,"Help, quoted"\nDCGM_FI_DRIVER_VERSION, label, Driver\n'
    )

    (first, second, third), warnings = counters.read(str(path))

    assert (first.name, first.kind) == ("DCGM_FI_DEV_DEC_UTIL", "gauge")
    assert (second.field, second.name) == ("DCGM_FI_DEV_GPU_TEMP", "dcgm_gpu_temp")
    assert third.kind == "label"
    assert warnings == []


@pytest.mark.parametrize(
    ("line", "warning"),
    [
        ("DCGM_FI_DEV_FB_HEAT, gauge, Heat", "nvct does not read it"),
        ("dcgm_heat, gauge, Heat", "nvct knows no such field"),
        ("DCGM_FI_PROF_NVDEC1_ACTIVE, gauge, V", "it needs DCGM's profiling module"),
        ("DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT, gauge, T", "nvct reads no NVSwitches"),
        ("DCGM_FI_DEV_CPU_UTIL_TOTAL, gauge, U", "nvct reads GPUs only"),
        ("DCGM_FI_DEV_XID_ERRORS, label, X",
         "it needs several samples, so it cannot be a label"),
        ("DCGM_FI_DRIVER_VERSION, gauge, V", "it is a text: its type must be label"),
    ],
)  # fmt: skip
def test_a_field_that_nvct_does_not_read_is_a_warning(
    line: str, warning: str, tmp_path: Path
) -> None:
    path = tmp_path / "counters.csv"
    path.write_text(f"DCGM_FI_DEV_GPU_TEMP, gauge, T\n{line}\n")

    (_, odd), warnings = counters.read(str(path))

    name = line.partition(",")[0]
    assert (odd.name, odd.reason) == (name, warning)
    assert warnings == [f"line 2 of {path}: {name} has no series: {warning}"]


def test_the_first_line_of_a_metric_counts(tmp_path: Path) -> None:
    """NVIDIA's file of names of version 1 has dcgm_fi_prof_pcie_tx_bytes twice."""
    path = tmp_path / "counters.csv"
    path.write_text("DCGM_FI_DEV_GPU_TEMP, gauge, A\n  # more\nDCGM_FI_DEV_GPU_TEMP, gauge, B\n")

    (only,), warnings = counters.read(str(path))

    assert only.help == "A"
    before = "has no effect: an earlier line has DCGM_FI_DEV_GPU_TEMP"
    assert warnings == [f"line 3 of {path} {before}"]


@pytest.mark.parametrize("path", [counters.DEFAULT, counters.OF_VERSION_1], ids=lambda p: p.name)
def test_built_in_files_have_no_warnings(path: Path) -> None:
    assert counters.read(str(path))[1] == []


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("default-counters", "DCGM_FI_DEV_GPU_TEMP"),
        ("dcp-metrics-included", "DCGM_FI_PROF_GR_ENGINE_ACTIVE"),
        ("1.x-compatibility-metrics", "dcgm_gpu_temp"),
    ],
)
def test_the_counter_files_of_nvidias_image_are_built_in(name: str, metric: str) -> None:
    """The operator's values named one of them for years, and so do copies of these values."""
    env = {"DCGM_EXPORTER_COLLECTORS": f"/etc/dcgm-exporter/{name}.csv"}

    settings, warnings = options.resolve([], env)

    found, _ = counters.read(settings.collectors)
    assert metric in {counter.name for counter in found}
    assert warnings == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("DCGM_FI_DEV_GPU_TEMP, gauge", "line 1 of {path} has 2 parts, not 3"),
        ("DCGM_FI_DEV_GPU_TEMP, gauge, a, b", "line 1 of {path} has 4 parts, not 3"),
        ("DCGM FIELD, gauge, Heat", "line 1 of {path}: 'DCGM FIELD' is not a field"),
        ("DCGM_FI_X, gauge, H\n\n, gauge, H", "line 3 of {path}: '' is not a field"),
        ("DCGM_FI_DEV_HEAT, heat, Heat", "line 1 of {path}: unknown type 'heat'"),
        ("DCGM_FI_DEV_GPU_TEMP, gouge, Heat", "line 1 of {path}: unknown type 'gouge'"),
        ("# nothing", "has no counters"),
        ("\xff", "cannot read the counter file {path}: it is not UTF-8"),
    ],
)
def test_a_malformed_file_is_refused(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "counters.csv"
    path.write_bytes(line.encode("latin-1"))

    with pytest.raises(DocumentError, match=re.escape(message.format(path=path))):
        counters.read(str(path))


def test_settings_are_those_of_flags_then_variables() -> None:
    env = {
        "DCGM_EXPORTER_LISTEN": ":9401", "DCGM_EXPORTER_INTERVAL": "5000", "NODE_NAME": "n1",
        "DCGM_EXPORTER_KUBERNETES": "true", "NVIDIA_RESOURCE_NAMES": "a.com/gpu,b.com/gpu",
    }  # fmt: skip

    settings, warnings = options.resolve(["-a", ":9402", "-d", "g:0,2-3"], env)

    assert settings == Settings(
        collectors=str(counters.DEFAULT), address=":9402", interval_s=5.0, hostname="n1",
        kubernetes=True, resources=("a.com/gpu", "b.com/gpu"), devices="g",
        indices=frozenset({0, 2, 3}),
    )  # fmt: skip
    assert warnings == []


def test_the_folder_of_the_first_version_gets_the_textfile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "TEXTFILES", str(tmp_path))

    assert options.resolve([], {})[0].textfile == "/run/prometheus/dcgm.prom"
    assert options.resolve(["--textfile="], {})[0].textfile == ""
    monkeypatch.setattr(options, "TEXTFILES", str(tmp_path / "none"))
    assert options.resolve([], {})[0].textfile == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--devices", "x"], "--devices 'x' is malformed"),
        (["--hostname-label", "host"], "invalid --hostname-label option: 'host'"),
        (["--devices", "f:0"], "--devices 'f:0': f has no indices"),
        (["--collect-interval", "5s"], "--collect-interval must be 1000 milliseconds or more"),
        (["--collect-interval", "10"], "--collect-interval must be 1000 milliseconds or more"),
        (["--kubernetes-gpu-id-type", "name"], "invalid --kubernetes-gpu-id-type option: 'name'"),
        (["--frobnicate"], "'--frobnicate' is no option of dcgm-exporter"),
    ],
)
def test_a_wrong_option_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        options.resolve(words, {})


def test_an_option_without_effect_is_named() -> None:
    _, warnings = options.resolve(["--configmap-data", "ns:name"], {})

    assert warnings == ["--configmap-data is not supported: mount the counter file instead"]
    assert "--remote-hostengine-info" in options.PROGRAM.help_text()


# docs/metrics.md says which default metrics each generation has: those of simulated GPUs.


DOCUMENT = Path(__file__).parents[4] / "docs/metrics.md"
COLUMNS = {
    "Pascal": ("gtx1080ti-9", "GTX 1080 Ti"),
    "Volta": ("v100-8", "V100"),
    "Turing": ("t4-4", "T4"),
    "Ampere": ("a100-80", "A100"),
    "Ampere vGPU": ("vgpu", "A100D-8C"),
    "Hopper": ("hgx-h100", "H100"),
    "MIG on Hopper": ("hgx-h100", "H100"),
}
"""Profile of a simulated node, and part of the GPU's name."""


def documented() -> dict[str, dict[str, bool]]:
    """Return whether a metric is there, by column and metric."""
    lines = iter(DOCUMENT.read_text(encoding="utf-8").splitlines())
    header = next(line for line in lines if line.startswith("| metric | Pascal "))
    names = [cell.strip() for cell in header.strip("|").split("|")][1:]
    table: dict[str, dict[str, bool]] = {name: {} for name in names}
    next(lines)
    for line in lines:
        if not line.startswith("| `"):
            break
        metrics, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        for name, cell in zip(names, cells, strict=True):
            assert cell in ("yes", "no")
            table[name] |= dict.fromkeys(re.findall(r"`(\w+)`", metrics), cell == "yes")
    return table


@pytest.mark.parametrize("column", COLUMNS)
def test_the_table_is_that_of_simulated_gpus(column: str, tmp_path: Path) -> None:
    profile, model = COLUMNS[column]
    node = tree.create("g", profile, tmp_path, nodes="plain", native_cache=CACHE)
    is_mig = column.startswith("MIG")
    if is_mig:
        node_changes.apply(node, "mig-mode", ["0", "on"])
        node_changes.apply(node, "mig-create", ["0", "1g.10gb"])
    samples = ask(node, twice)
    fitting = [gpu for gpu in samples.gpus if model in gpu.name and bool(gpu.mig) is is_mig]
    alone = type(samples)(gpus=tuple(fitting[:1]))
    history = History()
    for at in (NOW - 1, NOW):
        history.add(alone, at, 300)
    view = series.View(alone, history, Settings(), {}, NOW)

    families = series.families(view, DEFAULT)
    shown = {family.name for family in families if family.samples}

    assert documented().keys() == COLUMNS.keys()
    names = [counter.name for counter in DEFAULT if counter.kind != "label"]
    assert documented()[column] == {name: name in shown for name in names}
