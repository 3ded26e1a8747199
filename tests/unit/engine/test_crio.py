# SPDX-License-Identifier: Apache-2.0
"""CRI-O: one drop-in, merged with the files, that inherits the low-level runtime's settings."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nvct.config import tables, toml_file
from nvct.engine import crio, modules
from nvct.engine.model import Change, EngineOptions, Files, Handler
from nvct.errors import EngineConfigError
from tests.unit.engine.tree import removal

SHIM = "/usr/bin/nvidia-container-runtime"
NVIDIA = Handler(name="nvidia", path=SHIM)
OPTIONS = EngineOptions(engine="crio", handlers=(NVIDIA,), config=crio.CONFIG)
PACKAGES = """\
[crio.runtime]
default_runtime = "crun"

[crio.runtime.runtimes.crun]
runtime_path = "/usr/libexec/crio/crun"
runtime_root = "/run/crun"
monitor_path = "/usr/libexec/crio/conmon"
monitor_cgroup = "system.slice"
monitor_env = ["PATH=/usr/bin"]
allowed_annotations = ["io.containers.trace-syscall"]

[crio.runtime.runtimes.runc]
runtime_path = "/usr/libexec/crio/runc"
runtime_root = "/run/runc"
"""


def _host(tmp_path: Path, *, main: str | None = None, **drop_ins: str) -> Files:
    """Make a host with a crio.conf and drop-ins; "10_a" is 10-a.conf, "99_nvidia" 99-nvidia.toml."""
    folder = tmp_path / "etc/crio/crio.conf.d"
    folder.mkdir(parents=True)
    if main is not None:
        (tmp_path / "etc/crio/crio.conf").write_text(main)
    for name, text in drop_ins.items():
        suffix = "toml" if name == "f99_nvidia" else "conf"
        (folder / f"{name[1:].replace('_', '-')}.{suffix}").write_text(text)
    return Files(str(tmp_path))


def _apply(change: Change, files: Files) -> None:
    for edit in change.edits:
        path = Path(files.at(edit.path))
        if edit.after is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(edit.after)


def _runtime(change: Change) -> dict[str, object]:
    (edit,) = change.edits
    table = tables.find(toml_file.parse(edit.after or b"", edit.path), crio.RUNTIME)
    assert isinstance(table, dict)
    return table


def _handler(change: Change, name: str = "nvidia") -> object:
    runtimes = _runtime(change)["runtimes"]
    assert isinstance(runtimes, dict)
    return runtimes[name]


def test_a_drop_in_inherits_conmon_and_annotations_from_the_low_level_runtime(
    tmp_path: Path,
) -> None:
    change = crio.plan(OPTIONS, _host(tmp_path, f10_crio=PACKAGES))
    assert [edit.path for edit in change.edits] == [crio.DROP_IN]
    assert change.restart
    assert _handler(change) == {
        "runtime_path": SHIM,
        "runtime_type": "oci",
        "runtime_root": "/run/crun",
        "monitor_path": "/usr/libexec/crio/conmon",
        "monitor_cgroup": "system.slice",
        "monitor_env": ["PATH=/usr/bin"],
        "allowed_annotations": ["io.containers.trace-syscall"],
    }
    assert set(_runtime(change)) == {"runtimes"}


def test_an_empty_drop_in_option_edits_the_main_file_and_keeps_all_of_it(tmp_path: Path) -> None:
    main = "# mine\n[crio.runtime]\npids_limit = 9 # why\n"
    files = _host(tmp_path, main=main)
    (edit,) = crio.plan(replace(OPTIONS, drop_in=""), files).edits
    assert edit.path == crio.CONFIG
    assert (edit.after or b"").decode().startswith(main)


def test_a_copy_of_a_runtime_does_not_lead_past_our_program(tmp_path: Path) -> None:
    base = (
        '[crio.runtime.runtimes.runc]\nruntime_path = "/usr/bin/runc"\n'
        'inherit_default_runtime = true\nplatform_runtime_paths = {"linux/amd64" = "/x"}\n'
    )
    drop_in = f'[crio.runtime.runtimes.nvidia]\nruntime_path = "{SHIM}"\ninherit_default_runtime = true\n'
    assert _handler(crio.plan(OPTIONS, _host(tmp_path, f10_a=base, f99_nvidia=drop_in))) == {
        "runtime_path": SHIM,
        "runtime_type": "oci",
    }


def test_a_runtime_for_virtual_machines_is_no_template(tmp_path: Path) -> None:
    main = (
        '[crio.runtime]\ndefault_runtime = "kata"\n[crio.runtime.runtimes.kata]\n'
        'runtime_type = "vm"\nruntime_root = "/run/vc"\n'
        '[crio.runtime.runtimes.runc]\nruntime_root = "/run/runc"\n'
    )
    handler = _handler(crio.plan(OPTIONS, _host(tmp_path, main=main)))
    assert isinstance(handler, dict)
    assert handler["runtime_root"] == "/run/runc"


def test_the_default_before_nvidia_is_the_template(tmp_path: Path) -> None:
    foreign = '[crio.runtime]\ndefault_runtime = "nvidia"\n'
    handler = _handler(crio.plan(OPTIONS, _host(tmp_path, f10_crio=PACKAGES, f20_gpu=foreign)))
    assert isinstance(handler, dict)
    assert handler["runtime_root"] == "/run/crun"


def test_a_default_of_nvidias_is_the_template_where_there_is_no_other(tmp_path: Path) -> None:
    foreign = (
        '[crio.runtime]\ndefault_runtime = "nvidia"\n[crio.runtime.runtimes.nvidia]\n'
        f'runtime_path = "{SHIM}"\nmonitor_path = "/opt/conmon"\nmonitor_cgroup = "pod"\n'
    )
    other = Handler(name="nvidia-cdi", path=f"{SHIM}.cdi")
    options = replace(OPTIONS, handlers=(*OPTIONS.handlers, other))

    change = crio.plan(options, _host(tmp_path, f10_crio=foreign))

    assert _handler(change, "nvidia-cdi") == {
        "runtime_path": f"{SHIM}.cdi",
        "runtime_type": "oci",
        "monitor_path": "/opt/conmon",
        "monitor_cgroup": "pod",
    }
    assert list(_runtime(change)["runtimes"]) == ["nvidia-cdi"]  # type: ignore[call-overload]


def test_a_bundled_conmon_is_written(tmp_path: Path) -> None:
    files = _host(tmp_path)
    conmon = tmp_path / "usr/libexec/crio/conmon"
    conmon.parent.mkdir(parents=True)
    conmon.touch()
    handler = _handler(crio.plan(OPTIONS, files))
    assert isinstance(handler, dict)
    assert handler["monitor_path"] == "/usr/libexec/crio/conmon"
    (tmp_path / "etc/crio/crio.conf").write_text('[crio.runtime]\nconmon = "/opt/conmon"\n')
    assert "monitor_path" not in str(_handler(crio.plan(OPTIONS, files)))


def test_the_printed_configuration_is_the_template(tmp_path: Path) -> None:
    dump = Path(__file__).with_name("crio_status_config.toml").read_text()
    options = replace(OPTIONS, dump=dump)
    change = crio.plan(options, _host(tmp_path))
    assert _handler(change) == {
        "runtime_path": SHIM,
        "runtime_type": "oci",
        "runtime_root": "/run/crun",
        "allowed_annotations": ["io.containers.trace-syscall"],
        "monitor_path": "/usr/libexec/crio/conmon",
        "monitor_cgroup": "system.slice",
    }
    state = crio.state(options, Files(str(tmp_path)))
    assert state.default == "crun"
    assert state.handlers == {"crun": "/usr/libexec/crio/crun", "runc": "/usr/libexec/crio/runc"}


@pytest.mark.parametrize("default", ["nvidia", ""], ids=["default", "handler"])
def test_a_key_that_a_later_file_repeats_is_refused(tmp_path: Path, default: str) -> None:
    later = '[crio.runtime]\ndefault_runtime = "runc"\n'
    if not default:
        later = '[crio.runtime.runtimes.nvidia]\nruntime_path = "/other"\n'
    files = _host(tmp_path, f999_runc=later)
    with pytest.raises(EngineConfigError) as caught:
        crio.plan(replace(OPTIONS, default=default), files)
    assert "999-runc.conf" in caught.value.message
    assert len(f"nvct: {caught.value.message} ({caught.value.hint})") <= 200


def test_drop_ins_are_read_in_cri_os_order_whatever_their_suffix(tmp_path: Path) -> None:
    files = _host(tmp_path, main='[crio.runtime]\ndefault_runtime = "a"\n')
    folder = tmp_path / "etc/crio/crio.conf.d"
    (folder / "20-x").mkdir()
    (folder / "10-first.toml").write_text('[crio.runtime]\ndefault_runtime = "b"\n')
    (folder / "20-x/deep").write_text('[crio.runtime]\ndefault_runtime = "c"\n')
    (folder / "15-none").write_text('[crio.runtime]\ndefault_runtime = "d"\n')
    state = crio.state(OPTIONS, files)
    assert state.default == "c"
    assert [Path(path).name for path in state.files] == [
        "crio.conf", "10-first.toml", "15-none", "deep",
    ]  # fmt: skip


def test_in_place_the_later_file_that_has_our_handler_is_edited(tmp_path: Path) -> None:
    later = (
        '# mine\n[crio.runtime]\ndefault_runtime = "nvidia"\n[crio.runtime.runtimes.nvidia]\n'
        'runtime_path = "/old" # why\nruntime_type = "oci"\n'
    )
    files = _host(tmp_path, fnv=later)
    options = replace(OPTIONS, default="nvidia", in_place=True)

    change = crio.plan(options, files)

    (edit,) = change.edits
    assert edit.path == "/etc/crio/crio.conf.d/nv.conf"
    assert edit.after == later.replace("/old", SHIM).encode()
    _apply(change, files)
    assert crio.state(options, files).handlers["nvidia"] == SHIM
    assert crio.plan(options, files).edits == ()


def test_a_later_table_of_a_runtime_replaces_the_earlier_one(tmp_path: Path) -> None:
    first = '[crio.runtime.runtimes.crun]\nruntime_root = "/run/crun"\nmonitor_path = "/c"\n'
    later = '[crio.runtime.runtimes.crun]\nruntime_root = "/run/other"\n'
    change = crio.plan(OPTIONS, _host(tmp_path, f10_a=first, f20_b=later))
    assert _handler(change) == {
        "runtime_path": SHIM, "runtime_type": "oci", "runtime_root": "/run/other",
    }  # fmt: skip


def test_folders_are_added_to_the_configured_ones(tmp_path: Path) -> None:
    main = '[crio.runtime]\ncdi_spec_dirs = ["/opt/cdi"]\n'
    options = replace(OPTIONS, spec_dirs=("/etc/cdi",), hooks_dir="/etc/containers/oci/hooks.d")
    runtime = _runtime(crio.plan(options, _host(tmp_path, main=main)))
    assert runtime["cdi_spec_dirs"] == ["/opt/cdi", "/etc/cdi"]
    assert runtime["hooks_dir"] == [crio.HOOKS_DIR, "/etc/containers/oci/hooks.d"]


def test_default_folders_are_not_written(tmp_path: Path) -> None:
    options = replace(OPTIONS, spec_dirs=("/var/run/cdi",), hooks_dir=crio.HOOKS_DIR)
    assert set(_runtime(crio.plan(options, _host(tmp_path)))) == {"runtimes"}


def test_a_default_that_is_no_handler_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineConfigError, match="cannot be the default"):
        crio.plan(replace(OPTIONS, default="nvidia-typo"), _host(tmp_path))


def test_removal_removes_a_file_without_other_settings(tmp_path: Path) -> None:
    files = _host(tmp_path, f10_crio=PACKAGES)
    options = replace(OPTIONS, default="nvidia")
    _apply(crio.plan(options, files), files)
    change = removal(options, files)
    assert [(edit.path, edit.after) for edit in change.edits] == [(crio.DROP_IN, None)]
    _apply(change, files)
    assert removal(options, files).edits == ()


def test_removal_never_removes_the_main_file(tmp_path: Path) -> None:
    main = f'[crio.runtime.runtimes.nvidia]\nruntime_path = "{SHIM}"\n'
    (edit,) = removal(replace(OPTIONS, drop_in=""), _host(tmp_path, main=main)).edits
    assert edit.path == crio.CONFIG
    assert edit.after is not None
    assert edit.after.strip() == b""


def test_a_drop_in_in_another_folder_gives_a_note(tmp_path: Path) -> None:
    options = replace(OPTIONS, drop_in="/srv/crio.d/99-nvidia.toml")
    change = crio.plan(options, _host(tmp_path))
    assert change.edits[0].path == "/srv/crio.d/99-nvidia.toml"
    assert any("--config-dir=/srv/crio.d" in note for note in change.notes)


@pytest.mark.parametrize(
    ("runtimes", "noted"),
    [("", True), ('["/usr/libexec/crio/crun", "runc"]', False), ('["crun"]', True)],
    ids=["no-config", "first", "by-name-but-not-on-path"],
)
def test_a_low_level_runtime_that_ours_would_not_call_is_reported(
    tmp_path: Path,
    runtimes: str,
    noted: bool,  # noqa: FBT001
) -> None:
    files = _host(tmp_path, f10_crio=PACKAGES)
    if runtimes:
        config = tmp_path / "etc/nvidia-container-runtime/config.toml"
        config.parent.mkdir()
        config.write_text(f"[nvidia-container-runtime]\nruntimes = {runtimes}\n")
    notes = crio.plan(OPTIONS, files).notes
    assert any("/usr/libexec/crio/crun" in note for note in notes) == noted


def test_cdi_is_on_since_the_version_that_supports_it(tmp_path: Path) -> None:
    files = _host(tmp_path)
    versions = [(), (1, 22, 9), (1, 23, 0), (1, 34, 1)]
    result = [crio.state(replace(OPTIONS, engine_version=one), files).cdi for one in versions]
    assert result == [None, False, True, True]


@pytest.mark.parametrize("program", ["/usr/bin/nvidia-container-runtime-hook", "/opt/x/hook"])
def test_a_hook_file_has_its_programs_folder_on_path(program: str) -> None:
    data = modules.hook_file(program)
    hook = json.loads(data)["hook"]
    assert hook["path"] == program
    assert hook["args"] == [program.rpartition("/")[2], "prestart"]
    assert hook["env"][0].split(":").count(program.rpartition("/")[0]) == 1
    assert data.startswith(b'{\n  "version": "1.0.0",\n  "hook": {\n')
