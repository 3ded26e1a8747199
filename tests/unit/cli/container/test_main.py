# SPDX-License-Identifier: Apache-2.0
"""Program nvidia-container-cli, on hosts of plain files.

What NVML tells, and containers, are in tests/integration/test_container_cli.py.
"""

import contextlib
import importlib
import io
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nvct.cli.container import arguments as args
from nvct.cli.container import configure as container_configure
from nvct.cli.container import info as container_info
from nvct.cli.container import list_files as container_list
from nvct.cli.container import main as container_cli
from nvct.cli.container.arguments import Option, select, select_mig_capable
from nvct.cli.container.list_files import Lister
from nvct.cli.container.process import Process
from nvct.container.plan.model import no_edits
from nvct.container.prestart.container import Container
from nvct.errors import HostError, NvctError, RequestError, UnknownDeviceError, UsageError
from nvct.host.model import Gpu, Inventory, MigDevice
from nvct.host.nvml.session import NvmlSession
from nvct.host.roots import Roots
from nvct.linux import ldcache
from nvct.paths import CONFIG_ENV, OWN_CONFIG_ENV
from nvct.version import TOOLKIT_VERSION, __version__
from tests.hosts.base import Platform
from tests.support.host_tree import LIB, VERSION, WORKING_NVML
from tests.support.processes import captured
from tests.support.shim_lab import REPOSITORY, Lab

SWITCH, VALUE = Option("libraries", "l", "", "a"), Option("device", "d", "ID", "b")
USER = Option("user", "u", "UID", "c", value_may_be_missing=True)
OTHER = Option("debug", "", "FILE", "d")
OPTIONS = (SWITCH, VALUE, USER, OTHER)


@pytest.fixture
def lab(lab: Lab) -> Lab:
    lab.driver(gpus=2)
    return lab


def run(lab: Lab, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the program in this process; its NVML works: a host of plain files has no such library."""
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(NvmlSession, "check", lambda _: None)
        patch.setattr(NvmlSession, "properties", lambda _: {})
        patch.chdir(lab.home)
        variables = {OWN_CONFIG_ENV: lab.env[CONFIG_ENV], **lab.env, **env}
        status = container_cli.main(argv, variables)
    return subprocess.CompletedProcess(argv, status, out.getvalue(), err.getvalue())


def start(lab: Lab, *argv: str, before: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    code = (
        f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); {before}"
        "from nvct.cli.container.main import nvidia_container_cli as f; f()"
    )
    return captured(
        [sys.executable, "-c", code, *argv], cwd=lab.home,
        env={OWN_CONFIG_ENV: lab.env[CONFIG_ENV], **lab.env, **env}, timeout=60,
    )  # fmt: skip


def listed(lab: Lab, *argv: str, **env: str) -> list[str]:
    completed = run(lab, "list", *argv, **env)
    assert (completed.returncode, completed.stderr) == (0, "")
    return completed.stdout.splitlines()


def complaint(lab: Lab, *argv: str) -> str:
    completed = run(lab, *argv)
    assert (completed.returncode, completed.stdout, completed.stderr.count("\n")) == (1, "", 1), (
        completed
    )
    assert completed.stderr.startswith("nvidia-container-cli: ")
    return completed.stderr


# Command lines


@pytest.mark.parametrize(
    ("argv", "values", "arguments"),
    [
        (["-ld", "0"], {"libraries": [None], "device": ["0"]}, []),
        (["-ld0"], {"libraries": [None], "device": ["0"]}, []),
        (["--device", "0", "--dev=1"], {"device": ["0", "1"]}, []),
        (["--user", "x"], {"user": [None]}, ["x"]),
        (["--user=1:2", "-u", "-u3"], {"user": ["1:2", None, "3"]}, []),
        (["a", "-l", "b"], {"libraries": [None]}, ["a", "b"]),
        (["-l", "--", "-l"], {"libraries": [None]}, ["-l"]),
        (["-"], {}, ["-"]),
        (["-?"], {"help": [None]}, []),
    ],
)
def test_options_are_read_as_by_argp(
    argv: Sequence[str], values: dict[str, list[str | None]], arguments: list[str]
) -> None:
    parsed = args.parse(argv, OPTIONS)

    assert (parsed.values, parsed.arguments) == (values, arguments)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--de"], "option --de is ambiguous: --device or --debug"),
        (["--what"], "no option --what"),
        (["-lx"], "no option -x"),
        (["-d"], "option --device needs a value: ID"),
        (["--libraries=1"], "option --libraries takes no value such as '1'"),
    ],
)
def test_unknown_options_are_errors(argv: Sequence[str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        args.parse(argv, OPTIONS)

    assert caught.value.message == said


def test_a_repeated_option_is_one_list() -> None:
    parsed = args.parse(["-d0", "-d", "1,,2"], OPTIONS)

    assert (parsed.words("device"), parsed.words("libraries")) == (["0", "1", "2"], [])
    assert (parsed.text("device"), parsed.text("user")) == ("1,,2", "")


@pytest.mark.parametrize("name", ["", "info", "list", "configure"])
def test_help_is_as_recorded(name: str, golden: Callable[[str, str], None]) -> None:
    text = container_cli.help_of(name)

    assert max(map(len, text.splitlines())) < 80
    golden(f"container_cli/{name or 'program'}.txt", text)


@pytest.mark.parametrize("argv", [["-V"], ["list", "--vers"]])
def test_the_version_is_in_libnvidia_container_s_first_line(lab: Lab, argv: list[str]) -> None:
    assert run(lab, *argv).stdout.splitlines() == [
        f"cli-version: {TOOLKIT_VERSION}", f"lib-version: {TOOLKIT_VERSION}", f"nvct: {__version__}",
    ]  # fmt: skip


@pytest.mark.parametrize("argv", [["--help"], ["configure", "-?"]])
def test_help_needs_no_driver_and_no_config(lab: Lab, argv: list[str]) -> None:
    lab.configure("mode = [broken")

    completed = run(lab, *argv)

    assert (completed.returncode, completed.stderr) == (0, "")
    assert completed.stdout.startswith("Usage: nvidia-container-cli ")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["what"], "no command 'what'; it is one of info, list, configure"),
        (["list", "what"], "list takes no argument such as 'what'"),
        (["list", "-d"], "option --device needs a value: "),
        (["--user=me", "info"], "--user 'me' is not UID[:GID]"),
        (["--debug=/none/x", "info"], "cannot write to /none/x: No such file or directory"),
        (["-r", "driver", "list"], "the driver root 'driver' is not absolute"),
        (["-r", "/nvct-none", "list"], "root folder /nvct-none cannot be opened"),
        (["-r", "/nvct-none", "list"], "--root, or root in config.toml"),
        (["-l", "none", "list"], "--ldcache: "),
        (["configure"], "configure takes one folder, not 0"),
        (["configure", "/a", "/b"], "configure takes one folder, not 2"),
        *((["configure", root], f"the root {root!r} is not an absolute path below /")
          for root in ("rel", "/", "//", "/a/..")),
        *((["configure", f"-p{pid}", "/x"], f"--pid {pid!r} is not a container's process")
          for pid in ("0", "1", "x", "-3")),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_status_1(lab: Lab, argv: list[str], said: str) -> None:
    assert said in complaint(lab, *argv)


# info


def test_info_prints_a_block_for_the_driver_and_one_for_each_gpu(lab: Lab) -> None:
    completed = run(lab, "info")

    assert completed.returncode == 0
    assert completed.stdout == (
        f"NVRM version:   {VERSION}\nCUDA version:   13.0\n"
        "\nDevice Index:   0\nDevice Minor:   0\nModel:          NVIDIA H100 80GB HBM3\n"
        f"Brand:          Unknown\nGPU UUID:       {lab.host.uuid(0)}\n"
        "Bus Location:   00000000:18:00.0\nArchitecture:   Unknown\n"
        "\nDevice Index:   1\nDevice Minor:   1\nModel:          NVIDIA H100 80GB HBM3\n"
        f"Brand:          Unknown\nGPU UUID:       {lab.host.uuid(1)}\n"
        "Bus Location:   00000000:2a:00.0\nArchitecture:   Unknown\n"
    )
    assert completed.stderr == ""


@pytest.mark.parametrize("command", ["info", "list"])
@pytest.mark.parametrize("has_nvml", [True, False])
def test_a_driver_that_cannot_be_initialized_is_no_healthy_one(
    lab: Lab, command: str, *, has_nvml: bool
) -> None:
    if not has_nvml:
        for path in (lab.home / "driver").rglob("libnvidia-ml.so*"):
            path.unlink()

    completed = start(lab, command)

    assert (completed.returncode, completed.stdout, completed.stderr.count("\n")) == (1, "", 1)
    assert completed.stderr.startswith("nvidia-container-cli: the driver cannot be initialized: ")
    end = " [nvml]\n" if has_nvml else "initialized: it has no libnvidia-ml.so [host]\n"
    assert completed.stderr.endswith(end)


def test_a_tegra_does_without_nvml(tmp_path: Path) -> None:
    assert container_info.initialized(Inventory(driver_version="", mode="csv")) is None


IN_A_PID_NAMESPACE = """
import contextlib, os
from nvct.cli.container.process import Process
with contextlib.closing(Process({pid})) as process:
    process.check()
    with open(f"/proc/{{process.number}}/status") as file:
        print(process.pid, process.number, file.read().partition("NSpid:")[2].split("\\n")[0])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a PID namespace")
@pytest.mark.parametrize("pid", ["os.getppid()", "2"])
def test_a_process_is_found_in_the_proc_of_another_pid_namespace(pid: str) -> None:
    """In there the shell is 1 and its background job 2, which are other processes in /proc."""
    code = IN_A_PID_NAMESPACE.format(pid=pid)
    shell = f'sleep 30 & {sys.executable} -c "$0"; kill $!'
    completed = captured(
        ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", shell, code], timeout=60, cwd=REPOSITORY,
    )  # fmt: skip

    assert completed.returncode == 0, completed
    inner, number, *namespaces = completed.stdout.split()
    assert inner == ("2" if pid == "2" else "1")
    assert namespaces[-1] == inner
    assert namespaces[0] == number != inner


def test_a_process_that_has_ended_is_named() -> None:
    with subprocess.Popen(["true"]) as child:
        process = Process(child.pid)
    with pytest.raises(HostError, match=f"there is no process {child.pid}"):
        process.check()
    process.close()
    with pytest.raises(HostError, match=f"there is no process {child.pid}"):
        Process(child.pid)


def test_a_parent_outside_of_this_pid_namespace_is_none() -> None:
    with contextlib.closing(Process(0)) as process:
        process.check()
        assert process.number == 0


def test_info_as_csv_is_two_tables() -> None:
    row = (0, 1, "Tesla T4", "Tesla", "GPU-1", "00000000:18:00.0", "7.5")

    assert container_info.as_csv(("580.1", "13.0"), [row]) == (
        "NVRM version,CUDA version\n580.1,13.0\n\n"
        "Device Index,Device Minor,Model,Brand,GPU UUID,Bus Location,Architecture\n"
        "0,1,Tesla T4,Tesla,GPU-1,00000000:18:00.0,7.5\n"
    )


def test_a_debug_file_says_what_is_found(lab: Lab) -> None:
    path = lab.home / "log"
    path.write_text("before\n", encoding="utf-8")

    assert start(lab, "-kd", str(path), "info").returncode == 1

    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "before"
    assert "nvidia-container-cli info, nvct " in lines[1]
    assert any("libnvidia-ml" in line for line in lines[2:])


def test_debug_to_stderr_is_stderr(lab: Lab) -> None:
    argv = ["--debug=/dev/stderr", "list", "-b"]
    assert "nvidia-container-cli list, nvct " in start(lab, *argv, before=WORKING_NVML).stderr


# list


def test_list_without_options_lists_everything_in_order(lab: Lab) -> None:
    lines = listed(lab)

    assert lines[:6] == [
        "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset",
        "/dev/nvidia0", "/dev/nvidia1",
    ]  # fmt: skip
    remaining = lines[6:]
    assert remaining[:2] == ["/usr/bin/nvidia-smi", "/usr/bin/nvidia-cuda-mps-control"]
    assert remaining[2:5] == [
        f"/{LIB}/libnvidia-ml.so.{VERSION}", f"/{LIB}/libcuda.so.{VERSION}",
        f"/{LIB}/libnvidia-gpucomp.so.{VERSION}",
    ]  # fmt: skip
    assert remaining[-2:] == [
        f"/lib/firmware/nvidia/{VERSION}/gsp_{name}.bin" for name in ("ga10x", "tu10x")
    ]


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["--binaries"], {"/usr/bin"}),
        (["-l"], {f"/{LIB}", f"/{LIB}/vdpau"}),
        (["-lb"], {"/usr/bin", f"/{LIB}", f"/{LIB}/vdpau"}),
        (["-f"], {f"/lib/firmware/nvidia/{VERSION}"}),
        (["--device=1"], {"/dev"}),
        (["--ipcs"], set()),
        (["--compat32"], set()),
    ],
)
def test_options_say_what_is_listed(lab: Lab, argv: list[str], shown: set[str]) -> None:
    assert {os.path.dirname(line) for line in listed(lab, *argv)} == shown


def test_only_the_named_gpus_are_listed(lab: Lab) -> None:
    uuid = lab.host.uuid(1).upper()

    for word in ("1", uuid, "0000:2a:00.0", "0:2A:00", ",1,,1"):
        gpus = [line for line in listed(lab, "-d", word) if line[-1].isdigit()]
        assert gpus == ["/dev/nvidia1"], word
    assert "device error: 2: unknown device" in complaint(lab, "list", "-d", "0", "-d", "2")


def test_the_folder_of_mps_may_be_another_one(lab: Lab) -> None:
    mps = lab.home / "driver/tmp/nvidia-mps"
    mps.mkdir(parents=True)
    other = lab.home / "driver/var/mps"
    other.mkdir(parents=True)

    assert listed(lab, "-i") == (["/tmp/nvidia-mps"] if os.geteuid() == 0 else [])
    assert listed(lab, "-i", CUDA_MPS_PIPE_DIRECTORY="/var/mps") == ["/var/mps"]
    assert listed(lab, "-i", CUDA_MPS_PIPE_DIRECTORY="/none") == []


def test_imex_channels_have_to_be_there(lab: Lab) -> None:
    devices = lab.home / "proc/devices"
    text = devices.read_text(encoding="utf-8")
    devices.write_text(
        text.replace("226 drm", "226 drm\n511 nvidia-caps-imex-channels"), encoding="utf-8"
    )
    lab.host.write("dev/nvidia-caps-imex-channels/channel0")

    assert listed(lab, "-b", "--imex-channel=0")[0] == "/dev/nvidia-caps-imex-channels/channel0"
    whole = listed(lab, "--imex-channel", "0")  # does not count as a choice
    assert "/dev/nvidia-caps-imex-channels/channel0" in whole
    assert "/dev/nvidia0" in whole
    assert "channel7 is not a device node" in complaint(lab, "list", "--imex-channel=0,7")
    assert "imex-channel error: x: not a channel number" in complaint(
        lab, "list", "--imex-channel=x"
    )


def test_a_driver_root_can_be_named(lab: Lab) -> None:
    lab.keys["nvidia-container-cli"]["root"] = "/nvct-none"
    lab.configure()

    completed = run(lab, "-r", str(lab.home / "driver"), "list", "-b")

    assert completed.stdout.splitlines()[0] == "/usr/bin/nvidia-smi"


def test_with_ldcache_only_its_folders_are_looked_in(lab: Lab) -> None:
    lab.host.library("libcuda", "libcuda.so.1", folder="opt/nv")
    lab.host.library("libnvidia-ml", "libnvidia-ml.so.1", folder="opt/nv")
    lab.host.write("driver/etc/own.cache", made_cache("libcuda.so.1", "/opt/nv/libcuda.so.1"))

    completed = run(lab, "-l", "/etc/own.cache", "list", "-l")

    assert [os.path.dirname(line) for line in completed.stdout.splitlines()] == ["/opt/nv"] * 2, (
        completed
    )


def made_cache(name: str, path: str) -> bytes:
    """Return an ld.so.cache of this machine with one library."""
    at = ldcache.HEADER + ldcache.ENTRY
    strings = name.encode() + b"\0" + path.encode() + b"\0"
    flags = ldcache.FLAGS[os.uname().machine]
    record = struct.pack("<iIIIQ", flags, at, at + len(name) + 1, 0, 0)
    return ldcache.MAGIC + struct.pack("<II", 1, len(strings)) + bytes(20) + record + strings


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("wsl", ["/dev/dxg", "/usr/lib/wsl/lib/libdxcore.so"]),
        ("nixos", ["/dev/nvidiactl", "/dev/nvidia0"]),
        ("jetson_orin", ["/dev/nvmap"]),
    ],
)
def test_other_platforms_list_what_is_there(
    name: str, expected: list[str], tmp_path: Path
) -> None:
    platform: Platform = importlib.import_module(f"tests.hosts.{name}").PLATFORM
    host = platform.build(tmp_path)

    lines = list(Lister(platform.look(host), host.roots, list_said(), host.stat_node).lines())

    assert set(expected) <= set(lines)
    assert len(set(lines)) == len(lines) > 5
    files = [line for line in lines if not line.startswith(("/dev/", "/proc/"))]
    assert files
    assert [line for line in files if not os.path.lexists(f"{host.roots.driver_root}{line}")] == []


def list_said(*argv: str) -> args.Parsed:
    return args.parse(argv, container_list.OPTIONS)


# Devices


def mig(index: int, gi: int) -> MigDevice:
    return MigDevice(index=index, uuid=f"MIG-{gi}a", gi=gi, ci=0, cap_minors=(gi, gi + 1))


def node_of_three() -> Inventory:
    bare = Gpu(index=0, minor=3, uuid="GPU-aa", bus_id="0000:18:00.0", model="A", node=None)
    parted = replace(
        bare, index=1, minor=4, uuid="GPU-bb", bus_id="0001:2a:00.0", mig_enabled=True,
        mig=(mig(0, 7), mig(1, 9)),
    )  # fmt: skip
    last = replace(bare, index=2, minor=5, uuid="GPU-cc", bus_id="")
    return Inventory(driver_version="580.1", gpus=(bare, parted, last))


def words(device_list: str) -> list[str]:
    return args.parse([f"--device={device_list}"], OPTIONS).words("device")


@pytest.mark.parametrize(
    ("device_list", "gpus", "migs"),
    [
        ("", [], []),
        ("0", [0], []),
        ("1,0,1", [1, 0], []),
        ("gpu-AA", [0], []),
        ("0:18:0", [0], []),
        ("00000001:2A:00.0", [1], []),
        ("1:1", [1], [9]),
        ("mig-7A,1:1,0", [1, 0], [7, 9]),
        ("ALL,what", [0, 1, 2], [7, 9]),
    ],
)
def test_devices_are_selected_by_the_first_rule_that_fits(
    device_list: str, gpus: list[int], migs: list[int]
) -> None:
    selected = select(words(device_list), node_of_three())

    assert [gpu.index for gpu in selected.gpus] == gpus
    assert [device.gi for _, device in selected.migs] == migs
    assert selected.everything is (device_list == "ALL,what")


@pytest.mark.parametrize("word", ["3", "GPU-a", "GPU-", "0:1xyz", "1:2", "0:19:0", "-1", "none"])
def test_an_unknown_device_is_an_error_unless_there_are_no_gpus(word: str) -> None:
    with pytest.raises(UnknownDeviceError, match="unknown device"):
        select(["0", word], node_of_three())
    assert select([word], Inventory(driver_version="580.1")).gpus == []


def test_mig_capabilities_are_about_whole_gpus() -> None:
    host = node_of_three()

    assert select_mig_capable([], "mig-config", select(["all"], host), {4}) is None
    selected = select_mig_capable(["ALL"], "mig-config", select(["all"], host), {4})
    assert [gpu.index for gpu in selected or []] == [1]
    assert select_mig_capable(["all"], "mig-config", select(["0"], host), {4}) == []
    with pytest.raises(RequestError, match="--device names MIG devices"):
        select_mig_capable(["all"], "mig-config", select(["1:0"], host), {4})
    with pytest.raises(RequestError, match="only 'all' devices are supported"):
        select_mig_capable(["0"], "mig-monitor", select(["all"], host), {4})


# configure


def said(*argv: str) -> args.Parsed:
    return args.parse(argv, container_configure.OPTIONS)


def test_options_become_a_request(tmp_path: Path) -> None:
    command_line = said("-cu", "-d", "0,,GPU-" + "AB" * 4 + "-1111-2222-3333-" + "C" * 12,
                 "--require=cuda>=12", "-r", "driver>=1", "--imex-channel=3,0,3",
                 "--mig-monitor=all")  # fmt: skip

    request = container_configure.request_of(command_line, Roots(proc=str(tmp_path)))
    empty = container_configure.request_of(said(), Roots(proc=str(tmp_path)))

    assert request.ids == ["0", "GPU-abababab-1111-2222-3333-cccccccccccc"]
    assert request.capabilities == ["compute", "utility"]
    assert request.requirements == [("--require", "cuda>=12"), ("--require", "driver>=1")]
    assert (request.extras.imex, request.extras.mig_config, request.extras.mig_monitor) == (
        [3, 0], False, True,
    )  # fmt: skip
    assert (empty.ids, empty.none) == ([], True)
    assert (empty.capabilities, empty.requirements) == ([], [])


def test_all_ends_the_list_and_bus_ids_are_looked_up(lab: Lab) -> None:
    roots = lab.host.roots

    assert container_configure.request_of(said("-d", "0,ALL,3"), roots).ids == ["all"]
    assert container_configure.request_of(said("-d0:2A:00.0"), roots).ids == [lab.host.uuid(1)]


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["--device=what"], "asks for 'what', which names no device"),
        (["--device=void"], "is void"),
        (["--device=nvidia.com/gpu=0"], "is a CDI device"),
        (["--mig-config=0"], "--mig-config accepts only 'all'"),
        (["--imex-channel=x"], "'x' is not a channel number"),
        (["--cuda-compat-mode=fast"], "'fast' is none of disabled, ldconfig, mount"),
    ],
)
def test_malformed_values_are_refused(argv: list[str], reason: str, tmp_path: Path) -> None:
    with pytest.raises(NvctError) as caught:
        container_configure.request_of(said(*argv), Roots(proc=str(tmp_path)))

    assert reason in caught.value.message


@pytest.mark.parametrize(
    ("argv", "mode"),
    [
        ([], "mount"),
        (["--cuda-compat-mode=ldconfig"], "ldconfig"),
        (["--cuda-compat-mode=disabled"], "disabled"),
        (["--no-cntlibs"], "disabled"),
        (["--no-cntlibs", "--cuda-compat-mode=mount"], "disabled"),
    ],
)
def test_the_options_alone_decide_about_compatibility_libraries(
    argv: list[str], mode: str
) -> None:
    assert container_configure.compat_mode(said(*argv)) == mode


def test_options_leave_out_files_and_nodes() -> None:
    edits = no_edits()
    paths = ("/run/nvidia-persistenced/socket", "/lib/firmware/nvidia/1/gsp_x.bin", "/usr/lib/a")
    edits["mounts"] = [[path, "{}"] for path in paths]
    edits["nodes"] = [{"path": "/dev/nvidia0", "host": "", "node": "{}", "rule": "{}"}]
    hook = {"path": "/h", "args": ["h", "apply", "--host-driver-version=1", "--folder", "/x"]}
    edits["hooks"] = {"createContainer": [json.dumps(hook)]}

    (plain,) = container_configure.adapted([edits], said())
    (adapted_edits,) = container_configure.adapted(
        [edits], said("--no-persistenced", "--no-gsp", "--no-devbind")
    )

    assert plain == edits
    assert [mount[0] for mount in adapted_edits["mounts"]] == ["/usr/lib/a"]
    assert adapted_edits["nodes"] == []
    assert adapted_edits["hooks"] == edits["hooks"]
    assert edits["nodes"] != []


@pytest.mark.parametrize("standalone", [True, False])
def test_the_host_is_never_configured(standalone: object, tmp_path: Path) -> None:
    proc = own_namespace(tmp_path)
    (tmp_path / "77/ns").mkdir(parents=True)
    os.link(tmp_path / "1/ns/mnt", tmp_path / "77/ns/mnt")

    with pytest.raises(HostError, match="process 77 has the host's mount namespace"):
        container_configure.container_of(77, "/r", standalone=bool(standalone), proc=proc)
    (tmp_path / "self/ns/mnt").unlink()
    os.link(tmp_path / "1/ns/mnt", tmp_path / "self/ns/mnt")
    (tmp_path / "77/ns/mnt").unlink()
    with pytest.raises(HostError):
        container_configure.container_of(77, "/r", standalone=bool(standalone), proc=proc)


def test_a_process_that_is_gone_is_named_where_process_1_is_nobodys_business(
    tmp_path: Path,
) -> None:
    proc = own_namespace(tmp_path)
    (tmp_path / "1/ns/mnt").unlink()

    with pytest.raises(HostError, match="/77 cannot be opened"):
        container_configure.container_of(77, "/r", standalone=False, proc=proc)


def own_namespace(proc: Path, *mounts: str) -> str:
    """Write the procfs of a process with a mount namespace of its own."""
    for pid in ("1", "self"):
        (proc / pid / "ns").mkdir(parents=True)
        (proc / pid / "ns/mnt").touch()
    (proc / "self/uid_map").write_text("0 0 4294967295\n", encoding="utf-8")
    text = "".join(f"{line} - tmpfs x rw\n" for line in mounts)
    (proc / "self/mountinfo").write_text(text, encoding="utf-8")
    return str(proc)


def here(proc: str) -> Container:
    """Ask for a container whose process may not be looked at, as enroot's from inside."""
    return container_configure.container_of(77, "/r", standalone=True, proc=proc)


@pytest.mark.parametrize(
    ("lines", "is_private"),
    [
        (["1 0 0:1 / / rw shared:1"], False),
        (["1 0 0:1 / / rw", "2 1 0:2 / /r rw shared:3"], False),
        (["1 0 0:1 / / rw", "2 1 0:2 / /r/proc rw master:1 shared:3"], False),
        (["1 0 0:1 / / rw", "2 1 0:2 / /r rw", "3 2 0:2 / /r rw shared:3"], False),
        (["1 0 0:1 / / rw master:1"], True),
        (["1 0 0:1 / / rw shared:1", "2 1 0:2 / /r rw", "3 1 0:2 / /r2 rw shared:3"], True),
        (["1 0 0:1 / / rw", "2 1 0:2 / /r rw shared:3", "3 2 0:2 / /r rw"], True),
    ],
)
def test_a_private_root_is_configured_where_it_is_and_shared_mounts_are_refused(
    lines: list[str], tmp_path: Path, *, is_private: bool
) -> None:
    proc = own_namespace(tmp_path, *lines)
    if not is_private:
        with pytest.raises(HostError, match="is shared with other mount namespaces"):
            here(proc)
        return
    container = here(proc)
    assert isinstance(container, container_configure.LocalContainer)
    assert container.rootfs == "/r"


def test_configure_takes_the_driver_that_the_plans_have_and_no_config_of_an_image(
    lab: Lab,
) -> None:
    """enroot's 99-nvidia.sh exports all NVIDIA_* of an image, and then starts configure."""
    evil = lab.home / "evil.toml"
    evil.write_text(f'[nvidia-container-cli]\nroot = "{lab.home}/image"\n')

    completed = run(lab, "--root=/usr", "configure", "/x", NVIDIA_CTK_CONFIG_FILE_PATH=str(evil))

    for text in (
        completed.stderr,
        complaint(lab, "--root=/usr", "configure", "--no-cgroups", "/x"),
    ):
        assert f"configure takes the driver from {lab.home}/driver, not from /usr" in text


def test_of_an_images_variables_configure_keeps_none() -> None:
    own_variables = {"PATH": "/bin", "NVCT_RUN_DIR": "/r", "CUDA_MPS_PIPE_DIRECTORY": "/m"}
    images = {"NVIDIA_CTK_CONFIG_FILE_PATH": "/evil", "NVIDIA_CTK_DRIVER_ROOT": "/evil"}

    assert container_cli.without_image_variables({**own_variables, **images}) == own_variables
    expected = container_cli.without_image_variables({**images, OWN_CONFIG_ENV: "/c.toml"})
    assert expected == {OWN_CONFIG_ENV: "/c.toml", CONFIG_ENV: "/c.toml"}


def test_an_unknown_device_fails_before_anything_is_entered(lab: Lab) -> None:
    text = complaint(lab, "configure", "--device=7", "--no-cgroups", str(lab.bundle / "rootfs"))

    assert "nvidia.com/gpu has no device '7'" in text
    assert os.listdir(lab.bundle / "rootfs") == []


@pytest.mark.parametrize("form", ["link", "FIFO", "folder"])
def test_a_debug_file_is_a_regular_file(lab: Lab, form: str) -> None:
    path = lab.home / "log"
    if form == "link":
        path.symlink_to(lab.home / "victim")
    elif form == "FIFO":
        os.mkfifo(path)
    else:
        path.mkdir()

    completed = run(lab, f"--debug={path}", "list", "-b")

    assert completed.returncode != 0
    assert str(path) in completed.stderr
    assert not (lab.home / "victim").exists()
