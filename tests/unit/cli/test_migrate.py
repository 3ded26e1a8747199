# SPDX-License-Identifier: Apache-2.0
"""nvct migrate on a host as NVIDIA's own programs leave it: see incumbent/README.md.

Each test has an /etc of its own, in a mount namespace.
"""

import functools
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from nvct.cli.main import program
from nvct.cli.runtime import engine as runtime_engine
from nvct.doctor import fix
from nvct.engine import processes
from nvct.engine.journal import DamagedJournalError
from nvct.engine.model import Engine
from nvct.errors import ConfigError, EngineConfigError
from nvct.linux import constants
from nvct.linux.kernel import KERNEL
from tests.support.forked import in_a_mount_namespace, run_forked
from tests.support.shim_lab import Lab

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="/etc needs root")

RECORDED = Path(__file__).with_name("incumbent")
ETC = Path("/etc")
UNITS = ETC / "systemd/system"
PACKAGED = Path("/usr/lib/systemd/system/nvidia-cdi-refresh.service")
FILES = {
    "docker/daemon.json": "daemon.json",
    "containerd/config.toml": "containerd.toml",
    "containerd/conf.d/99-nvidia.toml": "containerd-99-nvidia.toml",
    "crio/crio.conf.d/99-nvidia.toml": "crio-99-nvidia.toml",
}
ENGINES = [
    Engine(engine="docker", config="/etc/docker/daemon.json"),
    Engine(engine="containerd", config="/etc/containerd/config.toml", version="1.7.24"),
    Engine(engine="crio", config="/etc/crio/crio.conf", config_dir="/etc/crio/crio.conf.d"),
    Engine(engine="podman", config="/etc/containers/containers.conf"),
]
HOOK = '{"version": "1.0.0", "hook": {"path": "%s"}, "stages": ["prestart"]}\n'
OLD_HOOK = "/usr/bin/nvidia-container-runtime-hook"
OWN = Path(sys.executable).parent
SHIM = f"{OWN}/nvidia-container-runtime"
FOLDERS = ("docker", "containerd", "crio", "containers", "systemd/system")
CHANGES = ("os.rename", "os.remove", "os.link", "os.symlink", "os.mkdir", "os.rmdir")
MOST = 200
PEEK = os.WEXITED | os.WNOHANG | os.WNOWAIT


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Generator[Lab]:
    made = Lab()
    made.driver()
    made.env["NVCT_STATE_DIR"] = str(made.home / "state")
    shutil.copy(RECORDED / "nvidia.yaml", made.home / "cdi")
    monkeypatch.setattr(runtime_engine, "engines", lambda: ENGINES)
    yield made
    made.remove()


def furnish(lab: Lab) -> None:
    """Give this mount namespace an /etc of its own, as NVIDIA's programs leave one."""
    for name in ("upper", "work"):
        (lab.home / name).mkdir()
    layers = f"lowerdir=/etc,upperdir={lab.home}/upper,workdir={lab.home}/work"
    KERNEL.mount("etc", "/etc", "overlay", 0, layers)
    for name in FOLDERS:
        (ETC / name).mkdir(parents=True, exist_ok=True)
    for name, recorded in FILES.items():
        (ETC / name).parent.mkdir(exist_ok=True)
        shutil.copy(RECORDED / recorded, ETC / name)
    (ETC / "crio/crio.conf").write_text("# mine\n")
    podman = '[engine.runtimes]\nnvidia = ["/usr/bin/nvidia-container-runtime"] # mine\n'
    (ETC / "containers/containers.conf").write_text(podman)
    for name in ("service", "path"):
        unit = UNITS / f"nvidia-cdi-refresh.{name}"
        unit.write_text("[Service]\nExecStart=/usr/bin/nvidia-ctk cdi generate\n")
        (UNITS / "multi-user.target.wants").mkdir(exist_ok=True)
        (UNITS / "multi-user.target.wants" / unit.name).symlink_to(unit)
    hooks = ETC / "containers/oci/hooks.d"
    hooks.mkdir(parents=True)
    (hooks / "oci-nvidia-hook.json").write_text(HOOK % OLD_HOOK)
    (hooks / "other.json").write_text(HOOK % "/usr/bin/other")


def on_a_host(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test in a mount namespace with such an /etc."""

    @functools.wraps(test)
    def furnished(lab: Lab, **more: Any) -> None:
        furnish(lab)
        test(lab=lab, **more)

    return in_a_mount_namespace(furnished)


def migrate(lab: Lab, *words: str) -> Result:
    quiet = ["--quiet"] if "--quiet" in words else []
    words = tuple(word for word in words if word != "--quiet")
    arguments = ["--config", str(lab.config_toml), *quiet, "migrate", *words]
    return CliRunner().invoke(program("nvct"), arguments, env=lab.env)


def succeeds(lab: Lab, *words: str) -> str:
    done = migrate(lab, *words)
    assert done.exit_code == 0, (done.output, done.exception)
    return str(done.output)


def files(lab: Lab) -> dict[str, bytes | str]:
    found: dict[str, bytes | str] = {}
    for folder in (*(ETC / name for name in FOLDERS), lab.home / "cdi"):
        for path in sorted(folder.rglob("*")):
            if path.name.startswith(".nvct-"):
                continue  # the one that a killed run may leave
            if path.is_symlink():
                found[str(path)] = os.readlink(path)
            elif path.is_file():
                found[str(path)] = path.read_bytes()
    return found


@on_a_host
def test_a_host_moves_and_moves_back_to_the_byte(lab: Lab) -> None:
    before = files(lab)

    plan = migrate(lab, "plan", "--json")

    assert files(lab) == before
    assert "Generated" not in plan.stderr
    rows = json.loads(plan.stdout)
    actions = {row["path"]: row["action"] for row in rows}
    succeeds(lab, "apply")
    after = files(lab)
    differing = {path for path in {*before, *after} if before.get(path) != after.get(path)}
    assert {path for path, action in actions.items() if action != "stays"} == differing
    assert actions[str(lab.config_toml)] == "stays"
    assert actions["/etc/systemd/system/nvidia-cdi-refresh.path"] == "goes"
    daemon = json.loads((ETC / "docker/daemon.json").read_text())
    assert daemon["runtimes"]["nvidia"]["path"] == SHIM
    assert (daemon["default-runtime"], daemon["features"]) == ("nvidia", {"cdi": True})
    texts = [text.decode() for text in after.values() if isinstance(text, bytes)]
    assert sum(f'"{SHIM}"' in text for text in texts) == len(ENGINES)
    for name in ("containerd/conf.d/99-nvidia.toml", "crio/crio.conf.d/99-nvidia.toml"):
        former = before[f"/etc/{name}"]
        assert isinstance(former, bytes)
        expected = former.decode().replace("/usr/bin/nvidia-container-runtime", SHIM)
        assert (ETC / name).read_text() == expected, "its default and CDI stay"
    assert f"{OWN}/nvidia-container-runtime-hook" in json.dumps(
        json.loads((ETC / "containers/oci/hooks.d/oci-nvidia-hook.json").read_text())
    )
    devices = yaml.safe_load((lab.home / "cdi/nvidia.yaml").read_text())["devices"]
    assert {"0", "1", "all"} <= {device["name"] for device in devices}
    assert "nothing to move" in succeeds(lab, "apply")
    assert files(lab) == after

    succeeds(lab, "back")

    assert files(lab) == before
    assert not list((lab.home / "state").glob("*j*"))


@on_a_host
def test_edits_by_others_stay_when_the_host_moves_back(lab: Lab) -> None:
    before = files(lab)
    succeeds(lab, "apply")
    daemon, hook = ETC / "docker/daemon.json", ETC / "containers/oci/hooks.d/oci-nvidia-hook.json"
    daemon.write_text(json.dumps({**json.loads(daemon.read_text()), "debug": True}))
    hook.write_text(hook.read_text().replace("prestart", "createRuntime"))
    unit = UNITS / "nvidia-cdi-refresh.service"
    unit.write_text("# an admin's\n")
    spec = lab.home / "cdi/nvidia.yaml"
    # As nvct's unit does when the driver changes.
    spec.write_text(spec.read_text() + "# another driver\n")

    succeeds(lab, "back")

    assert json.loads(daemon.read_text()) == {
        **json.loads((RECORDED / "daemon.json").read_text()),
        "debug": True,
    }
    assert hook.read_text() == (HOOK % OLD_HOOK).replace("prestart", "createRuntime")
    assert unit.read_text() == "# an admin's\n"
    assert spec.read_bytes() == before[str(spec)]


@on_a_host
def test_a_specification_in_another_folder_goes_and_names_that_vanish_are_told(lab: Lab) -> None:
    other = lab.home / "cdi2/old.yaml"
    text = (RECORDED / "nvidia.yaml").read_text().replace("name: '0'", "name: gpu0")
    other.write_text(text)
    mine = lab.spec("mine.json", devices={"9": {"env": ["A=1"]}})
    lab.env["NVIDIA_CTK_CDI_OUTPUT_FILE_PATH"] = str(lab.home / "cdi2/nvidia.yaml")

    said = succeeds(lab, "apply")

    assert f"{other} goes: nvidia-ctk wrote it" in said
    assert "but not the names nvidia.com/gpu=gpu0" in said
    assert not (lab.home / "cdi/nvidia.yaml").exists()
    assert mine.exists(), "nvidia-ctk has not written it"
    succeeds(lab, "back")
    assert other.read_text() == text
    assert not (lab.home / "cdi2/nvidia.yaml").exists()


@on_a_host
def test_names_that_vanish_from_the_specification_that_becomes_nvcts_are_told(lab: Lab) -> None:
    """As of `nvidia-ctk cdi generate --device-name-strategy=type-index`."""
    spec = lab.home / "cdi/nvidia.yaml"
    spec.write_text(spec.read_text().replace("name: '0'", "name: gpu0"))

    said = succeeds(lab, "plan")

    names = "nvct describes the GPUs, but not the names nvidia.com/gpu=gpu0"
    assert f"{spec} changes: {names}" in said


@on_a_host
def test_a_specification_of_another_purpose_does_not_become_nvcts(lab: Lab) -> None:
    """It is the first here, by its name."""
    spec, imex = lab.home / "cdi/nvidia.yaml", lab.home / "cdi/imex.yaml"
    text = spec.read_text().replace("name: '0'", "name: channel0")
    imex.write_text(text.replace("name: all", "name: channel1"))
    before = imex.read_bytes()

    said = succeeds(lab, "apply")

    names = "nvidia.com/gpu=channel0, nvidia.com/gpu=channel1"
    assert f"{imex} stays: nvct's has none of its devices: {names}" in said
    assert imex.read_bytes() == before
    assert f"{spec} changes: nvct describes the GPUs" in said
    lab.env["NVIDIA_CTK_CDI_OUTPUT_FILE_PATH"] = str(imex)
    succeeds(lab, "back")
    assert f"{imex} stays: nvct's has none" in succeeds(lab, "apply")
    assert imex.read_bytes() == before


@on_a_host
def test_a_unit_of_nvcts_packages_takes_the_place_of_the_one_that_hid_it(lab: Lab) -> None:
    KERNEL.mount("usr", str(PACKAGED.parent), "tmpfs", 0, "")
    PACKAGED.write_text("ExecStart=/usr/bin/nvct publish\n")
    admins = UNITS / "gpu-spec.service"
    admins.write_text("ExecStart=/usr/bin/nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml\n")
    masked = UNITS / "nvidia-cdi-refresh.path"
    masked.unlink()
    masked.symlink_to("/dev/null")
    lab.env["NVIDIA_CTK_CDI_OUTPUT_FILE_PATH"] = str(lab.home / "cdi/nvidia.yaml")

    said = succeeds(lab, "apply")

    assert f"nvidia-cdi-refresh.service goes: it hides {PACKAGED}" in said
    assert f"{admins} stays: an admin wrote it" in said
    link = UNITS / "multi-user.target.wants/nvidia-cdi-refresh.service"
    assert os.readlink(link) == str(PACKAGED)
    assert os.readlink(masked) == "/dev/null"
    succeeds(lab, "back")
    assert os.readlink(link) == str(UNITS / "nvidia-cdi-refresh.service")


@on_a_host
def test_without_a_driver_the_specification_stays(lab: Lab) -> None:
    for name in ("driver", "proc", "dev"):
        shutil.rmtree(lab.home / name)
        (lab.home / name).mkdir()
    spec = lab.home / "cdi/nvidia.yaml"
    before = spec.read_bytes()

    assert f"{spec} stays: without a driver" in succeeds(lab, "apply")

    assert spec.read_bytes() == before


@on_a_host
def test_a_program_that_containers_need_is_a_link_as_long_as_nvidias_is_gone(lab: Lab) -> None:
    KERNEL.mount("run", "/run", "tmpfs", 0, "")
    KERNEL.mount("bin", "/usr/local/bin", "tmpfs", 0, "")
    task = Path("/run/containerd/io.containerd.runtime.v2.task/k8s.io/4711")
    task.mkdir(parents=True)
    gone = Path("/usr/local/bin/nvidia-container-runtime")
    (task / "runtime").write_text(str(gone))

    assert f"{gone} is made: 1 running container" in succeeds(lab, "apply")

    assert os.readlink(gone) == SHIM
    said = succeeds(lab, "back")
    assert f"{gone}: left as it is: 1 running container can only be stopped with it" in said
    assert os.readlink(gone) == SHIM
    assert "cut short" not in succeeds(lab, "plan")
    succeeds(lab, "apply")
    shutil.rmtree(task)
    succeeds(lab, "back")
    assert not gone.is_symlink()


@on_a_host
def test_what_is_on_a_read_only_file_system_does_not_hinder_the_move(lab: Lab) -> None:
    folder = str(ETC / "containers/oci/hooks.d")
    KERNEL.mount(folder, folder, None, constants.MS_BIND)
    flags = constants.MS_BIND | constants.MS_REMOUNT | constants.MS_RDONLY
    KERNEL.mount(None, folder, None, flags)

    said = succeeds(lab, "apply")

    assert f"{folder}/oci-nvidia-hook.json stays: its folder is read-only" in said
    assert SHIM in (ETC / "docker/daemon.json").read_text()


@on_a_host
def test_a_failure_of_a_later_step_takes_back_the_engines(lab: Lab) -> None:
    """What `nvct runtime configure` had done before apply stays."""
    arguments = ["runtime", "configure", "--runtime=docker"]
    done = CliRunner().invoke(program("nvct"), arguments, env=lab.env)
    assert done.exit_code == 0, done.output
    text = (ETC / "docker/daemon.json").read_text()
    (ETC / "docker/daemon.json").write_text(text.replace(SHIM, "nvidia-container-runtime"))
    before = files(lab)
    unit = UNITS / "nvidia-cdi-refresh.service"
    KERNEL.mount(str(unit), str(unit), None, constants.MS_BIND)  # a mount point cannot be removed

    done = migrate(lab, "apply")

    assert done.exit_code == 1, done.output
    assert "it is a mount point" in done.output or "cannot be written" in done.output
    KERNEL.umount2(str(unit), constants.MNT_DETACH)
    assert files(lab) == before


@on_a_host
def test_a_name_that_the_engine_finds_on_its_path_as_nvcts_stays(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after `apt install nvct`, whose programs have the paths of NVIDIA's."""
    engine = Engine(engine="docker", config="/etc/docker/daemon.json", path=f"/nowhere:{OWN}")
    monkeypatch.setattr(runtime_engine, "engines", lambda: [engine])
    before = (ETC / "docker/daemon.json").read_bytes()

    said = succeeds(lab, "apply")

    assert "/etc/docker/daemon.json stays: runtime nvidia is nvct's already" in said
    assert (ETC / "docker/daemon.json").read_bytes() == before


@on_a_host
def test_files_that_cannot_be_read_hide_no_others_and_each_has_its_hint(lab: Lab) -> None:
    """Also with --quiet, and before anything changes."""
    (ETC / "crio/crio.conf").write_text("[crio")
    hooks = ETC / "containers/oci/hooks.d"
    twice = (HOOK % OLD_HOOK).replace('"path"', '"path": "/x", "path"')
    (hooks / "a.json").write_text(twice)
    with (UNITS / "big.service").open("w") as file:
        file.truncate(65 << 20)
    before = files(lab)

    done = migrate(lab, "--quiet", "plan")
    applied = migrate(lab, "apply")

    assert isinstance(done.exception, EngineConfigError)
    assert "/etc/crio/crio.conf" in done.exception.message
    for path in (
        "/etc/docker/daemon.json",
        f"{lab.home}/cdi/nvidia.yaml",
        f"{hooks}/oci-nvidia-hook.json",
    ):
        assert f"{path} changes" in done.stdout
    assert f"{UNITS}/nvidia-cdi-refresh.path goes" in done.stdout
    (about_unit, about_hook) = done.stderr.splitlines()
    assert about_unit.startswith(f"nvct: {UNITS}/big.service")
    assert about_hook.startswith(f"nvct: {hooks}/a.json")
    assert about_hook.endswith("; correct it by hand; nothing was changed [bad-engine-config]")
    assert applied.exit_code == 1
    assert about_hook in applied.stderr
    assert files(lab) == before


@on_a_host
def test_without_a_config_toml_that_can_be_read_plan_shows_the_rest(lab: Lab) -> None:
    lab.config_toml.write_text("[nvct")

    done = migrate(lab, "plan")

    assert isinstance(done.exception, ConfigError)
    assert f"{UNITS}/nvidia-cdi-refresh.path goes" in done.stdout
    assert "/etc/docker/daemon.json changes" in done.stdout


@on_a_host
def test_plan_makes_no_view_of_the_driver(lab: Lab) -> None:
    lab.keys["nvct"]["layout"] = "auto"
    lab.configure()
    before = sorted(lab.home.rglob("*"))

    said = succeeds(lab, "plan")

    assert sorted(lab.home.rglob("*")) == before
    assert f"{lab.home}/cdi/nvidia.yaml changes: nvct describes the GPUs" in said
    assert f"the view of this driver does not exist yet: once it is in {lab.home}/farm" in said


@on_a_host
def test_a_damaged_page_does_not_keep_the_rest(lab: Lab) -> None:
    before = files(lab)
    succeeds(lab, "apply")
    page = next((lab.home / "state").glob("docker-*.json"))
    page.write_text("x")
    assert f"the journal {page} is damaged" in succeeds(lab, "plan")

    done = migrate(lab, "back")

    assert isinstance(done.exception, DamagedJournalError)
    command = f"nvct runtime undo --remove --state-dir={page.parent}"
    assert (done.exception.hint or "").startswith(command)
    assert f"/etc/docker/daemon.json: runtime nvidia is still {SHIM}" in done.output
    assert {**files(lab), "/etc/docker/daemon.json": b""} == {
        **before,
        "/etc/docker/daemon.json": b"",
    }
    undo = CliRunner().invoke(program("nvct"), command.split()[1:], env=lab.env)
    assert undo.exit_code == 0, undo.output
    assert SHIM not in (ETC / "docker/daemon.json").read_text()


@on_a_host
def test_back_makes_the_folder_of_a_specification_that_is_gone(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As /run/cdi after a boot. Where no engine was changed, nothing is said of one."""
    monkeypatch.setattr(runtime_engine, "engines", list)
    other = lab.home / "cdi2/old.yaml"
    shutil.copy(RECORDED / "nvidia.yaml", other)
    state = str(lab.home / "other state")
    said = succeeds(lab, "apply", f"--state-dir={state}")
    assert f"`nvct migrate back --state-dir={state}` undoes it" in said
    assert not other.exists()
    other.parent.rmdir()

    said = succeeds(lab, "back", f"--state-dir={state}")

    assert other.read_bytes() == (RECORDED / "nvidia.yaml").read_bytes()
    assert "nothing to undo" not in said


@on_a_host
def test_plan_names_what_stays_nvidias(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    args = ("dockerd", "--default-runtime", "nvidia")
    daemon = SimpleNamespace(pid=17, args=args, container=False)
    monkeypatch.setattr(processes, "running", lambda *_: [daemon])
    text = (RECORDED / "nvidia.yaml").read_text()
    theirs, bare = lab.home / "cdi2/theirs.yaml", lab.spec("bare.json")
    theirs.write_text(text)
    os.chown(theirs, 1000, 1000)
    unit = UNITS / "docker.service.d/gpu.conf"
    unit.parent.mkdir()
    option = "nvidia=/usr/bin/nvidia-container-runtime"
    unit.write_text(f"[Service]\nExecStart=/usr/bin/dockerd --add-runtime={option}\n")
    toml = '[plugins.linux]\nruntime = "nvidia-container-runtime"\n'
    (ETC / "containerd/config.toml").write_text(toml)
    drop_ins = ETC / "containers/containers.conf.d"
    drop_ins.mkdir()
    later = '[engine.runtimes]\nnvidia = ["/usr/bin/nvidia-container-runtime"]\n'
    (drop_ins / "nvidia.conf").write_text(later)

    said = succeeds(lab, "plan")
    succeeds(lab, "apply")
    again = succeeds(lab, "plan")

    assert f"{drop_ins}/nvidia.conf changes: runtime nvidia" in said
    assert f"{theirs} stays: it cannot be used" in said
    assert f"{bare} stays: no hook shows that nvidia-ctk wrote it" in said
    assert "process 17 stays: an option of dockerd sets nvidia: change it" in said
    assert f"{unit} stays: an option of dockerd sets {option}: change it" in said
    assert "containerd/config.toml stays: plugin linux has runtime nvidia" in said
    assert "/usr/bin/nvidia-container-runtime" not in (drop_ins / "nvidia.conf").read_text()
    assert "becomes" not in again


@on_a_host
def test_back_beside_apply_waits_for_its_end(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins between two transactions of apply: of the engines and of the other files."""
    before = files(lab)
    carry_out = fix.Transaction.carry_out
    reading, writing = os.pipe()
    if not (other := os.fork()):  # before apply: a fork would share its locks
        os.read(reading, 1)
        os._exit(migrate(lab, "back").exit_code)

    def after_a_while(transaction: fix.Transaction, steps: Sequence[fix.Step]) -> bool:
        os.write(writing, b"!")
        end = time.monotonic() + 3
        while time.monotonic() < end and not os.waitid(os.P_PID, other, PEEK):
            time.sleep(0.05)
        return carry_out(transaction, steps)

    monkeypatch.setattr(fix.Transaction, "carry_out", after_a_while)
    succeeds(lab, "apply")

    assert os.waitpid(other, 0)[1] == 0
    assert files(lab) == before


def killed(lab: Lab, word: str, point: int) -> bool:
    """Run a command, and kill it before its change number `point`; return whether it got there."""
    left = point
    own = 0

    def watch(event: str, values: tuple[object, ...]) -> None:
        nonlocal left
        del values
        if event in CHANGES and os.getpid() == own:
            if left == 0:
                os.kill(own, signal.SIGKILL)
            left -= 1

    def child() -> None:
        nonlocal own
        own = os.getpid()
        sys.addaudithook(watch)
        assert migrate(lab, word).exit_code == 0

    return os.WIFSIGNALED(run_forked(child))


@pytest.mark.slow
@pytest.mark.parametrize("word", ["apply", "back"])
@on_a_host
def test_a_host_whose_move_was_killed_moves_or_moves_back(word: str, lab: Lab) -> None:
    old = files(lab)
    succeeds(lab, "apply")
    new = files(lab)
    seen = set()
    for point in range(MOST):
        succeeds(lab, "apply" if word == "back" else "back")
        assert files(lab) == (new if word == "back" else old), point
        if not killed(lab, word, point):
            break
        current = files(lab)
        for path in {*old, *new}:
            assert current.get(path) in (old.get(path), new.get(path)), (point, path)
        seen.add(tuple(current.get(path) == old.get(path) for path in sorted({*old, *new})))
        way = ("apply", new) if point % 2 else ("back", old)
        succeeds(lab, way[0])
        assert files(lab) == way[1], point
        for page in (lab.home / "state").glob("*j*"):
            assert json.loads(page.read_text())["pending"] is None, (point, page)
    else:
        raise AssertionError(f"it never ends by itself, after {point} kills")
    assert len(seen) > len(ENGINES) + len(FOLDERS)


@pytest.mark.slow
@on_a_host
def test_back_after_a_second_move_was_killed_is_as_before_the_first(lab: Lab) -> None:
    hook = ETC / "containers/oci/hooks.d/oci-nvidia-hook.json"
    unit = UNITS / "nvidia-cdi-refresh.path"
    old = files(lab)
    for point in range(0, MOST, 2):
        succeeds(lab, "apply")
        hook.write_text(HOOK % OLD_HOOK)
        unit.write_text("[Service]\nExecStart=/usr/bin/nvidia-ctk cdi generate\n")
        was_killed = killed(lab, "apply", point)
        succeeds(lab, "back")
        assert files(lab) == old
        if not was_killed:
            return
    raise AssertionError("it made more changes than were expected")


@on_a_host
def test_a_hook_file_that_is_a_link_stays_one(lab: Lab) -> None:
    hook = ETC / "containers/oci/hooks.d/oci-nvidia-hook.json"
    hook.rename(real := hook.with_suffix(".real"))
    hook.symlink_to(real.name)

    succeeds(lab, "apply")

    assert hook.is_symlink()
    assert f"{OWN}/nvidia-container-runtime-hook" in real.read_text().replace("\\", "")
    succeeds(lab, "back")
    assert real.read_text() == HOOK % OLD_HOOK


@on_a_host
def test_a_file_that_changes_while_engines_are_restarted_stays(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = UNITS / "nvidia-cdi-refresh.path"
    carry_out = fix.Transaction.carry_out

    def after_an_edit(transaction: fix.Transaction, steps: Sequence[fix.Step]) -> bool:
        unit.write_text("# mine\n")
        return carry_out(transaction, steps)

    monkeypatch.setattr(fix.Transaction, "carry_out", after_an_edit)
    before = files(lab)

    done = migrate(lab, "apply")

    assert done.exit_code == 1, done.output
    assert f"another program just changed {unit}" in done.output
    assert files(lab) == {**before, str(unit): b"# mine\n"}
