# SPDX-License-Identifier: Apache-2.0
"""The record of a machine with a GPU: it changes no card, keeps no secret, and survives a kill."""

import ctypes
import json
import os
import re
import subprocess
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import pynvml
import pytest

from nvct.cdi.make import generate
from nvct.errors import HostError
from nvct.host.snapshot.redaction import Redactor
from nvct_sim import replay, rootfs
from tests.gpu import chain, kit, machine, nvml_calls, questions, record

UUID = "GPU-12345678-aaaa-bbbb-cccc-000000000000"
HOT = machine.REPOSITORY / "build/static/nvct-hot"


def guarded(log: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a copy of nvidia-ml-py over a library that answers 0 to all functions."""
    monkeypatch.setenv(nvml_calls.LOG_ENV, str(log))
    module = types.ModuleType("guarded")
    monkeypatch.setitem(sys.modules, "guarded", module)  # it adds its errors to the module
    exec(compile(Path(pynvml.__file__).read_bytes(), "pynvml", "exec"), module.__dict__)  # noqa: S102
    called: list[str] = []
    answer = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)

    def pointer(name: str) -> Any:
        called.append(name)
        return lambda *_: answer()

    module.__dict__["_nvmlGetFunctionPointer"] = pointer
    module.__dict__["_LoadNvmlLibrary"] = lambda: None
    module.__dict__["called"] = called
    nvml_calls.guard(module)
    return module


CHANGES = sorted(
    name
    for name in vars(pynvml)
    if name.startswith("nvml")
    and any(
        word in name
        for word in ("DeviceSet", "Reset", "Clear", "Destroy", "Modify", "Remove", "Freeze",
                     "CreateGpu", "CreateCompute", "UnitSet", "SystemSet", "Force", "Write",
                     "GpmSet", "Update", "Activate", "ValidateInforom", "Discover")
    )
)  # fmt: skip


def test_there_are_functions_that_change_a_card() -> None:
    assert {"nvmlDeviceSetMigMode", "nvmlDeviceSetPersistenceMode"} <= set(CHANGES)
    assert len(CHANGES) > 60


def test_the_log_has_calls_answers_and_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = guarded(tmp_path / "log", monkeypatch)

    nvml.nvmlInit()
    assert nvml.nvmlDeviceGetCount() == 0
    with pytest.raises(nvml_calls.CardWouldChangeError):
        nvml.nvmlDeviceSetMigMode(None, 1)

    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert {line["call"] for line in lines} >= {"nvmlInit", "nvmlDeviceGetCount"}
    assert all(line["ms"] >= 0 for line in lines)
    assert "nvmlDeviceSetMigMode" not in nvml.called


@pytest.mark.parametrize("name", CHANGES)
def test_a_call_that_changes_a_card_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = guarded(tmp_path / "log", monkeypatch)

    with pytest.raises(nvml_calls.CardWouldChangeError):
        nvml._nvmlGetFunctionPointer(name)

    assert nvml.called == []


def test_nvidia_smi_is_only_asked() -> None:
    reading = r"(-q|-L|topo|--help|--query|pmon|dmon|nvlink -[sce]|mig (-l|-h)|conf-c|vgpu|c2c -s"
    reading += r"|--version|power-smoothing -h|boost-slider -l|$)"
    for query in questions.QUERIES:
        assert re.match(reading, query), query


def test_the_guard_is_installed_once(tmp_path: Path) -> None:
    path = tmp_path / "pynvml.py"
    path.write_text("import sys\n")

    nvml_calls.install(path)
    nvml_calls.install(path)

    assert path.read_text().count("guard") == 1


def test_an_archive_that_is_cut_off_has_what_came_before(tmp_path: Path) -> None:
    path = tmp_path / "record.tar.gz"
    archive = record.Archive(path, Redactor(["thehost"]))
    archive.add("a/text.txt", f"thehost {UUID}\nSerial Number : 1650922012345\n")
    archive.add("a/b.json", json.dumps({"serial": "1650922012345", "uuid": UUID, "n": [1]}))
    whole = len(path.read_bytes())
    archive.add("c", "x" * 5000)
    with path.open("rb+") as file:
        file.truncate(whole + 40)

    texts = record.read(path)

    assert sorted(texts)[:2] == ["a/b.json", "a/text.txt"]
    assert "1650922012345" not in str(texts)
    assert "12345678-aaaa" not in str(texts)
    assert texts["a/text.txt"].startswith("(name) GPU-00000001-0000")
    assert json.loads(texts["a/b.json"])["n"] == [1]
    done = subprocess.run(["tar", "-tzf", path], capture_output=True, text=True, check=False)
    assert "a/b.json" in done.stdout


VERDICTS = {
    "fine": ("print('said')", "ok", "said"),
    "absent": ("import sys; print('no such thing'); sys.exit(77)", "not here", "no such thing"),
    "wrong": ("raise SystemExit('broken')", "FAULT", "broken"),
    "slow": ("import time; print('first', flush=True); time.sleep(60)", "FAULT",
             "ended after 1 s; before: first"),
}  # fmt: skip


@pytest.mark.parametrize("part", VERDICTS)
def test_each_part_ends_in_its_time_and_says_what_came_out(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, word, verdict = VERDICTS[part]
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}"\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))

    status = record.run(tmp_path / "record.tar.gz", tmp_path, (record.Part(part, 1),))

    assert status == (word == "FAULT")
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith(f"{word:9}{part:9}")
    assert line.endswith(f"s  {verdict}")
    assert record.read(tmp_path / "record.tar.gz").keys() == {f"{part}/log.txt", "table.txt"}


def test_without_time_a_part_is_not_started(tmp_path: Path) -> None:
    assert record.ask(record.Part("machine", 9), tmp_path, 0.0) == (1, "there was no time left")


def test_wheels_of_two_releases_are_not_mixed(tmp_path: Path) -> None:
    wheels = [tmp_path / f"a-{n}-py3-none-any.whl" for n in (1, 2)]
    for wheel in wheels:
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("a.py", "")

    with pytest.raises(HostError, match="two releases of a for any"):
        kit.unpack(wheels, tmp_path / "target")


def test_run_sh_says_what_it_needs(tmp_path: Path) -> None:
    script = machine.REPOSITORY / "tests/gpu/run.sh"
    for words in ([], [tmp_path]):
        done = subprocess.run(["sh", script, *words], capture_output=True, text=True, check=False)
        assert (done.returncode, "run.sh KIT [FILE]" in done.stderr) == (2, True)


@pytest.mark.engine
def test_the_kit_records_a_simulated_node_without_a_network(tmp_path: Path) -> None:
    """In a network namespace of its own, without pip and without what .venv has."""
    if reason := rootfs.can_run_containers():
        pytest.skip(reason)
    if not HOT.exists():
        pytest.skip("no nvct-hot: make static builds it")
    folder = tmp_path / "kit"
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    kit.make(folder, HOT, (python,), fast=True)
    env = {"PATH": f"{machine.interpreter().parent}:{os.defpath}:/usr/sbin:/sbin", "SIM": "1"}
    file = tmp_path / "record.tar.gz"

    done = subprocess.run(
        ["unshare", "--net", "sh", machine.REPOSITORY / "tests/gpu/run.sh", folder, file],
        cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert [
        line.split()[-1] for line in done.stdout.splitlines() if line.startswith("FAULT")
    ] == []
    texts = record.read(file)
    assert len({name.split("/")[0] for name in texts}) == len(record.PARTS) + 1
    assert "nvmlDeviceGetUUID" in texts["nvml/nvml-calls.jsonl"]
    assert "nvidia.com/gpu.count=8" in texts["agents/labels.txt"]
    assert "DCGM_FI_DEV_GPU_UTIL" in texts["agents/metrics.txt"]
    assert texts["agents/plugin.json"].count("Healthy") == 8
    said = texts["chain/log.txt"]
    assert "skip  CUDA calls: the simulated libcuda computes nothing\nall is right\n" in said
    for layout in chain.LAYOUTS:
        assert f"ok    nvidia-smi -L in a container, by the spec, layout {layout}" in said
    assert "ok    containers have the view" in said


RECORDED = sorted(Path(__file__).with_name("recorded").glob("*.tar.gz"))


@pytest.fixture(params=RECORDED, ids=lambda path: path.name.split(".")[0])
def texts(request: pytest.FixtureRequest) -> dict[str, str]:
    """Return the texts of a committed record."""
    return record.read(request.param)


def test_a_committed_record_is_whole_and_has_no_secret(texts: dict[str, str]) -> None:
    everything = "\n".join(texts.values())

    assert {part.name for part in record.PARTS} < {name.split("/")[0] for name in texts}
    assert re.findall(r"\b(?:GPU|MIG)-(?!0000)[0-9a-f]{8}", everything) == []
    assert re.findall(r"Serial Number\s*: \d+", everything) == []


def test_a_recorded_host_gives_containers_the_drivers_own_programs(
    texts: dict[str, str], tmp_path: Path
) -> None:
    """The H200's driver is in /usr/local/nvidia, and /usr/bin has scripts that start it."""
    prefix = "snapshot/host/"
    for name in [name for name in texts if name.startswith(prefix)]:
        path = tmp_path / name.removeprefix(prefix)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts[name])

    with replay.opened(str(tmp_path)) as opened:
        spec, warnings = replay.spec(opened, "auto", generate.Options(node_numbers=True))

    mounts = {
        mount["containerPath"]: mount["hostPath"] for mount in spec["containerEdits"]["mounts"]
    }
    assert mounts["/usr/bin/nvidia-smi"] == "/usr/local/nvidia/bin/nvidia-smi"
    assert [name for name in mounts if "libcuda.so" in name]
    assert warnings == []


@pytest.mark.engine
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.split(".")[0])
def test_the_simulated_gpu_is_like_the_recorded_one(path: Path) -> None:
    """All that nvct says of a GPU is the same; NVML answers more functions that nvct never calls."""
    if reason := rootfs.can_run_containers():
        pytest.skip(reason)

    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu", "likeness", path],
        cwd=machine.REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    kinds = re.findall(r"^(value|fact|label|metric) (\S+): real", done.stdout, re.MULTILINE)
    assert kinds == []
    assert len(re.findall(r"^function ", done.stdout, re.MULTILINE)) < 40
