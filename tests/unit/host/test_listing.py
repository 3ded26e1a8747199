# SPDX-License-Identifier: Apache-2.0
"""An inventory as JSON, as a table and as bind arguments."""

import json
from dataclasses import replace
from importlib import resources
from pathlib import Path

import jsonschema
import pytest

from nvct.host import listing
from nvct.host.model import Inventory, LeftOut, Link, NamedDevice
from tests.support.host_tree import LIB, VERSION, HostTree
from tests.support.inventories import Machine, mig_uuid


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    listed = Machine(tmp_path, 2)
    listed.partition(1, 1)
    return listed


def inventory_of(machine: Machine) -> Inventory:
    """Return an inventory that has something of everything."""
    return machine.inventory(
        devices=(
            NamedDevice(
                name="all",
                uuid="x",
                nodes=(machine.node("nvidia-modeset"),),
                files=(machine.file("/etc/odd.json", "config"),),
                links=(Link(target="nowhere", path="/usr/lib/lost"),),
            ),
        ),
        links=(Link(target=f"/{LIB}/libcuda.so.1", path="/usr/lib/libcuda.so"),),
        left_out=(LeftOut(path="/usr/bin/nvidia-settings", reason="not in the list"),),
        warnings=("a warning",),
        notes=("a note",),
        cuda_version="13.0",
    )


# --- JSON ---


@pytest.mark.parametrize("left_out", [False, True])
def test_the_json_conforms_to_the_schema(machine: Machine, *, left_out: bool) -> None:
    schema = json.loads(resources.files("nvct.host").joinpath("inventory.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)

    document = json.loads(listing.as_json(inventory_of(machine), left_out=left_out))

    jsonschema.Draft202012Validator(schema).validate(document)
    assert ("left_out" in document) == left_out
    assert document["version"] == listing.VERSION
    assert set(schema["$defs"]["inventory"]["properties"]) - {"left_out"} == set(document) - {
        "left_out"
    }


def test_the_json_has_values_as_they_are(machine: Machine) -> None:
    document = json.loads(listing.as_json(inventory_of(machine)))

    assert document["gpus"][1]["mig"][0]["uuid"] == mig_uuid(1, 0)
    assert document["files"][0]["container_path"] == f"/{LIB}/libcuda.so.{VERSION}"
    assert document["files"][0]["reason"] == "a test wants it"
    assert document["warnings"] == ["a warning"]


# --- table ---


def test_the_table_has_a_line_for_each_entry_with_its_reason(machine: Machine) -> None:
    lines = listing.as_table(inventory_of(machine)).splitlines()

    assert lines[0].split() == ["KIND", "CAPABILITY", "PATH", "REASON"]
    kinds = [line[:8].split()[0] for line in lines[1:]]
    assert kinds == [
        *("gpu", "node", "node", "link"),
        *("gpu", "node", "node", "link", "mig", "node", "node"),
        *("device", "node", "config", "link", "node", "node"),
        *("library", "link", "link", "library", "binary", "link"),
    ]
    row = next(line for line in lines if "nvidia-smi" in line)
    assert row.split("  ")[0] == "binary"
    assert row.endswith("a test wants it")
    assert f"{machine.host.driver}/usr/bin/nvidia-smi -> /usr/bin/nvidia-smi" in row
    gpu = next(line for line in lines if HostTree.uuid(1) in line)
    assert gpu.endswith("NVIDIA H100 80GB HBM3 at 0000:2a:00.0; in MIG mode")


def test_left_out_files_come_last_on_request(machine: Machine) -> None:
    last = listing.as_table(inventory_of(machine), left_out=True).splitlines()[-1]

    assert last.startswith("left out")
    assert last.split()[2] == "/usr/bin/nvidia-settings"
    assert last.endswith("not in the list")
    assert "left out" not in listing.as_table(inventory_of(machine))


def test_a_gpu_without_node_is_marked(machine: Machine) -> None:
    gpu = replace(machine.inventory().gpus[0], node=None)

    table = listing.as_table(machine.inventory(gpus=(gpu,)))

    assert "; it has no device node, so no container gets it" in table


def test_a_name_cannot_break_the_table(machine: Machine) -> None:
    file = machine.file("/a\nb\udcff", "config")

    table = listing.as_table(machine.inventory(files=(file,)))

    assert table.count("/a\\nb\\udcff") == 2
    table.encode()


# --- bind ---


def test_files_sockets_and_nodes_have_their_bind_options(machine: Machine) -> None:
    base, driver = machine.host.base, machine.host.driver
    socket = machine.file("/run/nvidia-persistenced/socket", "socket", "utility")
    inventory = machine.inventory(gpus=machine.inventory().gpus[1:])

    lines, impossible = listing.as_binds(machine.inventory(gpus=inventory.gpus, files=(socket,)))

    assert lines == [
        f"{base}/dev/dri/card2:/dev/dri/card2:rwm",
        f"{base}/dev/nvidia-caps/nvidia-cap30:/dev/nvidia-caps/nvidia-cap30:rwm",
        f"{base}/dev/nvidia-caps/nvidia-cap31:/dev/nvidia-caps/nvidia-cap31:rwm",
        f"{base}/dev/nvidia-uvm:/dev/nvidia-uvm:rwm",
        f"{base}/dev/nvidia1:/dev/nvidia1:rwm",
        f"{base}/dev/nvidiactl:/dev/nvidiactl:rwm",
        f"{driver}/run/nvidia-persistenced/socket:/run/nvidia-persistenced/socket:rw",
    ]
    assert impossible == []


def test_a_link_is_another_bind_of_its_file(machine: Machine) -> None:
    lines, impossible = listing.as_binds(inventory_of(machine))

    cuda = f"{machine.host.driver}/{LIB}/libcuda.so.{VERSION}"
    assert [line for line in lines if line.startswith(cuda)] == [
        f"{cuda}:/usr/lib/libcuda.so:ro",
        f"{cuda}:/{LIB}/libcuda.so:ro",
        f"{cuda}:/{LIB}/libcuda.so.1:ro",
        f"{cuda}:/{LIB}/libcuda.so.{VERSION}:ro",
    ]
    assert impossible == ["/usr/lib/lost"]


def test_links_in_a_loop_are_reported_as_impossible(machine: Machine) -> None:
    circle = (Link(target="b", path="/l/a"), Link(target="a", path="/l/b"))

    _, impossible = listing.as_binds(machine.inventory(gpus=(), links=circle))

    assert impossible == ["/l/a", "/l/b"]


@pytest.mark.parametrize("name", ["a:b", "a\nb", "a\udcff"])
def test_paths_without_a_bind_form_are_reported(name: str, machine: Machine) -> None:
    file = machine.file(f"/etc/{name}", "config")

    lines, impossible = listing.as_binds(machine.inventory(gpus=(), files=(file,)))

    assert impossible == [f"/etc/{name}"]
    assert len(lines) == 2
