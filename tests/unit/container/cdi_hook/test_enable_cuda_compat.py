# SPDX-License-Identifier: Apache-2.0
"""The conditions for the image's newer libcuda, and its position in the cache."""

import pytest

from nvct.container.rootfs.compat import Note, is_wanted, parse_note
from nvct.errors import DocumentError
from nvct.linux import ldcache
from nvct_sim.elf_writer import shared_object
from tests.support.containers import Container
from tests.support.cuda_note import NOTE_SECTION, note, raw_note

REAL = "/usr/local/cuda-13.0/compat"
DROPIN = "/etc/ld.so.conf.d/00-nvct.conf"
CACHE = "/etc/ld.so.cache"


@pytest.fixture
def cuda(container: Container) -> Container:
    """An image with glibc and compatibility libraries of driver 580.82.07, without a note."""
    container.file("/lib64/ld-linux-x86-64.so.2")
    container.library(f"{REAL}/libcuda.so.580.82.07", "libcuda.so.1")
    container.link(f"{REAL}/libcuda.so.1", "libcuda.so.580.82.07")
    container.link("/usr/local/cuda", "/usr/local/cuda-13.0")
    return container


def add_note(container: Container, data: bytes) -> None:
    library = shared_object(soname="libcuda.so.1", sections={NOTE_SECTION: data})
    container.file(f"{REAL}/libcuda.so.580.82.07", library)


V550, V580, V580_90, V590 = (550, 1, 0), (580, 82, 7), (580, 90, 0), (590, 1, 0)
NOTE = Note((13, 0, 0), frozenset({550, 580}))
ORIN, EMPTY = Note((13, 2, 0), frozenset()), Note(None, frozenset())


@pytest.mark.parametrize(
    ("driver", "cuda_version", "compat", "note", "is_used"),
    [
        pytest.param(V550, None, V580, None, True, id="older major"),
        pytest.param(V580, None, V580, None, False, id="same major"),
        pytest.param(V590, None, V580, None, False, id="newer major"),
        pytest.param(V550, (12, 4, 0), V580, None, False, id="no note but a CUDA version"),
        pytest.param(None, (12, 4, 0), V580, None, False, id="no note, no driver"),
        pytest.param(V550, None, None, None, False, id="unreadable file name"),
        pytest.param(V550, None, V580, NOTE, True, id="note names the driver"),
        pytest.param(V590, None, V580, NOTE, False, id="note does not name the driver"),
        pytest.param(V580, None, V580_90, NOTE, True, id="newer minor of a named driver"),
        pytest.param(V580, None, V580, NOTE, False, id="same version"),
        pytest.param(None, (12, 9, 0), V580, NOTE, True, id="note with newer CUDA"),
        pytest.param(None, (13, 0, 0), V580, NOTE, False, id="note with the same CUDA"),
        pytest.param(None, None, V580, NOTE, False, id="nothing known of the host"),
        pytest.param(V550, None, V580, EMPTY, False, id="note names nothing"),
        pytest.param(None, (12, 9, 0), V580, EMPTY, False, id="note names no CUDA version"),
        pytest.param(None, (12, 9, 0), (1, 1, 0), ORIN, True, id="Tegra: note without drivers"),
        pytest.param(V550, None, V580, ORIN, False, id="driver: note without drivers"),
    ],
)
def test_compatibility_libraries_are_used_where_they_fit(
    driver: tuple[int, ...] | None,
    cuda_version: tuple[int, ...] | None,
    compat: tuple[int, ...] | None,
    note: Note | None,
    is_used: bool,
) -> None:
    assert is_wanted(driver, cuda_version, compat, note) is is_used


LONG_S = '{"CUDA ver\N{LATIN SMALL LETTER LONG S}ion":"13.1"}'
"""Go's encoding/json takes the long s for an s, as bytes.EqualFold does."""


@pytest.mark.parametrize(
    ("text", "cuda_version", "drivers"),
    [
        pytest.param('{"format":1,"CUDA version":"12.9","driver":[535,575],"device":[1]}',
                     (12, 9, 0), {535, 575}, id="as NVIDIA ships it"),
        pytest.param('{"Format":1,"CUDA Version":"12.9","Driver":[535],"Device":[]}',
                     (12, 9, 0), {535}, id="as the incumbent's struct says"),
        pytest.param('{"cuda version":"13.1","DRIVER":[535]}', (13, 1, 0), {535}, id="any case"),
        pytest.param(LONG_S, (13, 1, 0), set(), id="Go's folding"),
        pytest.param('{"format":1,"CUDA version":"13.2"}', (13, 2, 0), set(), id="Orin 13.2.1"),
        pytest.param('{"CUDA version":"13","driver":null}', (13, 0, 0), set(), id="null"),
        pytest.param('{"driver":[1],"Driver":[2]}', None, {2}, id="the last one counts"),
        pytest.param('{"CUDA version":"new","driver":[535]}', None, {535}, id="no version"),
        pytest.param("{}", None, set(), id="nothing"),
    ],
)  # fmt: skip
def test_notes_are_read_as_go_reads_them(
    text: str, cuda_version: tuple[int, ...] | None, drivers: set[int]
) -> None:
    note = parse_note(text.encode() + b"\0")

    assert (note.cuda, set(note.drivers)) == (cuda_version, drivers)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"driver":["535"]}', b'{"CUDA version":1}'])
def test_a_note_of_another_form_is_an_error(data: bytes) -> None:
    with pytest.raises(DocumentError):
        parse_note(data)


def test_the_next_update_puts_its_libraries_first_until_the_host_is_upgraded(
    cuda: Container,
) -> None:
    cuda.library("/drv/libcuda.so.1", "libcuda.so.1")

    for _ in range(2):
        cuda.hook("enable-cuda-compat", "--host-driver-version=550.1.1")
        cuda.hook("update-ldcache", "--folder", "/drv")

    cache = ldcache.parse((cuda.root / CACHE[1:]).read_bytes())
    assert cache.find("libcuda.so.1") == [f"{REAL}/libcuda.so.1", "/drv/libcuda.so.1"]
    assert cuda.read(DROPIN) == f"# CUDA forward compatibility\n{REAL}\n# driver\n/drv\n"
    assert cuda.hook("enable-cuda-compat", "--host-driver-version=590.1.1") == 0
    cache = ldcache.parse((cuda.root / CACHE[1:]).read_bytes())
    assert cache.find("libcuda.so.1") == ["/drv/libcuda.so.1"]
    assert cuda.read(DROPIN) == "# driver\n/drv\n"


@pytest.mark.parametrize(("host", "is_used"), [("13.1", True), ("13.2", False), ("13.3", False)])
@pytest.mark.parametrize("short", [0, 2])
def test_a_tegra_is_compared_by_its_cuda_version_only(
    cuda: Container, host: str, short: int, *, is_used: bool
) -> None:
    """Orin's compatibility libraries are libcuda.so.1.1; their note is cut short by two bytes."""
    text = '{"format":1,"CUDA version":"13.2"}'
    data = raw_note(text + "\0" * short, short=short)
    (cuda.root / f"{REAL[1:]}/libcuda.so.580.82.07").unlink()
    library = shared_object(soname="libcuda.so.1", sections={NOTE_SECTION: data})
    cuda.file(f"{REAL}/libcuda.so.1.1", library)

    assert cuda.hook("enable-cuda-compat", f"--host-cuda-version={host}") == 0

    assert (cuda.root / DROPIN[1:]).exists() is is_used


@pytest.mark.parametrize("data", [b"x" * 40, note("13.0", "all"), raw_note('{"format":')])
def test_a_damaged_note_counts_as_none_with_a_warning(
    cuda: Container, data: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    add_note(cuda, data)

    assert cuda.hook("enable-cuda-compat", "--host-driver-version=550.1.1") == 0

    assert REAL in cuda.read(DROPIN)
    assert f"warning: {REAL}/libcuda.so.580.82.07 in the container: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param([], id="no host version"),
        pytest.param(["--host-driver-version=590.1.1"], id="newer host"),
        pytest.param(["--host-cuda-version=12.4"], id="CUDA version without a note"),
        pytest.param(
            ["--host-driver-version=550.1.1", "--cuda-compat-container-root=/none"],
            id="no such folder",
        ),
    ],
)
def test_libraries_that_do_not_fit_change_nothing(cuda: Container, arguments: list[str]) -> None:
    before = cuda.tree()

    assert cuda.hook("enable-cuda-compat", *arguments) == 0
    assert cuda.tree() == before


def test_two_candidates_are_a_warning(cuda: Container, capsys: pytest.CaptureFixture[str]) -> None:
    cuda.library(f"{REAL}/libcuda.so.575.1", "libcuda.so.1")

    assert cuda.hook("enable-cuda-compat", "--host-driver-version=550.1.1") == 0

    assert not (cuda.root / DROPIN[1:]).exists()
    assert "has 2 files libcuda.so.VERSION" in capsys.readouterr().err


def test_a_folder_outside_the_container_is_never_used(cuda: Container) -> None:
    outside = cuda.bundle / "compat"
    outside.mkdir()
    (outside / "libcuda.so.580.1").write_bytes(b"")
    cuda.link("/opt/c", "../../../../compat")
    before = cuda.tree()
    arguments = ["--host-driver-version=550.1.1", "--cuda-compat-container-root=/opt/c"]

    assert cuda.hook("enable-cuda-compat", *arguments) == 0
    assert cuda.tree() == before


def test_a_folder_whose_name_contains_a_line_break_is_refused(
    container: Container, capfd: pytest.CaptureFixture[str]
) -> None:
    """ld.so.conf ends a path at a blank or a line break; the image chooses the name."""
    container.library("/opt/a\n/evil/libcuda.so.590.1.1", "libcuda.so.1")
    container.link("/compat", "/opt/a\n/evil")

    status = container.hook(
        "enable-cuda-compat", "--host-driver-version=580.1.1",
        "--cuda-compat-container-root=/compat",
    )  # fmt: skip

    assert status == 1
    assert "unsafe-path" in capfd.readouterr().err
    assert not (container.root / "etc/ld.so.conf.d").exists()


def test_a_damaged_cache_is_unchanged_when_compatibility_ends(
    cuda: Container, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cuda.hook("enable-cuda-compat", "--host-driver-version=550.1.1") == 0
    cuda.file(CACHE, b"no cache")

    assert cuda.hook("enable-cuda-compat", "--host-driver-version=590.1.1") == 0

    assert (cuda.root / CACHE[1:]).read_bytes() == b"no cache"
    assert "left as it is" in capfd.readouterr().err
