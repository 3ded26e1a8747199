# SPDX-License-Identifier: Apache-2.0
"""The table [nvct.policy] as people write it, well and badly."""

import json

import pytest

from nvct.config.load import from_toml
from nvct.config.model import Config
from nvct.errors import LINE_LIMIT, ConfigError, line

FULL = """
[nvct.policy]
default = "deny"
[[nvct.policy.rules]]
name = "everything that there is"
by = ["env", "image-env", "annotation", "mount", "cdi-name"]
asks-for = ["all", "none", "management", "mig-config", "mig-monitor", "imex", "gds"]
devices = ["nvidia.com/gpu=*"]
namespaces = ["ml-*", "ci"]
cgroups = "/kubepods/*"
kubernetes = true
privileged = false
users = [0, "1000-1999", "4294967295"]
annotations = { "io.kubernetes.cri.image-name" = "nvcr.io/*", "x" = ["a", "b"] }
more-gpus-than = 2
then = "ignore"
reason = "ask the GPU team"
[[nvct.policy.rules]]
then = "allow"
"""


def rules(text: str) -> list[dict[str, object]]:
    return [json.loads(rule) for rule in from_toml(text.encode(), "/c").policy]


def test_every_key_is_read() -> None:
    assert rules(FULL) == [
        {
            "name": "everything that there is",
            "by": ["env", "image-env", "annotation", "mount", "cdi-name"],
            "asks-for": ["all", "none", "management", "mig-config", "mig-monitor", "imex", "gds"],
            "devices": ["nvidia.com/gpu=*"],
            "namespaces": ["ml-*", "ci"],
            "cgroups": ["/kubepods/*"],
            "kubernetes": True,
            "privileged": False,
            "users": [[0, 0], [1000, 1999], [4294967295, 4294967295]],
            "annotations": {"io.kubernetes.cri.image-name": ["nvcr.io/*"], "x": ["a", "b"]},
            "more-gpus-than": 2,
            "then": "ignore",
            "reason": "ask the GPU team",
        },
        {"name": "rule 2", "then": "allow"},
        {"name": "default", "then": "deny"},
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[nvct]\n",
        "[nvct.policy]\n",
        "[nvct.policy]\nrules=[]\n",
        '[nvct.policy]\ndefault="allow"\n',
    ],
)
def test_without_rules_there_is_no_policy(text: str) -> None:
    assert rules(text) == []


def test_the_compiled_configuration_keeps_the_rules() -> None:
    config = from_toml(FULL.encode(), "/c")

    assert Config.from_dict(config.to_dict()).policy == config.policy


BAD = {
    "policy = 1": "/c: nvct.policy is 1, not a table",
    "policy.fallback = 'deny'": "/c: nvct.policy.fallback is unknown",
    "policy.default = 'drop'": "/c: nvct.policy.default cannot be 'drop'",
    "policy.rules = ['deny']": "/c: nvct.policy.rules is ['deny'], not an array of tables",
    "policy.rules = [{}]": "/c: nvct.policy.rules 1 has no key then",
    "policy.rules = [{then='no'}]": "/c: nvct.policy.rules 1: then is 'no'",
    "policy.rules = [{then=['deny']}]": "/c: nvct.policy.rules 1: then is ['deny']",
    "policy.default = ['deny']": "/c: nvct.policy.default cannot be ['deny']",
    "policy.rules = [{then='deny'}, {then='deny', user=[1]}]": "/c: nvct.policy.rules 2: user is"
    " unknown",
    "policy.rules = [{then='deny', name=''}]": "/c: nvct.policy.rules 1: name cannot be ''",
    'policy.rules = [{then="deny", name="a\\nb"}]': "/c: nvct.policy.rules 1: name cannot be"
    " 'a\\nb'",
    "policy.rules = [{then='deny', name='x'}, {then='deny', name='x'}]": "/c: nvct.policy.rules:"
    " two rules are named 'x'",
    "policy.rules = [{then='deny', name='default'}]": "/c: nvct.policy.rules: two rules are named"
    " 'default'",
    "policy.rules = [{then='deny', reason=1}]": "/c: nvct.policy.rules 1: reason cannot be 1",
    "policy.rules = [{then='deny', by=['ENV']}]": "/c: nvct.policy.rules 1: by has 'ENV', which"
    " is unknown",
    "policy.rules = [{then='deny', by=[]}]": "/c: nvct.policy.rules 1: by is []: no"
    " request can match it",
    "policy.rules = [{then='deny', by=true}]": "/c: nvct.policy.rules 1: by is True, not an array"
    " of strings",
    "policy.rules = [{then='deny', asks-for=['gpu']}]": "/c: nvct.policy.rules 1: asks-for has"
    " 'gpu', which is unknown",
    "policy.rules = [{then='deny', namespaces=['']}]": "/c: nvct.policy.rules 1: namespaces is"
    " ['']: no request can match it",
    "policy.rules = [{then='deny', kubernetes='yes'}]": "/c: nvct.policy.rules 1: kubernetes is"
    " 'yes', not true or false",
    "policy.rules = [{then='deny', more-gpus-than=-1}]": "/c: nvct.policy.rules 1: more-gpus-than"
    " is -1, not a number",
    "policy.rules = [{then='deny', more-gpus-than=true}]": "/c: nvct.policy.rules 1:"
    " more-gpus-than is True, not a number",
    "policy.rules = [{then='deny', users='1000'}]": "/c: nvct.policy.rules 1: users is '1000',"
    " not an array",
    "policy.rules = [{then='deny', users=['9-1']}]": "/c: nvct.policy.rules 1: users has '9-1',"
    " which is not a uid",
    "policy.rules = [{then='deny', users=[true]}]": "/c: nvct.policy.rules 1: users has True,"
    " which is not a uid",
    "policy.rules = [{then='deny', users=['5-']}]": "/c: nvct.policy.rules 1: users has '5-',"
    " which is not a uid",
    "policy.rules = [{then='deny', annotations={}}]": "/c: nvct.policy.rules 1: annotations is"
    " {}, not a table",
    "policy.rules = [{then='deny', annotations={k=1}}]": "/c: nvct.policy.rules 1: annotations.k"
    " is 1, not an array of strings",
}


@pytest.mark.parametrize(("text", "message"), BAD.items(), ids=BAD)
def test_a_bad_rule_is_an_error_that_names_its_key(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_toml(f"[nvct]\n{text}\n".encode(), "/c")

    assert caught.value.message == message
    assert caught.value.hint
    assert len(line("nvidia-container-runtime", caught.value)) <= LINE_LIMIT


def test_too_many_rules_are_refused() -> None:
    text = "[[nvct.policy.rules]]\nthen = 'deny'\n" * 1001

    with pytest.raises(ConfigError, match="more than 1000 rules"):
        from_toml(text.encode(), "/c")


@pytest.mark.parametrize(
    ("rule", "hint"),
    [
        ("max-gpus-than=1", "did you mean more-gpus-than?"),
        ("namespace=['x']", "did you mean namespaces?"),
        ("xyz=1", "docs/policy.md has a table of them"),
        ("asks-for=['mig_config']", "did you mean mig-config?"),
        ("by=['Env']", "use one of: env, image-env, annotation, mount, cdi-name, engine"),
    ],
)
def test_the_hint_names_the_most_similar_word(rule: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_toml(f"[nvct]\npolicy.rules = [{{then='deny', {rule}}}]\n".encode(), "/c")

    assert caught.value.hint == hint
