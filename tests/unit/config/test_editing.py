# SPDX-License-Identifier: Apache-2.0
"""--set: every kind of key, and nothing else in the file changes."""

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvct.config import editing, load, toml
from nvct.config.editing import DEFAULT_TEXT
from nvct.config.model import Config
from nvct.errors import ConfigError, UsageError

ADMINS = """\
# ours, since 2024
disable-require = true   # old images

[nvidia-container-cli]
    root = "/run/nvidia/driver" # driver container
unknown-key = { a = 1 }
#path = "/usr/bin/nvidia-container-cli"

[somebody.else]
x = 'y'
"""


def _set(text: str, *arguments: str) -> str:
    return editing.change(text, editing.parse(arguments), "config.toml")


def _changed(before: str, after: str) -> list[str]:
    rows = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return [row for row in rows if row[:2] not in ("--", "++", "@@")]


def test_the_default_text_says_the_defaults() -> None:
    document = load.from_toml(DEFAULT_TEXT.encode(), "")
    assert document.to_dict() == Config().to_dict()


def test_every_commented_example_is_a_key_of_the_right_type() -> None:
    uncommented = DEFAULT_TEXT.replace("\n#", "\n").removeprefix("#")
    assert load.from_toml(uncommented.encode(), "x").path == "x"
    keys = {f"{t}.{k}".lstrip(".") for t, table in _tables(toml.loads(uncommented)) for k in table}
    assert keys <= set(load.KEYS)


def _tables(table: dict[str, object], at: str = "") -> list[tuple[str, dict[str, object]]]:
    plain = {k: v for k, v in table.items() if not isinstance(v, dict)}
    inner = [t for k, v in table.items() if isinstance(v, dict) for t in _tables(v, f"{at}.{k}")]
    return [(at.lstrip("."), plain), *inner]


def test_an_admins_comments_order_and_unknown_keys_stay() -> None:
    after = _set(ADMINS, "nvidia-container-cli.root=/opt/driver", "disable-require=false")
    assert _changed(ADMINS, after) == [
        "-disable-require = true   # old images",
        "+disable-require = false   # old images",
        '-    root = "/run/nvidia/driver" # driver container',
        '+    root = "/opt/driver" # driver container',
    ]


def test_a_commented_key_is_set_in_its_place() -> None:
    after = _set(ADMINS, "nvidia-container-cli.path=/x")
    assert _changed(ADMINS, after) == ['-#path = "/usr/bin/nvidia-container-cli"', '+path = "/x"']


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("disable-require", "disable_require", True),
        ("disable-require=F", "disable_require", False),
        (
            "nvidia-container-runtime.runtimes=crun,/usr/bin/runc",
            "runtimes",
            ("crun", "/usr/bin/runc"),
        ),
        ("nvidia-container-runtime.runtimes=crun:runc", "runtimes", ("crun", "runc")),
        ("nvidia-container-runtime.runtimes=crun", "runtimes", ("crun",)),
        ("swarm-resource=A,B", "swarm_resource", ("A", "B")),
        ("nvidia-container-cli.user=root:video", "cli_user", "root:video"),
        ("nvidia-container-cli.debug=", "cli_debug", ""),
        ("features.ignore-imex-channel-requests", "ignore_imex", True),
        ("nvct.params-mask=true", "params_mask", "true"),
    ],
)
def test_a_key_of_every_type(word: str, key: str, value: object) -> None:
    assert getattr(load.from_toml(_set(DEFAULT_TEXT, word).encode(), ""), key) == value


def test_several_settings_in_one_word_as_the_incumbent_splits_them() -> None:
    settings = load.from_toml(
        _set(DEFAULT_TEXT, "disable-require=true,swarm-resource=A,B,nvidia-ctk.path=/x").encode(),
        "",
    )
    assert (settings.disable_require, settings.swarm_resource, settings.ctk_path) == (
        True,
        ("A", "B"),
        "/x",
    )


def test_a_feature_can_be_removed() -> None:
    text = _set(DEFAULT_TEXT, "features.ignore-imex-channel-requests")
    assert "ignore-imex" not in _set(text, "features.ignore-imex-channel-requests=nil")
    assert _set(DEFAULT_TEXT, "features.ignore-imex-channel-requests=nil") == DEFAULT_TEXT


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("nvidia-container-runtime.foo=1", "config.toml has no key"),
        ("foo", "config.toml has no key"),
        ("nvidia-container-runtime=1", "is a table"),
        ("nvidia-ctk.path", "needs a value"),
        ("disable-require=maybe", "not a boolean value"),
        ("nvct.policy=1", "config.toml has no key"),
    ],
)
def test_a_setting_that_cannot_be_set_is_an_error(word: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        editing.parse([word])


@pytest.mark.parametrize(
    "word", ["nvidia-container-runtime.mode=foo", "nvidia-container-runtime.runtimes="]
)
def test_a_value_that_would_fail_every_create_is_not_written(word: str) -> None:
    with pytest.raises(ConfigError, match="cannot be"):
        _set(DEFAULT_TEXT, word)


@given(
    st.lists(
        st.sampled_from(sorted(k for k in load.KEYS if k.startswith("features."))), max_size=4
    ),
    st.sampled_from(["true", "false"]),
)
def test_setting_twice_changes_nothing_and_foreign_lines_stay(keys: list[str], value: str) -> None:
    arguments = [f"{key}={value}" for key in keys]
    once = _set(ADMINS, *arguments)
    assert _set(once, *arguments) == once
    expected = iter(once.splitlines())
    assert all(line in expected for line in ADMINS.splitlines())


def test_lines_of_keys_are_found() -> None:
    assert editing.line_of(ADMINS, "nvidia-container-cli.root") == 5
    assert editing.line_of(ADMINS, "nvidia-container-cli.path") is None


def test_a_policy_is_printed_as_it_is_written() -> None:
    policy = """\
[nvct.policy]
default = "deny"
# first
[[nvct.policy.rules]]
annotations = { "a.b/c" = "x" }  # why
then = "allow"
"""
    printed = editing.complete(f"disable-require = true\n\n{policy}\n[other]\nk = 1\n", "x")
    assert printed.endswith(f"\n{policy}")
    assert toml.loads(printed)["other"] == {"k": 1}


def test_a_policy_in_two_places_is_printed_whole() -> None:
    text = '[nvct]\npolicy.default = "deny"\n[[nvct.policy.rules]]\nthen = "allow"\n'
    printed = editing.complete(text, "x")
    assert toml.loads(printed)["nvct"]["policy"] == toml.loads(text)["nvct"]["policy"]


def test_a_new_key_has_line_end_and_indentation_of_the_file() -> None:
    text = '[nvidia-container-cli]\r\n  root = "/x"  # c\r\n'
    assert _set(text, "nvidia-container-cli.path=/v") == f'{text}  path = "/v"\r\n'


def test_a_key_within_a_text_of_several_lines_is_none() -> None:
    text = '[nvct]\nother = """\n#layout = 1\nlayout = 2\n"""\n'
    assert editing.line_of(text, "nvct.layout") is None
    assert _set(text, "nvct.layout=farm") == f'{text}layout = "farm"\n'
