# SPDX-License-Identifier: Apache-2.0
import json
import os
from pathlib import Path

import pytest

from nvct import paths
from nvct.config.model import Config
from nvct.container import settings
from nvct.container.plan import fingerprints
from nvct.container.plan.store import Store
from nvct.errors import ConfigError
from tests.support.launcher import script
from tests.support.shim_lab import Lab

NEVER = "/no/interpreter/may/be/asked"


def load(lab: Lab, store: Store, *, cold: str = "") -> Config:
    return settings.load(store, lab.env, cold or lab.cold)


def stored(lab: Lab) -> dict[str, object]:
    return lab.kept(paths.CONFIG_CACHE)


def rewrite(path: Path, old: str, new: str) -> None:
    """Change a file in place, keeping its size and inode."""
    text = path.read_text()
    assert old in text
    assert len(old) == len(new)
    path.write_text(text.replace(old, new))


def test_a_config_toml_that_appears_is_replaced_or_vanishes_is_noticed(
    lab: Lab, store: Store
) -> None:
    lab.config_toml.unlink()
    assert load(lab, store, cold=NEVER).to_dict() == Config().to_dict()
    for mode in ("cdi", "legacy"):
        lab.configure(mode=mode)
        assert load(lab, store).mode == mode
    lab.config_toml.unlink()
    assert load(lab, store, cold=NEVER).mode == "auto"


def test_a_config_toml_that_cannot_be_read_is_not_treated_as_missing(
    lab: Lab, store: Store
) -> None:
    lab.config_toml.unlink()
    lab.config_toml.symlink_to(lab.config_toml.name)

    with pytest.raises(ConfigError, match=r"config.toml cannot be read: Too many levels"):
        load(lab, store)


def test_a_second_change_within_the_same_tick_is_seen(lab: Lab, store: Store) -> None:
    lab.configure(mode="aaa")
    os.utime(lab.config_toml)
    before = lab.config_toml.stat()
    assert load(lab, store).mode == "aaa"

    rewrite(lab.config_toml, "aaa", "bbb")
    os.utime(lab.config_toml, ns=(before.st_mtime_ns, before.st_mtime_ns))
    after = lab.config_toml.stat()

    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (
        before.st_ino, before.st_size, before.st_mtime_ns,
    )  # fmt: skip
    assert load(lab, store).mode == "bbb"


def test_a_young_config_toml_gets_no_launcher_conf_until_it_is_old(lab: Lab, store: Store) -> None:
    os.utime(lab.config_toml)
    load(lab, store)
    young = (lab.run_dir / paths.LAUNCHER_CONF).exists()

    lab.age(lab.config_toml)
    load(lab, store, cold=NEVER)

    assert not young
    assert stored(lab)["facts"] == [fingerprints.take("stat", str(lab.config_toml))]
    assert (lab.run_dir / paths.LAUNCHER_CONF).exists()


def test_a_configuration_compiled_from_another_file_is_not_used(lab: Lab, store: Store) -> None:
    lab.configure(mode="cdi")
    load(lab, store)
    other = lab.home / "other.toml"
    other.write_text('[nvidia-container-runtime]\nmode = "csv"\n')
    lab.env[paths.CONFIG_ENV] = str(other)

    assert load(lab, store).mode == "csv"


@pytest.mark.parametrize(
    "damage",
    [{"nvct-config": 0}, {"facts": []}, {"facts": ["stat"]}, {"config": []},
     {"config": {"mode": ["evil"]}}, "text", "mode", "link"],
    ids=str,
)  # fmt: skip
def test_a_damaged_or_unsafe_compiled_configuration_is_compiled_again(
    damage: dict[str, object] | str, lab: Lab, store: Store
) -> None:
    lab.configure(mode="cdi")
    load(lab, store)
    path = lab.run_dir / paths.CONFIG_CACHE
    changes = {"config": {"mode": "evil"}} if isinstance(damage, str) else damage
    write(lab, {**stored(lab), **changes})
    if damage == "text":
        path.write_text("{")
    elif damage == "mode":
        path.chmod(0o666)
    elif damage == "link":
        path.rename(lab.home / "elsewhere")
        path.symlink_to(lab.home / "elsewhere")

    assert load(lab, store).mode == "cdi"


def write(lab: Lab, document: dict[str, object]) -> None:
    lab.keep(paths.CONFIG_CACHE, document)


def test_an_invalid_config_toml_raises_the_cold_sides_error(lab: Lab, store: Store) -> None:
    lab.configure("mode = cdi")

    with pytest.raises(ConfigError, match="is not TOML"):
        load(lab, store)

    assert os.listdir(lab.run_dir) == []


def test_a_change_while_the_file_is_read_is_noticed_by_the_next_load(
    lab: Lab, store: Store
) -> None:
    lab.configure(mode="aaa")
    answer = json.dumps({"mode": "aaa"})
    slow = script(
        lab.home / "bin/python", f"sed s/aaa/bbb/ -i {lab.config_toml}; echo '{answer}'\n"
    )

    assert load(lab, store, cold=str(slow)).mode == "aaa"
    assert load(lab, store).mode == "bbb"


def conf(path: str = "/etc/c.toml", **values: object) -> list[str]:
    text = settings.launcher_conf(Config(**values), path, ["stat", path, [1, 2, 3, 4, 5]])
    assert text.endswith("\n")
    return text[:-1].split("\n")


def test_launcher_conf_holds_what_the_launcher_needs() -> None:
    assert conf(runtimes=["runc", "/opt/crun"], swarm_resource=["DOCKER_RESOURCE_GPU"]) == [
        "nvct-launcher 2",
        "config\t/etc/c.toml\t1 2 3 4 5",
        "runtime\trunc",
        "runtime\t/opt/crun",
        "word\tNVIDIA_",
        "word\tCUDA_VERSION",
        "word\tnvidia-container-devices",
        "word\tnvidia-container-runtime-hook",
        "word\tnvidia-container-toolkit",
        "word\tDOCKER_RESOURCE_GPU",
        "word\tcdi.k8s.io",
        "end",
    ]


@pytest.mark.parametrize(
    "values",
    [
        {"debug": "/var/log/x.log"},
        {"annotation_prefixes": [""]},
        {"swarm_resource": ['"']},
        {"runtimes": ["runc\nruntime\t/evil"]},
        {"path": "/etc/c\n.toml"},
        {"path": "/etc/c\t.toml"},
    ],
    ids=["debug", "empty prefix", "nothing left", "line in a name", "line in the path", "tab"],
)
def test_launcher_conf_has_no_entries_if_the_launcher_could_be_wrong(
    values: dict[str, str],
) -> None:
    assert conf(**values) == ["nvct-launcher 2", "end"]


@pytest.mark.parametrize(
    ("word", "piece"),
    [
        ("a<bcd>e", "bcd"),
        ("\u00e9-gpu", "-gpu"),
        ('x"yz\\', "yz"),
    ],
)
def test_words_are_cut_at_characters_that_json_may_escape(word: str, piece: str) -> None:
    assert f"word\t{piece}" in conf(annotation_prefixes=[word])


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ('engine-device = "checked"', "checked"),
        ('engine_devices = "checked"', "checked"),
        ('engine-devices = "check"', "checked"),
        ('default = "allowed"', "unchecked"),
    ],
)
def test_a_misspelt_check_of_the_engines_devices_stays_closed(
    line: str, kept: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f"[nvct.policy]\n{line}\n", encoding="utf-8")

    assert settings.default_for(str(path)).engine_devices == kept
