# SPDX-License-Identifier: Apache-2.0
"""containerd's drop-ins: only our keys if tables merge, else the whole table of the CRI."""

from dataclasses import replace
from pathlib import Path

import pytest

from nvct.engine import containerd, modules
from nvct.engine.journal import Journal
from nvct.engine.transaction import Transaction
from nvct.errors import EngineConfigError
from tests.unit.engine.containerd_host import (
    CONFIG,
    DROP_IN,
    PROGRAM,
    THREE,
    V1_7,
    V2,
    V2_1,
    Host,
    options,
)
from tests.unit.engine.tree import removal

CRI = 'plugins."io.containerd.grpc.v1.cri"'
IMPORTED = V2.replace(
    "version = 2\n", 'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n'
)
OUR_TABLES = f"""
[{CRI}.containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[{CRI}.containerd.runtimes.nvidia.options]
BinaryName = "{PROGRAM}"
SystemdCgroup = true
"""
COPY = V2 + OUR_TABLES  # what the incumbent's 99-nvidia.toml holds


def test_if_tables_merge_the_drop_in_has_only_our_keys(tmp_path: Path) -> None:
    host = Host(tmp_path, V2)

    change = containerd.plan(options(V2_1, default="nvidia"), host)
    host.apply(change)

    assert [edit.path for edit in change.edits] == [DROP_IN, CONFIG]  # never an import of nothing
    assert change.restart
    assert host.text() == IMPORTED
    assert host.parsed(DROP_IN)["version"] == 2
    assert host.cri(DROP_IN) == {
        "containerd": {
            "default_runtime_name": "nvidia",
            "runtimes": {
                "nvidia": {
                    "runtime_type": "io.containerd.runc.v2",
                    "options": {"SystemdCgroup": True, "BinaryName": PROGRAM},
                }
            },
        }
    }
    assert containerd.plan(options(V2_1, default="nvidia"), host).edits == ()


@pytest.mark.parametrize(
    "imports",
    ['"/etc/containerd/conf.d/*.toml"', '"conf.d/99-*"', f'"{DROP_IN}"', '"/etc/c*/*/*.toml"'],
)
def test_an_import_that_covers_the_drop_in_is_enough(tmp_path: Path, imports: str) -> None:
    host = Host(tmp_path, f"version = 2\nimports = [{imports}]\n")

    change = containerd.plan(options(V2_1), host)
    host.apply(change)

    assert [edit.path for edit in change.edits] == [DROP_IN]
    assert containerd.state(options(V2_1), host).handlers == {"nvidia": PROGRAM}


def test_unread_files_are_not_imported_as_a_side_effect(tmp_path: Path) -> None:
    other = "/etc/containerd/conf.d/10-broken.toml"
    host = Host(tmp_path, V2, {other: "this = is broken"})

    change = containerd.plan(options(V2_1), host)
    host.apply(change)

    assert host.parsed()["imports"] == ["/etc/containerd/conf.d/99-nvidia*.toml"]
    assert change.notes == (
        f"only {DROP_IN} is imported: {other} is there too, and was not read before",
    )
    assert containerd.state(options(V2_1), host).files == (CONFIG, DROP_IN)


def test_a_handler_is_changed_in_its_own_file(tmp_path: Path) -> None:
    host = Host(tmp_path, V2 + OUR_TABLES.replace(PROGRAM, "/old/nvidia-container-runtime"))

    change = containerd.plan(options(V2_1, handlers=THREE), host)
    host.apply(change)

    assert host.text().count(PROGRAM) == 1
    assert list(host.cri(DROP_IN)["containerd"]["runtimes"]) == ["nvidia-cdi", "nvidia-legacy"]


def test_a_copy_without_other_settings_is_reduced(tmp_path: Path) -> None:
    host = Host(tmp_path, IMPORTED, {DROP_IN: COPY})

    change = containerd.plan(options(V2_1), host)
    host.apply(change)

    assert "held a copy of the CRI settings" in change.notes[0]
    assert host.cri(DROP_IN) == {
        "containerd": {
            "runtimes": {
                "nvidia": {
                    "runtime_type": "io.containerd.runc.v2",
                    "options": {"BinaryName": PROGRAM, "SystemdCgroup": True},
                }
            }
        }
    }
    assert host.text() == IMPORTED
    assert containerd.plan(options(V2_1), host).edits == ()


def test_a_copy_with_other_settings_stays_and_is_reported(tmp_path: Path) -> None:
    stale = COPY.replace("pause:3.9", "pause:3.6")
    host = Host(tmp_path, IMPORTED, {DROP_IN: stale})

    change = containerd.plan(options(V2_1), host)

    assert change.edits == ()
    assert "shadows edits" in change.notes[0]
    host.apply(containerd.plan(options(V2_1, handlers=THREE), host))
    assert host.text(DROP_IN).startswith(stale)
    assert list(containerd.state(options(V2_1), host).handlers)[-1] == "nvidia-legacy"


def test_an_unimported_copy_is_reduced_before_it_is_imported(tmp_path: Path) -> None:
    copy = COPY.replace("version = 2", "version = 3").replace(
        "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
    )
    host = Host(tmp_path, V2, {DROP_IN: copy})

    host.apply(containerd.plan(options(V2_1), host))

    assert host.parsed(DROP_IN)["version"] == 2  # a higher one than the root's is refused
    assert list(host.cri(DROP_IN)) == ["containerd"]
    assert list(host.cri(DROP_IN)["containerd"]["runtimes"]) == ["nvidia"]
    assert containerd.plan(options(V2_1), host).edits == ()


@pytest.mark.parametrize(
    "more",
    ["[debug]\nlevel = 'trace'\n", f'[{CRI}]\nsandbox_image = "other"\n'],
    ids=["table", "cri"],
)
def test_an_unimported_file_with_other_settings_is_refused(tmp_path: Path, more: str) -> None:
    host = Host(tmp_path, V2, {DROP_IN: f"version = 2\n{more}"})

    with pytest.raises(EngineConfigError, match="is not imported, and holds more"):
        containerd.plan(options(V2_1), host)


def test_a_later_file_that_overrides_the_edit_is_named(tmp_path: Path) -> None:
    host = Host(
        tmp_path,
        IMPORTED,
        {"/etc/containerd/conf.d/zz.toml": f'[{CRI}]\nsandbox_image = "other"\n'},
    )

    with pytest.raises(EngineConfigError, match=r"conf\.d/zz\.toml replaces the CRI settings"):
        containerd.plan(options(V1_7, drop_in=DROP_IN), host)


# Before 2.1


def test_before_2_1_the_file_in_force_is_edited(tmp_path: Path) -> None:
    host = Host(tmp_path, IMPORTED, {DROP_IN: COPY})

    change = containerd.plan(options(V1_7, handlers=THREE), host)
    host.apply(change)

    assert [edit.path for edit in change.edits] == [DROP_IN]
    assert change.notes == (
        f"{DROP_IN} replaces the CRI settings of the root file, so it is edited",
    )
    assert len(containerd.state(options(V1_7), host).handlers) == 4


def test_before_2_1_a_requested_drop_in_has_the_whole_table(tmp_path: Path) -> None:
    host = Host(tmp_path, V2)
    ask = options(V1_7, drop_in=DROP_IN, cdi=True)

    change = containerd.plan(ask, host)
    host.apply(change)

    assert "holds a copy of the CRI settings" in change.notes[0]
    assert host.text() == IMPORTED
    table = host.cri(DROP_IN)
    assert table["sandbox_image"] == "registry.example.com/pause:3.9"
    assert table["enable_cdi"] is True
    assert list(table["containerd"]["runtimes"]) == ["runc", "nvidia"]
    assert containerd.plan(ask, host).edits == ()


def test_a_full_drop_in_has_the_configuration_that_containerd_prints(tmp_path: Path) -> None:
    host = Host(tmp_path)
    dump = V2 + f"[{CRI}.containerd]\ndefault_runtime_name = 'runc'\n"
    ask = options(V1_7, drop_in=DROP_IN, dump=dump)

    host.apply(containerd.plan(ask, host))

    assert host.cri(DROP_IN)["containerd"]["default_runtime_name"] == "runc"
    assert host.cri(DROP_IN)["sandbox_image"] == "registry.example.com/pause:3.9"
    assert host.runtime("nvidia", DROP_IN)["options"]["SystemdCgroup"] is True
    assert containerd.plan(ask, host).edits == ()


def test_a_full_drop_in_follows_the_root_file_on_the_next_run(tmp_path: Path) -> None:
    host = Host(tmp_path, V2)
    ask = options(V1_7, drop_in=DROP_IN)
    host.apply(containerd.plan(ask, host))
    host.write(CONFIG, host.text().replace("pause:3.9", "pause:3.10"))

    handlers = containerd.plan(options(V1_7, drop_in=DROP_IN, handlers=THREE), host)
    host.apply(handlers)

    assert host.cri(DROP_IN)["sandbox_image"] == "registry.example.com/pause:3.10"


def test_an_empty_drop_in_name_edits_the_main_file(tmp_path: Path) -> None:
    host = Host(tmp_path, V2)

    change = containerd.plan(options(V2_1, drop_in=""), host)

    assert [edit.path for edit in change.edits] == [CONFIG]


# Removal


@pytest.mark.parametrize("engine", [V1_7, V2_1])
def test_our_drop_in_is_removed_completely(tmp_path: Path, engine: tuple[int, ...]) -> None:
    host = Host(tmp_path, V2)
    ask = options(engine, drop_in=DROP_IN, handlers=THREE, default="nvidia", cdi=True)
    host.apply(containerd.plan(ask, host))

    change = removal(ask, host)
    host.apply(change)

    assert [edit.path for edit in change.edits] == [DROP_IN]
    assert host.read(DROP_IN) is None
    assert containerd.state(ask, host).handlers == {"runc": ""}


def test_an_import_of_only_the_drop_in_is_removed_before_it(tmp_path: Path) -> None:
    host = Host(tmp_path, V2, {"/etc/containerd/conf.d/other.toml": "oom_score = 0\n"})
    host.apply(containerd.plan(options(V2_1), host))

    change = removal(options(V2_1), host)
    host.apply(change)

    assert [edit.path for edit in change.edits] == [CONFIG, DROP_IN]
    assert host.text() == V2


@pytest.mark.parametrize(
    ("more", "imports"),
    [
        ({}, None),
        ({"/etc/containerd/conf.d/kata.toml": "version = 2\n"}, ["/etc/containerd/conf.d/*.toml"]),
    ],
    ids=["ours alone", "others' too"],
)
def test_our_import_is_removed_from_a_file_that_others_changed(
    tmp_path: Path, more: dict[str, str], imports: list[str] | None
) -> None:
    host = Host(tmp_path, V2)
    journal = Journal(str(tmp_path / "state"))
    transaction = Transaction(modules.of("containerd"), host, journal)
    ask = options(V2_1, config=CONFIG)
    transaction.configure(ask)
    transaction.configure(replace(ask, default="nvidia"))  # which leaves the import as it is
    host.write(CONFIG, host.text().replace("pause:3.9", "pause:3.10"))
    for path, text in more.items():
        host.write(path, text)

    transaction.undo(ask)

    assert host.read(DROP_IN) is None
    assert host.parsed().get("imports") == imports
    if not more:
        assert host.text() == V2.replace("pause:3.9", "pause:3.10")


def test_a_foreign_import_stays_in_a_file_that_others_changed(tmp_path: Path) -> None:
    host = Host(tmp_path, IMPORTED)
    transaction = Transaction(modules.of("containerd"), host, Journal(str(tmp_path / "state")))
    transaction.configure(options(V2_1, config=CONFIG))
    host.write(CONFIG, f"{host.text()}# others\n")

    transaction.undo(options(V2_1, config=CONFIG))

    assert host.text() == f"{IMPORTED}# others\n"


def test_a_shared_drop_in_loses_only_our_handlers(tmp_path: Path) -> None:
    host = Host(
        tmp_path, IMPORTED, {DROP_IN: f"version = 2\n[debug]\nlevel = 'trace'\n{OUR_TABLES}"}
    )

    host.apply(removal(options(V2_1), host))

    assert host.text(DROP_IN) == "version = 2\n[debug]\nlevel = 'trace'\n"


@pytest.mark.parametrize("program", ["", "/usr/local/nvidia/toolkit/nvidia-container-runtime"])
@pytest.mark.parametrize("reappears", ["nvidia", ""])
def test_a_full_drop_in_keeps_our_settings_on_the_next_run(
    tmp_path: Path, program: str, reappears: str
) -> None:
    """Its copy of the root file's settings must not take back what an earlier run has set."""
    text = V2
    if program:
        text += f'[{CRI}.containerd.runtimes.nvidia.options]\nBinaryName = "{program}"\n'
    text += f'[{CRI}.containerd.runtimes.crun]\nruntime_type = "io.containerd.runc.v2"\n'
    host = Host(tmp_path, text + f'[{CRI}.containerd]\ndefault_runtime_name = "crun"\n')
    first = options(V1_7, drop_in=DROP_IN, default="nvidia", cdi=True)
    host.apply(containerd.plan(first, host))

    ask = options(V1_7, drop_in=DROP_IN, default=reappears, handlers=THREE)
    host.apply(containerd.plan(ask, host))

    state = containerd.state(ask, host)
    assert (state.default, state.cdi) == ("nvidia", True)
    assert {name: state.handlers[name] for name in ("nvidia", "nvidia-cdi")} == {
        "nvidia": PROGRAM, "nvidia-cdi": f"{PROGRAM}.cdi",
    }  # fmt: skip
    assert "crun" in state.handlers
    assert containerd.plan(ask, host).edits == ()
