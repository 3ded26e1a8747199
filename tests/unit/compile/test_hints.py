# SPDX-License-Identifier: Apache-2.0
"""The runtime has no options: what its errors tell to do is done in config.toml."""

from collections.abc import Callable

import pytest

from nvct.compile import mode_plans as extras
from nvct.compile import refresh
from nvct.compile.live_host import KEYS, hints_name_keys
from nvct.errors import HostError, NvctError
from tests.support.shim_lab import Lab

MAKERS: dict[str, Callable[[str, str], object]] = {
    "own": refresh.own_plan,
    "own-none": lambda path, run: refresh.own_plan(path, run, refresh.OWN_NONE),
    "mig": lambda path, run: extras.mode_plan("mig", path, run),
    "properties": extras.properties_plan,
}


@pytest.mark.parametrize("what", MAKERS)
def test_a_driver_that_is_elsewhere_names_the_key_of_its_root(what: str, lab: Lab) -> None:
    lab.host.module()  # loaded, by a driver container say
    (lab.home / "driver").mkdir(exist_ok=True)

    with pytest.raises(NvctError) as caught:
        MAKERS[what](str(lab.config_toml), str(lab.run_dir))

    assert "has no library of that version" in caught.value.message
    assert caught.value.hint == "name the place: nvidia-container-cli.root in config.toml"


def test_without_any_driver_it_is_named_as_well(lab: Lab) -> None:
    (lab.home / "driver").mkdir(exist_ok=True)

    with pytest.raises(NvctError) as caught:
        refresh.own_plan(str(lab.config_toml), str(lab.run_dir))

    assert "nvidia-container-cli.root in config.toml" in caught.value.hint
    assert "--" not in caught.value.hint


@pytest.mark.parametrize("option", KEYS)
def test_each_option_has_its_key(option: str) -> None:
    with pytest.raises(HostError) as caught, hints_name_keys():
        raise HostError("x", hint=f"name it: {option}")

    assert caught.value.hint == f"name it: {KEYS[option]}"
