# SPDX-License-Identifier: Apache-2.0
"""All labels of a node: those of NVIDIA's GPU feature discovery 0.20, and more if asked for."""

from __future__ import annotations

from nvct.agent.core.config_file import PREFIX
from nvct.agent.labels import gpus, mig, sharing, versions, vgpu
from nvct.agent.labels.facts import Facts, Labels, Rules
from nvct.agent.labels.settings import ECC, MEMORY, MODELS, OPERATOR, PCI, PRESENT

PCI_PRESENT = "feature.node.kubernetes.io/pci-10de.present"
DEPLOYED = (
    "container-toolkit", "dcgm", "dcgm-exporter", "device-plugin", "driver",
    "gpu-feature-discovery", "node-status-exporter", "operator-validator",
)  # fmt: skip
"""What the GPU operator runs on a node with GPUs for containers."""
MIG_MANAGER = "mig-manager"
"""It runs there if a GPU has a MIG mode."""


def labels(facts: Facts, rules: Rules) -> tuple[Labels, list[str]]:
    """Return the labels of a node, and warnings.

    Raises:
        HostError: the settings do not fit the machine.
    """
    labels: Labels = {}
    warnings = []
    if rules.timestamp is not None:
        labels[f"{PREFIX}gfd.timestamp"] = str(rules.timestamp)
    if facts.gpus:
        of_mig, problem = mig.labels(facts, rules)
        warnings += [problem] if problem else []
        labels |= {
            **versions.labels(facts),
            **gpus.labels(facts, rules),
            **mig.capability(facts),
            **sharing.capability(facts, rules.sharing),
            **gpus.clique(facts),
            **of_mig,
        }
    labels |= vgpu.labels(facts)
    labels |= _extra(facts, rules, labels)
    return dict(sorted(labels.items())), warnings


def _extra(facts: Facts, rules: Rules, labels: Labels) -> Labels:
    extra: Labels = {}
    if ECC in rules.extra and facts.gpus:
        extra |= gpus.ecc(gpus.GPU, facts.gpus)
    if MODELS in rules.extra:
        extra |= gpus.models(facts, rules)
    memory = labels.get(f"{gpus.GPU}.memory")
    if MEMORY in rules.extra and memory is not None:
        extra[f"{gpus.GPU}-memory"] = memory
    if PCI in rules.extra and facts.has_nvidia_device:
        extra[PCI_PRESENT] = "true"
    if facts.gpus or facts.has_nvidia_device:
        if PRESENT in rules.extra:
            extra[f"{gpus.GPU}.present"] = "true"
        if OPERATOR in rules.extra:
            has_mig = any(gpu.mig_capable for gpu in facts.gpus)
            names = (*DEPLOYED, MIG_MANAGER) if has_mig else DEPLOYED
            extra |= {f"{gpus.GPU}.deploy.{name}": "true" for name in names}
    return extra
