# SPDX-License-Identifier: Apache-2.0
"""nvidia-ctk config: files are kept, and written in one step."""

from pathlib import Path

from click.testing import Result

from nvct.config import toml
from nvct.config.editing import DEFAULT_TEXT
from nvct.errors import NvctError
from tests.support.commands import invoke


def _run(*args: str, env: dict[str, str] | None = None) -> Result:
    return invoke("nvidia-ctk", ["config", *args], env=env or {})


def test_a_file_that_has_every_key_is_printed_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    text = "# mine\n" + DEFAULT_TEXT.replace(
        "disable-require = false", "disable-require = true  # so"
    )
    file.write_text(text, encoding="utf-8")

    assert _run("-c", str(file)).stdout == text


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "config.toml"
    file.write_text(text, encoding="utf-8")
    return file


SPARSE = """\
# mine
swarm-resource = "A,B"
other = 1
[nvidia-container-cli]
no-cgroups = true
environment = ["A=B"]
"what.ever" = { x = 1 }
[features]
ignore-imex-channel-requests = true
[nvct.policy]
default = "deny"
[[nvct.policy.rules]]
devices = ["nvidia.com/gpu=0"]
then = "allow"
"""


def test_a_sparse_file_is_printed_with_all_keys(tmp_path: Path) -> None:
    file, output = tmp_path / "config.toml", tmp_path / "output.toml"
    file.write_text(SPARSE, encoding="utf-8")

    printed = _run("-c", str(file)).stdout
    assert _run("-c", str(file), "--set", "disable-require", "-o", str(output)).exit_code == 0

    sparse_values, whole = toml.loads(SPARSE), toml.loads(printed)
    expected = toml.loads(DEFAULT_TEXT)
    expected["nvidia-container-cli"] |= sparse_values["nvidia-container-cli"]
    expected["nvct"] |= sparse_values["nvct"]
    assert whole == {**sparse_values, **expected}
    assert "\nno-cgroups = true\n" in printed
    assert "#no-cgroups" not in printed
    assert toml.loads(output.read_text(encoding="utf-8")) == {
        **whole,
        "disable-require": True,
    }


def test_a_change_in_place_leaves_a_sparse_file_sparse(tmp_path: Path) -> None:
    file = written(tmp_path, SPARSE)
    changes = ("-c", str(file), "--set", "nvidia-container-cli.no-cgroups=false", "-i")

    assert _run(*changes).exit_code == 0

    after = SPARSE.replace("no-cgroups = true", "no-cgroups = false")
    assert file.read_text(encoding="utf-8") == after


def test_in_place_keeps_mode_and_comments_and_writes_nothing_twice(tmp_path: Path) -> None:
    file = written(tmp_path, "# mine\ndisable-require = true\n")
    file.chmod(0o640)
    arguments = ("-config-file", str(file), "-set=disable-require=false", "-in-place=true")
    assert _run(*arguments).exit_code == 0
    assert file.read_text(encoding="utf-8") == "# mine\ndisable-require = false\n"
    assert file.stat().st_mode & 0o777 == 0o640
    inode = file.stat().st_ino
    assert _run(*arguments).exit_code == 0
    assert file.stat().st_ino == inode


def test_in_place_an_admins_link_stays(tmp_path: Path) -> None:
    real, link = tmp_path / "real.toml", tmp_path / "config.toml"
    real.write_text("disable-require = true\n", encoding="utf-8")
    link.symlink_to("real.toml")
    assert _run(f"-config-file={link}", "-set=disable-require=false", "-in-place").exit_code == 0
    assert link.is_symlink()
    assert real.read_text(encoding="utf-8") == "disable-require = false\n"


def test_a_broken_file_is_left_as_it_is(tmp_path: Path) -> None:
    file = written(tmp_path, "a = = 1\n")
    result = _run("-c", str(file), "--set", "disable-require", "--in-place")
    assert "not TOML" in str(result.exception)
    assert file.read_text(encoding="utf-8") == "a = = 1\n"
    both = _run("--in-place", "--output", "x")
    assert isinstance(both.exception, NvctError)
    assert "exclude each other" in str(both.exception)


def test_show_says_where_values_are_from(tmp_path: Path) -> None:
    file = written(tmp_path, 'swarm-resource = "A,B"\n[nvidia-ctk]\npath = "/x"\n')
    env = {"NVIDIA_CTK_CONFIG_FILE_PATH": str(file)}
    rows = _run("show", "--origin", env=env).stdout.splitlines()
    assert rows[0] == f"# {file}, which NVIDIA_CTK_CONFIG_FILE_PATH names"
    origins = {row.split(" = ")[0]: row.split("  # ")[1] for row in rows[1:]}
    assert origins["nvidia-ctk.path"] == f"{file}:3"
    assert origins["disable-require"] == "default"
    assert any(row.startswith('swarm-resource = "A,B" ') for row in rows)


def test_show_warns_of_keys_without_effect_and_of_unknown_ones(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    text = "[nvidia-container-cli]\nno-pivot = true\nload-kmod = true\n[other]\nx = 1\n"
    file.write_text(text, encoding="utf-8")

    result = _run("-c", str(file), "show")

    assert result.exit_code == 0
    assert result.stderr.splitlines()[0].startswith(
        "warning: nvidia-container-cli.no-pivot has no effect: "
    )
    assert result.stderr.splitlines()[1:] == [
        (
            "warning: nvidia-container-cli.load-kmod has no effect: no such key exists; "
            "did you mean nvidia-container-cli.load-kmods?"
        ),
        "warning: other.x has no effect: no such key exists",
    ]


def test_setting_a_key_without_effect_gives_a_warning(tmp_path: Path) -> None:
    file = written(tmp_path, "[nvidia-container-cli]\nno-pivot = true\n")

    result = _run("-c", str(file), "--set", "nvidia-container-cli.debug=/var/log/x")

    assert result.exit_code == 0
    (warning,) = result.stderr.splitlines()
    assert warning.startswith("warning: nvidia-container-cli.debug has no effect: ")
    assert _run("-c", str(file), "--set", "disable-require").stderr == ""


def test_a_byte_order_mark_is_read_over_and_not_written(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(b"\xef\xbb\xbf# mine\ndisable-require = true\n")

    assert "disable-require = true" in _run("-c", str(file)).stdout
    shown = _run("-c", str(file), "show", "--origin")
    assert shown.exit_code == 0, shown.exception
    changed = _run("-c", str(file), "--in-place", "--set", "swarm-resource=A")

    assert changed.exit_code == 0, changed.exception
    assert file.read_bytes().startswith(b"# mine\ndisable-require = true\n")
