# SPDX-License-Identifier: Apache-2.0
"""Feature flags of `cdi generate`."""

import pytest

from nvct.host import discovery_options


def test_known_flags_are_enabled_without_a_warning() -> None:
    assert discovery_options.parse(discovery_options.KNOWN) == (
        frozenset(discovery_options.KNOWN),
        (),
    )


@pytest.mark.parametrize("word", ["coherent", "enable-coherent-annotations=maybe", ""])
def test_an_unknown_flag_has_no_effect_and_is_a_warning(word: str) -> None:
    on, (warning,) = discovery_options.parse([word, discovery_options.NO_IPC])

    assert on == {discovery_options.NO_IPC}
    assert warning.startswith(f"feature flag {word!r} is unknown and has no effect")


def test_a_flag_may_have_a_value_and_the_last_word_counts() -> None:
    on, warnings = discovery_options.parse(
        [
            f"{discovery_options.NO_GIDS}=true",
            f" {discovery_options.COHERENT}=TRUE ",
            f"{discovery_options.NO_GIDS}=false",
        ]
    )

    assert (set(on), warnings) == ({discovery_options.COHERENT}, ())


def test_the_old_spelling_is_accepted() -> None:
    on, warnings = discovery_options.parse(["disable-nvsandbox-utils"])

    assert (set(on), warnings) == ({discovery_options.NO_SANDBOXUTILS}, ())
