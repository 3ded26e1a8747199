# SPDX-License-Identifier: Apache-2.0
"""Commands: nvidia-ctk runtime configure, nvct runtime configure, plan and undo."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import Result

from nvct.cli.runtime import engine as runtime_engine
from nvct.errors import NvctError, UsageError
from tests.support.commands import invoke

SHIM = "/usr/bin/nvidia-container-runtime"
DAEMON = '{\n  "log-level": "warn",\n  "features": {"x": true}\n}\n'
CONTAINERD = """\
version = 2

# mine
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
    SystemdCgroup = true # why not
"""


@dataclass
class Lab:
    """A folder with engines' files, and the programs on them."""

    folder: Path

    def path(self, name: str, text: str | None = None) -> Path:
        path = self.folder / name
        if text is not None:
            path.write_text(text, encoding="utf-8")
        return path

    def programs(self, *names: str) -> str:
        """Make programs; return the first one's path."""
        for name in names:
            self.path(name, "#!/bin/sh\n").chmod(0o755)
        return str(self.path(names[0]))

    def run(self, name: str, *arguments: str, engine: str = "docker", file: str = "") -> Result:
        config = self.path(file or {"docker": "daemon.json"}.get(engine, f"{engine}.conf"))
        argv = ["runtime", *arguments, f"--runtime={engine}", f"--config={config}"]
        argv += [f"--state-dir={self.folder}/state"] if arguments[0] != "plan" else []
        return invoke(name, argv, catch_exceptions=False)

    def ctk(self, *arguments: str, engine: str = "docker", file: str = "") -> Result:
        return self.run("nvidia-ctk", "configure", *arguments, engine=engine, file=file)

    def refused(self, *arguments: str, engine: str = "docker", file: str = "") -> NvctError:
        with pytest.raises(NvctError) as caught:
            self.ctk(*arguments, engine=engine, file=file)
        return caught.value


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_docker_gets_the_runtime_and_the_incumbents_words(lab: Lab) -> None:
    path = lab.path("daemon.json", DAEMON)

    completed = lab.ctk()

    assert completed.exit_code == 0
    assert completed.stdout == ""
    assert completed.stderr == (
        f"Wrote updated config to {path}\nIt is recommended that docker daemon be restarted.\n"
    )
    text = path.read_text(encoding="utf-8")
    assert text.startswith(DAEMON[:-3])
    assert json.loads(text) == {
        "log-level": "warn",
        "features": {"x": True},
        "runtimes": {"nvidia": {"path": "nvidia-container-runtime", "args": []}},
    }
    inode = path.stat().st_ino
    assert lab.ctk().stderr == "docker is configured already: unchanged\n"
    assert path.stat().st_ino == inode


@pytest.mark.parametrize(
    ("default", "cdi", "path"),
    [
        ("--nvidia-set-as-default", "--cdi.enabled", "--nvidia-runtime-path"),
        ("-set-as-default=true", "--cdi.enable", "--runtime-path"),
        ("--set-as-default", "--enable-cdi", "--runtime-path"),
    ],
)
def test_every_name_of_an_option_is_taken(lab: Lab, default: str, cdi: str, path: str) -> None:
    lab.path("daemon.json", "{}")

    lab.ctk(default, cdi, f"{path}=/opt/shim", "--nvidia-runtime-name", "gpu")

    assert json.loads(lab.path("daemon.json").read_text(encoding="utf-8")) == {
        "runtimes": {"gpu": {"path": "/opt/shim", "args": []}},
        "default-runtime": "gpu",
        "features": {"cdi": True},
    }


def test_a_dry_run_prints_the_file_and_changes_nothing(lab: Lab) -> None:
    path = lab.path("daemon.json", DAEMON)

    completed = lab.ctk("--dry-run")

    assert "runtimes" in json.loads(completed.stdout)
    assert path.read_text(encoding="utf-8") == DAEMON
    assert [entry.name for entry in lab.folder.iterdir()] == ["daemon.json"]
    lab.ctk()
    assert lab.ctk("--dry-run").stdout == path.read_text(encoding="utf-8")


def test_containerd_gets_the_usual_path_and_keeps_its_comments(lab: Lab) -> None:
    lab.path("containerd.conf", CONTAINERD)

    completed = lab.ctk(engine="containerd")

    text = lab.path("containerd.conf").read_text(encoding="utf-8")
    assert text.startswith(CONTAINERD)
    assert f'BinaryName = "{SHIM}"' in text
    assert text.count("SystemdCgroup = true") == 2
    assert completed.stderr.endswith("It is recommended that containerd daemon be restarted.\n")


def test_a_folder_of_hook_files_is_named_on_request(lab: Lab) -> None:
    usual, own = "/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d"
    for engine in ("crio", "podman"):
        drop_in = lab.path(f"{engine}.conf.d/99-nvidia.conf")

        lab.run(
            "nvct", "configure", f"--drop-in-config={drop_in}", f"--hooks-dir={own}", engine=engine
        )

        text = drop_in.read_text(encoding="utf-8")
        assert "nvidia-container-runtime" in text
        assert f'hooks_dir = ["{usual}", "{own}"]' in text


def test_an_engine_is_asked_for_its_configuration(lab: Lab) -> None:
    lab.path("containerd.conf", "version = 2\n")
    tool = lab.path("tool", f"#!/bin/sh\n[ \"$2\" = dump ] && cat <<'E'\n{CONTAINERD}\nE\n")
    tool.chmod(0o755)
    drop_in = lab.path("conf.d/99-nvidia.toml")

    lab.ctk(
        "--config-source=command", f"--executable-path={tool}", f"--drop-in-config={drop_in}",
        engine="containerd",
    )  # fmt: skip

    assert "SystemdCgroup = true" in drop_in.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "arguments", "engine", "message"),
    [
        ("nvidia-ctk", "", "lxc", "unknown engine 'lxc'"),
        ("nvidia-ctk", "--config-source=net", "docker", "unrecognized config source: 'net'"),
        ("nvidia-ctk", "--drop-in-config=/x", "docker", "docker does not support drop-in configs"),
        ("nvidia-ctk", "--drop-in-config=x", "crio", "the drop-in's path 'x' is not an absolute path"),
        ("nvidia-ctk", "--runtime-path=x", "containerd", "the runtime's path 'x' is not an absolute path"),
        ("nvidia-ctk", "--nvidia-runtime-name=", "docker", "the runtime's name is empty"),
        ("nvidia-ctk", "--config-mode=hook --nvidia-runtime-hook-path=x", "docker",
         "the hook's path 'x' is not an absolute path"),
        ("nvct", "--hooks-dir=/opt", "docker", "docker reads no hook files"),
        ("nvct", "--hooks-dir=x", "podman", "the hooks folder's path 'x' is not an absolute path"),
        ("nvct", "--pod-annotation=a", "docker", "docker has no setting that passes annotations on"),
        ("nvct", "--cdi-spec-dir=cdi", "docker", "the CDI folder's path 'cdi' is not an absolute path"),
    ],
)  # fmt: skip
def test_malformed_values_and_settings_that_an_engine_lacks_are_refused(
    lab: Lab, name: str, arguments: str, engine: str, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        lab.run(name, "configure", *arguments.split(), engine=engine)

    assert caught.value.message == message
    assert list(lab.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "engine", "warning"),
    [
        (("--config-mode=x",), "docker", 'ignoring unsupported config-mode for docker: "x"'),
        (("--executable-path=/x",), "docker", 'ignoring executable-path="/x" flag for docker'),
        (("--config-source=command",), "docker",
         "a command config source is not supported for docker; using file"),
        (("--cdi.enabled", "--drop-in-config={}/x"), "crio",
         "ignoring --cdi.enabled: CDI is always on in crio"),
    ],
    ids=["mode", "executable", "source", "cdi"],
)  # fmt: skip
def test_options_without_effect_are_reported(
    lab: Lab, arguments: tuple[str, ...], engine: str, warning: str
) -> None:
    completed = lab.ctk(*(word.format(lab.folder) for word in arguments), engine=engine)

    assert completed.stderr.splitlines()[0] == f"warning: {warning}"
    assert "Wrote updated config to " in completed.stderr


@pytest.mark.parametrize("mode", ["oci-hook", "hook"])
def test_the_deprecated_mode_prints_a_hook_or_writes_it(lab: Lab, mode: str) -> None:
    path = lab.path("hooks.d/oci-nvidia-hook.json")
    arguments = (f"--config-mode={mode}", "--nvidia-runtime-hook-path=/opt/bin/hook")

    printed = lab.ctk(*arguments, engine="anything")
    written = lab.ctk(*arguments, f"--oci-hook-path={path}")

    hook = json.loads(printed.stdout)
    assert hook["hook"]["path"] == "/opt/bin/hook"
    assert hook["stages"] == ["prestart"]
    assert printed.stderr == f'warning: the "{mode}" config-mode is deprecated\n'
    assert path.read_text(encoding="utf-8") == printed.stdout
    assert written.stderr.endswith(f"Wrote {path}\n")


def test_a_missing_variant_is_left_out_and_reported(lab: Lab) -> None:
    path = lab.path("daemon.json", DAEMON)
    shim = lab.programs("shim", "shim.cdi")

    completed = lab.run("nvct", "configure", f"--runtime-path={shim}")

    assert list(json.loads(path.read_text(encoding="utf-8"))["runtimes"]) == [
        "nvidia", "nvidia-cdi",
    ]  # fmt: skip
    assert completed.stderr.splitlines()[0] == (
        "note: not registered: nvidia-legacy; their programs are in the package"
        " nvct-operator-extensions"
    )


@pytest.mark.parametrize(
    ("more", "names"),
    [([], ["nvidia", "nvidia-cdi", "nvidia-legacy"]), (["--nvidia-runtime-name=x"], ["x"])],
    ids=["all", "named"],
)
def test_a_runtime_registered_before_its_installation_is_reported(
    lab: Lab, more: list[str], names: list[str]
) -> None:
    path = lab.path("daemon.json", DAEMON)

    completed = lab.run("nvct", "configure", "--runtime-path=/opt/shim", *more)

    assert list(json.loads(path.read_text(encoding="utf-8"))["runtimes"]) == names
    assert completed.stderr.splitlines()[0] == (
        "warning: /opt/shim does not exist: containers with this runtime will not start"
    )


def test_nvct_registers_three_runtimes_and_removes_them(lab: Lab) -> None:
    path = lab.path("daemon.json", DAEMON)

    shim = lab.programs("shim", "shim.cdi", "shim.legacy")

    completed = lab.run("nvct", "configure", f"--runtime-path={shim}")

    assert json.loads(path.read_text(encoding="utf-8"))["runtimes"] == {
        "nvidia": {"path": shim, "args": []},
        "nvidia-cdi": {"path": f"{shim}.cdi", "args": []},
        "nvidia-legacy": {"path": f"{shim}.legacy", "args": []},
    }
    assert completed.stderr.splitlines()[0] == f"Wrote updated config to {path}"
    assert lab.run("nvct", "undo").stderr == f"{path} restored\n"
    assert path.read_text(encoding="utf-8") == DAEMON
    assert lab.run("nvct", "undo").stderr.startswith("nothing to undo: ")


def test_another_user_hears_that_roots_record_is_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    undone = invoke("nvct", ["runtime", "undo"], env={"XDG_STATE_HOME": str(tmp_path)})

    assert undone.stderr.startswith(f"nothing to undo: {tmp_path}/nvct/engines has no record of ")
    assert undone.stderr.endswith("; use sudo to undo what root configured\n")


def test_plan_prints_a_diff_and_changes_nothing(lab: Lab) -> None:
    assert lab.run("nvct", "plan").stdout.splitlines()[0] == "--- /dev/null"
    path = lab.path("daemon.json", '{"log-level": "warn"}')

    completed = lab.run("nvct", "plan", "--nvidia-runtime-name=gpu", "--runtime-path=/opt/shim")

    assert completed.stdout.splitlines()[:4] == [
        f"--- {path}", f"+++ {path}", "@@ -1 +1 @@", '-{"log-level": "warn"}',
    ]  # fmt: skip
    assert "\\ No newline at end of file" in completed.stdout
    assert path.read_text(encoding="utf-8") == '{"log-level": "warn"}'
    assert not lab.path("state").exists()


def test_undo_undoes_the_named_engines_or_every_one(lab: Lab) -> None:
    lab.path("daemon.json", DAEMON)
    lab.path("containerd.conf", CONTAINERD)
    lab.ctk()
    lab.ctk(engine="containerd")
    argv = ["runtime", "undo", f"--state-dir={lab.folder}/state"]

    other = invoke("nvct", [*argv, "crio"], catch_exceptions=False)
    assert "has no record of crio" in other.stderr
    invoke("nvct", [*argv, "docker"], catch_exceptions=False)
    assert lab.path("daemon.json").read_text(encoding="utf-8") == DAEMON
    assert lab.path("containerd.conf").read_text(encoding="utf-8") != CONTAINERD
    lab.ctk()
    invoke("nvct", argv, catch_exceptions=False)
    assert lab.path("daemon.json").read_text(encoding="utf-8") == DAEMON
    assert lab.path("containerd.conf").read_text(encoding="utf-8") == CONTAINERD
    assert [entry.name for entry in lab.path("state").iterdir()] == ["lock"]
    with pytest.raises(UsageError, match="unknown engine 'lxc'"):
        invoke("nvct", [*argv, "lxc"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("broken", "before", "after", "message"),
    [
        ("containerd.conf", CONTAINERD, "version = [\n", r"containerd\.conf is not TOML"),
        ("state/containerd-*.json", '"format": 2', '"format": 99', "format 99 is unknown"),
    ],
    ids=["file", "journal"],
)
def test_one_failed_undo_does_not_stop_the_others(
    lab: Lab, broken: str, before: str, after: str, message: str
) -> None:
    lab.path("daemon.json", DAEMON)
    lab.path("containerd.conf", CONTAINERD)
    for engine in ("docker", "containerd"):
        lab.ctk(engine=engine)
    (path,) = lab.folder.glob(broken)
    text = path.read_text(encoding="utf-8")
    path.write_text(after if before == CONTAINERD else text.replace(before, after))
    held = path.read_bytes()
    argv = ["runtime", "undo", f"--state-dir={lab.folder}/state"]

    with pytest.raises(NvctError, match=message):
        invoke("nvct", argv, catch_exceptions=False)

    assert lab.path("daemon.json").read_text(encoding="utf-8") == DAEMON
    assert path.read_bytes() == held


def test_without_a_journal_undo_suggests_remove(lab: Lab) -> None:
    lab.path("daemon.json", DAEMON)
    lab.ctk()
    for page in (lab.folder / "state").glob("*.json"):
        page.unlink()
    assert "--remove removes its handlers nevertheless" in lab.run("nvct", "undo").stderr
    assert "nvidia" in lab.path("daemon.json").read_text(encoding="utf-8")
    lab.run("nvct", "undo", "--remove")
    assert "nvidia" not in lab.path("daemon.json").read_text(encoding="utf-8")


def test_nvct_names_cdi_folders_and_annotations(lab: Lab) -> None:
    lab.path("containerd.conf", CONTAINERD)
    arguments = ("--cdi-spec-dir=/opt/cdi", "--container-annotation=a/*,b/*", "--pod-annotation=c")

    lab.run("nvct", "configure", *arguments, "--reload=none", engine="containerd")

    text = lab.path("containerd.conf").read_text(encoding="utf-8")
    for word in ("/opt/cdi", 'container_annotations = ["a/*", "b/*"]', 'pod_annotations = ["c"]'):
        assert word in text
    lab.run("nvct", "undo", engine="containerd")
    assert lab.path("containerd.conf").read_text(encoding="utf-8") == CONTAINERD


def _settings(lab: Lab, monkeypatch: pytest.MonkeyPatch, prefixes: str) -> None:
    config = lab.path(
        "nvct.toml", f"[nvidia-container-runtime.modes.cdi]\nannotation-prefixes = [{prefixes}]\n"
    )
    monkeypatch.setenv("NVIDIA_CTK_CONFIG_FILE_PATH", str(config))


def test_containerd_hands_on_the_annotations_that_the_runtime_reads(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lab.path("containerd.conf", CONTAINERD)
    _settings(lab, monkeypatch, '"cdi.k8s.io/", "gpu.example.com/"')

    lab.ctk(engine="containerd")
    lab.ctk("--drop-in-config=", engine="containerd")

    assert path.read_text().count('container_annotations = ["gpu.example.com/*"]') == 1


def test_the_runtime_beside_the_program_is_registered(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    shim = lab.programs("nvidia-container-runtime", "nvidia-ctk")
    monkeypatch.setattr("sys.argv", [str(lab.path("nvidia-ctk"))])
    monkeypatch.setenv("PATH", "/nowhere")
    daemon = lab.path("daemon.json", "{}")

    lab.run("nvct", "configure")
    usual = ["runtime", "configure", "--runtime=containerd", "--dry-run"]
    printed = invoke("nvidia-ctk", usual, catch_exceptions=False)

    if not os.path.exists(SHIM):  # which nvidia-ctk names where it is there
        assert f'BinaryName = "{shim}"' in printed.stdout
    assert json.loads(daemon.read_text())["runtimes"]["nvidia"]["path"] == shim


def test_a_runtime_of_nvidias_on_the_path_is_not_taken_for_nvcts(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """As where a bundle, or a virtual environment, is used beside NVIDIA's packages."""
    shim = lab.programs("nvidia-container-runtime", "nvct")
    theirs = Lab(tmp_path_factory.mktemp("theirs"))
    theirs.programs("nvidia-container-runtime")
    monkeypatch.setattr("sys.argv", ["/usr/lib/nvct/nvct/cli/__main__.py"])
    monkeypatch.setattr("sys.executable", str(lab.path("python3", "")))
    monkeypatch.setenv("PATH", str(theirs.folder))
    daemon = lab.path("daemon.json", "{}")

    lab.run("nvct", "configure")

    assert json.loads(daemon.read_text())["runtimes"]["nvidia"]["path"] == shim


@pytest.mark.parametrize("engine", ["crio", "containerd"])
def test_an_engine_that_is_not_installed_is_said_not_to_be_seen(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_engine, "engines", list)
    words = ["runtime", "plan", f"--runtime={engine}"]

    assert (
        f"note: {engine} was not found here: "
        in invoke("nvct", words, env={"PATH": str(tmp_path)}).stderr
    )

    (tmp_path / engine).write_text("#!/bin/sh\n")
    (tmp_path / engine).chmod(0o755)
    assert "not found" not in invoke("nvct", words, env={"PATH": str(tmp_path)}).stderr
