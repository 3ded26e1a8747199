# SPDX-License-Identifier: Apache-2.0
"""nvct doctor --fix and --undo on broken hosts: what is planned, healed, and taken back."""

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from nvct.config import load
from nvct.doctor import fix, mends
from nvct.doctor.model import Finding, Part
from nvct.doctor.reasons import Reason
from nvct.engine.journal import Journal, Page
from nvct.engine.writing import ABSENT
from tests.support.shim_lab import Lab
from tests.unit.doctor import broken_hosts

CHECKED = "driver,specs,hooks"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="device nodes need root")


@pytest.fixture
def lab() -> Generator[Lab]:
    made = Lab()
    made.driver()
    made.env["NVCT_STATE_DIR"] = str(made.home / "state")
    made.env["NVIDIA_CTK_CDI_OUTPUT_FILE_PATH"] = str(made.home / "cdi/gpu.json")
    yield made
    made.remove()


def doctor(lab: Lab, *words: str, only: str = CHECKED) -> tuple[int, str]:
    more = ["--only", only] if "--undo" not in words else []
    done = lab.invoke("nvct", "--config", lab.config_toml, "doctor", *more, *words)
    return done.exit_code, done.output


def reasons(lab: Lab, only: str = CHECKED) -> set[str]:
    """Return the reasons of the faults that some checks find."""
    return {
        one["reason"]
        for part in json.loads(doctor(lab, "--json", only=only)[1])
        for one in part["findings"]
        if one["severity"] in ("warning", "error")
    }


def journal(lab: Lab) -> Path:
    return lab.home / "state" / fix.NAME


def faulty(*found: Reason) -> list[Part]:
    findings = tuple(Finding(one, "error", "x") for one in found)
    return [Part(name="specs", health="attention", lines=("x",), findings=findings)]


def test_device_nodes_come_before_the_specification_that_names_them() -> None:
    planned = mends.plan(
        faulty(
            Reason.SpecificationStale, Reason.DeviceNodesMissing, Reason.SpecificationIncomplete
        )
    )

    assert [str(one) for one in planned] == [
        "nvct system create-device-nodes --all",
        "nvct publish",
    ]
    assert planned[1].reasons == (Reason.SpecificationStale, Reason.SpecificationIncomplete)


def test_what_no_command_mends_is_left_alone() -> None:
    assert mends.plan(faulty(Reason.SelinuxDenies, Reason.GpuBoundElsewhere)) == []


def test_a_dry_run_prints_the_commands_and_changes_nothing(lab: Lab) -> None:
    path = lab.spec(
        kind="acme.com/nic", devices={"0": {"deviceNodes": [{"path": "/dev/no-such"}]}}
    )
    before = path.read_bytes()

    _, said = doctor(lab, "--only", "specs", "--fix", "--dry-run")

    assert "would run: nvct system create-device-nodes --all  (DeviceNodesMissing)" in said
    assert path.read_bytes() == before


def test_a_dry_run_of_nothing_is_refused(lab: Lab) -> None:
    done = lab.invoke("nvct", "doctor", "--dry-run")

    assert "--dry-run goes with --fix or --undo" in str(done.exception)


def test_undo_stands_alone(lab: Lab) -> None:
    for words in (["--security"], ["--json"], ["--bundle", "x.tar.gz"]):
        done = lab.invoke("nvct", "doctor", "--undo", *words)

        assert "--undo takes no options but --dry-run" in str(done.exception)


SPECS = {
    Reason.SpecificationStale: broken_hosts.mount("/no/such/file"),
    Reason.HookWithoutEnvironment: {},
}


@pytest.mark.parametrize("reason", SPECS, ids=lambda one: one.name)
def test_a_specification_is_healed_and_undo_brings_its_fault_back(
    reason: Reason, lab: Lab
) -> None:
    edits = SPECS[reason] or broken_hosts.hook(str(lab.hook))
    spec = lab.spec(devices={"0": edits})
    before, faults = spec.read_bytes(), reasons(lab)
    assert reason.name in faults

    status, said = doctor(lab, "--fix")

    assert f"  {spec}: replace the specification" in said
    assert (status, reasons(lab)) == (0, set()), said
    assert doctor(lab, "--undo") == (0, f"  {spec}: restored\n")
    assert spec.read_bytes() == before
    assert reasons(lab) == faults


@needs_root
def test_device_nodes_are_made_and_undo_removes_them(lab: Lab) -> None:
    path = lab.home / "dev/nvidia0"
    path.unlink()
    dev = {each.name: each.lstat().st_mode for each in path.parent.iterdir()}
    assert reasons(lab) == {"DeviceNodesMissing"}

    status, said = doctor(lab, "--fix")

    assert said.index(f"  {path}: make device 195:0") < said.index("running: ")
    assert (status, reasons(lab)) == (0, set()), said
    assert os.lstat(path).st_rdev == os.makedev(195, 0)
    assert doctor(lab, "--undo")[0] == 0
    assert {each.name: each.lstat().st_mode for each in path.parent.iterdir()} == dev
    assert reasons(lab) == {"DeviceNodesMissing"}


@needs_root
def test_what_a_killed_fix_left_is_taken_back_before_the_checks_look(lab: Lab) -> None:
    path = lab.home / "dev/nvidia0"
    path.unlink()
    doctor(lab, "--fix")
    page_path = str(journal(lab))
    pages = Journal(os.path.dirname(page_path))
    pages.save(page_path, Page(pending=pages.load(page_path).done))

    status, said = doctor(lab, "--fix")

    assert said.index(f"  {path}: removed") < said.index(f"  {path}: make device 195:0")
    assert (status, reasons(lab)) == (0, set()), said
    doctor(lab, "--undo")
    assert not path.exists()


@needs_root
def test_links_are_made_and_undo_removes_them(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nvct.doctor.node.BOOTED", str(lab.home))
    node, folder = lab.home / "dev/nvidia0", lab.home / "dev/char"
    node.unlink()
    os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(195, 0))
    assert reasons(lab, "links") == {"CharacterLinksMissing"}

    _, said = doctor(lab, "--fix", only="links")

    assert f"  {folder}/195:0: make the link to {node}" in said
    assert os.readlink(folder / "195:0") == str(node)
    assert reasons(lab, "links") == set()
    assert doctor(lab, "--undo")[0] == 0
    assert not folder.exists()
    assert reasons(lab, "links") == {"CharacterLinksMissing"}


def test_an_engine_reads_no_file_that_is_not_finished(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`nvct publish` writes none, so that a kill leaves none; the whole file gets its name."""
    spec = lab.spec(devices={"0": broken_hosts.mount("/no/such/file")})
    ran: list[list[str]] = []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    real = mends.subprocess.run  # type: ignore[attr-defined]

    def run(argv: list[str], **more: object) -> object:
        if "publish" in argv:
            ran.append(argv)
        assert list(tmp_path.iterdir()) == []
        return real(argv, **more)

    monkeypatch.setattr(mends.subprocess, "run", run)  # type: ignore[attr-defined]
    doctor(lab, "--fix")

    (argv,) = ran
    assert argv[0] == mends.cold.interpreter()  # type: ignore[attr-defined]
    assert argv[1:6] == ["-I", "-m", "nvct.cli", "nvct", "--config"]
    assert argv[7:9] == ["publish", f"--output={spec}"]
    assert argv[9] == "--staged=make"
    assert [each.name for each in spec.parent.iterdir()] == [spec.name]


def test_a_link_is_followed_unless_others_can_write_to_its_folder(lab: Lab) -> None:
    link, spec = lab.home / "cdi/gpu.json", lab.home / "cdi2/gpu.json"
    lab.spec(folder="cdi2", devices={"0": broken_hosts.mount("/no/such/file")})
    link.symlink_to("../cdi2/gpu.json")
    before = spec.read_bytes()
    link.parent.chmod(0o1777)

    _, said = doctor(lab, "--fix")

    assert f"{link} is a link in a folder that others can write to" in said
    assert spec.read_bytes() == before

    link.parent.chmod(0o755)
    doctor(lab, "--fix")
    assert link.is_symlink()
    assert spec.read_bytes() != before
    doctor(lab, "--undo")
    assert link.is_symlink()
    assert spec.read_bytes() == before


def test_without_a_driver_its_specification_is_to_be_removed(lab: Lab) -> None:
    spec = lab.spec(devices={"0": broken_hosts.mount("/no/such/file")})
    shutil.rmtree(lab.home / "proc/driver")
    shutil.rmtree(lab.home / "driver/usr")
    said: list[str] = []
    host = mends.Host(
        roots=lab.host.roots, settings=load.load(str(lab.config_toml)), output=str(spec),
        options=["--config", str(lab.config_toml)], say=said.append,
    )  # fmt: skip

    states = mends.step(mends.Mend(mends.PUBLISH, ()), host).plan()

    assert states == {str(spec): ABSENT}
    assert said[-1].endswith(": no specification")
    assert spec.exists()
