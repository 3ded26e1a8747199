# SPDX-License-Identifier: Apache-2.0
import posix

import pytest

from nvct.container.rootfs import linker
from nvct.linux import ldcache
from nvct.linux.constants import MS_BIND
from nvct.linux.kernel import KERNEL
from tests.support.containers import Container
from tests.support.forked import in_mount_namespace

CACHE = "/etc/ld.so.cache"
DROPIN = "/etc/ld.so.conf.d/00-nvct.conf"
LOADER = "/lib64/ld-linux-x86-64.so.2"


@pytest.fixture
def glibc(container: Container) -> Container:
    """An image with a merged /usr and /lib in its cache, as Debian's."""
    container.library("/usr/lib/x86_64-linux-gnu/libc.so.6", "libc.so.6")
    container.link("/lib", "usr/lib")
    container.file(LOADER)
    container.file("/etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n")
    entries = [("libc.so.6", "/lib/x86_64-linux-gnu/libc.so.6")]
    container.file(CACHE, ldcache.merge(None, entries, machine="x86_64")).chmod(0o640)
    return container


def entries_of(container: Container) -> list[tuple[str, str]]:
    data = (container.root / CACHE[1:]).read_bytes()
    return [(e[0], e[1]) for e in ldcache.parse(data).entries]


def test_libraries_of_a_folder_go_into_the_cache_and_the_folder_into_a_drop_in(
    glibc: Container,
) -> None:
    glibc.library("/drv/libcuda.so.1", "libcuda.so.1")

    assert glibc.hook("update-ldcache", "--folder", "/drv/") == 0

    assert entries_of(glibc) == [
        ("libcuda.so.1", "/drv/libcuda.so.1"),
        ("libc.so.6", "/lib/x86_64-linux-gnu/libc.so.6"),
    ]
    assert glibc.read(DROPIN) == "# driver\n/drv\n"
    assert (glibc.root / CACHE[1:]).stat().st_mode & 0o777 == 0o640


def test_running_twice_changes_nothing(glibc: Container) -> None:
    glibc.library("/drv/libcuda.so.1", "libcuda.so.1")
    glibc.hook("update-ldcache", "--folder", "/drv")
    before = glibc.tree()
    inodes = [(glibc.root / p[1:]).stat().st_ino for p in (CACHE, DROPIN)]

    assert glibc.hook("update-ldcache", "--folder", "/drv") == 0

    assert glibc.tree() == before
    assert inodes == [(glibc.root / p[1:]).stat().st_ino for p in (CACHE, DROPIN)]


def test_the_images_own_folder_is_named_as_its_cache_does_and_needs_no_drop_in(
    glibc: Container,
) -> None:
    glibc.library("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "libcuda.so.1")

    assert glibc.hook("update-ldcache", "--folder", "/usr/lib/x86_64-linux-gnu") == 0

    assert ("libcuda.so.1", "/lib/x86_64-linux-gnu/libcuda.so.1") in entries_of(glibc)
    assert len(entries_of(glibc)) == 2
    assert not (glibc.root / DROPIN[1:]).exists()


def test_a_folder_that_the_images_ldconfig_knows_needs_no_drop_in(glibc: Container) -> None:
    glibc.library("/opt/known/libcuda.so.1", "libcuda.so.1")
    old = (glibc.root / CACHE[1:]).read_bytes()
    earlier_entries = [("libold.so", "/opt/known/libold.so")]
    glibc.file(CACHE, ldcache.merge(old, earlier_entries, machine="x86_64"))

    for _ in range(2):
        assert glibc.hook("update-ldcache", "--folder", "/opt/known") == 0
        assert not (glibc.root / DROPIN[1:]).exists()


def test_a_folder_of_an_earlier_start_is_forgotten(glibc: Container) -> None:
    before = glibc.tree()
    glibc.library("/old/libcuda.so.1", "libcuda.so.1")
    glibc.hook("update-ldcache", "--folder", "/old")
    assert len(entries_of(glibc)) == 2

    assert glibc.hook("update-ldcache", "--folder", "/gone") == 0

    assert len(entries_of(glibc)) == 1
    assert not (glibc.root / DROPIN[1:]).exists()
    assert set(glibc.tree()) - set(before) == {"old", "old/libcuda.so.1", "etc/ld.so.conf.d"}


def test_an_image_without_cache_gets_a_new_one(container: Container) -> None:
    container.file(LOADER)
    container.library("/drv/libcuda.so.1", "libcuda.so.1")

    assert container.hook("update-ldcache", "--folder", "/drv") == 0

    assert entries_of(container) == [("libcuda.so.1", "/drv/libcuda.so.1")]
    assert container.read("/etc/ld.so.conf") == "include /etc/ld.so.conf.d/*.conf\n"
    assert (container.root / CACHE[1:]).stat().st_mode & 0o777 == 0o644


def test_libraries_of_32_bits_are_for_the_linker_of_32_bits(glibc: Container) -> None:
    glibc.library("/drv/libcuda.so.1", "libcuda.so.1")
    glibc.library("/drv32/libcuda.so.1", "libcuda.so.1", "i386")

    glibc.hook("update-ldcache", "--folder", "/drv", "--folder", "/drv32")

    data = (glibc.root / CACHE[1:]).read_bytes()
    assert {(e[1], e[2]) for e in ldcache.parse(data).entries[:2]} == {
        ("/drv/libcuda.so.1", 0x303), ("/drv32/libcuda.so.1", 3),
    }  # fmt: skip


def test_a_cache_of_unknown_format_stays_with_a_warning(
    glibc: Container, capsys: pytest.CaptureFixture[str]
) -> None:
    glibc.file(CACHE, "glibc-ld.so.cache9.9")
    glibc.library("/drv/libcuda.so.1", "libcuda.so.1")

    assert glibc.hook("update-ldcache", "--folder", "/drv") == 0

    assert glibc.read(CACHE) == "glibc-ld.so.cache9.9"
    assert glibc.read(DROPIN) == "# driver\n/drv\n"
    assert capsys.readouterr().err == (
        "nvidia-cdi-hook: warning: ld.so.cache has an unknown format, want glibc-ld.so.cache1.1; "
        "the cache is left as it is, run ldconfig in the container\n"
    )


@pytest.mark.parametrize("path", ["liba.so", "etc/nothing"])
def test_an_image_without_a_dynamic_linker_is_unchanged(container: Container, path: str) -> None:
    container.library("/drv/libcuda.so.1", "libcuda.so.1")
    container.file(path)
    before = container.tree()

    assert container.hook("update-ldcache", "--folder", "/drv") == 0
    assert container.tree() == before


@pytest.mark.parametrize(
    ("own", "after"),
    [(None, "/lib\n/usr/local/lib\n/usr/lib\n/drv\n/x\n"),
     ("/opt/lib:/lib\n/x\n", "/opt/lib\n/lib\n/x\n/drv\n")],
    ids=["none", "its own is kept"],
)  # fmt: skip
def test_musl_gets_its_path_file(container: Container, own: str | None, after: str) -> None:
    machine = posix.uname().machine
    path = f"/etc/ld-musl-{machine}.path"
    container.file(f"/lib/ld-musl-{machine}.so.1")
    for folder in ("drv", "x"):
        container.library(f"/{folder}/lib{folder}.so.1", f"lib{folder}.so.1")
    if own is not None:
        container.file(path, own)

    for _ in range(2):
        assert container.hook("update-ldcache", "--folder", "/drv", "--folder", "/x") == 0

    assert container.read(path) == after
    assert not (container.root / CACHE[1:]).exists()


@pytest.mark.parametrize("folder", [CACHE, DROPIN, "/etc"])
def test_hostile_links_do_not_lead_out(glibc: Container, folder: str) -> None:
    outside = glibc.bundle / "outside"
    outside.mkdir()
    (outside / "ld.so.cache").write_text("host")
    glibc.library("/drv/libcuda.so.1", "libcuda.so.1")
    target = glibc.root / folder[1:]
    if target.is_dir():
        target.rename(glibc.root / "etc.old")
    else:
        target.unlink(missing_ok=True)
    glibc.link(folder, str(outside) if folder == "/etc" else str(outside / "ld.so.cache"))

    glibc.hook("update-ldcache", "--folder", "/drv")

    assert [p.name for p in outside.iterdir()] == ["ld.so.cache"]
    assert (outside / "ld.so.cache").read_text() == "host"


@pytest.mark.parametrize(
    ("folder", "said"),
    [("/drv", "/etc/ld.so.cache in the container is not a regular file"),
     ("/a b", "folder '/a b' is not valid in /etc/ld.so.conf.d")],
    ids=["the cache is a folder", "a name that a linker would misread"],
)  # fmt: skip
def test_what_cannot_be_written_fails(
    glibc: Container, folder: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    glibc.library(f"{folder}/libcuda.so.1", "libcuda.so.1")
    if folder == "/drv":
        (glibc.root / CACHE[1:]).unlink()
        (glibc.root / CACHE[1:]).mkdir()

    assert glibc.hook("update-ldcache", "--folder", folder) == 1
    assert said in capsys.readouterr().err


def viewed(glibc: Container) -> None:
    """Write the files of the shim: entries and a drop-in of a view and of compatibility."""
    expected = [("libcuda.so.1", "/compat/libcuda.so.1"), ("libcuda.so.1", "/view/libcuda.so.1")]
    data = (glibc.root / CACHE[1:]).read_bytes()
    glibc.file(CACHE, ldcache.merge(data, expected, machine="x86_64"))
    glibc.file(DROPIN, linker.LinkerConf(["/compat"], [], ["/view"]).render())


def test_the_view_that_the_shim_has_mounted_stays(glibc: Container) -> None:
    viewed(glibc)
    glibc.library("/view/libcuda.so.1", "libcuda.so.1")
    glibc.library("/more/libmore.so.1", "libmore.so.1")

    def mounted() -> None:
        KERNEL.mount(f"{glibc.root}/view", f"{glibc.root}/view", None, MS_BIND)
        assert glibc.hook("update-ldcache", "--folder", "/more") == 0
        assert glibc.hook("apply", "--folder", "/more") == 0

    in_mount_namespace(mounted)
    names = [path for name, path in entries_of(glibc) if name == "libcuda.so.1"]
    assert names == ["/compat/libcuda.so.1", "/view/libcuda.so.1"]
    assert ("libmore.so.1", "/more/libmore.so.1") in entries_of(glibc)
    text = glibc.read(DROPIN)
    assert (
        text
        == "# CUDA forward compatibility\n/compat\n# view of the driver\n/view\n# driver\n/more\n"
    )


@pytest.mark.parametrize("left", [False, True])
def test_a_view_of_an_earlier_start_that_is_not_mounted_is_removed(
    glibc: Container, *, left: bool
) -> None:
    """Also if links of that start led mount points of the driver's files there."""
    viewed(glibc)
    if left:
        glibc.file("/view/libcuda.so.580.1", "")
    glibc.library("/more/libmore.so.1", "libmore.so.1")

    assert glibc.hook("apply", "--folder", "/more") == 0

    assert "libcuda.so.1" not in [name for name, _ in entries_of(glibc)]
    assert glibc.read(DROPIN) == "# driver\n/more\n"


def test_links_that_take_too_many_steps_are_refused(
    container: Container, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nine hundred libraries, each a link to a chain of links through deep folders."""
    container.file("/lib64/ld-linux-x86-64.so.2")
    deep = "/d" * 30
    container.library(f"{deep}/l12/libx.so", "libx.so")
    for number in range(12):
        container.link(f"{deep}/l{number}", f"{deep}/l{number + 1}")
    for number in range(900):
        container.link(f"/drv/libz{number}.so", f"{deep}/l0/libx.so")
    before = container.tree()

    assert container.hook("update-ldcache", "--folder", "/drv") == 1

    message = capfd.readouterr().err
    assert "the paths in the container take too many steps to follow" in message
    assert container.tree() == before
