# SPDX-License-Identifier: Apache-2.0
"""The steps of `make gpu`, and what they print."""

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from nvct import paths
from nvct.cdi.make import generate, store
from nvct.cdi.types import Spec
from nvct.farm.folder import Farm
from nvct.host import modes
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.model import Inventory
from nvct.host.roots import Roots
from nvct_sim import bundle, rootfs
from tests.gpu import machine
from tests.gpu.machine import Tools

UUID = re.compile(r"\b(GPU|MIG)-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
LISTED = re.compile(r"^\s*(?:GPU|MIG) .*\(UUID: ", re.MULTILINE)
KIND = "nvidia.com/gpu"
CUDA_CALL = "/cuda_call.py"
TIMEOUT_S = 120
LAYOUTS = ("classic", "farm")


def redact(text: str) -> str:
    """Replace each UUID in a text by a hash; equal UUIDs give equal hashes."""

    def short(match: re.Match[str]) -> str:
        return f"{match[1]}-#{hashlib.sha256(match[2].encode()).hexdigest()[:10]}"

    return UUID.sub(short, text)


class Report:
    """Prints findings, and keeps whether all were right."""

    def __init__(self) -> None:
        self.faults = 0

    def say(self, text: str) -> None:
        print(redact(text), flush=True)

    def check(self, what: str, *, right: bool, details: str = "") -> None:
        self.faults += not right
        self.say(f"{'ok   ' if right else 'FAULT'} {what}")
        if details:
            self.say("\n".join(f"      {text}" for text in details.splitlines()))


def run(roots: Roots, tools: Tools, *, simulated: bool) -> int:
    """Run all steps; return 0 if all was right.

    Raises:
        NvctError: there is no driver, or no container can be made here.
    """
    report = Report()
    shim = tools.shim()
    options = generate.Options(hook_path=str(shim.with_name(paths.HOOK_PROGRAM)))
    spec, inventory = specs(report, roots, tools.work, options)
    folder = tools.work / "cdi"
    folder.mkdir()
    (folder / "nvidia.json").write_bytes(store.dumps(spec, "json"))
    programs = (file.container_path for file in inventory.files if file.kind == "binary")
    smi = next((path for path in programs if path.endswith("/nvidia-smi")), "")
    report.check("the driver has nvidia-smi", right=bool(smi))
    for layout in LAYOUTS:
        place = Place(tools, roots, shim, layout)
        if smi:
            list_gpus(report, place, smi, len(inventory.gpus))
        if layout == "farm":
            check_view(report, place)
        call_cuda(report, place, inventory, simulated=simulated)
    report.say(f"{report.faults} faults" if report.faults else "all is right")
    return 1 if report.faults else 0


def specs(
    report: Report, roots: Roots, work: Path, options: generate.Options
) -> tuple[Spec, Inventory]:
    """Generate the spec from procfs and from NVML, and compare them."""
    started = time.process_time()
    inventory = modes.discover("nvml", roots, DiscoveryOptions(nvml=None))
    spec = generate.generate(inventory, options)
    describe(report, "procfs", inventory, spec, time.process_time() - started)
    if importlib.util.find_spec("pynvml") is None:
        report.say("skip  by NVML: this interpreter has no nvidia-ml-py")
        return spec, inventory
    # If procfs lists no GPU, all of them come from NVML.
    empty = work / "proc"
    empty.mkdir()
    started = time.process_time()
    asked = Roots(
        driver_root=roots.driver_root, dev_root=roots.dev_root, proc=str(empty), sys=roots.sys
    )
    by_nvml = modes.discover("nvml", asked, DiscoveryOptions())
    second = generate.generate(by_nvml, options)
    describe(report, "NVML", by_nvml, second, time.process_time() - started)
    in_mig = sum(gpu.mig_enabled for gpu in by_nvml.gpus)
    if in_mig:
        report.say(f"      {in_mig} GPUs are in MIG mode: the two specs are not compared")
    else:
        report.check("procfs and NVML lead to the same spec", right=spec == second,
                     details=difference(spec, second))  # fmt: skip
    return spec, inventory


def describe(
    report: Report, source: str, inventory: Inventory, spec: Spec, seconds: float
) -> None:
    """Print the inventory of one source."""
    report.say(
        f"by {source}: driver {inventory.driver_version}, CUDA {inventory.cuda_version}, "
        f"CDI {spec['cdiVersion']}, {len(spec['devices'])} devices, "
        f"{len(spec['containerEdits'].get('mounts', []))} mounts, {1000 * seconds:.0f} ms of CPU"
    )
    for gpu in inventory.gpus:
        nodes = 1 + len(gpu.drm_nodes)
        report.say(f"      GPU {gpu.index}: {gpu.model}, {gpu.bus_id}, {gpu.uuid}, {nodes} nodes")
    for warning in inventory.warnings:
        report.say(f"      warning: {warning}")


def difference(first: Spec, second: Spec) -> str:
    """Return the lines that only first of two specs has, "" if there are none."""
    texts = [
        set(json.dumps(spec, indent=1, sort_keys=True).splitlines()) for spec in (first, second)
    ]
    lost = [f"- {text}" for text in sorted(texts[0] - texts[1])]
    return "\n".join(lost + [f"+ {text}" for text in sorted(texts[1] - texts[0])])


class Place:
    """Runs containers by a shim with the configuration of one machine and one folder of specs."""

    def __init__(self, tools: Tools, roots: Roots, shim: Path, layout: str) -> None:
        """Create the root file system and config.toml."""
        self.work = tools.work / layout
        self.work.mkdir()
        self.layout = layout
        self.shim = shim
        self.log = self.work / "shim.log"
        self.farm = Farm(path=str(self.work / "farm"))
        self._rootfs = self.work / "rootfs"
        rootfs.build_rootfs(self._rootfs, programs=tools.programs)
        config = self.work / "config.toml"
        config.write_text(
            f"[nvidia-container-cli]\nroot = {json.dumps(roots.driver_root)}\n"
            f"[nvidia-container-runtime]\nruntimes = [{json.dumps(str(tools.runtime))}]\n"
            f"debug = {json.dumps(str(self.log))}\n"
            f"modes.cdi.spec-dirs = [{json.dumps(str(tools.work / 'cdi'))}]\n"
            f"[nvct]\nlayout = {json.dumps(layout)}\nfarm-dir = {json.dumps(self.farm.path)}\n"
        )
        self._env = {
            "PATH": ":".join([str(shim.parent), *paths.DEFAULT_PATH_DIRS]),
            paths.CONFIG_ENV: str(config),
            paths.RUN_DIR_ENV: str(self.work / "run"),
        }

    def run(
        self, name: str, asks: str, args: Sequence[str], mounts: Sequence[tuple[Path, str]] = ()
    ) -> tuple[bool, str]:
        """Run a container that requests GPUs; return whether it succeeded, and its output."""
        folder = bundle.make_bundle(
            self.work / name,
            self._rootfs,
            args,
            env=[f"NVIDIA_VISIBLE_DEVICES={asks}", "NVIDIA_DRIVER_CAPABILITIES=all"],
            mounts=[
                {"destination": inside, "source": str(outside), "type": "bind",
                 "options": ["rbind", "ro"]}
                for outside, inside in mounts
            ],
        )  # fmt: skip
        state = str(self.work / "runc")
        label = f"nvct-gpu-{os.getpid()}-{self.layout}-{name}"
        done = subprocess.run(
            [str(self.shim), "--root", state, "run", "--bundle", str(folder), label],
            env=self._env, capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        status = f"\nexit status {done.returncode}" if done.returncode else ""
        return not status, (done.stdout + done.stderr).strip() + status


def list_gpus(report: Report, place: Place, smi: str, expected: int) -> None:
    """List the GPUs in containers that request them by index, and by CDI name."""
    for name, asks in (("live-host", "all"), ("spec", f"{KIND}=all")):
        succeeded, output = place.run(name, asks, [smi, "-L"])
        right = succeeded and len(LISTED.findall(output)) >= expected
        title = f"nvidia-smi -L in a container, by the {name}, layout {place.layout}"
        report.check(title, right=right, details=output)


def check_view(report: Report, place: Place) -> None:
    """Show how the view of the driver was built, and whether containers had it."""
    for manifest in place.farm.manifests():
        report.say(f"view {manifest.name}: {len(manifest.entries)} files by {manifest.method}")
        for path, reason in manifest.left_out:
            report.say(f"      left out: {path}: {reason}")
    decided = [line for line in place.log.read_text().splitlines() if "layout" in line]
    right = bool(decided) and all("layout farm at" in line for line in decided)
    report.check("containers have the view", right=right, details="" if right else decided[-1])


def call_cuda(report: Report, place: Place, inventory: Inventory, *, simulated: bool) -> None:
    """Use the GPUs in a container, with this machine's interpreter and the injected libcuda."""
    mounts = [(path, str(path)) for path in machine.interpreter_mounts()]
    mounts.append((Path(__file__).with_name("cuda_call.py"), CUDA_CALL))
    python = [str(machine.interpreter()), "-I", "-S"]
    if simulated:
        code = "import ctypes; print('loaded', ctypes.CDLL('libcuda.so.1')._name)"
        succeeded, output = place.run("ctypes", "all", [*python, "-c", code], mounts)
        report.check(
            f"libcuda is loaded in a container, layout {place.layout}",
            right=succeeded,
            details=output,
        )
        report.say("skip  CUDA calls: the simulated libcuda computes nothing")
        return
    succeeded, output = place.run("cuda", "all", [*python, CUDA_CALL], mounts)
    # CUDA shows one MIG device at most.
    whole = len([gpu for gpu in inventory.gpus if not gpu.mig_enabled])
    counted = re.search(r"CUDA devices: (\d+)", output)
    right = succeeded and counted is not None and int(counted[1]) == (whole or 1)
    report.check(f"CUDA calls in a container, layout {place.layout}", right=right, details=output)
