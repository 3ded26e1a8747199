# SPDX-License-Identifier: Apache-2.0
"""Labels of facts that no recorded node has; tests/peer compares the others with NVIDIA's."""

from dataclasses import replace

import pytest

from nvct.agent.core.config_file import NamePattern, Replicas, Sharing
from nvct.agent.labels import compute, settings
from nvct.agent.labels.facts import (
    Facts,
    GpuFacts,
    MigFacts,
    is_key,
    is_value,
    joined,
    sanitized,
)
from nvct.host.gpu.pci import HostDriver

H100 = GpuFacts(model="NVIDIA H100", memory_mib=81559, compute=(9, 0), ecc=True, mig_capable=True)
IN_MIG = replace(H100, mig_enabled=True, mig=(MigFacts(profile="1g.10gb"),))
NODE = Facts(driver_version="580.159.04", cuda_version="13.0", gpus=(H100, H100))
GPU = "nvidia.com/gpu"


PLAIN = settings.Settings(extra_labels=())


def labels(facts: Facts, rules: settings.Settings = PLAIN) -> dict[str, str]:
    return compute.labels(facts, rules)[0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Tesla T4", "Tesla-T4"),
        ("  Simulated  Machine (42)\n", "Simulated-Machine-42"),
        ("NVIDIA RTX PRO™ 6000 (Blackwell/Q)", "NVIDIA-RTX-PRO-6000-BlackwellQ"),
        ("x" * 70, "x" * 63),
        ("-- a. ", "a"),
        ("기계", ""),
    ],
)
def test_any_text_becomes_a_value_that_kubernetes_accepts(text: str, value: str) -> None:
    assert sanitized(text) == value
    assert is_value(value)


def test_a_long_product_keeps_its_suffixes() -> None:
    value = joined("P" * 62, "MIG", "1g.10gb", "SHARED")

    assert value.endswith("P-MIG-1g.10gb-SHARED")
    assert is_value(value)
    assert len(value) == 63


@pytest.mark.parametrize(
    ("key", "is_valid"),
    [
        ("gpu", True), ("nvidia.com/gpu.count", True), ("Example.com/a", False), ("/a", False),
        ("a/b/c", False), ("a/", False), ("a/" + "b" * 64, False), ("", False), ("a b", False),
    ],
)  # fmt: skip
def test_keys_are_those_of_kubernetes(key: str, is_valid: bool) -> None:
    assert is_key(key) is is_valid


def test_what_nvml_does_not_report_has_no_label() -> None:
    rules = replace(PLAIN, extra_labels=tuple({*settings.EXTRA} - {settings.OPERATOR}))
    dark = GpuFacts(model="NVIDIA GB10")

    found = labels(Facts(driver_version="unknown", gpus=(dark,), host_drivers=None), rules)

    assert found == {
        "nvidia.com/gpu.count": "1",
        "nvidia.com/gpu.machine": "unknown",
        "nvidia.com/gpu.mode": "unknown",
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": "NVIDIA-GB10",
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.sharing-strategy": "none",
        "nvidia.com/mig.capable": "false",
        "nvidia.com/mps.capable": "false",
    }


def test_labels_of_the_gpu_operator() -> None:
    rules = replace(PLAIN, extra_labels=(settings.PRESENT, settings.OPERATOR))
    without_mig = replace(H100, mig_capable=False)

    found = labels(replace(NODE, gpus=(H100,)), rules)
    assert found[f"{GPU}.present"] == found[f"{GPU}.deploy.device-plugin"] == "true"
    assert found[f"{GPU}.deploy.mig-manager"] == "true"
    older = labels(replace(NODE, gpus=(without_mig,)), rules)
    assert f"{GPU}.deploy.mig-manager" not in older
    assert f"{GPU}.deploy.driver" in labels(Facts(has_nvidia_device=True), rules)
    assert not [key for key in labels(Facts(), rules) if key.startswith(GPU)]


A1, A2 = (replace(H100, clique=clique) for clique in ("a.1", "a.2"))


@pytest.mark.parametrize(
    ("facts", "label", "value"),
    [
        *(
            (replace(NODE, gpus=(replace(H100, compute=capability),)), "gpu.family", family)
            for capability, family in (
                ((7, 0), "volta"), ((7, 5), "turing"), ((8, 6), "ampere"), ((8, 9), "ada-lovelace"),
                ((12, 0), "blackwell"), ((11, 0), "blackwell"), ((4, 0), "undefined"),
            )
        ),
        (replace(NODE, driver_version="455.23"), "cuda.driver-version.revision", ""),
        (replace(NODE, driver_version="455.23"), "cuda.driver.minor", "23"),
        # ECC is true only if it is on everywhere.
        (NODE, "gpu.ecc", "true"),
        (replace(NODE, gpus=(H100, replace(H100, ecc=False))), "gpu.ecc", "false"),
        (replace(NODE, gpus=(H100, replace(H100, ecc=None))), "gpu.ecc", None),
        # The clique counts if all GPUs of a fabric agree.
        (replace(NODE, gpus=(A1, A1, H100)), "gpu.clique", "a.1"),
        (replace(NODE, gpus=(A1, A2)), "gpu.clique", None),
        (NODE, "gpu.clique", None),
    ],
)  # fmt: skip
def test_a_fact_is_a_label(facts: Facts, label: str, value: str | None) -> None:
    rules = replace(PLAIN, extra_labels=(settings.ECC,))

    assert labels(facts, rules).get(f"nvidia.com/{label}") == value


@pytest.mark.parametrize(
    ("gpus", "problem"),
    [
        ((IN_MIG, H100), "others are not"),
        ((IN_MIG, replace(H100, mig_enabled=True)), "has no MIG devices"),
        ((IN_MIG, replace(IN_MIG, mig=(MigFacts(profile="7g.80gb"),))), "1g.10gb, 7g.80gb"),
        ((replace(IN_MIG, mig=(MigFacts(profile=""),)),), "does not report the profiles"),
    ],
)
def test_mig_devices_that_do_not_fit_strategy_single_are_invalid(
    gpus: tuple[GpuFacts, ...], problem: str
) -> None:
    found, warnings = compute.labels(
        replace(NODE, gpus=gpus), replace(PLAIN, mig_strategy="single")
    )

    assert found[f"{GPU}.product"] == "NVIDIA-H100-MIG-INVALID"
    assert found[f"{GPU}.count"] == "0"
    assert [problem in warning for warning in warnings] == [True]


def test_a_renamed_model_is_shared_by_its_own_name() -> None:
    rule = Replicas(name="nvidia.com/h100", replicas=3)
    sharing = Sharing(strategy="time-slicing", replicas=(rule,), one_each=False)
    names = (NamePattern(pattern="*H100*", name="nvidia.com/h100"),)

    assert labels(NODE, replace(PLAIN, sharing=sharing, gpu_names=names))[f"{GPU}.replicas"] == "3"
    assert labels(NODE, replace(PLAIN, sharing=sharing))[f"{GPU}.replicas"] == "1"


def test_the_model_with_most_whole_gpus_labels_the_node() -> None:
    t4 = GpuFacts(model="Tesla T4", memory_mib=15360)
    rules = replace(PLAIN, extra_labels=(settings.MODELS,))

    few = labels(replace(NODE, gpus=(t4, H100, H100)), rules)
    assert few[f"{GPU}.product"] == "NVIDIA-H100"
    assert few[f"{GPU}.product.Tesla-T4.count"] == "1"
    assert all(is_key(key) and is_value(value) for key, value in few.items())
    assert labels(replace(NODE, gpus=(t4, IN_MIG, IN_MIG)))[f"{GPU}.product"] == "Tesla-T4"
    assert labels(replace(NODE, gpus=(t4, H100)))[f"{GPU}.product"] == "Tesla-T4"


def test_a_node_without_gpus_has_labels_of_vgpus_and_pci_only() -> None:
    rules = replace(PLAIN, extra_labels=(settings.PCI,))
    driver = HostDriver("550.90.05", "r550_00")

    facts = Facts(host_drivers=(driver,), has_nvidia_device=True)
    found, _ = compute.labels(facts, rules, 5)

    assert found == {
        "feature.node.kubernetes.io/pci-10de.present": "true",
        "nvidia.com/gfd.timestamp": "5",
        "nvidia.com/vgpu.host-driver-branch": "r550_00",
        "nvidia.com/vgpu.host-driver-version": "550.90.05",
        "nvidia.com/vgpu.present": "true",
    }
