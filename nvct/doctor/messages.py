# SPDX-License-Identifier: Apache-2.0
"""The catalogue of known messages: what engines, kubelet, drivers and CUDA print without a GPU.

Values only. The first entry whose pattern is found in a text explains it, so entries of one cause
stand before those of many. tests/unit/doctor/wordings.txt has a real wording of each.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from nvct.doctor.reasons import Reason


class Message(NamedTuple):
    """A message.

    Attributes:
        name: of the entry; it never changes.
        source: the program that prints it.
        pattern: a regular expression that is found in it.
        cause: one sentence.
        step: what to do next; "" for the remedy of the reason.
        reason: of the catalogue, None if there is none.
    """

    name: str
    source: str
    pattern: str
    cause: str
    step: str = ""
    reason: Reason | None = None

    @property
    def remedy(self) -> str:
        """What to do next."""
        return self.step or (self.reason.remedy if self.reason else "")


MESSAGES = (
    # Docker.
    Message(
        "docker-no-gpu-driver", "Docker", r'could not select device driver \\?"\\?" with capab',
        "dockerd knew no program for GPUs when it started.",
        "Run `nvct runtime explain`: it says which of the usual causes it is.",
    ),
    Message(
        "docker-cdi-off", "Docker", r'could not select device driver \\?"cdi\\?"',
        "CDI is off in dockerd, or it is older than 25.", "", Reason.EngineCdiDisabled,
    ),
    Message(
        "docker-amd", "Docker", r"AMD CDI spec not found|no known GPU vendor found",
        "dockerd found neither NVIDIA's hooks nor AMD's when it started.", "",
        Reason.HookNotInstalled,
    ),
    Message(
        "docker-unknown-runtime", "Docker",
        r"(?i:unknown) (?:or invalid )?runtime (?:name|specified)",
        "The running dockerd does not know the runtime: it is in no file that dockerd reads, or"
        " dockerd was not reloaded since.",
        "Run `nvct runtime configure --runtime=docker`.", Reason.EngineNotReloaded,
    ),
    Message(
        "docker-daemon-json", "Docker", r"unable to configure the Docker daemon with file",
        "daemon.json is malformed, or a flag of dockerd says the same as a key of it.",
        "Correct the place that the message names; `nvct runtime status` shows the file.",
        Reason.EngineConfigurationInvalid,
    ),
    # CDI.
    Message(
        "cdi-unresolvable-management", "CDI", r"unresolvable CDI devices? management\.nvidia\.com",
        "A container asks for a device of management.nvidia.com, which this host does not define.",
        "Run `nvidia-ctk cdi generate --mode=management --output"
        " /var/run/cdi/management.nvidia.com-gpu.yaml`, or ask for nvidia.com/gpu.",
        Reason.DeviceUnknown,
    ),
    Message(
        "cdi-unresolvable-dra", "CDI", r"unresolvable CDI devices? k8s\.(?:gpu\.)?nvidia\.com",
        "The specification that the DRA driver or the device plugin wrote is not where the engine"
        " looks.",
        "Compare the engine's CDI folders with the driver's: both need /var/run/cdi.",
        Reason.SpecificationMissing,
    ),
    Message(
        "cdi-unresolvable", "CDI", r"unresolvable CDI devices?",
        "No CDI specification that this engine reads defines the device.",
        "See `nvidia-ctk cdi list`; run `nvct publish` if the device is missing there.",
        Reason.SpecificationMissing,
    ),
    Message(
        "cdi-conflict", "CDI", r"conflicting device .*specs?",
        "Two specifications define the same device.", "", Reason.SpecificationConflict,
    ),
    Message(
        "cdi-device-node", "CDI", r"failed to stat CDI host device",
        "A specification names a device node that does not exist.", "", Reason.DeviceNodesMissing,
    ),
    Message(
        "oci-stat-file", "runc or crun",
        r"(?:stat'ing file|error mounting) .*(?:nvidia|lib(?:cuda|EGL|GL|nv)).*[Nn]o such file",
        "A specification or an old container names a file of a driver that was replaced.",
        "Run `nvct publish`, then create the container again.", Reason.SpecificationStale,
    ),
    # The incumbent's library and hooks.
    Message(
        "driver-not-loaded", "nvidia-container-cli", r"nvml error: driver not loaded",
        "The kernel module nvidia is not loaded.", "", Reason.DriverNotLoaded,
    ),
    Message(
        "driver-mismatch", "NVML", r"[Dd]river/library version mismatch",
        "The driver's libraries were updated, and the old kernel module is still loaded.",
        "Reboot, or stop what uses the GPUs and load the module again.", Reason.DriverNotFound,
    ),
    Message(
        "driver-request", "nvidia-container-cli", r"driver error: failed to process request",
        "NVML failed to start.", "", Reason.DriverNotWorking,
    ),
    Message(
        "driver-timeout", "nvidia-container-cli", r"driver rpc error: timed out",
        "The GPUs took too long to initialize.", "", Reason.PersistenceOff,
    ),
    Message(
        "no-nvml-library", "nvidia-container-cli",
        r"load library failed: libnvidia-ml\.so|could not load NVML library",
        "libnvidia-ml.so.1 is not found: there is no driver, or this container was not given it.",
        "On the host run `nvct doctor`; a pod needs the runtime nvidia, or a GPU.",
        Reason.DriverNotFound,
    ),
    Message(
        "file-exists", "nvidia-container-cli", r"mount error: file creation failed: .*file exists",
        "The image contains files of a driver.",
        "Remove the driver's libraries from the image; with nvct's runtime they do no harm.",
    ),
    Message(
        "ldconfig-failed", "nvidia-container-cli", r"ldcache error: process .*ldconfig",
        "ldconfig failed in the container's root.",
        "Use nvct's runtime or hook, which start no ldconfig.",
    ),
    Message(
        "require", "nvidia-container-cli", r"unsatisfied condition|requirement error",
        "The image's NVIDIA_REQUIRE variables ask for another driver, CUDA or GPU.", "",
        Reason.RequirementNotMet,
    ),
    Message(
        "unknown-device", "nvidia-container-cli", r"device error: .*unknown device",
        "The host has no GPU of that index or UUID.", "", Reason.DeviceUnknown,
    ),
    Message(
        "cgroup", "nvidia-container-cli",
        r"failed to (?:add device rules|set inherit)|bpf_prog_query|container error: cgroup",
        "The hook could not change the container's device rules.",
        "Use the runtime nvidia or CDI: both put the rules into the container's configuration.",
    ),
    Message(
        "no-privileges", "nvidia-container-cli", r"insufficient privileges|permission error",
        "The container or its user may not have what it asks for.", "", Reason.RequestNotPermitted,
    ),
    Message(
        "runtime-missing", "nvidia-container-runtime",
        r"error locating runtime|no runtime binary found from candidate list",
        "Neither runc nor crun is found.", "Install runc, or set `runtimes` in config.toml.",
    ),
    Message(
        "hook-failed", "crun", r"error executing hook `[^`]*(?:nvidia|nvct)[^`]*` \(exit code",
        "A hook of the CDI specification failed, and crun does not show what it said.",
        "Run `nvct publish`; the annotation run.oci.hooks.stderr=FILE of the container keeps what"
        " hooks print.",
        Reason.HookMissing,
    ),
    Message(
        "hook-program-missing", "runc or crun",
        r"(?:fork/exec|stat) \S*nvidia\S*(?:hook|runtime|ctk|toolkit)\S*: no such file",
        "A program that a specification or an engine's configuration names is not there.", "",
        Reason.HookMissing,
    ),
    # Kubernetes.
    Message(
        "no-runtime-handler", "containerd", r"no runtime for .{0,3}nvidia\S* is configured",
        "A pod's RuntimeClass names a handler that the running containerd does not know.",
        "Run `nvct runtime configure --runtime=containerd`, or install the chart.",
        Reason.EngineNotReloaded,
    ),
    Message(
        "crio-no-handler", "CRI-O", r"failed to find runtime handler nvidia",
        "A pod's RuntimeClass names a handler that the running CRI-O does not know.",
        "Run `nvct runtime configure --runtime=crio`, or install the chart.",
        Reason.EngineNotReloaded,
    ),
    Message(
        "no-runtime-class", "Kubernetes", r'RuntimeClass \\?"?nvidia\S* not found',
        "The cluster has no RuntimeClass of that name.",
        "Install the chart, which has the three of NVIDIA, or apply one of your own.",
    ),
    Message(
        "insufficient-gpu", "kube-scheduler", r"Insufficient nvidia\.com/\S+",
        "No node has so many free GPUs of this resource.",
        "See `nvct cluster status`, and the node's allocatable in `kubectl describe nodes`.",
        Reason.ResourceNotListed,
    ),
    Message(
        "unhealthy-devices", "kubelet",
        r"no healthy devices present|cannot allocate unhealthy devices",
        "All GPUs of the node that are free are unhealthy, or its device plugin is gone.", "",
        Reason.DeviceUnhealthy,
    ),
    Message(
        "devices-unavailable", "kubelet", r"requested number of devices unavailable for nvidia",
        "The GPUs were taken, or their device plugin restarted, between scheduling and start.",
        "Delete the pod; its owner makes it again.", Reason.ResourceNotListed,
    ),
    Message(
        "preferred-allocation", "kubelet", r"GetPreferredAllocation rpc failed",
        "The device plugin failed while it chose GPUs, for example because one is lost.",
        "Read the log of the device plugin; nvct's cannot fail here.", Reason.DeviceUnhealthy,
    ),
    Message(
        "plugin-endpoint", "kubelet",
        r"[Nn]o device plugin registered|endpoint \S+ has been stopped",
        "The device plugin of this resource does not run.",
        "See `nvct agent --status`, in the agent's pod or on the node.", Reason.ResourceNotListed,
    ),
    Message(
        "plugin-strategy", "nvidia-device-plugin",
        r"[Ii]ncompatible (?:platform|strategy) detected",
        "The device plugin's container was given neither NVML nor the driver's files.",
        "Run it with the runtime nvidia, or use nvct's chart, which needs none.",
        Reason.ContainerWithoutDriver,
    ),
    Message(
        "plugin-socket", "nvidia-device-plugin",
        r"dial unix /var/lib/kubelet/device-plugins/kubelet\.sock|kubelet\.sock: connect",
        "No kubelet listens where the device plugin looks.",
        "Start the kubelet, or name its folder: --kubelet-device-plugin-dir or the chart's value.",
    ),
    # NVML and nvidia-smi.
    Message(
        "nvml-unknown", "NVML", r"[Ff]ailed to initialize NVML: Unknown Error",
        "A running container lost its GPUs: systemd or runc applied device rules without them.",
        "Create the container again by the runtime nvidia or CDI, and run"
        " `nvidia-ctk system create-dev-char-symlinks`.",
        Reason.CharacterLinksMissing,
    ),
    Message(
        "nvml-permissions", "NVML", r"Insufficient Permissions",
        "The process may not open the device nodes.",
        "Rootless: use --group-add keep-groups; SELinux: see `nvct doctor --only selinux`.",
        Reason.SelinuxDenies,
    ),
    Message(
        "smi-no-driver", "nvidia-smi", r"couldn't communicate with the NVIDIA driver",
        "The kernel module nvidia is not loaded, or not for this kernel.", "",
        Reason.DriverNotLoaded,
    ),
    Message(
        "smi-no-devices", "nvidia-smi", r"No devices were found",
        "The driver is loaded, and no GPU works or is visible.",
        "Read `dmesg`; in a container ask for a GPU.", Reason.GpuNotFound,
    ),
    Message(
        "smi-not-in-image", "runc or crun",
        r'(?:exec: )?\\?"nvidia-smi\\?": executable file not found',
        "The container was started without the driver.", "", Reason.ContainerWithoutDriver,
    ),
    Message(
        "gpu-lost", "NVML", r"GPU is lost|GPU has fallen off the bus|Xid[^\n]*: 79\b",
        "A GPU no longer answers on the PCI bus.",
        "Reboot; if it comes again, look at power, cooling and seat of the GPU.",
        Reason.DeviceUnhealthy,
    ),
    Message(
        "gpu-reset-required", "NVML", r"GPU requires reset|Xid[^\n]*: (?:48|64|95|119|140)\b",
        "A GPU has to be reset before it can be used again.",
        "Drain it, then run `nvidia-smi --gpu-reset -i GPU`.", Reason.DeviceUnhealthy,
    ),
    Message(
        "xid-application", "NVIDIA's driver", r"Xid[^\n]*: (?:13|31|43|45)\b",
        "A program made an error on the GPU; the GPU itself is well.",
        "Look at the program that the line names.",
    ),
    # CUDA.
    Message(
        "cuda-insufficient", "CUDA", r"driver version is insufficient for CUDA runtime",
        "The image needs a newer driver, or the container was given none.",
        "Compare `nvidia-smi` in the container and on the host; update the driver, or take an"
        " older image.",
        Reason.RequirementNotMet,
    ),
    Message(
        "cuda-no-device", "CUDA", r"no CUDA-capable device is detected|CUDA_ERROR_NO_DEVICE",
        "The container has no GPU, or CUDA_VISIBLE_DEVICES hides it.",
        "Ask for a GPU; `nvct explain --env NVIDIA_VISIBLE_DEVICES=…` shows what one gets.",
        Reason.GpuNotRequested,
    ),
    Message(
        "cuda-not-initialized", "CUDA", r"system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY",
        "The fabric of the NVSwitches is not ready.", "", Reason.FabricManagerNotRunning,
    ),
    Message(
        "cuda-compat", "CUDA",
        r"forward compatibility was attempted on non supported|COMPAT_NOT_SUPPORTED_ON_DEVICE",
        "The image's CUDA compat libraries are used on a GPU that does not support them.",
        'Set cuda-compat-mode = "disabled" in config.toml, or update the driver.',
    ),
    Message(
        "cuda-ptx", "CUDA", r"PTX was compiled with an unsupported toolchain",
        "The program is newer than the driver, and CUDA's compat libraries are not used.",
        "Update the driver, or take an image with the cuda-compat package.",
        Reason.RequirementNotMet,
    ),
    Message(
        "cuda-combination", "CUDA", r"unsupported display driver / cuda driver combination",
        "The container has CUDA libraries of another driver than the host's.",
        "Take the compat libraries out of LD_LIBRARY_PATH, or update the driver.",
    ),
    Message(
        "cuda-kernel-image", "CUDA", r"no kernel image is available for execution",
        "The program was not built for GPUs of this compute capability.",
        "Take a build for this GPU; `nvidia-smi --query-gpu=compute_cap --format=csv` shows it.",
    ),
    Message(
        "cuda-unknown", "CUDA", r"CUDA unknown error|CUDA_ERROR_UNKNOWN|error 999",
        "Often /dev/nvidia-uvm is missing, or has another number than the container was given.",
        "", Reason.DeviceNodesMissing,
    ),
)  # fmt: skip


def explained(text: str) -> Message | None:
    """Return the entry that explains a text, None if none does."""
    return next((one for one in MESSAGES if re.search(one.pattern, text)), None)
