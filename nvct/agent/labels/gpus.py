# SPDX-License-Identifier: Apache-2.0
"""Labels of whole GPUs: product (-SHARED), replicas, memory; with several models those of each.

NVIDIA's program gives such a node the labels of one model, chosen by chance. Here it is the model
with the most GPUs that are not in MIG mode; if there are several, the first.
"""

from __future__ import annotations

from collections.abc import Iterable

from nvct.agent.core.config_file import PREFIX, UNSHARED, Sharing, name_of
from nvct.agent.labels.facts import ENDS, LIMIT, Facts, GpuFacts, Labels, joined, sanitized
from nvct.agent.labels.settings import Settings
from nvct.errors import HostError

GPU = f"{PREFIX}gpu"
LONGEST = ".compute.major"  # The longest suffix of a model's labels
FAMILIES = {
    1: "tesla", 2: "fermi", 3: "kepler", 5: "maxwell", 6: "pascal", 9: "hopper",
    10: "blackwell", 11: "blackwell", 12: "blackwell", 13: "rubin",
}  # fmt: skip
"""By the major number of the compute capability; 11, Thor, is unknown to NVIDIA's program."""
GRAPHICS, COMPUTE = "0x030000", "0x030200"  # PCI classes: VGA controller, 3D controller (pci.ids)
MODES = {GRAPHICS: "graphics", COMPUTE: "compute"}
UNKNOWN = "unknown"
NONE = "none"
SHARED = "SHARED"  # Appended to the product of a shared resource that keeps its name


def labels(facts: Facts, settings: Settings) -> Labels:
    """Return the labels gpu.* of the node."""
    by_model = _by_model(facts)
    chosen = max(by_model.values(), key=lambda gpus: sum(not gpu.mig_enabled for gpu in gpus))
    return {
        **of_model(GPU, chosen, settings),
        f"{GPU}.machine": sanitized(facts.machine) or UNKNOWN,
        f"{GPU}.mode": _mode(facts.gpus),
    }


def models(facts: Facts, settings: Settings) -> Labels:
    """Return labels of each model if there are several; e.g. gpu.product.Tesla-T4.count."""
    by_model = _by_model(facts)
    labels: Labels = {}
    if len(by_model) > 1:
        for model, gpus in by_model.items():
            room = LIMIT - len("gpu.product.") - len(LONGEST)
            key = f"{GPU}.product.{sanitized(model)[:room].rstrip(ENDS)}"
            of_it = {**of_model(key, gpus, settings), f"{key}.mode": _mode(gpus), **ecc(key, gpus)}
            del of_it[f"{key}.product"], of_it[f"{key}.sharing-strategy"]
            labels |= of_it
    return labels


def of_model(key: str, gpus: list[GpuFacts], settings: Settings) -> Labels:
    """Return the labels of one model's GPUs; those in MIG mode count if there are no others."""
    whole = [gpu for gpu in gpus if not gpu.mig_enabled]
    gpu = (whole or gpus)[0]
    resource = name_of(gpu.model, settings.gpu_names) or GPU
    labels = sharing_labels(key, resource, gpu.model, settings.sharing if whole else UNSHARED)
    if not whole:
        labels[f"{key}.replicas"] = "0"
    labels[f"{key}.count"] = str(len(gpus))
    if gpu.memory_mib is not None:
        labels[f"{key}.memory"] = str(gpu.memory_mib)
    major, minor = gpu.compute
    if major:
        labels[f"{key}.family"] = family(major, minor)
    if major > 0:  # for a GPU that is passed through, NVIDIA writes -1, which is not a valid label
        labels[f"{key}.compute.major"] = str(major)
        labels[f"{key}.compute.minor"] = str(minor)
    return labels


def ecc(key: str, gpus: Iterable[GpuFacts]) -> Labels:
    """Return whether all of the GPUs have ECC on; nothing if that is unknown."""
    states = [gpu.ecc for gpu in gpus]
    return {} if None in states else {f"{key}.ecc": str(all(states)).lower()}


def invalid_mig(model: str) -> Labels:
    """Return the labels gpu.* of a node whose MIG devices do not fit MIG strategy single."""
    return {
        f"{GPU}.product": joined(sanitized(model), "MIG", "INVALID"),
        **{f"{GPU}.{name}": "0" for name in ("count", "replicas", "memory")},
        f"{GPU}.sharing-strategy": "",
    }


def clique(facts: Facts) -> Labels:
    """Return the clique of the NVLink fabric, if all GPUs in a fabric are in the same one."""
    cliques = {gpu.clique for gpu in facts.gpus if gpu.clique}
    return {f"{GPU}.clique": cliques.pop()} if len(cliques) == 1 else {}


def _by_model(facts: Facts) -> dict[str, list[GpuFacts]]:
    by_model: dict[str, list[GpuFacts]] = {}
    for gpu in facts.gpus:
        by_model.setdefault(gpu.model, []).append(gpu)
    return by_model


def family(major: int, minor: int) -> str:
    """Return the family of GPUs with a compute capability, e.g. ada-lovelace."""
    if major == 7:
        return "volta" if minor < 5 else "turing"
    if major == 8:
        return "ampere" if minor < 9 else "ada-lovelace"
    return FAMILIES.get(major, "undefined")


def _mode(gpus: Iterable[GpuFacts]) -> str:
    classes = {gpu.pci_class for gpu in gpus}
    return MODES.get(classes.pop(), UNKNOWN) if len(classes) == 1 else UNKNOWN


def sharing_labels(
    key: str, resource: str, model: str, sharing: Sharing, *suffixes: str
) -> Labels:
    """Return the labels of a resource that sharing determines: product, replicas, strategy."""
    rule = next((rule for rule in sharing.replicas if rule.name == resource), None)
    if rule and not rule.rename:
        suffixes = (*suffixes, SHARED)
    return {
        f"{key}.product": joined(sanitized(model), *suffixes),
        f"{key}.replicas": str(rule.replicas if rule else 1),
        f"{key}.sharing-strategy": sharing.strategy if rule else NONE,
    }


def capability(facts: Facts, sharing: Sharing) -> Labels:
    """Return the label of sharing by MPS; HostError if it shares a GPU in MIG mode."""
    if sharing.uses_mps and any(gpu.mig_enabled for gpu in facts.gpus):
        raise HostError(
            "MPS sharing is not supported for mig devices",
            hint="share them by sharing.timeSlicing, or switch MIG mode off",
        )
    return {f"{PREFIX}mps.capable": str(sharing.uses_mps).lower()}
