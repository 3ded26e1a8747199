# SPDX-License-Identifier: Apache-2.0
"""Labels of MIG devices, by the MIG strategy.

none has none. mixed has a set for each profile, mig-<profile>.*. With single, MIG devices take the
place of GPUs in the labels gpu.*, or mark the node as INVALID if they are not all alike.
"""

from __future__ import annotations

from nvct.agent.core.config_file import PREFIX, name_of
from nvct.agent.labels import gpus, sharing
from nvct.agent.labels.facts import Facts, GpuFacts, Labels, MigFacts, Rules
from nvct.agent.labels.values import sanitized

ENGINES = ("copy", "decoder", "encoder", "jpeg", "ofa")


def labels(facts: Facts, rules: Rules) -> tuple[Labels, str]:
    """Return the labels, and a sentence if MIG devices do not fit the strategy."""
    strategy = {f"{PREFIX}mig.strategy": rules.mig_strategy}
    if rules.mig_strategy == "mixed":
        return strategy | _mixed(facts, rules), ""
    if rules.mig_strategy == "single":
        found, problem = _single(facts, rules)
        return strategy | found, problem
    return {}, ""


def capability(facts: Facts) -> Labels:
    """Return the label that says whether a GPU of the node has a MIG mode."""
    return {f"{PREFIX}mig.capable": str(any(gpu.mig_capable for gpu in facts.gpus)).lower()}


def _mixed(facts: Facts, rules: Rules) -> Labels:
    labels: Labels = {}
    for profile, devices in _by_profile(facts).items():
        name = f"mig-{profile.replace('+', '.')}"
        resource = name_of(profile, rules.mig_names) or f"{PREFIX}{name}"
        labels |= _of_profile(f"{PREFIX}{name}", resource, devices, rules)
    return labels


def _single(facts: Facts, rules: Rules) -> tuple[Labels, str]:
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
    resource = name_of(profile, rules.mig_names) or gpus.GPU
    return _of_profile(gpus.GPU, resource, devices, rules), ""


def _by_profile(facts: Facts) -> dict[str, list[tuple[GpuFacts, MigFacts]]]:
    by_profile: dict[str, list[tuple[GpuFacts, MigFacts]]] = {}
    for gpu in facts.gpus:
        for mig in gpu.mig:
            if mig.profile:
                by_profile.setdefault(mig.profile, []).append((gpu, mig))
    return by_profile


def _of_profile(
    key: str, resource: str, devices: list[tuple[GpuFacts, MigFacts]], rules: Rules
) -> Labels:
    gpu, mig = devices[0]
    profile = sanitized(mig.profile.replace("+", "."))
    labels = sharing.labels(key, resource, gpu.model, rules.sharing, "MIG", profile)
    labels[f"{key}.count"] = str(len(devices))
    size = mig.size
    if size is not None:
        labels[f"{key}.memory"] = str(size.memory_mib)
        labels[f"{key}.multiprocessors"] = str(size.multiprocessors)
        labels[f"{key}.slices.gi"] = str(size.gi_slices)
        labels[f"{key}.slices.ci"] = str(size.ci_slices)
        labels |= {f"{key}.engines.{engine}": str(getattr(size, engine)) for engine in ENGINES}
    return labels
