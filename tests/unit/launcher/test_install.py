# SPDX-License-Identifier: Apache-2.0
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nvct.errors import HostError, NvctError, UsageError
from nvct.launcher import archive
from nvct.launcher import install as launch
from tests.support.launcher import script
from tests.support.processes import captured

PYTHON = os.path.realpath(getattr(sys, "_base_executable", sys.executable))


@pytest.fixture
def built(tmp_path: Path) -> launch.Built:
    default = launch.default_built()
    archive = str(tmp_path / "hot.bin")
    return launch.Built(
        python=default.python, packages=default.packages, cold=default.cold, archive=archive
    )


def test_a_script_is_written_for_each_runtime_and_for_no_hook(
    tmp_path: Path, built: launch.Built
) -> None:
    (tmp_path / "bin").mkdir()

    form, written = launch.install(tmp_path / "bin", "sh", built)

    assert form == "sh"
    assert sorted(os.listdir(tmp_path / "bin")) == sorted(launch.RUNTIMES)
    assert [path.name for path in written] == [*launch.RUNTIMES, "hot.bin"]
    for name in launch.RUNTIMES:
        path = tmp_path / "bin" / name
        assert path.stat().st_mode & 0o777 == 0o755
        text = path.read_text()
        assert "@" not in text.replace('"$@"', "")
        assert built.python in text


def test_without_a_compiler_a_script_is_the_automatic_form_and_form_c_an_error(
    tmp_path: Path, built: launch.Built
) -> None:
    with pytest.raises(HostError, match="no C compiler") as caught:
        launch.install(tmp_path, "c", built, cc="nvct-no-such-compiler", archive=False)

    assert "--form sh" in caught.value.hint
    assert launch.PROGRAMS[0] not in os.listdir(tmp_path)
    form, _ = launch.install(tmp_path, "auto", built, cc="nvct-no-such-compiler", archive=False)
    assert form == "sh"


def test_the_error_of_the_compiler_is_the_reason(tmp_path: Path, built: launch.Built) -> None:
    compiler = script(tmp_path / "cc", "echo note >&2; echo 'x.c:1: error: odd' >&2; exit 1\n")

    with pytest.raises(HostError, match=r"could not compile .*launcher.c: x.c:1: error: odd$"):
        launch.install(tmp_path, "c", built, cc=str(compiler), archive=False)


def test_a_compiler_without_a_static_c_library_makes_a_dynamic_program(
    tmp_path: Path, built: launch.Built
) -> None:
    compiler = script(
        tmp_path / "cc",
        """case "$*" in *-static*) exit 1 ;; esac
while [ "$1" != -o ]; do shift; done; echo made > "$2"
""",
    )

    form, written = launch.install(tmp_path, "auto", built, cc=str(compiler), archive=False)

    assert form == "c"
    assert written[0].read_text() == "made\n"
    assert [path.name for path in written] == list(launch.RUNTIMES)


def test_a_compiler_that_ignores_static_is_detected(tmp_path: Path, built: launch.Built) -> None:
    """As musl-gcc, which takes -static-pie for -pie."""
    compiler = script(
        tmp_path / "cc",
        """case " $* " in *" -static-pie "*) set -- "$@" -pie ;; esac
for word; do shift; [ "$word" = -static-pie ] || set -- "$@" "$word"; done
exec cc "$@"
""",
    )

    assert launch.is_static(launch.compile_launcher(built, str(compiler)))


@pytest.mark.parametrize(
    "path", ["relative", "", "/a'b", '/a"b', "/a\\b", "/a\nb", "/a$b", "/a`b", "/a|b", "/a&b"]
)
@pytest.mark.parametrize("which", ["python", "packages", "cold"])
def test_a_path_that_needs_quoting_is_refused(path: str, which: str, tmp_path: Path) -> None:
    paths = {"python": "/p", "packages": "/q", "cold": "/c", which: path}

    with pytest.raises(UsageError, match="cannot be built into a launcher"):
        launch.install(tmp_path, "sh", launch.Built(**paths))

    assert os.listdir(tmp_path) == []


def test_a_missing_folder_and_an_interpreter_that_cannot_archive_are_errors(
    tmp_path: Path, built: launch.Built
) -> None:
    with pytest.raises(HostError, match="no/nvidia-container-runtime cannot be written: No such"):
        launch.install(tmp_path / "no", "sh", built)
    broken = launch.Built(
        python="/bin/false", packages=built.packages, cold=built.cold, archive=built.archive
    )
    with pytest.raises(HostError, match="/bin/false could not archive the hot side"):
        launch.install(tmp_path, "sh", broken)


def test_installing_again_replaces_the_programs_in_one_step(
    tmp_path: Path, built: launch.Built
) -> None:
    (tmp_path / "bin").mkdir()
    launch.install(tmp_path / "bin", "sh", built, archive=False)
    program = tmp_path / "bin" / launch.PROGRAMS[0]
    with program.open() as running:
        launch.install(tmp_path / "bin", "sh", built, archive=False)

        assert os.fstat(running.fileno()).st_ino != program.stat().st_ino
    assert sorted(os.listdir(tmp_path / "bin")) == sorted(launch.RUNTIMES)


@pytest.mark.parametrize("name", launch.HOOKS)
def test_a_script_hook_of_an_older_nvct_is_removed_and_others_stay(
    tmp_path: Path, built: launch.Built, name: str
) -> None:
    others = f"from nvct.cli.main import {name.replace('-', '_')}\n"
    script(
        tmp_path / name,
        'exec python3 -c "from nvct.container.cdi_hook.launch import main;main()"\n',
    )
    script(tmp_path / "mine", "nvct.container.cdi_hook.launch\n")
    launch.install(tmp_path, "sh", built, archive=False)
    assert not (tmp_path / name).exists()
    assert (tmp_path / "mine").exists()

    (tmp_path / name).write_text(others)
    launch.install(tmp_path, "sh", built, archive=False)

    assert (tmp_path / name).read_text() == others


def test_without_a_compiler_nvct_hot_is_the_automatic_form(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    source = hot(tmp_path / "nvct-hot")
    built = launch.Built(python=PYTHON, packages="/q", cold="/c", hot=str(source))

    form, written = launch.install(tmp_path / "bin", "auto", built, cc="nvct-no-such-compiler")

    assert form == "static"
    assert [path.name for path in written] == list(launch.PROGRAMS)


@pytest.fixture(scope="module")
def linked() -> bytes:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    built = launch.Built(python="/p", packages="/q", cold="/c")
    return launch.compile_launcher(built, compiler, "-Werror")


def test_a_compiled_launcher_is_static_position_independent_and_read_only_after_start(
    linked: bytes, tmp_path: Path
) -> None:
    (tmp_path / "launcher").write_bytes(linked)
    arguments: list[str | Path] = [
        "readelf",
        "--file-header",
        "--program-headers",
        "--dynamic",
        tmp_path / "launcher",
    ]
    output = captured(arguments, check=True).stdout

    assert launch.is_static(linked)
    assert "INTERP" not in output
    assert "(NEEDED)" not in output
    assert re.search(r"Type: +DYN", output)
    assert "GNU_RELRO" in output
    assert re.search(r"FLAGS.*BIND_NOW", output)
    assert re.search(r"GNU_STACK.*\n.* RW ", output)


def test_launchers_are_compiled_with_a_stack_protector(tmp_path: Path) -> None:
    flags = [flag for flag in launch.FLAGS if not flag.startswith("-Wl") and flag != "-s"]
    defines = ['-DNVCT_PYTHON=""', '-DNVCT_BOOT=""', '-DNVCT_COLD=""']
    out = tmp_path / "launcher.o"
    arguments: list[str | Path] = ["cc", *flags, *defines, "-c", "-o", out, launch.SOURCE]
    subprocess.run(arguments, check=True)

    assert b"__stack_chk_fail" in out.read_bytes()


@pytest.mark.parametrize("flags", [["-static-pie", "-fPIE"], ["-pie", "-fPIE"]])
def test_a_static_program_has_no_loader(tmp_path: Path, flags: list[str]) -> None:
    (tmp_path / "x.c").write_text("int main(void) { return 0; }\n")
    subprocess.run(["cc", *flags, "-o", tmp_path / "x", tmp_path / "x.c"], check=True)
    data = (tmp_path / "x").read_bytes()

    assert launch.is_static(data) == flags[0].startswith("-static")
    assert not launch.is_static(data[:100])
    assert not launch.is_static(b"#!/bin/sh\n")


def hot(
    path: Path, room: int = launch.COLD_ROOM, marks: int = 1, *, digest: str | None = None
) -> Path:
    """Write a file that looks like nvct-hot."""
    digest = launch.hot_digest() if digest is None else digest
    cold_space = launch.COLD_MARK * marks + b"/old".ljust(room, b"\0")
    path.write_bytes(b"\x7fELF code " + cold_space + b"|" + digest.encode())
    return path


def test_the_static_executable_gets_the_cold_sides_path(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    source = hot(tmp_path / "nvct-hot")
    built = launch.Built(python="/p", packages="/q", cold="/a b/cold", hot=str(source))

    form, written = launch.install(tmp_path / "bin", "static", built)

    assert form == "static"
    assert [path.name for path in written] == list(launch.PROGRAMS)
    data = written[0].read_bytes()
    assert len(data) == source.stat().st_size
    assert data.startswith(b"\x7fELF code " + launch.COLD_MARK + b"/a b/cold\0\0")
    assert data.endswith(b"\0|" + launch.hot_digest().encode())
    assert written[0].stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    ("room", "marks"), [(10, 1), (launch.COLD_ROOM, 0), (launch.COLD_ROOM, 2)]
)
def test_other_files_are_refused_as_static_executables(
    tmp_path: Path, room: int, marks: int
) -> None:
    source = hot(tmp_path / "nvct-hot", room, marks)
    built = launch.Built(python="/p", packages="/q", cold="/c", hot=str(source))

    with pytest.raises(HostError, match=r"nvct-hot is not nvct-hot$"):
        launch.install(tmp_path, "static", built)

    assert os.listdir(tmp_path) == ["nvct-hot"]


@pytest.mark.parametrize("form", ["static", "c"])
@pytest.mark.parametrize("digest", ["0123456789abcdef", "old", ""])
def test_a_static_executable_of_other_sources_is_refused(
    tmp_path: Path, form: str, digest: str
) -> None:
    source = hot(tmp_path / "nvct-hot", digest=digest)
    built = launch.Built(python=PYTHON, packages="/q", cold="/c", hot=str(source))

    with pytest.raises(HostError, match="nvct-hot was built from other sources") as caught:
        launch.install(tmp_path, form, built)

    assert "make static" in caught.value.hint
    assert os.listdir(tmp_path) == ["nvct-hot"]


def test_launchers_for_another_root_ignore_this_machines_nvct_hot(tmp_path: Path) -> None:
    source = hot(tmp_path / "nvct-hot", digest="0123456789abcdef")
    built = launch.Built(python=PYTHON, packages="/q", cold="/c", hot=str(source))
    (tmp_path / "bin").mkdir()

    form, written = launch.install(tmp_path / "bin", "c", built, archive=False)

    assert (form, len(written)) == ("c", len(launch.PROGRAMS))


@pytest.mark.parametrize(
    ("form", "paths", "error", "message"),
    [
        ("c", {"hot": "{}/short"}, HostError, "short cannot be read: Invalid argument"),
        ("static", {"hot": "{}/none"}, HostError, "none cannot be read: No such file"),
        ("static", {"cold": "/" + "x" * launch.COLD_ROOM}, HostError,
         f"is longer than {launch.COLD_ROOM - 1} bytes"),
        ("c", {"hot": '/a"b'}, UsageError, "cannot be built into a launcher"),
    ],
    ids=["shorter than a digest", "not there", "no room for the cold path", "needs quoting"],
)  # fmt: skip
def test_a_static_executable_that_cannot_be_used_is_an_error(
    tmp_path: Path, form: str, paths: dict[str, str], error: type[NvctError], message: str
) -> None:
    hot(tmp_path / "nvct-hot")
    (tmp_path / "short").write_bytes(b"x")
    fields = {"python": "/p", "packages": "/q", "cold": "/c", "hot": "{}/nvct-hot"} | paths
    built = launch.Built(**{name: path.format(tmp_path) for name, path in fields.items()})

    with pytest.raises(error, match=message) as caught:
        launch.install(tmp_path, form, built)

    assert "none" not in message or "make static" in caught.value.hint


def test_each_text_and_each_name_of_the_hot_side_counts(tmp_path: Path) -> None:
    package = tmp_path / "nvct/container"
    for entry in archive.ENTRIES:
        (tmp_path / entry.replace(".", "/")).mkdir(parents=True)
    names = set()
    for name, text in (("a", "x = 1"), ("a", "x = 2"), ("b", "x = 2"), ("bb", "x = 2")):
        for old in package.glob("shim/*.py"):
            old.unlink()
        (package / f"shim/{name}.py").write_text(text)
        names.add(archive.digest(archive.discover(tmp_path)[0]))

    assert len(names) == 4
    assert {len(digest) for digest in names} == {launch.DIGEST_SIZE}


@pytest.mark.skipif(not shutil.which("musl-gcc"), reason="needs musl-gcc")
def test_a_launcher_of_musl_can_be_loaded_at_any_address(built: launch.Built) -> None:
    """As the bundle's programs; -static alone gives fixed addresses."""
    data = launch.compile_launcher(built, shutil.which("musl-gcc"))

    assert launch.is_static(data)
    assert int.from_bytes(data[16:18], "little") == 3  # ET_DYN, elf(5)
