# SPDX-License-Identifier: Apache-2.0
"""The parts of a record: `python -m tests.gpu.questions PART FOLDER` runs one.

A part writes files into its folder and prints a last line that says what came out. All of them
only read; commands that NVIDIA's tools offer for changes do not appear here.
"""

import asyncio
import inspect
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from nvct.errors import HostError, NvctError
from nvct.host import procfs
from nvct.host.nvml.library import nvml_library
from nvct.host.nvml.session import NvmlSession
from nvct.host.nvml.worker import VERBS
from nvct.host.roots import Roots
from tests.gpu import image, live, machine, nvml_calls
from tests.gpu.record import NOT_HERE, save_json

ROOTS = Roots(driver_root=os.environ.get("NVCT_GPU_ROOT", "/"))
COMMAND_S = 20
AGENT_S = 30
FACTS = (
    "uname -a", "cat /etc/os-release", "id", "cat /proc/self/status", "cat /proc/self/cgroup",
    "grep nvidia /proc/self/mountinfo", "lsmod", "cat /proc/filesystems", "cat /proc/devices",
    "cat /sys/kernel/security/lsm", "lscpu", "free -m", "lspci -nnvv -d 10de:", "ldconfig -p",
    "ls -la /dev/dri /dev/nvidia-caps /usr/bin/nvidia-* /usr/local/nvidia", "file -L /usr/bin/nvidia-smi",
    "ls -laR /usr/local/nvidia", "unshare --user --map-root-user true", "unshare --mount true",
    "dmesg | grep -iE 'nvidia|nvrm|xid'", "zcat /proc/config.gz", "python3 --version", "gcc --version", "nvcc --version",
    "ldd --version", "runc --version", "crun --version", "docker version", "podman version",
    "containerd --version", "systemctl is-system-running", "systemd-detect-virt",
    "which nvidia-smi nvidia-modprobe nvidia-persistenced nvidia-cuda-mps-control dcgmi nvidia-ctk",
    "which nvidia-debugdump nv-fabricmanager nvidia-container-cli", 'env | grep -E "^(NVIDIA|CUDA|LD_|PATH=)"',
)  # fmt: skip
QUERIES = (
    "", "-L", "-q", "-q -x", "-q -u", "topo -m", "topo -p", "--help", "--help-query-gpu",
    "--help-query-compute-apps", "pmon -c 1", "dmon -c 2", "dmon -c 1 -s pucvmet", "nvlink -s",
    "nvlink -c", "nvlink -e", "mig -lgip", "mig -lgipp", "mig -lgi", "mig -lci", "mig -lcip",
    "conf-compute -f", "vgpu", "c2c -s", "--version", "-q -d SUPPORTED_CLOCKS",
    "--query-compute-apps=pid,name,used_memory,gpu_uuid --format=csv", "power-smoothing -h",
    "mig -h", "boost-slider -l", "-q -d ROW_REMAPPER,PAGE_RETIREMENT", "--help-query-remapped-rows",
)  # fmt: skip
"""Arguments of nvidia-smi: each is a question."""
TREES = (
    "/proc/driver", "/sys/bus/pci/drivers/nvidia", "/sys/module/nvidia", "/sys/module/nvidia_uvm",
    "/sys/module/nvidia_modeset", "/sys/module/nvidia_drm", "/sys/class/drm", "/sys/class/nvidia",
    "/sys/class/dmi/id", "/dev/dri", "/dev/nvidia-caps", "/run/nvidia-persistenced", "/run/nvidia-fabricmanager",
    "/etc/nvidia", "/usr/share/nvidia", "/sys/kernel/iommu_groups", "/proc/device-tree",
)  # fmt: skip
BLOCKING = re.compile(r"suspend(_depth)?|registry\.bin|resource\d.*|rom|vpd|kmsg|trace.*|config")
"""Files that are no text, or that keep the reader."""
TEXT_LIMIT = 64 << 10
FIELD_IDS = range(1, 301)
LOAD_S = 25.0


class NotHereError(Exception):
    """This machine cannot have a part; the text says why."""


def commands(folder: Path, name: str, lines: Sequence[str]) -> str:
    """Run commands, keep what each printed in a file each, and say how many succeeded."""
    failed = []
    for number, line in enumerate(lines):
        words = ["sh", "-c", line]
        since = time.monotonic()
        try:
            done = subprocess.run(
                words,
                capture_output=True,
                check=False,
                timeout=COMMAND_S,
                stdin=subprocess.DEVNULL,
            )
            status, output = str(done.returncode), done.stdout + done.stderr
        except subprocess.TimeoutExpired as error:
            status, output = f"none in {COMMAND_S} s", error.stdout or b""
        if status != "0":
            failed.append(line)
        text = output.decode(errors="replace")
        ms = 1000 * (time.monotonic() - since)
        head = f"$ {line}\nexit status {status}, {ms:.0f} ms\n"
        (folder / f"{name}-{number:02}.txt").write_text(head + text)
    return f"{len(lines) - len(failed)} of {len(lines)} commands answered"


def part_machine(folder: Path) -> str:
    """Facts of the machine, and what is installed."""
    return commands(folder, "fact", FACTS)


def smi() -> str:
    """Return the path of nvidia-smi."""
    found = shutil.which("nvidia-smi") or shutil.which(
        "nvidia-smi", path=f"{ROOTS.driver_root}/usr/bin:/usr/local/nvidia/bin"
    )
    if not found:
        raise NotHereError("no nvidia-smi")
    return found


def part_smi(folder: Path) -> str:
    """What nvidia-smi answers."""
    return commands(folder, "smi", [f"{smi()} {query}".strip() for query in QUERIES])


def ask_verbs(session: NvmlSession, folder: Path) -> str:
    """Ask each verb of the worker that reads, some of them again, and keep answers and times."""
    answers = []
    reading = [verb for verb, module in VERBS.items() if module != "mig_change"]
    for verb in [*reading, "samples", "events", "samples"]:
        since = time.monotonic()
        try:
            answer = {"value": session.ask(verb, object)}
        except NvctError as error:
            answer = {"error": f"{error.message}; {error.hint}"}
        answers.append({"verb": verb, "ms": 1000 * (time.monotonic() - since), **answer})
        time.sleep(0.5 if verb == "samples" else 0)
    save_json(folder / "verbs.json", answers)
    refused = sum("error" in answer for answer in answers)
    first = session.first_answer_s or 0.0
    return f"{len(answers)} answers, {refused} refused; the first took {first:.2f} s"


def part_nvml(folder: Path) -> str:
    """What each verb of nvct's worker answers; its calls of NVML are in nvml-calls.jsonl."""
    session = NvmlSession(nvml_library(ROOTS))
    try:
        return ask_verbs(session, folder)
    finally:
        session.close()


def part_snapshot(folder: Path) -> str:
    """What `nvct snapshot` records, and what nvct makes of it."""
    nvct = f"{sys.executable} -m nvct.cli nvct"
    lines = [f"{nvct} snapshot -o {folder}/host", f"{nvct} list", f"{nvct} doctor --json",
             f"{nvct} status", f"{nvct} cdi generate --mode nvml", f"{nvct} ps",
             f"{nvct} cdi generate --mode auto --format json"]  # fmt: skip
    return commands(folder, "nvct", lines)


def tree(root: str) -> Iterator[tuple[str, object]]:
    """Yield each path below a folder with its mode and target, numbers, size or text."""
    for name, folders, files in os.walk(root):
        for path in (f"{name}/{entry}" for entry in [*folders, *files]):
            try:
                status = os.lstat(path)
                mode = stat.filemode(status.st_mode)
                if stat.S_ISLNK(status.st_mode):
                    yield path, [mode, os.readlink(path)]
                elif stat.S_ISREG(status.st_mode):
                    yield path, [mode, status.st_size, text_of(path, status.st_mode)]
                else:
                    device = status.st_rdev
                    yield path, [mode, os.major(device), os.minor(device), status.st_gid]
            except OSError as error:
                yield path, str(error.strerror)


def text_of(path: str, mode: int) -> str | None:
    """Return a small text, None for other files."""
    if not mode & 0o444 or BLOCKING.fullmatch(os.path.basename(path)):
        return None
    try:
        with open(path, "rb") as file:
            data = file.read(TEXT_LIMIT)
        return None if b"\0" in data else data.decode()
    except (OSError, UnicodeDecodeError):
        return None


def part_trees(folder: Path) -> str:
    """Files of the kernel about the driver and its GPUs."""
    cards = (
        f"/sys/bus/pci/devices/{bus}" for bus in procfs.list_directory("/sys/bus/pci/devices")
    )
    of_nvidia = [os.path.realpath(card) for card in cards
                 if (procfs.read_text(f"{card}/vendor") or "").strip() == "0x10de"]  # fmt: skip
    found = {path: value for root in (*TREES, *of_nvidia) for path, value in tree(root)}
    save_json(folder / "trees.json", found)
    return f"{len(found)} paths, {len(of_nvidia)} PCI devices of NVIDIA"


def part_agents(folder: Path) -> str:
    """One shot of labels, metrics, the device plugin's list, and DRA's devices."""
    from tests.gpu import agents

    return asyncio.run(agents.one_shot(folder, ROOTS, AGENT_S))


def _check_containers() -> None:
    """Raise NotHereError if no container can be made here."""
    if os.geteuid() != 0:
        raise NotHereError("containers are started as root")
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        raise NotHereError("no mount namespace can be made")


def part_chain(_folder: Path) -> str:
    """The containers of `make gpu`."""
    _check_containers()
    words = ["--inside"] if live.IS_SIMULATED else []
    done = subprocess.run([sys.executable, "-m", "tests.gpu", *words], check=False)
    if done.returncode:
        sys.exit(done.returncode)  # its last line is the verdict
    return "specifications by procfs and NVML, containers with both layouts"


def part_busy(folder: Path) -> str:
    """The same questions while PyTorch computes."""
    with live.load(LOAD_S) as works:
        if not works:
            raise NotHereError("no PyTorch that can use the GPU")
        queries = ("", "pmon -c 2", "dmon -c 2", "-q -d PERFORMANCE,UTILIZATION,POWER,CLOCK",
                   "--query-compute-apps=pid,name,used_memory --format=csv")  # fmt: skip
        said = commands(folder, "smi", [f"{smi()} {query}".strip() for query in queries])
        own_pids = "unshare --pid --fork --mount-proc"
        nvct_ps = f"{sys.executable} -m nvct.cli nvct ps"
        commands(folder, "nvct", [nvct_ps, f"{own_pids} {nvct_ps}"])
        with live.load(LOAD_S, *own_pids.split()):  # as the processes of a container
            commands(folder, "inside", [nvct_ps, f"{smi()} pmon -c 1"])
        return f"{said}; {part_nvml(folder)}"


def part_image(folder: Path) -> str:
    """Programs of CUDA in containers of an image, by each way in."""
    _check_containers()
    work = Path(tempfile.mkdtemp(prefix="nvct-image-"))
    try:
        carry = Path(os.environ.get("NVCT_GPU_CARRY") or machine.CARRY)
        faults, summary = image.run(work, ROOTS, carry, folder / "containers.txt")
    finally:
        machine.remove(work)
    if faults:
        raise HostError(f"{len(faults)} containers went wrong: {', '.join(faults)}", hint=summary)
    return summary or "all containers see the GPUs"


def part_compare(folder: Path) -> str:
    """Metrics beside nvidia-smi, idle and busy; what the agent costs."""
    return asyncio.run(live.compare(folder, ROOTS, smi()))


def part_health(folder: Path) -> str:
    """What the device plugin says of the GPUs' health in a minute of full load."""
    return asyncio.run(live.full_load(folder, ROOTS))


def part_mps(folder: Path) -> str:
    """An MPS control daemon of our own."""
    if not shutil.which("nvcc"):
        raise NotHereError("no CUDA, whose programs are MPS's clients")
    said = live.mps(folder, smi())
    if not said:
        raise NotHereError("no nvidia-cuda-mps-control")
    return said


def part_fault(folder: Path) -> str:
    """An illegal address in a kernel, which harms nothing but its process."""
    if not shutil.which("nvcc"):
        raise NotHereError("no CUDA to fail")
    return live.fault(folder, ROOTS)


def each_gpu() -> Iterator[tuple[int, object]]:
    """Yield index and handle of each GPU; NVML is loaded here, in this process."""
    from nvct.host.nvml import calls

    nvml = calls.load(nvml_library(ROOTS))
    nvml.nvmlInit()
    for index in range(nvml.nvmlDeviceGetCount()):
        yield index, nvml.nvmlDeviceGetHandleByIndex(index)


def part_fields(folder: Path) -> str:
    """Each field of nvmlDeviceGetFieldValues, by its number."""
    import pynvml

    known, path = 0, folder / "fields.json"
    answers: dict[str, object] = {}
    for index, handle in each_gpu():
        for number in FIELD_IDS:
            (value,) = pynvml.nvmlDeviceGetFieldValues(handle, [number])  # type: ignore[no-untyped-call]
            known += value.nvmlReturn == 0
            answers[f"{index}.{number}"] = nvml_calls.plain(value)
    save_json(path, answers)
    (folder / "nvml-calls.jsonl").unlink(missing_ok=True)
    return f"{known} of {len(answers)} fields have a value"


def part_every(_folder: Path) -> str:
    """Each function of NVML that reads and takes a GPU alone, or nothing; last, as one may crash."""
    import pynvml

    answered = refused = 0
    for _index, handle in each_gpu():
        for name, function in sorted(vars(pynvml).items()):
            if not nvml_calls.READS.fullmatch(name) or not inspect.isfunction(function):
                continue
            if not name.startswith(("nvmlDevice", "nvmlSystem")) or "Vgpu" in name:
                continue
            needed = [p for p in inspect.signature(function).parameters.values()
                      if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]  # fmt: skip
            takes_handle = name.startswith("nvmlDevice")
            if len(needed) != int(takes_handle) or name.startswith("nvmlDeviceGetHandle"):
                continue
            print(name, flush=True)
            try:
                function(*([handle] if takes_handle else []))
                answered += 1
            except Exception as error:  # of any kind: old bindings, refusals
                print(f"  {type(error).__name__}: {error}")
                refused += 1
    return f"{answered} functions answered, {refused} refused"


def main(name: str, folder: Path) -> int:
    """Run a part; print its last line; return 0, NOT_HERE, or 1."""
    try:
        print(globals()[f"part_{name}"](folder))
    except (NotHereError, FileNotFoundError, PermissionError) as error:
        print(error)
        return NOT_HERE
    except NvctError as error:
        print(f"{error.message}; {error.hint}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
