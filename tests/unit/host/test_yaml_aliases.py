# SPDX-License-Identifier: Apache-2.0
"""A YAML document of some bytes that is billions of values: each reader of YAML refuses it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from nvct.agent.core import yaml_file
from nvct.agent.manifests import manifest_file
from nvct.agent.mig_manager.users import HostServices
from nvct.cdi.read import yaml_reader
from nvct.errors import NvctError
from nvct.host.yaml_aliases import Loader
from nvct.mig import config
from nvct_sim import play

LEVELS = 12
LISTS = "a0: &a0 [x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, LEVELS)
)
TABLES = "a0: &a0 {x: y}\n" + "".join(
    f"a{n}: &a{n} {{{', '.join(f'k{m}: *a{n - 1}' for m in range(9))}}}\n"
    for n in range(1, LEVELS)
)
MERGED = "a0: &a0 {x: y}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, LEVELS)
)


def _services(path: Path) -> object:
    services = HostServices("/nowhere", str(path), str(path.parent))
    services.stop()
    return services


READERS: dict[str, Callable[[Path], object]] = {
    "config files of the agent": lambda path: yaml_file.load(str(path), "the file"),
    "manifests": lambda path: manifest_file.load_all(str(path)),
    "services": _services,
    "CDI": lambda path: yaml_reader.parse(path.read_text(), "spec"),
    "MIG configurations": lambda path: config.parse(path.read_text()),
    "hooks of MIG": lambda path: config.parse_hooks(path.read_text()),
    "what happens to a simulated node": play.read,
}


@pytest.mark.parametrize("text", [LISTS, TABLES, MERGED], ids=["lists", "tables", "merged"])
@pytest.mark.parametrize("reader", READERS)
def test_aliases_without_end_are_refused(reader: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(text)

    with pytest.raises(NvctError):
        READERS[reader](path)


def test_aliases_that_stand_for_little_are_read() -> None:
    text = "a: &a {x: [1, 2]}\nb: [*a, *a]\nc: {<<: *a}\n"

    assert Loader(text).get_single_data() == yaml.safe_load(text)


def test_a_large_document_without_aliases_is_read() -> None:
    text = "\n".join(["- x"] * 120_000)

    assert len(Loader(text).get_single_data()) == 120_000
