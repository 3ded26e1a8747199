# SPDX-License-Identifier: Apache-2.0
"""The catalogue of all reasons why containers get no GPU, with their remedies.

A member's name is the reason's id, in the form of a condition's reason in Kubernetes; scripts and
alerts match on it, so it never changes. docs/reasons.md is made from this list. Values only.
"""

from __future__ import annotations

from enum import Enum, unique


@unique
class Reason(Enum):
    """A reason: its question, the evidence that answers it, and the remedy."""

    question: str  # a yes-no question: "no" means that the reason holds
    evidence: str
    remedy: str  # a sentence with the command; a finding can have a more exact one

    def __init__(self, question: str, evidence: str, remedy: str) -> None:
        self.question = question
        self.evidence = evidence
        self.remedy = remedy

    # fmt: off
    # The GPU and its driver.
    GpuNotFound = (
        "Does this host have an NVIDIA GPU?",
        "the devices on the PCI bus, and /proc/driver/nvidia/gpus",
        "Use a host with a GPU, or ask for none; `lspci -d 10de:` lists NVIDIA's PCI devices.")
    DriverNotLoaded = (
        "Is the driver's kernel module loaded?",
        "/proc/driver/nvidia/version, /sys/module/nvidia/version, and modules.dep of the kernel",
        "Install the driver and load it with `modprobe nvidia`.")
    DriverNotFound = (
        "Are the driver's libraries installed, in the version of the loaded module?",
        "the libraries below the driver root, and the version of the loaded module",
        "Install the driver; if it is not in /, set root in config.toml with `nvidia-ctk config`.")
    DriverNotWorking = (
        "Does the driver answer?",
        "exit status and last line of nvidia-smi, or the failed NVML call",
        "Run `nvidia-smi` and read `dmesg`; after an update of the driver, reboot.")
    NvmlHung = (
        "Does NVML answer in time?",
        "the agent's NVML calls, and the process that hangs in one",
        "Find the GPU that hangs in `dmesg`; if the process cannot be killed, reboot.")
    DriverIncomplete = (
        "Is the driver complete and usable?",
        "the warnings of discovery, as `nvidia-ctk cdi generate` prints them",
        "Restore the missing files, then run `nvct publish`.")
    DriverContainerNotReady = (
        "Has the driver container finished?",
        "its file .driver-ctr-ready",
        "Wait for it, and read its `kubectl logs`.")
    ModuleNotLoaded = (
        "Are the driver container's modules loaded?",
        "its file .driver-ctr-ready, and /sys/module",
        "Wait for the driver container, or load the module with `modprobe`.")
    GpuBoundElsewhere = (
        "Is every GPU of the host bound to NVIDIA's driver?",
        "the folders of other drivers in /sys/bus/pci/drivers",
        "If no virtual machine has the GPU: keep nouveau from loading (modprobe.d), and reboot.")
    MigModePending = (
        "Does every GPU have the MIG mode that was set last?",
        "the current and the pending mode in NVML",
        "Reset the GPU with `nvidia-smi --gpu-reset`, or reboot.")
    FabricManagerNotRunning = (
        "Does the fabric manager run on a host with NVSwitches?",
        "/proc/driver/nvidia-nvswitch/devices, and the processes of this host",
        "Install it in the driver's release, then `systemctl enable --now nvidia-fabricmanager`.")
    FabricManagerOtherRelease = (
        "Does the fabric manager have the driver's release?",
        "the release that nv-fabricmanager prints, and the version of the loaded driver",
        "After an update, reboot; else install the driver's release of it, and restart it.")
    FabricNotReady = (
        "Is every GPU registered with the NVLink fabric?",
        "the state of the fabric that NVML reports for each GPU",
        "Read `journalctl -u nvidia-fabricmanager` and `nvidia-smi -q`, then restart the manager.")
    PersistenceOff = (
        "Does nvidia-persistenced keep the GPUs initialized?",
        "its socket in /run, the GPUs' persistence mode, and the time of NVML's first answer",
        "Run `systemctl enable --now nvidia-persistenced`.")
    CharacterLinksMissing = (
        "Does systemd find the driver's device nodes when it is reloaded?",
        "the links in /dev/char, and the driver's device nodes",
        "Run `nvidia-ctk system create-dev-char-symlinks`.")
    DeviceNodesRestricted = (
        "Can every user open the driver's device nodes?",
        "owner and mode of /dev/nvidiactl, /dev/nvidia-uvm and the node of each GPU",
        "Give containers the group that the nodes have: `podman run --group-add keep-groups`.")
    SelinuxDenies = (
        "Does SELinux let containers use devices?",
        "enforce and booleans/container_use_devices in /sys/fs/selinux",
        "Run `setsebool -P container_use_devices on`.")
    AppArmorDenies = (
        "Does AppArmor let containers use the driver's devices?",
        "AppArmor's denials in the kernel's messages of the last hour",
        "Add `/dev/nvidia* rw,` to the profile that the evidence names, and reload it.")
    UserNamespaceDenies = (
        "Can processes in user namespaces open the driver's device nodes?",
        "the maps of user namespaces, and owner, group and mode of the nodes",
        "Let every user open the nodes (NVreg_DeviceFileMode=0666), or use crun's `keep-groups`.")
    SubordinateIdsMissing = (
        "Does a user of rootless containers have subordinate ids?",
        "/etc/subuid, /etc/subgid and /etc/nsswitch.conf",
        "Run `usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER`.")
    CgroupRulesOff = (
        "Do containers of root's engines get device rules in their cgroup?",
        "no-cgroups in config.toml, and the engines that run as root",
        "Run `nvidia-ctk config --in-place --set nvidia-container-cli.no-cgroups=false`.")
    InotifyExhausted = (
        "Can the kubelet and the agent watch files?",
        "the limits in /proc/sys/fs/inotify, and the inotify descriptors of root's processes",
        "Run `sysctl -w fs.inotify.max_user_instances=8192 fs.inotify.max_user_watches=1048576`.")
    DeviceNodesMissing = (
        "Do the device nodes of every GPU and of every CDI specification exist?",
        "/dev, the GPUs of this host, and the deviceNodes of the specifications in force",
        "Run `nvidia-ctk system create-device-nodes --all`.")

    # The agent of a node.
    AgentTaskFailed = (
        "Do the tasks of the node's agent run?",
        "the tasks in the agent's /status",
        "Mend the named cause; `nvct agent --status`, in the agent's pod, shows when it runs.")
    ResourceNotListed = (
        "Did the kubelet read the list of devices?",
        "the resources in the agent's /status, and the kubelet's checkpoint of its devices",
        "Read `nvct agent --status`, in the agent's pod or on the node, and the kubelet's log.")
    DevicePluginNotAlone = (
        "Is nvct's device plugin the only one for its resources?",
        "the process that listens on the resource's socket in the kubelet's folder",
        "Remove one of the two device plugins from this node.")
    DeviceUnhealthy = (
        "Are all devices of the node healthy?",
        "NVML's values, XIDs in the kernel's messages, and the health in the agent's /status",
        "Read `dmesg` and `nvidia-smi`, then reset the GPU or replace it.")
    DeviceWithheld = (
        "Are all working devices offered?",
        "the health in the agent's /status: a change of MIG, and a GPU's probation after an error",
        "Wait: they are offered again when the change or the probation is over.")
    PreflightWarns = (
        "Is each GPU as fast as it can be?",
        "the findings of the preflight in the agent's /status (docs/health.md)",
        "Mend what the evidence names; the preflight checks again twice a minute.")
    DriverBeingReplaced = (
        "Is the driver in place, and not being replaced?",
        "the state of NVML in the agent's /status",
        "Wait for the new driver; if `nvct agent release` was used, then run `nvct agent resume`.")
    KubeletNotRunning = (
        "Does the kubelet run on this node?",
        "/var/lib/kubelet, and the processes of this host",
        "Start it, for example with `systemctl start kubelet`, and read `journalctl -u kubelet`.")
    PodDevicesDiffer = (
        "Does each container have the devices that the kubelet gave it?",
        "the kubelet's checkpoint of its devices, and the device nodes of containers' processes",
        "Start the pod again with `runtimeClassName: nvidia`, or use another list strategy.")
    PodsWaitInInit = (
        "Are driver and toolkit reported ready to the pods that wait for them?",
        "the status files in /run/nvidia/validations",
        "Run `nvct validate driver` and `nvct validate toolkit`: they say why not.")
    GpuLostAtReload = (
        "Do running containers keep their GPU when systemd is reloaded?",
        "the units of containers in /run/systemd, and the device nodes of their processes",
        "Start the container again with `--runtime=nvidia` or a CDI device: systemd knows those.")

    # CDI specifications.
    SpecificationMissing = (
        "Is there a CDI specification?",
        "the folders of specifications, usually /etc/cdi and /var/run/cdi",
        "Write one with `nvct publish`.")
    SpecificationUnreadable = (
        "Is every CDI specification valid?",
        "the files in the folders of specifications",
        "Find the fault with `nvidia-ctk cdi validate FILE`, and correct or remove the file.")
    SpecificationConflict = (
        "Is each device defined by one CDI specification only?",
        "the device names of all files in folders of one priority",
        "Remove one of the files that the evidence names.")
    SpecificationShadowed = (
        "Do engines use every CDI specification?",
        "the device names of the files, and the priority of their folders",
        "Remove the file that no engine uses.")
    SpecificationStale = (
        "Does every CDI specification describe this host as it is now?",
        "its driver version, files, device nodes and GPUs, and those of the host",
        "Run `nvct publish`, or `nvidia-ctk cdi generate` for a specification of your own.")
    SpecificationIncomplete = (
        "Do the CDI specifications give every GPU, MIG device and control node of this host?",
        "the GPUs, MIG devices and control nodes of the host, and the specifications in force",
        "Run `nvct publish`, or `nvidia-ctk cdi generate` for a specification of your own.")
    SpecificationTooNew = (
        "Can every engine of this host read the CDI specifications?",
        "cdiVersion and fields of the specifications, and the releases of the engines",
        "Write it for older engines with `nvidia-ctk cdi generate --cdi-version-max`.")
    SpecificationFolderWritable = (
        "Can only root write CDI specifications?",
        "owner and mode of the folders of specifications, and of their files",
        "Make root the owner of folder and files, without write permission for others.")
    HookMissing = (
        "Does the program of every hook in the CDI specifications exist?",
        "the path of each hook in the specifications in force",
        "Install nvct or nvidia-container-toolkit, then run `nvct publish`.")
    HookOtherRelease = (
        "Does every hook program in the CDI specifications have the installed release?",
        "the release that the program prints, and that of nvct",
        "Install nvct again, then run `nvct publish`; remove the other program.")
    HookWithoutEnvironment = (
        "Does every hook of a CDI specification have an environment of its own?",
        "the env of each hook in the specifications in force; see CVE-2025-23266",
        "Run `nvct publish`, or `nvidia-ctk cdi generate` for a specification of your own.")

    # What protects the host.
    ToolkitVulnerable = (
        "Is every NVIDIA Container Toolkit on this host without known vulnerabilities?",
        "the names of its libraries, dpkg's packages, and NVIDIA's security bulletins",
        "Remove it, for example with `apt purge nvidia-container-toolkit`, or update it.")
    ManagementWithinReach = (
        "Are the devices that change MIG out of containers' reach?",
        "the mode of their nodes, and specifications of the class management",
        "Restrict the node's mode with `chmod`, or remove the specification.")
    ImagesAskForAll = (
        "Do images get all GPUs only if their users ask for them?",
        "the environment of the images of Docker, Podman and CRI-O, and config.toml's policy",
        "Add a rule for requests of images to config.toml's policy: by = image-env.")

    EngineDevicesUnchecked = (
        "Does the policy apply to devices that engines give by themselves?",
        "nvct.policy.engine-devices in config.toml, and the default runtime of each engine",
        'Set engine-devices = "checked", and make nvidia the default runtime: docs/policy.md.',
    )

    # What nvct compiles and keeps.
    ConfigurationInvalid = (
        "Is every value in config.toml valid?",
        "config.toml",
        "Correct the key that the evidence names with `nvidia-ctk config --in-place --set`.")
    ConfigurationKeyIgnored = (
        "Does every key of config.toml have an effect?",
        "config.toml",
        "Remove the key; the evidence says why it has no effect.")
    PlanStale = (
        "Is the compiled plan up to date?",
        "the plan's checksum, and the fingerprints that it lists",
        "Do nothing: the next container replaces the plan; `nvct refresh` does so now.")
    DriverViewDamaged = (
        "Is every view of the driver readable and complete?",
        "the folder of the views, and the sizes, times and links of their files",
        "Find the files with `nvct farm verify`, then make the view again with `nvct refresh`.")
    RefreshUnitFailed = (
        "Did the unit that updates the specification succeed?",
        "`systemctl show` of nvidia-cdi-refresh.service and nvidia-cdi-refresh.path",
        "Read `journalctl -u nvidia-cdi-refresh.service`; mend the cause; run `nvct publish`.")
    RefreshUnitInactive = (
        "Does systemd watch for changes of the driver?",
        "`systemctl show` of nvidia-cdi-refresh.path",
        "Run `systemctl enable --now nvidia-cdi-refresh.path`.")

    RefreshUnitReplaced = (
        "Does systemd run the package's units?",
        "`systemctl show` of nvidia-cdi-refresh.service: its file and its command",
        "Run `nvct migrate apply`, or remove that file, then run `systemctl daemon-reload`.")

    # Container engines.
    EngineNotConfigured = (
        "Can the engine's containers get GPUs, by an NVIDIA runtime or by CDI?",
        "the engine's configuration, what the running engine reports, and the CDI specifications",
        "Run `nvct runtime configure`.")
    EngineFileUnread = (
        "Does the engine read every file that registers a runtime?",
        "the engine's usual files, and those that its command line and environment name",
        "Run `nvct runtime configure`, which edits the file that the running engine reads.")
    EngineConfigurationInvalid = (
        "Can the engine's configuration be read, and do its files fit together?",
        "the engine's configuration files",
        "Correct the file that the evidence names; `nvct runtime undo` undoes nvct's changes.")
    EngineNotReloaded = (
        "Does the running engine use its current configuration?",
        "the configuration, and what the running engine reports",
        "Restart the engine, for example with `systemctl restart docker`.")
    RuntimeProgramMissing = (
        "Does the program of the engine's runtime exist?",
        "the program's path in the engine's configuration",
        "Install nvct; if it was removed, run `nvct runtime undo`.")
    EngineNotRunning = (
        "Does the engine run that the client talks to?",
        "the processes of this host, and the client's endpoint",
        "Start it, for example with `systemctl start docker`.")
    EngineNotRestarted = (
        "Was the hook installed before the engine started?",
        "the start of the engine's process, and the age of the hook's file",
        "Restart the engine with `systemctl restart docker`.")
    EngineCdiDisabled = (
        "Is CDI on in the engine?",
        "the engine's configuration and release, and what the running engine reports",
        "Run `nvct runtime configure --enable-cdi`, then `systemctl restart docker`.")
    HookNotInstalled = (
        "Is the hook installed that the engine looks for?",
        "nvidia-container-runtime-hook and nvidia-cdi-hook in the usual folders",
        "Install nvct or nvidia-container-toolkit, then `systemctl restart docker`.")
    HookNotOnPath = (
        "Is the hook on the engine's PATH?",
        "the environment of the engine's process",
        "Link the hook into /usr/bin, then `systemctl restart docker`.")
    SnapWithoutHook = (
        "Does an engine from a snap find the hook?",
        "the engine's program and file system",
        "Run `snap remove docker`, and install docker-ce or docker.io.")
    RootlessWithoutHook = (
        "Does a user's own engine find the hook?",
        "the uid, PATH and configuration of the engine's process",
        "As that user, run `nvct runtime configure`, then `systemctl --user restart docker`.")
    ClientIsPodman = (
        "Is the program docker the client of Docker?",
        "the program docker on PATH",
        "Run `podman run --device nvidia.com/gpu=all`, or install Docker's own client.")
    ClientUsesDesktop = (
        "Does docker talk to an engine of this host, not to Docker Desktop's virtual machine?",
        "the client's program, and the endpoint of its context",
        "Run `docker context use default`, with Docker Engine on this host.")
    ClientUsesOtherHost = (
        "Does docker talk to an engine of this host?",
        "DOCKER_HOST and the client's context",
        "Run `nvct runtime explain` on the host that the evidence names.")

    # A container's request.
    GpuNotRequested = (
        "Does the container ask for a GPU?",
        "its environment, annotations and mounts",
        "Ask for one: `docker run --gpus all`, or NVIDIA_VISIBLE_DEVICES=all with the runtime.")
    RequestIgnored = (
        "Does the container's request count?",
        "its privileges, config.toml, and the rules of the policy",
        "Ask in a way that the configuration allows; `nvct explain` shows which rule decides.")
    RequestMalformed = (
        "Does the request name devices?",
        "the variable, annotation or mount that asks",
        "Correct it; `nvidia-ctk cdi list` shows the names of devices.")
    DeviceUnknown = (
        "Does this host have the requested device?",
        "the request, and the devices of host and specifications",
        "Ask for one that `nvidia-ctk cdi list` shows.")
    RequestNotPermitted = (
        "Is the container allowed to have what it asks for?",
        "the rules of the policy, and the container's privileges",
        "Run it with the privilege that the evidence names; `nvct explain` shows the rules.")
    RequirementNotMet = (
        "Does this host meet the image's NVIDIA_REQUIRE variables?",
        "the expressions, and driver, CUDA version and GPUs of the host",
        "Update the driver, use another image, or set NVIDIA_DISABLE_REQUIRE=true.")
    CreateFailed = (
        "Does the create succeed?",
        "the error of the create; `nvct explain` and docs/errors.md explain it",
        "Do what the error's hint says; `NVCT_DEBUG=1` shows more.")
    ContainerWithoutDriver = (
        "Did this container get the driver?",
        "nvidia-smi on the container's PATH",
        "Start the container with the runtime nvidia and NVIDIA_VISIBLE_DEVICES=all.")
    ImageIncomplete = (
        "Does the image have the libraries that the driver's libraries need?",
        "DT_NEEDED and symbol versions of the driver's libraries, and the image's libraries",
        "Install what the evidence names in the image, or use a newer base image.")
