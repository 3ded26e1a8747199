# SPDX-License-Identifier: Apache-2.0
import json
import re
from pathlib import Path

import pytest

from nvct.config import toml
from nvct.config.model import Config
from nvct.container.request.free import parse, want_of
from nvct.container.request.model import Request
from nvct.container.request.resolve import resolve_request
from nvct.errors import NotPermittedError, RequestError

UUIDS = [f"GPU-{digit * 8}-0000-0000-0000-000000000000" for digit in "abcd"]


@pytest.mark.parametrize(
    ("word", "count", "memory", "profile"),
    [
        ("free:1", 1, 0, ""),
        ("free:12", 12, 0, ""),
        ("free:1@memory>=40Gi", 1, 40 << 30, ""),
        ("free:2@profile=1g.10gb+me", 2, 0, "1g.10gb+me"),
        ("free:1@memory>=5000Mi@profile=1g.10gb", 1, 5000 << 20, "1g.10gb"),
        ("free:1@profile=1g.10gb@memory>=1Ti", 1, 1 << 40, "1g.10gb"),
    ],
)
def test_a_word_says_how_many_of_what(word: str, count: int, memory: int, profile: str) -> None:
    want = parse(word, "x")

    assert (want.count, want.memory, want.profile, want.word) == (count, memory, profile, word)


@pytest.mark.parametrize(
    "word",
    [
        "free:", "free:0", "free:01", "free:-1", "free:all", "free:1@", "free:1@@memory>=1Gi",
        "free:1@memory>=40", "free:1@memory>=40GB", "free:1@memory>40Gi", "free:1@memory>=0Gi",
        "free:1@memory>=Gi", "free:1@memory>=1Gi@memory>=2Gi", "free:1@profile=", "free:1@cpu=1",
        "free:1@profile=1g/../x", "free:1 @memory>=1Gi", "free:1@profile=1G.10GB", "free:1:2",
        "free:9999999999",
    ],
)  # fmt: skip
def test_a_malformed_word_is_refused(word: str) -> None:
    with pytest.raises(RequestError, match="which is malformed"):
        parse(word, "NVIDIA_VISIBLE_DEVICES")


@pytest.mark.parametrize("words", [["0", "free:1"], ["free:1", "free:2"], ["all", "free:1"]])
def test_the_word_stands_alone(words: list[str]) -> None:
    with pytest.raises(RequestError, match="mixes 'free:"):
        want_of(words, "x")
    with pytest.raises(RequestError, match="mixes 'free:"):
        asking(",".join(words))


def asking(value: str, *policy: str, **config: object) -> Request | None:
    def choose(request: Request) -> None:
        assert request.free is not None
        request.ids = UUIDS[: request.free.count]

    return resolve_request(
        [f"NVIDIA_VISIBLE_DEVICES={value}"], [], {}, [], Config(policy=policy, **config),
        choose=choose,
    )[0]  # fmt: skip


def test_the_request_is_for_the_chosen_devices() -> None:
    request = asking("free:2@memory>=1Gi")

    assert request is not None
    assert request.free is not None
    assert (request.ids, request.none, request.mode) == (UUIDS[:2], False, "jit-cdi")


@pytest.mark.parametrize("word", ["FREE:1", "Free:1", "free", "free=1", "xfree:1"])
def test_another_word_is_no_request_for_a_free_gpu(word: str) -> None:
    with pytest.raises(RequestError):
        asking(word)


def test_without_a_way_to_choose_the_word_is_refused() -> None:
    with pytest.raises(RequestError, match="free:1"):
        resolve_request(["NVIDIA_VISIBLE_DEVICES=free:1"], [], {}, [], Config())


@pytest.mark.parametrize(
    ("rule", "is_denied"),
    [
        ('{"name": "r", "asks-for": ["free"], "then": "deny"}', True),
        ('{"name": "r", "asks-for": ["devices"], "then": "deny"}', True),
        ('{"name": "r", "asks-for": ["all"], "then": "deny"}', False),
        ('{"name": "r", "more-gpus-than": 1, "then": "deny"}', True),
        ('{"name": "r", "more-gpus-than": 2, "then": "deny"}', False),
        ('{"name": "r", "by": ["image-env"], "then": "deny"}', True),
        (f'{{"name": "r", "devices": ["nvidia.com/gpu={UUIDS[1]}"], "then": "deny"}}', True),
    ],
)
def test_the_policy_judges_the_chosen_devices(rule: str, is_denied: bool) -> None:
    if not is_denied:
        assert asking("free:2", rule) is not None
        return
    with pytest.raises(NotPermittedError):
        asking("free:2", rule)


PAGE = Path(__file__).parents[4] / "docs/free-gpus.md"


def test_the_pages_rules_allow_at_most_two_free_gpus_or_none() -> None:
    found = re.search(r"^ *```toml\n(.*?)^ *```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found
    rules = toml.loads(found[1])["nvct"]["policy"]["rules"]

    def judged(value: str) -> Request | None:
        return asking(value, *map(json.dumps, rules))

    assert judged("free:2") is not None
    assert judged("none") is not None
    for value in ("free:3", "all", UUIDS[0]):
        with pytest.raises(NotPermittedError):
            judged(value)
