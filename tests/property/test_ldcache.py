# SPDX-License-Identifier: Apache-2.0
"""Properties of ld.so.cache: merges keep the order and are idempotent; malformed files are refused."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nvct.errors import LdCacheError
from nvct.linux import ldcache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.linux.ldcache import Entry

NAME = st.text(alphabet="lib0129.-_~zAé", min_size=1, max_size=12)
ENTRIES = st.lists(st.tuples(NAME, st.sampled_from(["/a", "/b/c", "/ü"])), max_size=20).map(
    lambda pairs: [(name, f"{folder}/{name}") for name, folder in pairs]
)
MACHINE = st.sampled_from(["x86_64", "aarch64"])


def compare(left: bytes, right: bytes) -> int:
    """Compare as _dl_cache_libcmp is described, written the other way round."""
    i = j = 0
    while i < len(left):
        if left[i : i + 1].isdigit():
            if not right[j : j + 1].isdigit():
                return 1
            start, other = i, j
            while left[i : i + 1].isdigit():
                i += 1
            while right[j : j + 1].isdigit():
                j += 1
            difference = int(left[start:i]) - int(right[other:j])
            if difference:
                return difference
        elif right[j : j + 1].isdigit():
            return -1
        elif left[i : i + 1] != right[j : j + 1]:
            return _char(left, i) - _char(right, j)
        else:
            i, j = i + 1, j + 1
    return -_char(right, j)


def _char(text: bytes, index: int) -> int:
    return int.from_bytes(text[index : index + 1] or b"\0", "little", signed=True)


def names(entries: list[Entry]) -> list[bytes]:
    return [entry[0].encode() for entry in entries]


@given(NAME, NAME)
def test_order_keys_compare_as_the_dynamic_linker_does(left: str, right: str) -> None:
    a, b = ldcache.order_key(left.encode()), ldcache.order_key(right.encode())
    expected = compare(left.encode(), right.encode())

    assert (a > b) - (a < b) == (expected > 0) - (expected < 0)


@given(ENTRIES, ENTRIES, MACHINE)
def test_a_merge_has_each_entry_once_in_order_and_is_idempotent(
    old: list[tuple[str, str]], new: list[tuple[str, str]], machine: str
) -> None:
    base = ldcache.merge(None, old, machine=machine)
    merged = ldcache.merge(base, new, machine=machine)
    entries = ldcache.parse(merged).entries

    keys = [ldcache.order_key(n, signed=machine != "aarch64") for n in names(entries)]
    assert keys == sorted(keys, reverse=True)
    assert sorted(e[:2] for e in entries) == sorted(set(old) | set(new))
    assert ldcache.merge(merged, new, machine=machine) == merged


@given(ENTRIES, ENTRIES)
def test_the_first_added_library_is_found_first(
    old: list[tuple[str, str]], new: list[tuple[str, str]]
) -> None:
    base = ldcache.merge(None, old, machine="x86_64")
    cache = ldcache.parse(ldcache.merge(base, new, machine="x86_64"))

    for name, _ in new:
        assert cache.find(name)[0] == next(path for n, path in new if n == name)


@given(st.binary(max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    for prefix in (b"", ldcache.MAGIC, ldcache.OLD_MAGIC):
        try:
            cache = ldcache.parse(prefix + data)
            ldcache.merge(prefix + data, [("liba.so", "/liba.so")], machine="x86_64")
        except LdCacheError:
            continue
        assert len(cache.entries) * ldcache.ENTRY <= len(data)


@given(ENTRIES, st.data())
def test_a_flipped_byte_is_refused_or_harmless(
    entries: list[tuple[str, str]], data: st.DataObject
) -> None:
    cache = bytearray(ldcache.merge(None, entries, machine="x86_64"))
    position = data.draw(st.integers(0, len(cache) - 1))
    cache[position] = data.draw(st.integers(0, 255))
    try:
        merged = ldcache.merge(bytes(cache), [("liba.so", "/liba.so")], machine="x86_64")
    except LdCacheError:
        return

    assert "/liba.so" in ldcache.parse(merged).find("liba.so")
