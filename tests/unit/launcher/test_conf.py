# SPDX-License-Identifier: Apache-2.0
"""A launcher hands over only by a launcher.conf that is whole, ours and still true."""

import os
import shutil

import pytest

from tests.unit.launcher.conftest import Lab

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def goes(lab: Lab) -> str:
    return lab.went_to("state", "id")


def test_a_conf_for_no_config_holds_until_one_appears(lab: Lab) -> None:
    lab.config.unlink()
    lab.keep()
    assert "\tabsent\n" in lab.conf.read_text()
    assert goes(lab) == "bin/runc"
    lab.config.write_text("")
    assert goes(lab) == "python"
    lab.age(lab.config)  # older than launcher.conf
    assert goes(lab) == "python"


def test_a_config_that_vanishes_makes_it_stale(lab: Lab) -> None:
    lab.keep()
    lab.config.unlink()
    assert goes(lab) == "python"
    lab.config.symlink_to("nowhere")
    assert goes(lab) == "python"


def test_a_config_that_was_edited_makes_it_stale(lab: Lab) -> None:
    lab.keep()
    data = lab.config.read_bytes()
    lab.config.write_bytes(data)  # the time is another one
    assert goes(lab) == "python"
    lab.age(lab.config)
    lab.keep()
    assert goes(lab) == "bin/runc"
    at = lab.config.stat().st_mtime_ns
    lab.config.write_bytes(data + b"#")
    os.utime(lab.config, ns=(at, at))
    assert goes(lab) == "python"  # by its size alone


def test_a_config_of_the_same_size_and_time_but_another_file_makes_it_stale(lab: Lab) -> None:
    lab.keep()
    s = lab.config.stat()
    other = lab.home / "other"
    other.write_bytes(lab.config.read_bytes())
    os.utime(other, ns=(s.st_mtime_ns, s.st_mtime_ns))
    other.replace(lab.config)
    assert goes(lab) == "python"


def test_a_nanosecond_and_an_older_backup_make_it_stale(lab: Lab) -> None:
    lab.keep()
    at = lab.config.stat().st_mtime_ns
    os.utime(lab.config, ns=(at, at + 1))
    assert goes(lab) == "python"
    os.utime(lab.config, ns=(at, at))
    assert goes(lab) == "bin/runc"
    lab.age(lab.config, 7200)
    assert goes(lab) == "python"


@as_root
def test_a_config_that_changed_hands_makes_it_stale(lab: Lab) -> None:
    lab.keep()
    os.chown(lab.config, 12345, -1)
    assert goes(lab) == "python"


def test_a_config_before_1970_is_a_config(lab: Lab) -> None:
    for ns in (0, 5, -1, -(10**9), -1_500_000_000):
        os.utime(lab.config, ns=(ns, ns))
        lab.keep()
        assert goes(lab) == "bin/runc"


def test_a_link_to_the_config_is_followed(lab: Lab) -> None:
    real = lab.config.rename(lab.home / "real.toml")
    lab.config.symlink_to(real)
    lab.keep()
    assert goes(lab) == "bin/runc"
    other = lab.home / "other.toml"
    shutil.copy2(real, other)
    lab.config.unlink()
    lab.config.symlink_to(other)
    assert goes(lab) == "python"


def test_another_config_named_by_the_environment_is_another_conf(lab: Lab) -> None:
    lab.keep()
    other = lab.home / "other.toml"
    other.symlink_to(lab.config)  # the very same file
    lab.env["NVIDIA_CTK_CONFIG_FILE_PATH"] = str(other)
    assert goes(lab) == "python"
    lab.keep()
    assert goes(lab) == "bin/runc"


def test_the_config_is_found_where_the_shim_finds_it(lab: Lab) -> None:
    del lab.env["NVIDIA_CTK_CONFIG_FILE_PATH"]
    lab.env["XDG_CONFIG_HOME"] = str(lab.home / "xdg")
    lab.keep()
    assert "config\t/etc/nvidia-container-runtime/config.toml\t" in lab.conf.read_text()
    assert goes(lab) == "bin/runc"
    lab.env["NVIDIA_CTK_CONFIG_FILE_PATH"] = ""  # as if it were not set
    assert goes(lab) == "bin/runc"
    user_file = lab.home / "xdg" / "nvidia-container-runtime" / "config.toml"
    user_file.parent.mkdir(parents=True)
    user_file.touch()
    assert goes(lab) == "python"
    lab.age(user_file)
    lab.keep()
    assert f"config\t{user_file}\t" in lab.conf.read_text()
    assert goes(lab) == "bin/runc"
    lab.env["XDG_CONFIG_HOME"] = ""  # that is /etc
    assert goes(lab) == "python"


def damaged(whole: str) -> list[str]:
    lines = whole.splitlines(keepends=True)
    cut = [whole[:n] for n in range(0, len(whole), 7)] + [whole[:-1], whole[:-4]]
    shuffled = [
        "".join(lines[1:]),  # no head
        whole.replace("nvct-launcher 2", "nvct-launcher 1"),
        whole.replace("nvct-launcher 2", "nvct-launcher 20"),
        "".join(lines[:1] + lines[2:]),  # no config
        "".join(line for line in lines if not line.startswith("runtime")),
        whole.replace("config\t", "config "),
        whole.replace("\n", "\r\n"),
        "\n" + whole,
    ]
    return cut + shuffled


def test_a_damaged_conf_is_not_used(lab: Lab) -> None:
    lab.keep()
    whole = lab.conf.read_text()
    for text in damaged(whole):
        lab.conf.write_text(text)
        assert goes(lab) == "python", text
    lab.conf.write_text(whole)
    assert goes(lab) == "bin/runc"


def test_a_conf_that_c_cannot_hold_is_not_used(lab: Lab) -> None:
    lab.keep()
    whole = lab.conf.read_text()
    wrong = [
        whole.replace("word\tCUDA_VERSION", "word\t"),
        whole.replace("word\t", "unheard-of\t"),
        "".join(line for line in whole.splitlines(keepends=True) if not line.startswith("word")),
        whole.replace("end\n", "word\tx\n" * 100 + "end\n"),
        whole.replace("end\n", "runtime\tx\n" * 100 + "end\n"),
        whole.replace("end\n", "word\t" + "x" * 70_000 + "\nend\n"),
        whole.replace("CUDA", "CU\0DA"),
        "\0" + whole,
    ]
    for text in wrong:
        lab.conf.write_text(text)
        assert goes(lab) == "python", text


def test_text_after_the_end_is_not_read(lab: Lab) -> None:
    lab.keep()
    with lab.conf.open("a") as file:
        file.write("runtime\t/evil\nnonsense")
    assert goes(lab) == "bin/runc"


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666, 0o622])
def test_a_conf_that_others_may_write_is_not_used(lab: Lab, mode: int) -> None:
    lab.keep()
    lab.conf.chmod(mode)
    assert goes(lab) == "python"


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777, 0o2770, 0o755, 0o711, 0o750])
def test_a_run_directory_that_is_open_is_not_used_as_the_store_would_not(
    lab: Lab, mode: int
) -> None:
    lab.keep()
    lab.conf.parent.chmod(mode)
    assert goes(lab) == "python"


@as_root
def test_a_conf_of_another_user_is_not_used(lab: Lab) -> None:
    lab.keep()
    os.chown(lab.conf, 12345, -1)
    assert goes(lab) == "python"
    os.chown(lab.conf, 0, -1)
    assert goes(lab) == "bin/runc"
    os.chown(lab.conf.parent, 12345, -1)
    assert goes(lab) == "python"


def test_a_conf_or_a_run_directory_behind_a_link_is_not_used(lab: Lab) -> None:
    lab.keep()
    real = lab.conf.rename(lab.home / "real.conf")
    lab.conf.symlink_to(real)
    assert goes(lab) == "python"
    lab.conf.unlink()
    real.rename(lab.conf)
    assert goes(lab) == "bin/runc"
    (lab.home / "run").rename(lab.home / "real")
    (lab.home / "run").symlink_to("real")
    assert goes(lab) == "python"


def test_other_file_types_are_neither_used_nor_waited_for(lab: Lab) -> None:
    os.mkfifo(lab.conf, 0o600)
    assert goes(lab) == "python"
    lab.conf.unlink()
    lab.conf.mkdir(0o700)
    assert goes(lab) == "python"
    shutil.rmtree(lab.conf.parent)
    assert goes(lab) == "python"
    lab.conf.parent.touch()
    assert goes(lab) == "python"


def test_the_runtime_directory_of_a_user_is_used_by_users_only(lab: Lab) -> None:
    del lab.env["NVCT_RUN_DIR"]
    lab.env["XDG_RUNTIME_DIR"] = str(lab.home / "xdg")
    lab.keep()
    (lab.home / "xdg").mkdir(0o700)
    (lab.home / "run").rename(lab.home / "xdg" / "nvct")
    if os.geteuid() == 0 and os.path.lexists("/run/nvct/launcher.conf"):
        pytest.skip("this host's own /run/nvct would answer")
    assert goes(lab) == ("python" if os.geteuid() == 0 else "bin/runc")
