# SPDX-License-Identifier: Apache-2.0
"""containerd's configuration: its state, and the smallest edit of it."""

from pathlib import Path

import pytest

from nvct.config import tables, toml_file
from nvct.engine import containerd, restore, writing
from nvct.engine import containerd_load as loading
from nvct.engine.journal import Entry
from nvct.engine.model import EngineOptions, Handler, State
from nvct.errors import EngineConfigError
from tests.unit.engine.containerd_host import (
    CONFIG,
    DROP_IN,
    NVIDIA,
    PROGRAM,
    THREE,
    V1_6,
    V1_7,
    V2,
    V2_0,
    V2_1,
    Host,
    options,
)
from tests.unit.engine.tree import removal

CRI = 'plugins."io.containerd.grpc.v1.cri"'
CRI_3 = "plugins.'io.containerd.cri.v1.runtime'"


# State


def test_without_a_file_the_engine_has_its_defaults(tmp_path: Path) -> None:
    assert containerd.state(options(), Host(tmp_path)) == State(handlers={}, version=2)
    assert containerd.state(options(V2_1), Host(tmp_path)) == State(
        handlers={}, version=3, cdi=True
    )


def test_the_state_lists_registered_runtimes(tmp_path: Path) -> None:
    host = Host(
        tmp_path,
        f"""version = 2
[{CRI}]
enable_cdi = true
cdi_spec_dirs = ["/etc/cdi", "/x"]
[{CRI}.containerd]
default_runtime_name = "nvidia"
[{CRI}.containerd.runtimes.runc]
[{CRI}.containerd.runtimes.nvidia.options]
BinaryName = "/opt/nvidia-container-runtime"
""",
    )

    assert containerd.state(options(), host) == State(
        files=(CONFIG,),
        version=2,
        handlers={"runc": "", "nvidia": "/opt/nvidia-container-runtime"},
        default="nvidia",
        cdi=True,
        spec_dirs=("/etc/cdi", "/x"),
    )


@pytest.mark.parametrize(
    ("engine", "text", "cdi"),
    [
        (V1_6, "version = 2\n", False),
        (V1_7, "version = 2\n", False),
        (V2_0, "version = 2\n", True),
        ((), "version = 2\n", None),
        ((), "version = 3\n", True),
        (V2_1, f"version = 3\n[{CRI_3}]\nenable_cdi = false\n", False),
    ],
)
def test_cdi_is_on_by_the_file_or_by_the_version(
    tmp_path: Path,
    engine: tuple[int, ...],
    text: str,
    cdi: bool | None,  # noqa: FBT001
) -> None:
    assert containerd.state(options(engine), Host(tmp_path, text)).cdi is cdi


def _imports(tmp_path: Path) -> Host:
    return Host(
        tmp_path,
        f"""version = 2
imports = ["conf.d/*.toml", "/etc/containerd/config.toml", "/gone/*.toml"]
[{CRI}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
""",
        {
            "/etc/containerd/conf.d/b.toml": f"[{CRI}.containerd.runtimes.b]\n",
            "/etc/containerd/conf.d/a.toml": (
                f'imports = ["../z.toml"]\n[{CRI}.containerd.runtimes.a]\n'
            ),
            "/etc/containerd/conf.d/c.conf": "this is no toml",
            "/etc/containerd/z.toml": f"[{CRI}.containerd.runtimes.z]\n",
        },
    )


def test_imports_are_read_in_containerds_order(tmp_path: Path) -> None:
    state = containerd.state(options(V2_1), _imports(tmp_path))

    folder = "/etc/containerd"
    assert state.files == (
        CONFIG, f"{folder}/conf.d/a.toml", f"{folder}/conf.d/b.toml", f"{folder}/z.toml",
    )  # fmt: skip
    assert list(state.handlers) == ["runc", "a", "b", "z"]
    before_2_0 = containerd.state(options(V1_7), _imports(tmp_path))
    assert list(before_2_0.handlers) == ["z"]  # the last table replaces the others


def test_a_relative_pattern_is_of_the_files_folder_since_1_7(tmp_path: Path) -> None:
    host = Host(tmp_path, 'version = 2\nimports = ["conf.d/*.toml"]\n', {DROP_IN: "version = 2\n"})

    assert containerd.state(options(V1_6), host).files == (CONFIG,)
    assert containerd.state(options(V1_7), host).files == (CONFIG, DROP_IN)
    change = containerd.plan(options(V1_6, drop_in=DROP_IN), host)
    assert [edit.path for edit in change.edits] == [DROP_IN, CONFIG]


# Handlers


def test_a_missing_file_is_created_in_a_version_that_the_engine_reads(tmp_path: Path) -> None:
    host = Host(tmp_path)

    host.apply(containerd.plan(options(V1_7), host))

    runc = {"runtime_type": "io.containerd.runc.v2"}
    runtimes = {"runc": runc, "nvidia": {**runc, "options": {"BinaryName": PROGRAM}}}
    plugins = {"io.containerd.grpc.v1.cri": {"containerd": {"runtimes": runtimes}}}
    assert host.parsed() == {"version": 2, "plugins": plugins}


def test_runc_is_registered_if_containerd_1_would_drop_it(tmp_path: Path) -> None:
    # Seen on 1.6.20 and 1.7.24: a table of runtimes replaces the default one.
    host = Host(tmp_path, "version = 2\n")

    change = containerd.plan(options(V1_7), host)
    host.apply(change)

    assert "runc is named as well" in change.notes[0]
    assert list(containerd.state(options(V1_7), host).handlers) == ["runc", "nvidia"]
    host.apply(removal(options(V1_7), host))
    assert host.text() == "version = 2\n"


def test_a_handler_has_the_default_runtimes_options(tmp_path: Path) -> None:
    host = Host(
        tmp_path,
        f"""version = 2
[{CRI}.containerd]
default_runtime_name = "site"
[{CRI}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[{CRI}.containerd.runtimes.site]
runtime_type = ""
runtime_engine = "/usr/bin/site-runc"
privileged_without_host_devices = true
snapshotter = ""
future_key = ["x"]
[{CRI}.containerd.runtimes.site.options]
BinaryName = "/usr/bin/site-runc"
SystemdCgroup = true
NoPivotRoot = false
""",
    )

    host.apply(containerd.plan(options(V1_7), host))

    assert host.runtime("nvidia") == {
        "runtime_type": "io.containerd.runc.v2",
        "privileged_without_host_devices": True,
        "future_key": ["x"],
        "options": {"BinaryName": PROGRAM, "SystemdCgroup": True},
    }


@pytest.mark.parametrize(
    ("default", "others", "copied"),
    [
        ("", ("crun", "runc"), "runc"),
        ("", ("other", "crun"), "crun"),
        ("gone", ("runc",), "runc"),
        ("kata", ("runc", "kata"), "runc"),
        ("nvidia", ("nvidia", "runc"), "nvidia"),
        ("nvidia-experimental", ("nvidia-experimental", "crun"), "nvidia-experimental"),
    ],
)
def test_options_are_those_of_a_runtime_that_runs_runc(
    tmp_path: Path, default: str, others: tuple[str, ...], copied: str
) -> None:
    lines = ["version = 2", f"[{CRI}.containerd]", f'default_runtime_name = "{default}"']
    for name in others:
        kind = "kata" if name == "kata" else "runc"
        lines += [
            f"[{CRI}.containerd.runtimes.{name}]",
            f'runtime_type = "io.containerd.{kind}.v2"',
            f'base_runtime_spec = "of {name}"',
        ]
    host = Host(tmp_path, "\n".join(lines))
    handler = Handler(name="nvidia-cdi", path=PROGRAM + ".cdi")

    host.apply(containerd.plan(options(V1_7, handlers=(handler,)), host))

    assert host.runtime("nvidia-cdi")["base_runtime_spec"] == f"of {copied}"


def test_an_old_handler_gets_the_program_and_keeps_its_cgroup_driver(tmp_path: Path) -> None:
    host = Host(
        tmp_path,
        V2
        + f"""[{CRI}.containerd.runtimes.nvidia]
privileged_without_host_devices = true # ours
[{CRI}.containerd.runtimes.nvidia.options]
BinaryName = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
Root = "/x"
""",
    )

    host.apply(containerd.plan(options(V2_1), host))

    assert host.runtime("nvidia") == {
        "runtime_type": "io.containerd.runc.v2",
        "privileged_without_host_devices": True,
        "options": {"BinaryName": PROGRAM, "Root": "/x"},
    }
    assert " # ours\n" in host.text()


def test_options_can_come_from_the_configuration_in_force(tmp_path: Path) -> None:
    host = Host(tmp_path, "version = 2\n")
    dump = f"""version = 3
[{CRI_3}.containerd]
default_runtime_name = "runc"
[{CRI_3}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
sandboxer = "podsandbox"
cni_conf_dir = ""
pod_annotations = []
[{CRI_3}.containerd.runtimes.runc.options]
IoUid = 0
SystemdCgroup = true
"""

    host.apply(containerd.plan(options(V2_1, dump=dump), host))

    assert host.runtime("nvidia", DROP_IN) == {
        "runtime_type": "io.containerd.runc.v2",
        "sandboxer": "podsandbox",
        "options": {"SystemdCgroup": True, "BinaryName": PROGRAM},
    }
    assert host.parsed(DROP_IN)["version"] == 2


def test_annotations_are_added_to_those_of_the_runtime(tmp_path: Path) -> None:
    host = Host(tmp_path, V2)
    ask = options(V1_7, container_annotations=("cdi.k8s.io/*",), pod_annotations=("nvidia.com/*",))

    host.apply(containerd.plan(ask, host))

    assert host.runtime("nvidia")["container_annotations"] == ["cdi.k8s.io/*"]
    assert host.runtime("nvidia")["pod_annotations"] == ["nvidia.com/*"]
    assert containerd.plan(ask, host).edits == ()
    more = options(V1_7, container_annotations=("x/*", "cdi.k8s.io/*"))
    host.apply(containerd.plan(more, host))
    assert host.runtime("nvidia")["container_annotations"] == ["cdi.k8s.io/*", "x/*"]


# Versions


def test_containerd_2_reads_no_cri_in_version_1(tmp_path: Path) -> None:
    with pytest.raises(EngineConfigError, match="of version 1") as caught:
        containerd.plan(options(V2_1), Host(tmp_path, "version = 1\n"))
    assert "containerd config migrate" in caught.value.hint
    with pytest.raises(EngineConfigError, match="of version 1"):
        containerd.plan(options(V2_1, drop_in=""), Host(tmp_path, "oom_score = 0\n"))


@pytest.mark.parametrize(
    ("engine", "version", "message"),
    [(V1_7, "3", r"containerd 1\.7\.24 reads no CRI settings"),
     *(((), version, "version is") for version in ("0", "5", "-1", '"2"', "true", "2.0"))],
)  # fmt: skip
def test_versions_that_this_containerd_or_none_reads_are_refused(
    tmp_path: Path, engine: tuple[int, ...], version: str, message: str
) -> None:
    with pytest.raises(EngineConfigError, match=message):
        containerd.plan(options(engine), Host(tmp_path, f"version = {version}\n"))


# Default and CDI


def test_the_default_is_set_only_on_request(tmp_path: Path) -> None:
    host = Host(tmp_path, V2)

    host.apply(containerd.plan(options(V1_7), host))
    assert containerd.state(options(), host).default == ""
    host.apply(containerd.plan(options(V1_7, default="nvidia"), host))
    assert containerd.state(options(), host).default == "nvidia"
    change = containerd.plan(options(V1_7), host)
    assert any("no longer the default" in note for note in change.notes)
    host.apply(change)
    assert containerd.state(options(), host).default == ""
    assert containerd.plan(options(V1_7), host).edits == ()


def test_an_unknown_default_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineConfigError, match="'nvidai' is no runtime"):
        containerd.plan(options(default="nvidai"), Host(tmp_path, V2))


@pytest.mark.parametrize(
    ("engine", "version", "before", "after"),
    [
        (V1_6, 2, None, None),
        (V1_7, 2, None, True),
        (V1_7, 2, False, True),
        (V1_7, 2, True, True),
        (V2_0, 2, None, None),
        (V2_0, 2, False, True),
        (V2_1, 3, None, None),
        ((), 2, None, True),
        ((), 3, None, None),
    ],
)
def test_cdi_is_switched_on_unless_it_is_on(
    tmp_path: Path,
    engine: tuple[int, ...],
    version: int,
    before: bool | None,  # noqa: FBT001
    after: bool | None,  # noqa: FBT001
) -> None:
    cri = CRI if version == 2 else CRI_3
    switch = "" if before is None else f"enable_cdi = {str(before).lower()}\n"
    host = Host(tmp_path, f"version = {version}\n[{cri}]\nx = 1\n{switch}")

    change = containerd.plan(options(engine, cdi=True), host)
    host.apply(change)

    assert host.cri().get("enable_cdi") is after
    assert any("has no CDI" in note for note in change.notes) == (engine == V1_6)
    assert containerd.plan(options(engine, cdi=True), host).edits == ()


def test_spec_dirs_are_written_only_if_they_are_not_the_defaults(tmp_path: Path) -> None:
    host = Host(tmp_path, V2)
    host.apply(containerd.plan(options(V1_7), host))

    same = options(V1_7, spec_dirs=("/run/cdi", "/etc/cdi/"))
    assert containerd.plan(same, host).edits == ()
    host.apply(containerd.plan(options(V1_7, spec_dirs=("/x", "/run/cdi")), host))
    assert containerd.state(options(), host).spec_dirs == ("/etc/cdi", "/var/run/cdi", "/x")


# What cannot be done


@pytest.mark.parametrize(
    ("first", "maker"),
    [
        ("# File generated by rke2. DO NOT EDIT. Use config.toml.tmpl instead.", "rke2"),
        ("# k0s_managed=true", "k0s"),
    ],
)
def test_a_file_generated_at_each_start_is_not_edited(
    tmp_path: Path, first: str, maker: str
) -> None:
    host = Host(tmp_path, f'{first}\nversion = 2\nimports = ["conf.d/*.toml"]\n')

    with pytest.raises(EngineConfigError, match=f"is written by {maker} at each start"):
        containerd.plan(options(V1_7), host)
    assert [edit.path for edit in containerd.plan(options(V2_1), host).edits] == [
        "/etc/containerd/conf.d/99-nvidia.toml"
    ]


def test_a_missing_import_is_reported(tmp_path: Path) -> None:
    host = Host(tmp_path, 'imports = ["/gone.toml"]\n' + V2)

    assert "/gone.toml is imported and not there" in containerd.plan(options(V1_7), host).notes[0]


def test_other_plugins_named_in_imports_stay_unread_files(tmp_path: Path) -> None:
    host = Host(tmp_path, V2)
    wanted_elsewhere = EngineOptions(engine="containerd", handlers=NVIDIA, config="/srv/c.toml")

    host.apply(containerd.plan(wanted_elsewhere, host))

    assert host.text() == V2
    assert containerd.state(wanted_elsewhere, host).files == (
        "/srv/c.toml",
        "/srv/conf.d/99-nvidia.toml",
    )


@pytest.mark.parametrize(
    ("default", "named", "runc"),
    [("", "", True), ("", "runc", True), ("", "nvidia", False), ("nvidia", "", False)],
)
def test_containerd_1_keeps_runc_beside_others_where_it_is_the_default(
    tmp_path: Path, default: str, named: str, *, runc: bool
) -> None:
    """As templates of RKE2 with nvidia alone: the CRI does not load without its default."""
    text = f'version = 2\n[{CRI}.containerd]\ndefault_runtime_name = "{named}"\n'
    text += f'[{CRI}.containerd.runtimes.nvidia]\nruntime_type = "io.containerd.runc.v2"\n'
    text += f'[{CRI}.containerd.runtimes.nvidia.options]\nBinaryName = "{PROGRAM}"\n'
    host = Host(tmp_path, text)
    ask = options(V1_7, handlers=THREE, default=default)

    host.apply(containerd.plan(ask, host))

    state = containerd.state(ask, host)
    assert ("runc" in state.handlers) == runc
    assert (state.default or "runc") in state.handlers
    assert containerd.plan(ask, host).edits == ()


@pytest.mark.parametrize(("runtime", "noted"), [("", True), ("runc", False)])
def test_containerd_2_migrates_the_snapshotter_only_beside_a_runtime(
    tmp_path: Path, runtime: str, *, noted: bool
) -> None:
    text = f'version = 2\n[{CRI}.containerd]\nsnapshotter = "stargz"\n'
    if runtime:
        text += f'[{CRI}.containerd.runtimes.{runtime}]\nruntime_type = "io.containerd.runc.v2"\n'

    notes = containerd.plan(options(V2_1), Host(tmp_path, text)).notes

    assert any("snapshotter" in note for note in notes) == noted


# Removal


@pytest.mark.parametrize("version", [V1_6, V1_7])
@pytest.mark.parametrize(
    ("others", "default"),
    [(("crun",), "crun"), (("kata", "crun"), "crun"), (("kata",), "kata"), (("runc", "kata"), "")],
)
def test_removal_leaves_a_default_that_containerd_1_has(
    tmp_path: Path, version: tuple[int, ...], others: tuple[str, ...], default: str
) -> None:
    head = f"{CRI}.containerd"
    text = f'version = 2\n[{head}]\ndefault_runtime_name = "nvidia"\n'
    for name in others:
        kind = "kata" if name == "kata" else "runc"
        text += f'[{head}.runtimes.{name}]\nruntime_type = "io.containerd.{kind}.v2"\n'
    text += f'[{head}.runtimes.nvidia.options]\nBinaryName = "{PROGRAM}"\n'
    host = Host(tmp_path, text)

    change = removal(options(version), host)
    host.apply(change)

    state = containerd.state(options(version), host)
    assert (state.default, set(state.handlers)) == (default, set(others))
    value = default or "the engine's own"
    assert f"it is {value} again" in change.notes[0]


def test_removal_frees_a_default_whose_name_is_in_a_table_that_is_not_read(tmp_path: Path) -> None:
    text = f'[plugins.cri.containerd.runtimes.nvidia]\nruntime_engine = "{PROGRAM}"\n'
    host = Host(tmp_path, text)
    ask = options(V2_1, default="nvidia")
    host.apply(containerd.plan(ask, host))

    host.apply(removal(ask, host))

    assert host.read(DROP_IN) is None
    assert host.parsed()["plugins"]["cri"] == {
        "containerd": {"runtimes": {"nvidia": {"runtime_engine": PROGRAM}}}
    }


def test_removal_restores_a_legacy_default(tmp_path: Path) -> None:
    text = f'[{CRI}.containerd.default_runtime]\nruntime_type = "io.containerd.runc.v2"\n'
    host = Host(tmp_path, "version = 2\n" + text)
    ask = options(V1_7, default="nvidia")
    host.apply(containerd.plan(ask, host))

    host.apply(removal(ask, host))

    assert containerd.state(ask, host).default == "former-default"


# Bytes that are no UTF-8


def test_containerd_1_accepts_any_byte_and_containerd_2_only_utf_8(tmp_path: Path) -> None:
    host = Host(tmp_path, V2)
    path = tmp_path / CONFIG.lstrip("/")
    path.write_bytes(b"# caf\xe9\n" + path.read_bytes())

    (edit,) = containerd.plan(options(V1_7), host).edits

    assert edit.after is not None
    assert edit.after.startswith(b"# caf\xe9\n")
    with pytest.raises(EngineConfigError, match="line 1 is no UTF-8"):
        containerd.plan(options(V2_1), host)


# The cgroup driver


LEGACY = f"""[{CRI}.containerd.default_runtime]
runtime_type = ""
runtime_engine = ""
runtime_root = ""
[{CRI}.containerd.default_runtime.options]
[{CRI}.containerd.untrusted_workload_runtime]
runtime_type = ""
"""
MADE_DEFAULT = f"""version = 2
[{CRI}.containerd]
default_runtime_name = "nvidia"
[{CRI}.containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[{CRI}.containerd.runtimes.nvidia.options]
BinaryName = "{PROGRAM}"
SystemdCgroup = true
"""


def _drivers(host: Host) -> dict[str, bool]:
    drivers = {}
    for name in containerd.state(options(V1_7), host).handlers:
        options_table = host.runtime(name).get("options", {})
        drivers[name] = bool(options_table.get("SystemdCgroup"))
    return drivers


@pytest.mark.parametrize("default", ["", "nvidia"])
@pytest.mark.parametrize(
    "text",
    [V2 + LEGACY, MADE_DEFAULT + LEGACY, MADE_DEFAULT],
    ids=["config-default", "incumbent", "eks"],
)
def test_the_cgroup_driver_is_that_of_the_default_and_stays(
    tmp_path: Path, text: str, default: str
) -> None:
    host = Host(tmp_path, text)
    ask = options(V1_7, handlers=THREE, default=default)

    host.apply(containerd.plan(ask, host))

    assert set(_drivers(host).values()) == {True}
    assert containerd.plan(ask, host).edits == ()
    second_options = options(
        V1_7, handlers=(*THREE, Handler(name="other", path="/opt/x")), default=default
    )
    host.apply(containerd.plan(second_options, host))
    assert set(_drivers(host).values()) == {True}


@pytest.mark.parametrize("has_handler", [False, True])
def test_the_old_shims_cgroup_driver_is_the_cris(tmp_path: Path, *, has_handler: bool) -> None:
    handler = '[plugins.cri.containerd.runtimes.nvidia]\nruntime_type = "io.containerd.runtime.v1.linux"\n'
    host = Host(
        tmp_path,
        "[plugins.cri]\nsystemd_cgroup = true\n[plugins.cri.containerd.default_runtime]\n"
        'runtime_type = "io.containerd.runtime.v1.linux"\n' + handler * has_handler,
    )

    host.apply(containerd.plan(options(V1_6), host))

    given = host.parsed()["plugins"]["cri"]["containerd"]["runtimes"]["nvidia"]["options"]
    assert given == {"BinaryName": PROGRAM, "Runtime": PROGRAM, "SystemdCgroup": True}


def test_a_legacy_default_that_would_win_becomes_a_runtime_with_a_name(tmp_path: Path) -> None:
    host = Host(
        tmp_path,
        f"""version = 2
[{CRI}.containerd.default_runtime]
runtime_type = "io.containerd.runc.v2"
[{CRI}.containerd.default_runtime.options]
SystemdCgroup = true
""",
    )
    assert containerd.state(options(V1_7), host).default == "default"

    change = containerd.plan(options(V1_7, default="nvidia"), host)
    host.apply(change)

    assert "default_runtime, which overrides default_runtime_name" in " ".join(change.notes)
    assert containerd.state(options(V1_7), host).default == "nvidia"
    assert _drivers(host) == {"nvidia": True, "former-default": True, "runc": False}
    assert containerd.plan(options(V1_7, default="nvidia"), host).edits == ()


@pytest.mark.parametrize("empty", [f"[{CRI}.containerd.default_runtime.options]\n", ""])
def test_a_legacy_default_keeps_its_cgroup_driver_with_empty_options_and_without(
    tmp_path: Path, empty: str
) -> None:
    """As `config default` of 1.3 and guides for kubeadm: empty options hide the CRI's switch."""
    text = f"""version = 2
[{CRI}]
systemd_cgroup = true
[{CRI}.containerd.default_runtime]
runtime_type = "io.containerd.runtime.v1.linux"
{empty}"""
    host = Host(tmp_path, text)
    ask = options(V1_7, default="nvidia")
    host.apply(containerd.plan(ask, host))
    configured = host.text()
    cri = loading.load(ask, host).effective()
    former = cri.runtimes["former-default"]
    current = (
        configured + f'[{CRI}.containerd.runtimes.zz]\nruntime_type = "io.containerd.runc.v2"\n'
    )
    file = writing.new_file(CONFIG)
    entry = Entry(
        path=CONFIG,
        before=file.with_content(text.encode()),
        after=file.with_content(configured.encode()),
    )

    result = restore.restored(entry, current.encode(), containerd.SYNTAX, {"nvidia"})

    remaining = result.data or b""

    assert cri.systemd_cgroup(former) == (not empty)
    legacy = ("plugins", "io.containerd.grpc.v1.cri", "containerd", "default_runtime")
    assert tables.find(toml_file.parse(remaining, CONFIG), legacy) == tables.find(
        toml_file.parse(text, CONFIG), legacy
    )


# Versions


def test_a_file_without_version_is_of_version_1_to_containerd_1(tmp_path: Path) -> None:
    host = Host(tmp_path, V2.replace("version = 2\n", ""))

    change = containerd.plan(options(V1_7), host)
    host.apply(change)

    runtimes = host.parsed()["plugins"]["cri"]["containerd"]["runtimes"]
    assert runtimes["nvidia"]["options"] == {"BinaryName": PROGRAM, "Runtime": PROGRAM}
    assert "runc" in runtimes
    assert f"{CONFIG} has settings in plugins.io.containerd.grpc.v1.cri" in change.notes[0]


def test_a_file_without_version_is_of_version_3_to_containerd_2(tmp_path: Path) -> None:
    host = Host(tmp_path, V2.replace("version = 2\n", ""))

    host.apply(containerd.plan(options(V2_1), host))

    nvidia = {"runtime_type": "io.containerd.runc.v2", "options": {"BinaryName": PROGRAM}}
    table = {"containerd": {"runtimes": {"nvidia": nvidia}}}
    assert host.parsed(DROP_IN)["plugins"] == {"io.containerd.cri.v1.runtime": table}


@pytest.mark.parametrize(
    ("root", "other", "version", "name"),
    [
        (2, 3, 3, "io.containerd.cri.v1.runtime"),
        (3, 2, 2, "io.containerd.grpc.v1.cri"),
    ],
)
def test_the_last_version_that_a_file_names_decides(
    tmp_path: Path, root: int, other: int, version: int, name: str
) -> None:
    site = "/etc/containerd/conf.d/50-site.toml"
    names = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
    more = f"version = {other}\n[plugins.'{names[other]}']\nenable_selinux = true\n"
    text = f'version = {root}\nimports = ["conf.d/*.toml"]\n[plugins."{names[root]}"]\n'
    host = Host(tmp_path, text, {site: more})

    host.apply(containerd.plan(options(V2_1), host))

    assert host.parsed(DROP_IN)["version"] == version
    assert list(host.parsed(DROP_IN)["plugins"]) == [name]
    assert containerd.plan(options(V2_1), host).edits == ()
