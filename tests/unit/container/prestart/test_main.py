# SPDX-License-Identifier: Apache-2.0
"""The hook's command line, its state, and its decision about a container."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from nvct.config.model import Config
from nvct.container.prestart import deliver, main
from nvct.container.prestart.container import Container
from nvct.container.request.model import Request
from nvct.container.request.origin import Origin
from nvct.container.request.resolve import resolve_request
from nvct.errors import BundleError, ConfigError, HostError, RequestError
from nvct.oci.bundle import Bundle
from nvct.version import TOOLKIT_VERSION, __version__
from nvct_sim.bundle import config as make_config
from tests.support.processes import captured
from tests.support.shim_lab import PYTHON, REPOSITORY, Lab, started

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.request.resolve import Defined

PROGRAM = "nvidia-container-runtime-hook"
BOOT = (
    "import sys;sys.path.insert(0,{packages!r});"
    "from nvct.container.prestart.launch import main;main({cold!r})"
)
BANNED = {
    "os", "re", "json", "typing", "dataclasses", "pathlib", "enum", "functools", "collections",
    "logging", "argparse", "subprocess", "shutil", "tempfile", "contextlib", "ctypes", "struct",
    "socket", "inspect", "traceback", "site",
}  # fmt: skip


def hook(
    lab: Lab, *args: str, data: object = None, program: str = PROGRAM
) -> subprocess.CompletedProcess[str]:
    """Run the hook as the launcher starts it, with a state of this test's own process."""
    if data is None:
        data = {"ociVersion": "1.0.2", "id": "x", "pid": os.getpid(), "bundle": str(lab.bundle)}
    return captured(
        [*started(BOOT, lab.cold), program, *args], env=lab.env, cwd=lab.home,
        input=data if isinstance(data, str) else json.dumps(data), timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("command", ["poststart", "poststop"])
def test_poststart_and_poststop_do_nothing(command: str, lab: Lab) -> None:
    result = hook(lab, command, data="no state at all")

    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize("program", [PROGRAM, "nvidia-container-toolkit"])
@pytest.mark.parametrize("args", [[], ["createRuntime"], ["--nonsense", "prestart"], ["what"]])
def test_any_other_command_is_a_usage_error_of_the_program_that_was_called(
    args: list[str], program: str, lab: Lab
) -> None:
    result = hook(lab, *args, program=program)

    assert result.returncode == 2
    assert result.stderr.startswith(f"{program}: ")
    assert args != ["what"] or result.stderr.startswith(f"{program}: no command 'what'")
    assert result.stderr.count("\n") == 1


def test_the_incumbent_s_flags_are_known(lab: Lab) -> None:
    text = f"NVIDIA Container Runtime Hook version {TOOLKIT_VERSION}\nnvct: {__version__}\n"
    assert hook(lab, "-version").stdout == text
    assert "prestart" in hook(lab, "--help").stdout
    assert hook(lab, "-debug", "poststop").returncode == 0


@pytest.mark.parametrize(
    "env",
    [
        [],
        ["NVIDIA_VISIBLE_DEVICES=void"],
        ["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES=void"],
    ],
)
def test_a_container_without_a_request_never_fails_in_the_hook(env: list[str], lab: Lab) -> None:
    lab.asks(*env)
    lab.configure("mode = [broken")

    result = hook(lab, "prestart")

    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert os.listdir(lab.bundle / "rootfs") == []


@pytest.mark.parametrize(
    "asks",
    [
        {"annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=0"}},
        {"env": "NVIDIA_VISIBLE_DEVICES=void", "mounts": [
            {"destination": "/var/run/nvidia-container-devices/0", "source": "/dev/null"}]},
    ],
    ids=["annotations", "volume mounts that were served"],
)  # fmt: skip
def test_the_hook_ignores_requests_that_are_not_its_own(asks: dict[str, Any], lab: Lab) -> None:
    lab.keys[""] = {"accept-nvidia-visible-devices-as-volume-mounts": True}
    more = {key: value for key, value in asks.items() if key != "env"}
    lab.asks(*([asks["env"]] if "env" in asks else []), **more)

    assert hook(lab, "prestart").returncode == 0


@pytest.mark.parametrize(
    ("default", "minor", "message"),
    [
        ("deny", 1, "policy rule 'default' denies engine devices='1'"),
        ("ignore", 1, "the policy ignores devices that the engine gave, and a hook cannot take"),
        ("allow", 1, ""),
        ("deny", 255, ""),
    ],
)
def test_the_policy_sees_what_an_engine_gave_by_cdi(
    default: str, minor: int, message: str, lab: Lab
) -> None:
    lab.driver()
    lab.keys["nvct.policy"] = {"default": default, "engine-devices": "checked"}
    lab.configure()
    gpu = {"path": "/dev/x", "type": "c", "major": 195, "minor": minor}
    namespaces = [{"type": "pid"}, {"type": "cgroup"}]
    linux = {"cgroupsPath": "/x", "devices": [gpu], "namespaces": namespaces}
    lab.asks(
        "NVIDIA_VISIBLE_DEVICES=void", linux={**linux, "readonlyPaths": ["/proc/bus", "/proc/sys"]}
    )

    result = hook(lab, "prestart")

    assert result.returncode == (1 if message else 0), result
    assert message in result.stderr


@pytest.mark.parametrize(
    ("value", "said"),
    [("0", "has no mount namespace of its own"),
     ("7", f"{PROGRAM}: nvidia.com/gpu has no device '7'")],
    ids=["our own mounts", "unknown device"],
)  # fmt: skip
def test_a_request_that_cannot_be_delivered_is_one_line(value: str, said: str, lab: Lab) -> None:
    lab.driver()
    lab.asks(f"NVIDIA_VISIBLE_DEVICES={value}")

    result = hook(lab, "prestart")

    assert result.returncode == 1
    assert result.stderr.startswith(f"{PROGRAM}: ")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert os.listdir(lab.bundle / "rootfs") == []


@pytest.mark.parametrize("program", ["shim", "hook"])
def test_a_fifo_as_config_toml_does_not_block(program: str, lab: Lab) -> None:
    lab.config_toml.unlink()
    os.mkfifo(lab.config_toml)
    lab.asks("NVIDIA_VISIBLE_DEVICES=0")
    before = time.monotonic()

    result = lab.create().stderr if program == "shim" else hook(lab, "prestart").stderr

    message = (
        f"{lab.config_toml} is no regular file; replace it by a file of settings [bad-config]\n"
    )
    assert result.endswith(message)
    assert time.monotonic() - before < 10.0  # half of the time limit for the cold side


def test_a_named_config_file_is_used(lab: Lab) -> None:
    other = lab.home / "other.toml"
    other.write_text("mode = [broken", encoding="utf-8")
    lab.asks("NVIDIA_VISIBLE_DEVICES=0")

    result = hook(lab, "-config", str(other), "prestart")

    assert result.returncode == 1
    assert "other.toml" in result.stderr


def _bundle(*env: str) -> Bundle:
    return Bundle("/b/config.json", json.dumps(make_config(["true"], env=env)))


def accepted(
    bundle: Bundle, config: Config, origin: Origin | None = None, defined: Defined | None = None
) -> Request | None:
    request, _ = resolve_request(
        bundle.env, bundle.mounts, bundle.annotations, bundle.bounding,
        config.replaced(mode="legacy"), origin=origin, defined=defined,
    )  # fmt: skip
    if request is not None:
        main.refuse(request, config)
    return request


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_request_is_read_with_the_rules_of_mode_legacy(mode: str) -> None:
    config = Config(mode=mode)

    request = accepted(_bundle("NVIDIA_VISIBLE_DEVICES=0,1"), config)

    assert request is not None
    assert (request.ids, request.mode) == (["0", "1"], "legacy")
    assert request.capabilities == ["compute", "utility"]


@pytest.mark.parametrize("mode", ["cdi", "jit-cdi", "csv"])
def test_in_other_modes_a_request_is_refused_unless_mode_detection_is_skipped(mode: str) -> None:
    config = Config(mode=mode)
    assert accepted(_bundle(), config) is None
    with pytest.raises(ConfigError, match=f"in mode {mode} a prestart hook gives no GPU"):
        accepted(_bundle("NVIDIA_VISIBLE_DEVICES=0"), config)

    config = config.replaced(skip_mode_detection=True)

    assert accepted(_bundle("NVIDIA_VISIBLE_DEVICES=0"), config) is not None


def test_cdi_names_are_refused() -> None:
    with pytest.raises(RequestError, match=r"names the CDI device acme\.com/gpu=1, which a hook"):
        accepted(_bundle("NVIDIA_VISIBLE_DEVICES=acme.com/gpu=1"), Config())


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{", '{"pid": 5}', '{"pid": 5, "bundle": "x"}', '{"bundle": "/b"}',
        '{"pid": 0, "bundle": "/b"}', '{"pid": 1, "bundle": "/b"}', '{"pid": "5", "bundle": "/b"}',
        '{"pid": true, "bundle": "/b"}', '{"pid": -1, "bundle": "/b"}', '{"pid": 2, "bundle": 3}',
    ],
)  # fmt: skip
def test_a_malformed_state_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_text(text, encoding="utf-8")
    with path.open() as file, pytest.raises(BundleError):
        main.read_state(file.fileno())


@pytest.mark.parametrize("key", ["bundle", "bundlePath"])
def test_a_state_names_process_and_bundle(key: str, tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_text(json.dumps({"pid": 77, key: "/b", "more": [1]}), encoding="utf-8")
    with path.open() as file:
        assert main.read_state(file.fileno()) == (77, "/b")


def test_a_missing_process_is_named(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="/77 cannot be opened: No such file"):
        Container(77, "/r", str(tmp_path))


def _namespaces(proc: Path, **mounts: str) -> None:
    """Write a /proc; namespaces of the same name are the same file."""
    for pid, name in mounts.items():
        folder = proc / pid.strip("p") / "ns"
        folder.mkdir(parents=True)
        for kind in ("mnt", "user"):
            namespace = proc / f"{kind}-{name}"
            namespace.touch()
            (folder / kind).hardlink_to(namespace)


@pytest.mark.parametrize("host", ["self", "p1"])
def test_a_process_with_the_mounts_of_the_host_is_no_container(host: str, tmp_path: Path) -> None:
    _namespaces(tmp_path, self="unshared", p1="host", p77="itself")
    Container(77, "/r", str(tmp_path)).close()
    of_host = (tmp_path / host.strip("p") / "ns/mnt").stat().st_ino
    _namespaces(tmp_path, p78="unshared" if host == "self" else "host")
    assert (tmp_path / "78/ns/mnt").stat().st_ino == of_host

    with pytest.raises(HostError, match="process 78 has no mount namespace of its own"):
        Container(78, "/r", str(tmp_path))


ALL_USERS = "         0          0 4294967295\n"


def _mounts(proc: Path, users: str, **targets: list[str]) -> None:
    """Write a /proc with an unreadable process 1 and the mounts of other processes."""
    _namespaces(proc, self="unshared", p77="another")
    (proc / "self/uid_map").write_text(users, encoding="utf-8")
    for pid, mount_points in targets.items():
        lines = [f"{n} 1 0:5 / {path} rw - tmpfs none rw\n" for n, path in enumerate(mount_points)]
        (proc / pid.strip("p") / "mountinfo").write_text("".join(lines), encoding="utf-8")


def test_in_a_rootless_engine_the_mounts_of_process_1_are_not_compared(tmp_path: Path) -> None:
    _mounts(tmp_path, "0 1000 1\n1 100000 65536\n")

    Container(77, "/r", str(tmp_path)).close()


def test_a_container_is_recognized_by_a_mount_below_its_root(tmp_path: Path) -> None:
    (tmp_path / "rootfs").mkdir()
    (tmp_path / "link").symlink_to("rootfs")
    root = f"{tmp_path}/rootfs"
    _mounts(tmp_path, ALL_USERS, self=["/", root], p77=["/", root, f"{root}/proc"])
    (tmp_path / "self/fd").symlink_to("/proc/self/fd")

    Container(77, root, str(tmp_path)).close()
    Container(77, f"{tmp_path}/link", str(tmp_path)).close()


@pytest.mark.parametrize(
    "mounts",
    [["/", "/r"], ["/", "/r", "/rr/proc"], ["/", "/r", "/r/old"], ["/", "/r", "/new"]],
    ids=["nothing", "beside it", "what we see too", "elsewhere"],
)
def test_a_process_without_mounts_of_a_container_is_refused(
    mounts: list[str], tmp_path: Path
) -> None:
    _mounts(tmp_path, ALL_USERS, self=["/", "/r", "/r/old"], p77=mounts)

    with pytest.raises(HostError, match="process 77 has no mount namespace of its own"):
        Container(77, "/r", str(tmp_path))


def _hooks(point: str, path: str, *args: str) -> list[tuple[str, object]]:
    edits: dict[str, object] = {
        "env": [], "nodes": [], "mounts": [], "gids": [], "net": {}, "rdt": "",
        "hooks": {point: [json.dumps({"path": path, "args": list(args)})]},
    }  # fmt: skip
    return list(deliver._actions([edits]))  # type: ignore[list-item]  # a plan's


@pytest.mark.parametrize("before", [["nvidia-cdi-hook"], ["nvidia-ctk", "hook"], ["x", "--quiet"]])
def test_hooks_of_nvct_run_in_this_process(before: list[str]) -> None:
    ((name, options),) = _hooks("createContainer", "/x", *before, "apply", "--link", "a::/b")

    assert name == "apply"
    assert options.values("link") == ["a::/b"]  # type: ignore[attr-defined]  # Options


@pytest.mark.parametrize(
    ("point", "args"),
    [("createContainer", ["acme", "setup"]), ("startContainer", ["x", "apply"]), ("prestart", [])],
)
def test_other_hooks_are_refused_and_not_ignored(point: str, args: list[str]) -> None:
    with pytest.raises(RequestError, match=f"a prestart hook cannot run /opt/acme at {point}"):
        _hooks(point, "/opt/acme", *args)
    with pytest.raises(HostError, match="a plan's hook apply: unknown flag --nonsense"):
        _hooks("createContainer", "/x", "nvidia-cdi-hook", "apply", "--nonsense")


def test_the_hook_file_for_engines_names_the_installed_program() -> None:
    text = (REPOSITORY / "hooks/oci-nvidia-hook.json").read_text(encoding="utf-8")
    document = json.loads(text)

    assert document["version"] == "1.0.0"
    assert document["stages"] == ["prestart"]
    assert document["when"] == {"always": True, "commands": [".*"]}
    assert document["hook"]["path"] == f"/usr/bin/{PROGRAM}"
    assert document["hook"]["args"] == [PROGRAM, "prestart"]
    assert all(entry.startswith("PATH=/") for entry in document["hook"]["env"])


def test_no_slow_module_is_loaded(lab: Lab) -> None:
    lab.driver()
    lab.asks("NVIDIA_VISIBLE_DEVICES=0")
    code = f"""
import sys
before = set(sys.modules)
sys.path.insert(0, {str(REPOSITORY)!r})
import posix
def show(status):
    posix.write(1, "\\n".join(sorted(set(sys.modules) - before)).encode())
    exit_now(status)
exit_now, posix._exit = posix._exit, show
from nvct.container.prestart.launch import main
import nvct.container.prestart.deliver, nvct.container.prestart.rules, nvct.container.prestart.device_filter
main({sys.executable!r})
"""
    data = json.dumps({"id": "x", "pid": os.getpid(), "bundle": str(lab.bundle)})
    command = [PYTHON, "-I", "-S", "-c", code, PROGRAM, "prestart"]
    hook(lab, "prestart")  # compiles the plans
    completed = captured(command, env=lab.env, input=data)
    modules = set(completed.stdout.split())
    assert "nvct.container.prestart.deliver" in modules, completed.stderr
    assert not modules & BANNED, modules & BANNED
    assert not [n for n in modules if n.startswith(("nvct.cli", "nvct.cdi.make", "nvct.host"))]
