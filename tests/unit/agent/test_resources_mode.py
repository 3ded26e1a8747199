# SPDX-License-Identifier: Apache-2.0
"""Device plugin and DRA driver of one agent never give the same GPU."""

import random

import pytest

from nvct.agent.core.resources_mode import CLASSIC, DRA, GRANTED_S, LABEL, ResourcesMode
from nvct.agent.kubernetes.cluster import Object
from nvct.errors import DocumentError, HostError, RequestError


def node(label: str | None) -> Object:
    return {"metadata": {"labels": {LABEL: label} if label is not None else None}}


@pytest.mark.parametrize("label", ["", "Classic", "both"])
def test_a_wrong_label_changes_nothing_and_is_told(label: str) -> None:
    mode = ResourcesMode(CLASSIC)
    mode.see(node(label))
    assert mode.mode == CLASSIC
    mode.see(node(DRA))
    assert (mode.mode, mode.problem) == (DRA, "")
    mode.see(node(label))
    assert mode.mode == DRA
    assert LABEL in mode.problem


def test_a_node_without_the_label_has_the_default() -> None:
    mode = ResourcesMode(DRA)
    assert mode.mode == ""
    mode.see(node(None))
    assert mode.mode == DRA
    mode.see(None)
    assert mode.mode == DRA


def test_the_device_plugin_waits_until_the_slices_are_gone() -> None:
    mode = ResourcesMode(CLASSIC)
    mode.see(node(None))
    assert mode.plugin_state() == (False, frozenset())
    with pytest.raises(RequestError, match="offered by DRA"):
        mode.grant(["GPU-0"])
    mode.is_withdrawn = True
    mode.grant(["GPU-0"])


def test_while_nobody_knows_what_claims_have_nothing_is_given() -> None:
    def claims() -> set[str]:
        raise DocumentError("the journal is malformed")

    mode = ResourcesMode(CLASSIC)
    mode.see(node(None))
    mode.is_withdrawn, mode.claims = True, claims
    assert mode.plugin_state() == (False, frozenset())
    with pytest.raises(RequestError):
        mode.grant(["GPU-0"])


def test_a_gpu_is_never_given_twice_in_a_thousand_random_steps() -> None:
    """Each pod is listed by the kubelet a while after its Allocate, as the journal has a claim."""
    dice, now = random.Random(19), [0.0]
    mode = ResourcesMode(CLASSIC, lambda: now[0])
    claims: set[str] = set()
    pods: set[str] = set()  # as the kubelet lists them
    young: dict[str, float] = {}
    mode.claims, mode.is_withdrawn = lambda: claims, True
    refused = 0
    for _ in range(1000):
        mode.see(node(dice.choice([CLASSIC, DRA])))
        now[0] += dice.random() * GRANTED_S / 4
        for gpu, since in list(young.items()):
            if now[0] - since > GRANTED_S / 2:
                pods.add(gpu)
                del young[gpu]
        gpu = f"GPU-{dice.randrange(4)}"
        if dice.random() < 0.3:
            pods.discard(gpu)
        if dice.random() < 0.3:
            claims.discard(gpu)
        try:
            if dice.random() < 0.5:
                if gpu not in pods and gpu not in young:  # the kubelet's own account
                    mode.grant([gpu])
                    young[gpu] = now[0]
            elif gpu not in claims:  # the journal's
                with mode.preparing([gpu]):
                    if gpu not in pods:
                        claims.add(gpu)
        except (RequestError, HostError):
            refused += 1
        assert not claims & (pods | young.keys())
    assert refused > 100
