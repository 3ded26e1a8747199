# SPDX-License-Identifier: Apache-2.0
"""Counter files: what is read, and that a malformed line is named."""

from __future__ import annotations

import re

import pytest

from nvct.agent.exporter import counters, options
from nvct.agent.exporter.settings import Settings
from nvct.errors import DocumentError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path


def test_lines_are_read_as_nvidias_exporter_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "counters.csv"
    path.write_text(
        "# comment\n\nDCGM_FI_DEV_DEC_UTIL ,     gauge, Decoder utilization (in %).\n"
        'dcgm_gpu_temp, gauge,"Help, quoted"\nDCGM_FI_DRIVER_VERSION, label, Driver\n'
    )

    first, second, third = counters.read(str(path))

    assert (first.name, first.kind) == ("DCGM_FI_DEV_DEC_UTIL", "gauge")
    assert (second.field, second.name) == ("DCGM_FI_DEV_GPU_TEMP", "dcgm_gpu_temp")
    assert third.kind == "label"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("DCGM_FI_DEV_GPU_TEMP, gauge", "line 1 of {path} has 2 parts, not 3"),
        ("DCGM_FI_DEV_GPU_TEMP, gauge, a, b", "line 1 of {path} has 4 parts, not 3"),
        ("DCGM_FI_DEV_HEAT, gauge, Heat", "line 1 of {path}: unknown field 'DCGM_FI_DEV_HEAT'"),
        ("DCGM_FI_DEV_GPU_TEMP, gouge, Heat", "line 1 of {path}: unknown type 'gouge'"),
        ("DCGM_FI_DEV_GPU_TEMP, label, Heat", "DCGM_FI_DEV_GPU_TEMP is a number and no label"),
        ("DCGM_FI_DRIVER_VERSION, gauge, V", "DCGM_FI_DRIVER_VERSION is a text"),
        ("DCGM_FI_DEV_GPU_TEMP, gauge, H\nDCGM_FI_DEV_GPU_TEMP, gauge, H", "TEMP twice"),
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
        (["--collect-interval", "5s"], "--collect-interval must be 1000 milliseconds or more"),
        (["--collect-interval", "10"], "--collect-interval must be 1000 milliseconds or more"),
        (["--kubernetes-gpu-id-type", "name"], "must be one of uid, device-name"),
        (["--frobnicate"], "'--frobnicate' is no option of dcgm-exporter"),
    ],
)
def test_a_wrong_option_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        options.resolve(words, {})


def test_an_option_without_effect_is_named() -> None:
    _, warnings = options.resolve(["--configmap-data", "ns:name"], {})

    assert warnings == ["--configmap-data is not supported yet"]
    assert "--remote-hostengine-info" in options.help_text()
