# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from nvct.container.request.conditions import matches
from nvct.container.request.model import VISIBLE_DEVICES
from nvct.container.request.resolve import resolve_request
from nvct.errors import LINE_LIMIT, DocumentError, NotPermittedError, RequestError, line
from tests.support.policies import ALL, CONTAINERD, CRIO, MIG, UUID, Container, policy


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path)


def test_the_first_rule_that_holds_decides(container: Container) -> None:
    config = policy(
        """
        name = "not this"
        by = ["mount"]
        then = "deny"
        ---
        name = "this"
        by = ["env"]
        then = "allow"
        reason = "tried"
        ---
        then = "deny"
        """
    )

    request, notes = container.decide(config, ALL)

    assert request is not None
    assert notes == ["policy rule 'this' allows it: by: NVIDIA_VISIBLE_DEVICES"]
    assert container.origin is not None
    assert [(step.rule, step.holds, step.why) for step in container.origin.results] == [
        ("not this", False, "by: NVIDIA_VISIBLE_DEVICES is env and image-env"),
        ("this", True, "by: NVIDIA_VISIBLE_DEVICES"),
    ]


def test_where_no_rule_holds_the_default_decides(container: Container) -> None:
    text = 'by = ["mount"]\nthen = "allow"'

    assert container.outcome(policy(text), ALL) == "allow"
    assert container.outcome(policy(text, "ignore"), ALL) == "ignore"
    assert container.outcome(policy(text, "deny"), ALL) == "deny"
    assert container.decide(policy(text), ALL)[1] == ["no rule of the policy holds: allowed"]


@pytest.mark.parametrize("default", ["ignore", "deny"])
@pytest.mark.parametrize("env", [[], ["PATH=/bin"], [f"{VISIBLE_DEVICES}=void"]])
def test_a_container_without_a_request_is_never_changed(
    default: str, env: list[str], container: Container
) -> None:
    assert container.decide(policy("", default), *env) == (None, [])


def test_an_ignored_request_is_noted_with_rule_and_reason(container: Container) -> None:
    config = policy('name = "env"\nby = ["env"]\nthen = "ignore"\nreason = "use the plugin"')

    assert container.decide(config, ALL) == (
        None,
        [
            (
                "NVIDIA_VISIBLE_DEVICES asks for 'all', which is ignored by policy rule 'env': by:"
                " NVIDIA_VISIBLE_DEVICES; use the plugin"
            )
        ],
    )


def test_a_denial_is_one_sentence_with_the_reason_as_its_hint(container: Container) -> None:
    config = policy('name = "env"\nby = ["env"]\nthen = "deny"\nreason = "use the plugin"')

    with pytest.raises(NotPermittedError) as caught:
        container.decide(config, ALL)

    assert len(line("nvidia-container-runtime.legacy", caught.value)) <= LINE_LIMIT
    assert line("nvidia-container-runtime", caught.value) == (
        "nvidia-container-runtime: policy rule 'env' denies NVIDIA_VISIBLE_DEVICES='all'; use the"
        " plugin [not-permitted]"
    )


@pytest.mark.parametrize(
    "value",
    ["all", "0", "0,1", "none", "nvidia.com/gpu=all", f"{UUID},all", "0000:18:00.0", "0:1",
     f"{UUID},0", "foo", ",".join(["x"] * 4000)],
    ids=lambda value: value[:40],
)  # fmt: skip
def test_a_pod_starts_without_a_gpu_if_the_request_of_its_image_is_denied(
    value: str, container: Container
) -> None:
    container.annotations = CONTAINERD

    request, notes = container.decide(policy("", "deny"), f"{VISIBLE_DEVICES}={value}")

    assert request is None
    assert "is ignored and not denied by policy rule 'default'" in notes[-1]


@pytest.mark.parametrize(
    ("annotations", "env", "outcome"),
    [
        (CRIO, ["CUDA_VERSION=10.1"], "ignore"),
        ({**CONTAINERD, "cdi.k8s.io/x": "nvidia.com/gpu=0"}, [], "deny"),
    ],
    ids=["legacy image", "annotation"],
)
def test_a_pod_is_denied_an_annotation_and_starts_without_what_a_legacy_image_asks_for(
    annotations: dict[str, str], env: list[str], outcome: str, container: Container
) -> None:
    container.annotations = annotations

    assert container.outcome(policy("", "deny"), *env) == outcome


@pytest.mark.parametrize("value", [UUID, MIG, f"nvidia.com/gpu={UUID}", f"{UUID},{MIG}"])
def test_a_pod_that_names_gpus_of_this_node_is_denied_with_an_error(
    value: str, container: Container
) -> None:
    container.annotations = CONTAINERD

    assert container.outcome(policy("", "deny"), f"{VISIBLE_DEVICES}={value}") == "deny"


def test_a_typo_fails_an_allowed_request_and_no_ignored_one(container: Container) -> None:
    config = policy('by = ["env"]\nthen = "ignore"')

    assert container.outcome(config, f"{VISIBLE_DEVICES}=fooo") == "ignore"
    assert container.outcome(config, ALL, "NVIDIA_DRIVER_CAPABILITIES=fooo") == "ignore"
    for text in ('by = ["env"]\nthen = "allow"', 'by = ["mount"]\nthen = "deny"'):
        with pytest.raises(RequestError, match="names no device"):
            container.decide(policy(text), f"{VISIBLE_DEVICES}=fooo")


def test_an_ignored_source_does_not_enable_others(container: Container) -> None:
    container.annotations = {"cdi.k8s.io/x": "nvidia.com/gpu=0"}
    config = policy('by = ["annotation"]\nthen = "ignore"')

    assert container.outcome(config, ALL) == "ignore"


def test_an_unknown_condition_counts_against_the_container() -> None:
    """A caller that does not say where the container comes from must not open a way round."""
    for condition in ("users = [0]", 'cgroups = ["*"]', "kubernetes = true", "kubernetes = false",
                      "more-gpus-than = 100"):  # fmt: skip
        refused = resolve_request([ALL], [], {}, [], policy(f'{condition}\nthen = "ignore"'))
        allowed = resolve_request(
            [ALL], [], {}, [], policy(f'{condition}\nthen = "allow"', "ignore")
        )

        assert refused[0] is None, condition
        assert allowed[0] is None, condition


@pytest.mark.parametrize(
    "rule",
    [
        "",
        "[]",
        "{}",
        '{"name":"x"}',
        '{"then":"deny"}',
        '{"name":"x","then":"maybe"}',
        '{"name":"x","then":"allow","user":[[0,0]]}',
    ],
)
def test_a_damaged_compiled_rule_is_an_error(rule: str, container: Container) -> None:
    config = policy("", policy=[rule])

    with pytest.raises(DocumentError):
        container.decide(config, ALL)


@pytest.mark.parametrize(
    ("text", "pattern", "fits"),
    [
        ("", "*", True),
        ("abc", "a*b", False),
        ("a", "a*a", False),
        ("aba", "ab*ba", False),
        ("axcxb", "a*b*c", False),
        ("a.c", "a?c", False),
        ("ABC", "abc", False),
        ("a*c", "a*c", True),
    ],
)
def test_a_star_matches_any_text_and_other_characters_match_themselves(
    text: str, pattern: str, *, fits: bool
) -> None:
    assert matches(text, pattern) is fits
