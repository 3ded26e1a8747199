# SPDX-License-Identifier: Apache-2.0
"""containerd's drop-ins: only our keys if tables merge, else the whole table of the CRI."""

from dataclasses import replace
from pathlib import Path

import pytest

from nvct.engine import modules
from nvct.engine.journal import Journal
from nvct.engine.transaction import Transaction
from tests.unit.engine.containerd_host import (
    CONFIG,
    DROP_IN,
    V2,
    V2_1,
    Host,
    options,
)

CRI = 'plugins."io.containerd.grpc.v1.cri"'
IMPORTED = V2.replace(
    "version = 2\n", 'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n'
)


# Before 2.1


# Removal


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
