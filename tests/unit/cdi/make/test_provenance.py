# SPDX-License-Identifier: Apache-2.0
"""Where a spec is from: annotations, the head comment, and reading both."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from nvct.cdi.make import generate, provenance, store
from nvct.cdi.read import load
from nvct.cdi.read.schema import check as check_schema
from nvct.cdi.types import Spec
from nvct.host.model import DriverFile, Inventory, Link, NamedDevice
from nvct.version import __version__
from tests.support.host_tree import VERSION
from tests.support.inventories import Machine

LIBCUDA = f"/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}"


def made(tmp_path: Path, *, gpus: int = 1) -> tuple[Machine, Inventory]:
    machine = Machine(tmp_path, gpus)
    return machine, machine.inventory()


def spec_of(inventory: Inventory, *, annotated: bool) -> Spec:
    """Return a spec that needs 0.5.0, or 0.7.0 for a group."""
    spec = generate.generate(inventory, generate.Options(gid_groups=False))
    spec["containerEdits"].pop("additionalGids", None)
    if annotated:
        spec["containerEdits"]["additionalGids"] = [44]
    return spec


def written(tmp_path: Path, inventory: Inventory, *, annotated: bool) -> str:
    spec, comment = provenance.attach(spec_of(inventory, annotated=annotated), inventory)
    path = tmp_path / "spec.yaml"
    path.write_bytes(comment.encode() + store.dumps(spec))
    return str(path)


@pytest.mark.parametrize("annotated", [True, False])
def test_written_provenance_is_read_back(tmp_path: Path, *, annotated: bool) -> None:
    machine, inventory = made(tmp_path)
    path = written(tmp_path, inventory, annotated=annotated)

    origin = provenance.read(load.load_file(path), path)

    assert origin == provenance.of(inventory)
    assert (origin.generator, origin.driver, origin.module, origin.mode) == (
        __version__, VERSION, VERSION, "nvml",
    )  # fmt: skip
    assert origin.files[LIBCUDA] == provenance.identity(f"{machine.host.driver}{LIBCUDA}")
    assert len(origin.inputs) == 32


def test_a_spec_of_0_6_0_or_later_has_annotations_and_no_comment(tmp_path: Path) -> None:
    _, inventory = made(tmp_path)
    spec, comment = provenance.attach(spec_of(inventory, annotated=True), inventory)

    assert set(spec["annotations"]) == {
        "nvct/generator", "nvct/driver", "nvct/module", "nvct/mode", "nvct/inputs", "nvct/files",
    }  # fmt: skip
    assert comment == ""
    check_schema(yaml.safe_load(store.dumps(spec)), source="spec")


def test_a_spec_for_older_engines_keeps_its_version_and_gets_a_comment(tmp_path: Path) -> None:
    _, inventory = made(tmp_path)
    before = spec_of(inventory, annotated=False)

    spec, comment = provenance.attach(before, inventory)

    assert "annotations" not in spec
    assert yaml.safe_load(store.dumps(spec))["cdiVersion"] == "0.5.0"
    assert comment.startswith('# nvct: {"generator":')
    assert comment.count("\n") == 1
    assert yaml.safe_load(comment.encode() + store.dumps(spec)) == yaml.safe_load(
        store.dumps(spec)
    )


def test_annotations_that_are_there_stay(tmp_path: Path) -> None:
    _, inventory = made(tmp_path)
    spec = spec_of(inventory, annotated=True)
    spec["annotations"] = {"acme.com/a": "b"}

    assert provenance.attach(spec, inventory)[0]["annotations"]["acme.com/a"] == "b"


def test_the_same_host_gives_the_same_bytes(tmp_path: Path) -> None:
    machine, inventory = made(tmp_path)
    (tmp_path / "first").mkdir()

    first = Path(written(tmp_path / "first", inventory, annotated=True))
    again = Path(written(tmp_path, machine.inventory(), annotated=True))

    assert first.read_bytes() == again.read_bytes()


def test_the_hash_of_the_inputs_changes_with_gpus_and_files_and_not_with_numbers(
    tmp_path: Path,
) -> None:
    machine, inventory = made(tmp_path)
    before = provenance.inputs_hash(inventory)
    (gpu,) = inventory.gpus
    assert gpu.node

    other_numbers = replace(inventory, gpus=(replace(gpu, node=replace(gpu.node, major=7)),))
    other_words = replace(inventory, warnings=("a",), notes=("b",))
    other_gpu = replace(inventory, gpus=(replace(gpu, uuid="GPU-0"),))
    fewer = replace(inventory, files=inventory.files[1:])
    machine.host.gpu(1)
    machine.gpus.append(1)

    assert provenance.inputs_hash(other_numbers) == before
    assert provenance.inputs_hash(other_words) == before
    assert (
        len(
            {before, *(provenance.inputs_hash(i) for i in (other_gpu, fewer, machine.inventory()))}
        )
        == 4
    )


def test_sockets_and_directories_have_no_identity(tmp_path: Path) -> None:
    _, inventory = made(tmp_path)
    socket = DriverFile(
        host_path=str(tmp_path), container_path="/run/s", reason="x", kind="socket"
    )

    origin = provenance.of(replace(inventory, files=(*inventory.files, socket)))

    assert "/run/s" not in origin.files


def test_a_file_name_cannot_end_the_comment(tmp_path: Path) -> None:
    _, inventory = made(tmp_path)
    hostile = tmp_path / "a\nkind: evil\x7f"
    hostile.write_text("")
    file = DriverFile(
        host_path=str(hostile), container_path="/a\nkind: evil\x7f", reason="x", kind="config"
    )
    spec = spec_of(inventory, annotated=False)

    _, comment = provenance.attach(spec, replace(inventory, files=(file,)))

    assert comment.count("\n") == 1
    assert comment[:-1].isprintable()
    assert list(json.loads(comment.removeprefix("# nvct: "))["files"]) == ["/a\nkind: evil\x7f"]


def test_a_table_that_engines_would_refuse_for_its_size_is_left_out(tmp_path: Path) -> None:
    files = {f"/usr/lib/{'x' * 200}{n}": (1, 2, 3, 4) for n in range(1000)}

    annotations = provenance.as_annotations(provenance.Provenance(driver="580.1", files=files))

    assert annotations == {"nvct/driver": "580.1"}


@pytest.mark.parametrize(
    "annotations",
    [
        {"nvct/files": "{"},
        {"nvct/files": "[]"},
        {"nvct/files": '{"/a": "1:2:3"}'},
        {"nvct/files": '{"/a": "1:2:3:x"}'},
        {"nvct/files": "[" * 100_000},
    ],
    ids=lambda a: next(iter(a.values()))[:20],
)
def test_nonsense_is_no_provenance(annotations: dict[str, str], tmp_path: Path) -> None:
    _, inventory = made(tmp_path)
    spec = spec_of(inventory, annotated=True)
    spec["annotations"] = annotations

    assert provenance.read(spec, "/no/such") is None


@pytest.mark.parametrize(
    "text", ["# other\n---\n", "# nvct: {\n", "# nvct: 1\n", "# nvct: \xff\n"]
)
def test_a_foreign_comment_is_no_provenance(text: str, tmp_path: Path) -> None:
    _, inventory = made(tmp_path)
    path = tmp_path / "a.yaml"
    path.write_bytes(text.encode("latin-1"))

    assert provenance.read(spec_of(inventory, annotated=False), str(path)) is None


def test_another_device_number_is_the_same_file() -> None:
    assert provenance.is_same((1, 2, 3, 4), (9, 2, 3, 4))
    assert not provenance.is_same((1, 2, 3, 4), (1, 9, 3, 4))
    assert not provenance.is_same((1, 2, 3, 4), (1, 2, 9, 4))
    assert not provenance.is_same((1, 2, 3, 4), (1, 2, 3, 9))


def test_a_missing_file_has_no_identity(tmp_path: Path) -> None:
    os.symlink("nowhere", tmp_path / "link")

    assert provenance.identity(str(tmp_path / "link")) is None
    assert provenance.identity("/a\0b") is None


def test_the_hash_tells_devices_of_other_modes_and_mig_devices_apart(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 1)
    file = machine.file("/usr/bin/nvidia-smi", "binary")
    device = NamedDevice(
        name="all",
        nodes=(machine.node("nvidiactl"),),
        files=(file,),
        links=(Link(target="a", path="/b"),),
    )
    plain = machine.inventory()
    machine.partition(0, 1)
    inventories = [
        plain,
        machine.inventory(),
        machine.inventory(links=(Link(target="a", path="/b"),)),
        machine.inventory(devices=(device,)),
        machine.inventory(devices=(replace(device, nodes=()),)),
        machine.inventory(devices=(replace(device, files=()),)),
        machine.inventory(devices=(replace(device, links=()),)),
    ]

    assert len({provenance.inputs_hash(one) for one in inventories}) == len(inventories)
    assert (
        "/usr/bin/nvidia-smi"
        in provenance.of(machine.inventory(files=(), devices=(device,))).files
    )


def test_of_a_file_that_is_too_large_nothing_is_read(tmp_path: Path) -> None:
    _, inventory = made(tmp_path)
    path = tmp_path / "a.yaml"
    with path.open("wb") as file:
        file.truncate(provenance.SPEC_LIMIT + 1)

    assert provenance.read(spec_of(inventory, annotated=False), str(path)) is None
