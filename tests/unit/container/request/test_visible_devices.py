# SPDX-License-Identifier: Apache-2.0
import pytest

from nvct.container.request.visible_devices import (
    VALUE_LIMIT,
    WORD_LIMIT,
    check_word,
    evaluate,
    plain_bus_id,
    shown,
    split,
)
from nvct.errors import LINE_LIMIT, RequestError, line

UUID = "8a56d3b8-0f8c-4a6e-9e5f-0123456789aB"

WORDS = [
    "0", "15", "123456789", "3:6", f"GPU-{UUID}", f"MIG-{UUID}", f"MIG-GPU-{UUID}/1/0",
    "00000000:18:00.0", "0000:18:00", "0:18:0.7", "10000:AF:1f.0", "nvidia.com/gpu=0:1",
    "vendor.example/some-class=x.y_z", "runtime.nvidia.com/gpu=0", "runtime.nvidia.com/gpu=all",
    "runtime.nvidia.com/gpu=none",
]  # fmt: skip
NO_WORDS = [
    "gpu0", "GPU-", "GPU-0", "ALL", "0-3", "-1", "0x1", "1_0", "01", "0:", ":0", "0:01", "0:0xyz",
    "0:0:0:0", "1234567890", "0 1", "*", "../0", "\u0663", "\u00b2", "0\x00", "0\x1b[31m",
    "\u00a00", "\ud800", f"GPU-{UUID[:-1]}", f"GPU-{UUID}0", f"GPU-{UUID.replace('-', '')}",
    f"gpu-{UUID}", f"MIG-{UUID}/1/0", f"MIG-GPU-{UUID}", f"MIG-GPU-{UUID}/1/0/0",
    f"MIG-GPU-{UUID}/1/-1", "18:00.0", "0000:18:00.8", "0000:18:00.", "0000:1g:00.0",
    "000000000:18:00.0", "0000:180:00.0", "a/b=c", "=0", "nvidia.com=0", "nvidia.com/gpu=",
    "nvidia.com/gpu=0\n", "nvidia.com/gpu=ü", "nvidia.com/gpu=../../x",
    "runtime.nvidia.com/gpu=void", "runtime.nvidia.com/gpu=foo",
]  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
def test_a_device_name_is_accepted(word: str) -> None:
    check_word(word, "x")

    assert evaluate([word], "x") == [word]


@pytest.mark.parametrize("word", NO_WORDS, ids=ascii)
def test_a_word_that_names_no_device_is_refused(word: str) -> None:
    with pytest.raises(RequestError, match=r"^NVIDIA_VISIBLE_DEVICES"):
        check_word(word, "NVIDIA_VISIBLE_DEVICES")


@pytest.mark.parametrize(
    ("words", "result"),
    [
        ([], None),
        (["void"], None),
        (["0", "void"], None),
        (["all", "void"], None),
        (["all"], ["all"]),
        (["0", "all"], ["all"]),
        (["all", "none"], ["all"]),
        (["none"], []),
        (["0", "none"], []),
        (["none", "all"], []),
        (["0", "1", "0"], ["0", "1"]),
    ],
    ids=str,
)
def test_all_none_and_void_decide_about_a_list(words: list[str], result: list[str] | None) -> None:
    assert evaluate(words, "x") == result


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("", []),
        (" , ,,", []),
        ("0", ["0"]),
        (" 0 , 1\t,\n2\r\n", ["0", "1", "2"]),
        ("0 1", ["0 1"]),
        ("\u00a00", ["\u00a00"]),
    ],
    ids=ascii,
)
def test_a_value_is_split_at_commas_and_trimmed_of_ascii_blanks(
    value: str, words: list[str]
) -> None:
    assert split(value, "x") == words


def test_a_value_may_be_as_long_and_have_as_many_words_as_the_limit() -> None:
    assert split("0".ljust(VALUE_LIMIT), "x") == ["0"]
    with pytest.raises(RequestError, match="is 65537 characters long"):
        split("0".ljust(VALUE_LIMIT + 1), "x")
    assert len(split(",".join(["0"] * WORD_LIMIT), "x")) == WORD_LIMIT
    with pytest.raises(RequestError, match="more than 4096 words"):
        split(",".join(["0"] * (WORD_LIMIT + 1)), "x")
    with pytest.raises(RequestError, match="more than 4096 words"):  # of many sources
        evaluate([str(number) for number in range(WORD_LIMIT + 1)], "x")


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("gpu0", "use all, none, void, an index, G:M, a UUID, a PCI bus id, a CDI name or free:N"),
        ("0-3", "there are no ranges: list each index, as in 0,3"),
        ("ALL", "write 'all' in lower case"),
        ("01:00.0", "a PCI bus id begins with its domain, as in 0000:01:00.0"),
    ],
)
def test_a_typo_has_a_hint(word: str, hint: str) -> None:
    with pytest.raises(RequestError, match=f"asks for '{word}', which names no device") as caught:
        evaluate([word], "NVIDIA_VISIBLE_DEVICES")

    assert caught.value.hint == hint


# libnvidia-container src/cli/common.c, matches_pci_format: it takes hexadecimal numbers of any
# length in either case, and what follows the device as it may be.
@pytest.mark.parametrize(
    ("word", "plain"),
    [
        ("00000000:18:00.0", "0000:18:00.0"),
        ("00000000:AF:1F.0", "0000:af:1f.0"),
        ("0000:18:00.1", "0000:18:00.1"),
        ("0000:18:00", "0000:18:00.0"),
        ("0:1:0", "0000:01:00.0"),
        ("10000:01:00.0", "10000:01:00.0"),
        ("0000:18:00.01", "0000:18:00.01"),
        ("18:00.0", "18:00.0"),
        ("0:1", "0:1"),
        ("nvidia.com/gpu=00000000:18:00.0", "nvidia.com/gpu=00000000:18:00.0"),
    ],
    ids=str,
)
def test_a_pci_bus_id_has_one_form(word: str, plain: str) -> None:
    assert plain_bus_id(word) == plain
    assert plain_bus_id(plain) == plain


def test_a_long_word_is_shortened_in_messages() -> None:
    assert shown("x" * 64) == f"'{'x' * 64}'"
    assert shown("x" * 65) == f"'{'x' * 61}...'"


@pytest.mark.parametrize(
    "value", ["/var/run/nvidia-container-devices", "/var/run/nvidia-container-devices/GPU-1"]
)
def test_the_variable_of_the_device_plugin_with_volume_mounts_names_the_key(value: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_word(value, "NVIDIA_VISIBLE_DEVICES")

    assert caught.value.hint == (
        "set accept-nvidia-visible-devices-as-volume-mounts in config.toml"
    )
    assert len(line("nvidia-container-runtime.legacy", caught.value)) <= LINE_LIMIT
