# SPDX-License-Identifier: Apache-2.0
"""Computes the labels of a node: versions, MIG, all of GPU feature discovery 0.20, extra ones.

MIG strategy none has no labels of MIG devices; mixed has a set for each profile, mig-<profile>.*.
With single, MIG devices take the place of GPUs in the labels gpu.*, or mark the node as INVALID if
they are not all alike.

The user's own labels are constants, or have the values of other labels::

    example.com/pool: training
    example.com/gpu: "@nvidia.com/gpu.product"

A value that begins with @ names another label, as dynamic values of Node Feature Discovery do; if
the node does not have that label, this one is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from nvct.agent.core.config_file import PREFIX, name_of
from nvct.agent.labels import gpus
from nvct.agent.labels.facts import Facts, GpuFacts, Labels, MigFacts, is_key, is_value, sanitized
from nvct.agent.labels.settings import ECC, MEMORY, MODELS, OPERATOR, PCI, PRESENT, Settings
from nvct.errors import DocumentError

ENGINES = ("copy", "decoder", "encoder", "jpeg", "ofa")
VGPU = f"{PREFIX}vgpu"
DRIVER, CUDA = f"{PREFIX}cuda.driver", f"{PREFIX}cuda.runtime"
PCI_PRESENT = "feature.node.kubernetes.io/pci-10de.present"
DEPLOYED = (
    "container-toolkit", "dcgm", "dcgm-exporter", "device-plugin", "driver",
    "gpu-feature-discovery", "node-status-exporter", "operator-validator",
)  # fmt: skip
"""What the GPU operator runs on a node with GPUs for containers."""
MIG_MANAGER = "mig-manager"  # It runs there if a GPU has a MIG mode


def labels(
    facts: Facts, settings: Settings, timestamp: int | None = None
) -> tuple[Labels, list[str]]:
    """Return the labels of a node, one with the timestamp (Unix seconds) if any, and warnings.

    HostError if the settings do not fit the machine.
    """
    labels: Labels = {}
    warnings = []
    if timestamp is not None:
        labels[f"{PREFIX}gfd.timestamp"] = str(timestamp)
    if facts.gpus:
        of_mig, problem = of_mig_devices(facts, settings)
        warnings += [problem] if problem else []
        labels |= {
            **of_versions(facts),
            **gpus.labels(facts, settings),
            **mig_capability(facts),
            **gpus.capability(facts, settings.sharing),
            **gpus.clique(facts),
            **of_mig,
        }
    labels |= of_vgpus(facts)
    labels |= _extra(facts, settings, labels)
    return dict(sorted(labels.items())), warnings


def _extra(facts: Facts, settings: Settings, labels: Labels) -> Labels:
    extra: Labels = {}
    if ECC in settings.extra_labels and facts.gpus:
        extra |= gpus.ecc(gpus.GPU, facts.gpus)
    if MODELS in settings.extra_labels:
        extra |= gpus.models(facts, settings)
    memory = labels.get(f"{gpus.GPU}.memory")
    if MEMORY in settings.extra_labels and memory is not None:
        extra[f"{gpus.GPU}-memory"] = memory
    if PCI in settings.extra_labels and facts.has_nvidia_device:
        extra[PCI_PRESENT] = "true"
    if facts.gpus or facts.has_nvidia_device:
        if PRESENT in settings.extra_labels:
            extra[f"{gpus.GPU}.present"] = "true"
        if OPERATOR in settings.extra_labels:
            has_mig = any(gpu.mig_capable for gpu in facts.gpus)
            names = (*DEPLOYED, MIG_MANAGER) if has_mig else DEPLOYED
            extra |= {f"{gpus.GPU}.deploy.{name}": "true" for name in names}
    return extra


def of_versions(facts: Facts) -> Labels:
    """Return the labels of the driver's and CUDA's versions; an unknown version has none."""
    labels: Labels = {}
    parts = facts.driver_version.split(".")
    if len(parts) in (2, 3) and is_value(facts.driver_version):
        major, minor, revision = (*parts, "")[:3]
        labels |= {
            f"{DRIVER}-version.full": facts.driver_version,
            f"{DRIVER}-version.major": major,
            f"{DRIVER}-version.minor": minor,
            f"{DRIVER}-version.revision": revision,
            f"{DRIVER}.major": major,
            f"{DRIVER}.minor": minor,
            f"{DRIVER}.rev": revision,
        }
    major, dot, minor = facts.cuda_version.partition(".")
    if dot:
        labels |= {
            f"{CUDA}-version.full": facts.cuda_version,
            f"{CUDA}-version.major": major,
            f"{CUDA}-version.minor": minor,
            f"{CUDA}.major": major,
            f"{CUDA}.minor": minor,
        }
    return labels


def of_vgpus(facts: Facts) -> Labels:
    """Return the labels of vGPUs; none if it is unknown whether there are vGPUs."""
    if facts.host_drivers is None:
        return {}
    labels = {f"{VGPU}.present": str(bool(facts.host_drivers)).lower()}
    for driver in facts.host_drivers[:1]:
        if driver.version:
            labels[f"{VGPU}.host-driver-version"] = sanitized(driver.version)
            labels[f"{VGPU}.host-driver-branch"] = sanitized(driver.branch)
    return labels


def of_mig_devices(facts: Facts, settings: Settings) -> tuple[Labels, str]:
    """Return the labels of MIG devices, and a sentence if these do not fit the strategy."""
    strategy = {f"{PREFIX}mig.strategy": settings.mig_strategy}
    if settings.mig_strategy == "mixed":
        return strategy | _mig_mixed(facts, settings), ""
    if settings.mig_strategy == "single":
        found, problem = _mig_single(facts, settings)
        return strategy | found, problem
    return {}, ""


def mig_capability(facts: Facts) -> Labels:
    """Return the label that says whether a GPU of the node has a MIG mode."""
    return {f"{PREFIX}mig.capable": str(any(gpu.mig_capable for gpu in facts.gpus)).lower()}


def _mig_mixed(facts: Facts, settings: Settings) -> Labels:
    labels: Labels = {}
    for profile, devices in _by_profile(facts).items():
        name = f"mig-{profile.replace('+', '.')}"
        resource = name_of(profile, settings.mig_names) or f"{PREFIX}{name}"
        labels |= _of_profile(f"{PREFIX}{name}", resource, devices, settings)
    return labels


def _mig_single(facts: Facts, settings: Settings) -> tuple[Labels, str]:
    enabled = [gpu for gpu in facts.gpus if gpu.mig_enabled]
    if not enabled:
        return {}, ""
    by_profile = _by_profile(facts)
    problem = ""
    if any(not gpu.mig for gpu in enabled):
        problem = "a GPU in MIG mode has no MIG devices"
    elif len(enabled) < len(facts.gpus):
        problem = "some GPUs are in MIG mode and others are not"
    elif len(by_profile) > 1:
        problem = f"there are MIG devices of several profiles: {', '.join(sorted(by_profile))}"
    if problem or not by_profile:
        reason = problem or "NVML does not report the profiles of MIG devices"
        return gpus.invalid_mig(enabled[0].model), f"MIG strategy single: {reason}"
    profile, devices = by_profile.popitem()
    resource = name_of(profile, settings.mig_names) or gpus.GPU
    return _of_profile(gpus.GPU, resource, devices, settings), ""


def _by_profile(facts: Facts) -> dict[str, list[tuple[GpuFacts, MigFacts]]]:
    by_profile: dict[str, list[tuple[GpuFacts, MigFacts]]] = {}
    for gpu in facts.gpus:
        for mig in gpu.mig:
            if mig.profile:
                by_profile.setdefault(mig.profile, []).append((gpu, mig))
    return by_profile


def _of_profile(
    key: str, resource: str, devices: list[tuple[GpuFacts, MigFacts]], settings: Settings
) -> Labels:
    gpu, mig = devices[0]
    profile = sanitized(mig.profile.replace("+", "."))
    labels = gpus.sharing_labels(key, resource, gpu.model, settings.sharing, "MIG", profile)
    labels[f"{key}.count"] = str(len(devices))
    size = mig.size
    if size is not None:
        labels[f"{key}.memory"] = str(size.memory_mib)
        labels[f"{key}.multiprocessors"] = str(size.multiprocessors)
        labels[f"{key}.slices.gi"] = str(size.gi_slices)
        labels[f"{key}.slices.ci"] = str(size.ci_slices)
        labels |= {f"{key}.engines.{engine}": str(getattr(size, engine)) for engine in ENGINES}
    return labels


REFERENCE = "@"
RESERVED = ("kubernetes.io", "k8s.io")
"""Labels of these domains and their subdomains are Kubernetes's, except those of ALLOWED."""
ALLOWED = ("feature.node.kubernetes.io", "profile.node.kubernetes.io")


def load(path: str) -> Labels:
    """Return the labels of a file; DocumentError if the file or one of them is malformed."""
    from nvct.agent.core import yaml_file  # 2 MB

    document = yaml_file.load(path, "labels file")
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise DocumentError(f"labels file {path} is not a table", hint="write lines of KEY: VALUE")
    return {str(key): _checked(str(key), value, path) for key, value in document.items()}


def added(labels: Mapping[str, str], own: Mapping[str, str]) -> tuple[Labels, list[str]]:
    """Return labels with the user's own, and a warning for each that is left out."""
    result, warnings = dict(labels), []
    for key, value in own.items():
        name = value.removeprefix(REFERENCE)
        if key in labels:
            warnings.append(f"label {key} of the labels file is left out: nvct sets it")
        elif name == value:
            result[key] = value
        elif name in labels:
            result[key] = labels[name]
    return result, warnings


def _checked(key: str, value: object, path: str) -> str:
    if not is_key(key):
        raise DocumentError(f"labels file {path}: {key!r} is not a valid key of a label")
    domain = f".{key.rpartition('/')[0]}"
    is_reserved, is_allowed = (
        any(domain.endswith(f".{name}") for name in names) for names in (RESERVED, ALLOWED)
    )
    if is_reserved and not is_allowed:
        raise DocumentError(
            f"labels file {path}: {key} is in a domain that is reserved for Kubernetes",
            hint=f"use another domain, or {ALLOWED[0]}",
        )
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value) if isinstance(value, (str, int, float)) else None
    if text is not None and text.startswith(REFERENCE) and is_key(text[1:]):
        return text
    if text is None or not is_value(text):
        raise DocumentError(
            f"labels file {path}: {value!r} is not a valid value of label {key}",
            hint="use at most 63 of the characters A-Z a-z 0-9 - _ . with a letter or digit at "
            "both ends; or @ and the key of another label",
        )
    return text
