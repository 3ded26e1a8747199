# SPDX-License-Identifier: Apache-2.0
"""Any snapshot is loaded as it was saved, and makes no file outside its tree."""

import os
import re
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvct.errors import NvctError
from nvct.host.snapshot import document
from nvct.host.snapshot.document import FORMAT, Snapshot
from nvct_sim import replay

ROOTS = {"driver_root": "/", "proc": "/proc", "sys": "/sys", "etc": "/etc", "run": "/run"}
COMPONENTS = st.sampled_from(
    ["..", ".", "", "driver", "proc", "sys", "dev", "etc", "a", "b\0", "é"]
)
PATHS = st.lists(COMPONENTS, max_size=5).map("/".join)
MODES = st.integers(0, 0o7777)


def table(values: st.SearchStrategy[object]) -> st.SearchStrategy[dict[str, object]]:
    return st.dictionaries(PATHS, values, max_size=3)


SNAPSHOTS = st.builds(
    Snapshot,
    about=st.just({"format": FORMAT, "machine": "x86_64", "roots": ROOTS, "dev": "/dev"}),
    texts=table(st.text(st.characters(codec="utf-8"), max_size=9)),
    links=table(PATHS),
    elf=table(
        st.tuples(
            MODES, st.integers(), st.sampled_from(["x86_64", "riscv", "?"]),
            st.none() | st.text(max_size=5), st.lists(st.text(max_size=5), max_size=2),
        ).map(list)
    ),
    files=table(st.tuples(MODES, st.integers()).map(list)),
    folders=table(st.tuples(MODES, st.just(0), st.just(0)).map(list)),
    nodes=table(st.tuples(st.integers(), st.integers(), MODES, st.just(0), st.just(0)).map(list)),
    sockets=table(st.tuples(MODES, st.just(0), st.just(0)).map(list)),
)  # fmt: skip


@given(SNAPSHOTS)
def test_nothing_is_made_outside_the_tree(snapshot: Snapshot) -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        tree = base / "some/deep/tree"
        tree.mkdir(parents=True)
        (base / "snap.tar.gz").write_bytes(document.packed(snapshot))
        try:
            loaded = document.load(str(base / "snap.tar.gz"))
            replay.lay_out(loaded, str(tree))
        except NvctError:
            pass
        else:
            assert replace(loaded, texts=snapshot.texts) == snapshot

        written = {
            os.path.relpath(path, base) for path in base.rglob("*") if tree not in path.parents
        }
        assert written == {"snap.tar.gz", "some", "some/deep", "some/deep/tree"}


@given(st.binary(max_size=300))
def test_random_bytes_are_refused_and_the_file_is_named(data: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        with pytest.raises(NvctError, match=re.escape(file.name)):
            document.load(file.name)
