# SPDX-License-Identifier: Apache-2.0
import xml.etree.ElementTree as ET
from collections.abc import Callable

import pytest

from nvct_sim import state
from tests.support.nvml_node import NvmlNode, gpu_record, gpu_uuid


def test_the_list_is_in_the_real_format(node: NvmlNode) -> None:
    uuids = node.add_mig_devices(1, 2)

    done = node.smi("-L")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: {gpu_uuid(0)})\n"
        f"GPU 1: NVIDIA H100 80GB HBM3 (UUID: {gpu_uuid(1)})\n"
        f"  MIG 1g.10gb     Device  0: (UUID: {uuids[0]})\n"
        f"  MIG 1g.10gb     Device  1: (UUID: {uuids[1]})\n"
        f"GPU 2: NVIDIA H100 80GB HBM3 (UUID: {gpu_uuid(2)})\n"
        f"GPU 3: NVIDIA H100 80GB HBM3 (UUID: {gpu_uuid(3)})\n"
    )


@pytest.mark.parametrize("name", ["2", gpu_uuid(2), "00000000:38:00.0", "0000:38:00.0"])
def test_a_gpu_is_selected_by_index_uuid_or_bus_id(node: NvmlNode, name: str) -> None:
    assert node.smi("-L", "-i", name).stdout == (
        f"GPU 2: NVIDIA H100 80GB HBM3 (UUID: {gpu_uuid(2)})\n"
    )


def test_no_devices_are_found(node: NvmlNode) -> None:
    absent = node.smi("-L", "--id=9")
    assert (absent.returncode, absent.stdout) == (6, "No devices were found\n")
    no_mig = node.smi("mig", "-lgi")
    assert no_mig.returncode == 6
    assert no_mig.stdout.endswith("No MIG-enabled devices found.\n")
    for n in range(4):
        (node.dev / f"nvidia{n}").unlink()
    none = node.smi("-L")
    assert (none.returncode, none.stdout) == (0, "No devices found.\n")


def lose_one(node: NvmlNode) -> None:
    node.change_gpu(1, "lost", 1)


def lose_the_library(node: NvmlNode) -> None:
    (node.tree / "lib/libnvidia-ml.so.1").unlink()


def lose_the_driver(node: NvmlNode) -> None:
    (node.dev / "nvidiactl").unlink()


def load_another_driver(node: NvmlNode) -> None:
    node.write([line.replace("580.159.04", "575.1") for line in node.lines()])


@pytest.mark.parametrize(
    ("trouble", "status", "text", "shown"),
    [
        (lose_one, 15, "Unable to determine the device handle for gpu 1: GPU is lost", 3),
        (lose_the_library, 12, "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.", 0),
        (lose_the_driver, 9, "couldn't communicate with the NVIDIA driver", 0),
        (load_another_driver, 18, "Failed to initialize NVML: Driver/library version mismatch\n", 0),
    ],
)  # fmt: skip
def test_trouble_is_named_as_by_the_real_program(
    node: NvmlNode, trouble: Callable[[NvmlNode], None], status: int, text: str, shown: int
) -> None:
    trouble(node)

    done = node.smi("-L")

    assert done.returncode == status
    assert text in done.stdout
    assert done.stdout.count("(UUID: ") == shown
    assert node.smi("-h").returncode == 0
    assert "simulated by nvct" in node.smi("-h").stdout


def test_the_table_is_rectangular_and_has_each_gpu(node: NvmlNode) -> None:
    node.add_mig_devices(3, 1)

    done = node.smi()

    table = done.stdout.split("\n\n")[0].splitlines()
    assert done.returncode == 0
    assert {len(line) for line in table} == {91}
    assert sum("NVIDIA H100 80GB HBM3" in line for line in table) == 4
    assert "CUDA Version: 13.0" in table[1]
    assert "|  3    7   0   0  |" in done.stdout
    assert {len(line) for line in done.stdout.splitlines() if line} == {91}
    assert "No running processes found" in done.stdout


REPORTED = (
    "product_name", "uuid", "minor_number", "pci/pci_bus_id", "fb_memory_usage/total",
    "utilization/gpu_util", "temperature/gpu_temp", "gpu_power_readings/current_power_limit",
    "mig_mode/current_mig", "fan_speed",
)  # fmt: skip


def test_a_report_is_text_or_xml_of_the_same_values(node: NvmlNode) -> None:
    node.add_mig_devices(1, 2)

    text = node.smi("-q", "-i", "1").stdout
    log = ET.fromstring(node.smi("-q", "-x").stdout)  # noqa: S314 our own

    gpus = log.findall("gpu")
    assert log.findtext("driver_version") == "580.159.04"
    assert log.findtext("attached_gpus") == "4"
    assert [gpu.get("id") for gpu in gpus][:2] == ["00000000:18:00.0", "00000000:28:00.0"]
    assert [gpus[1].findtext(path) for path in REPORTED] == [
        "NVIDIA H100 80GB HBM3", gpu_uuid(1), "1", "00000000:28:00.0", "81559 MiB", "N/A", "34 C",
        "700.00 W", "Enabled", "N/A",
    ]  # fmt: skip
    assert len(gpus[1].findall("mig_devices/mig_device")) == 2
    values = [line.partition(": ")[2] for line in text.splitlines()]
    leaves = [leaf.text for leaf in gpus[1].iter() if not len(leaf) and leaf.text]
    assert [text for text in leaves if text not in values] == []


# From GPUtil and from the collectors of MLflow and others.
QUERIES = {
    "index,uuid,utilization.gpu,memory.total,memory.used,memory.free,driver_version,name,"
    "gpu_serial,display_active,display_mode,temperature.gpu": (
        f"0, {gpu_uuid(0)}, 7, 81559, 0, 81001, 580.159.04, NVIDIA H100 80GB HBM3, 1320000000,"
        " Disabled, Disabled, 34"
    ),
    "pstate,fan.speed,utilization.memory,power.draw,enforced.power.limit": (
        "P0, [N/A], 3, 114.10, 700.00"
    ),
    "pcie.link.gen.max,pcie.link.width.current,pci.domain,pci.device_id": "5, 16, 0x0000, 0x233010DE",
    "clocks.sm,clocks.mem,clocks.max.gr,ecc.mode.current,compute_mode,persistence_mode": (
        "1980, 2619, 1980, Enabled, Default, Enabled"
    ),
}


@pytest.mark.parametrize("fields", QUERIES)
def test_queries_of_other_programs(node: NvmlNode, fields: str) -> None:
    node.set_gpus(gpu_record(0, util=7))

    done = node.smi(f"--query-gpu={fields}", "--format=csv,noheader,nounits")

    assert done.stdout == f"{QUERIES[fields]}\n"


def test_a_query_as_scripts_write_it(node: NvmlNode) -> None:
    fields = "index,name,uuid,memory.total,mig.mode.current,power.limit"

    done = node.smi(f"--query-gpu={fields}", "--format=csv", "-i", "1")
    bare = node.smi(f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-i", "1")
    aliases = node.smi("--query-gpu=gpu_name, clocks.gr", "--format=csv", "-i", "0")

    row = f"1, NVIDIA H100 80GB HBM3, {gpu_uuid(1)}"
    assert done.stdout == (
        "index, name, uuid, memory.total [MiB], mig.mode.current, power.limit [W]\n"
        f"{row}, 81559 MiB, Disabled, 700.00 W\n"
    )
    assert bare.stdout == f"{row}, 81559, Disabled, 700.00\n"
    assert aliases.stdout.splitlines()[0] == "name, clocks.current.graphics [MHz]"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--query-gpu=index,colour", "--format=csv"], 'Field "colour" is not a valid field'),
        (["--query-gpu=memory.shared", "--format=csv"], 'Field "memory.shared" is not a valid'),
        (["--query-gpu=index"], '"--format=" switch is missing'),
        (["-x"], '"-x" wants "-q"'),
        (["-q", "-d", "POWER,COLOUR"], '"COLOUR" is no group of -d'),
        (["topo", "-p"], 'Only "nvidia-smi topo -m" is simulated.'),
        (
            ["--query-compute-apps=pid,colour", "--format=csv"],
            'Field "colour" is not a valid field',
        ),
        (["--list"], 'Option "--list" is not recognized'),
        (["mig", "-xyz"], 'Option "-xyz" is not recognized'),
        (["-mig", "2"], "Invalid MIG mode: 2"),
    ],
)
def test_unknown_options_and_fields_are_invalid_arguments(
    node: NvmlNode, arguments: list[str], text: str
) -> None:
    done = node.smi(*arguments)

    assert done.returncode == 2
    assert text in done.stdout


def test_mig_commands_partition_a_gpu_and_undo_it(node: NvmlNode) -> None:
    before = node.lines()
    part = "Successfully created compute instance ID  0 on GPU  0"

    assert node.smi("-mig", "1", "-i", "0").stdout == (
        "Enabled MIG Mode for GPU 00000000:18:00.0\nAll done.\n"
    )
    created = node.smi("mig", "-cgi", "9,1g.10gb:5", "-C", "-i", "0")
    assert created.returncode == 0, created.stdout
    assert created.stdout.splitlines() == [
        "Successfully created GPU instance ID  2 on GPU  0 using profile MIG 3g.40gb (ID  9)",
        f"{part} GPU instance ID  2 using profile MIG 3g.40gb (ID  2)",
        "Successfully created GPU instance ID  8 on GPU  0 using profile MIG 1g.10gb (ID 19)",
        f"{part} GPU instance ID  8 using profile MIG 1g.10gb (ID  0)",
    ]
    assert node.smi("-L", "-i", "0").stdout.count("  MIG ") == 2
    assert "MIG 1g.10gb          19          8          5:1" in node.smi("mig", "-lgi").stdout
    assert node.smi("mig", "-lgip").stdout.count("\n") == 8
    assert node.smi("mig", "-dgi").returncode == 19  # in use
    assert node.smi("mig", "-dci", "-gi", "8").returncode == 0
    assert node.smi("mig", "-dgi", "-gi", "8").returncode == 0
    assert node.smi("mig", "-dci").returncode == 0
    assert node.smi("mig", "-dgi").returncode == 0
    assert node.smi("-mig", "0", "-i", "0").returncode == 0

    assert node.lines() == before


def test_the_compute_mode_of_one_gpu_is_set_and_shown_and_no_other_one(node: NvmlNode) -> None:
    done = node.smi("-i", gpu_uuid(1), "-c", "EXCLUSIVE_PROCESS")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "Set compute mode to EXCLUSIVE_PROCESS for GPU 00000000:28:00.0.\nAll done.\n"
    )
    modes = node.smi("--query-gpu=compute_mode", "--format=csv,noheader").stdout.splitlines()
    assert modes == ["Default", "Exclusive_Process", "Default", "Default"]
    for wrong in ("EXCLUSIVE", "4", "EXCLUSIVE_THREAD", ""):
        assert node.smi("-c", wrong).returncode == 2, wrong
    node.smi("-c", "DEFAULT")
    assert node.smi("--query-gpu=compute_mode", "--format=csv,noheader", "-i", "1").stdout == (
        "Default\n"
    )


def fields_of(node: NvmlNode, index: int) -> dict[str, str]:
    (line,) = (x for x in node.lines() if x.startswith(f"gpu\tindex={index}\t"))
    return dict(word.split("=", 1) for word in line.split("\t")[1:])


def spoil(node: NvmlNode, index: int, **fields: object) -> None:
    """Set fields of one GPU, also those that it did not have."""
    start = f"gpu\tindex={index}\t"
    words = "".join(f"\t{name}={value}" for name, value in fields.items())
    node.write([line + words if line.startswith(start) else line for line in node.lines()])


def test_a_reset_ends_what_the_command_of_the_simulation_ends(node: NvmlNode) -> None:
    ended = dict.fromkeys((*state.ENDED_BY_RESET, "energy"), 1)
    spoil(node, 1, **ended, ecc_uncorrected_total=3, migflip=1)

    done = node.smi("--gpu-reset", "-i", "1")

    bus = "00000000:28:00.0"
    assert (done.returncode, done.stdout) == (
        0, f"GPU {bus} was successfully reset.\nAll done.\n"
    )  # fmt: skip
    after = fields_of(node, 1)
    assert {after[name] for name in ended} == {"0"}
    assert (after["ecc_uncorrected_total"], after["migflip"], after["mig"]) == ("3", "0", "1")
