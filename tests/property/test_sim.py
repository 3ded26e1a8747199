# SPDX-License-Identifier: Apache-2.0
"""Properties of the simulated node."""

from hypothesis import given
from hypothesis import strategies as st

from nvct.errors import UsageError
from nvct_sim import kernelfs, mig, profile, state, tree

VALUE = st.text(st.characters(codec="utf-8", exclude_characters="\t\n\0"), max_size=20)
WORD = VALUE.filter(lambda text: text != "" and "=" not in text)
RECORDS = st.lists(st.tuples(WORD, st.dictionaries(WORD, VALUE, max_size=4)), max_size=8)


@given(generation=st.integers(1, 2**40), records=RECORDS)
def test_what_is_written_is_read(
    generation: int, records: list[tuple[str, dict[str, str]]]
) -> None:
    written = state.State(generation, "1.2", "13000", "/a b/c")
    written.records = [state.Record(kind, fields) for kind, fields in records]

    assert state.parse(state.render(written)) == written


@given(st.integers(0, 31), st.integers(0, 14), st.one_of(st.none(), st.integers(0, 7)))
def test_the_minor_of_a_capability_is_the_one_that_mig_minors_lists(
    gpu: int, gi: int, ci: int | None
) -> None:
    name = f"gpu{gpu}/gi{gi}" + ("" if ci is None else f"/ci{ci}")

    listed = dict(line.split() for line in kernelfs.mig_minors().splitlines())

    assert int(listed[f"{name}/access"]) == kernelfs.capability_minor(gpu, gi, ci)


@given(st.sets(st.integers(1, 511)))
def test_no_major_of_the_host_is_used(used_majors: set[int]) -> None:
    free = {major for major in kernelfs.DYNAMIC_MAJORS if major not in used_majors}
    if len(free) < len(kernelfs.MAJORS):
        return

    chosen = kernelfs.choose_majors(dict.fromkeys(used_majors, "real"))

    assert not set(chosen.values()) & used_majors
    assert len(set(chosen.values())) == len(set(kernelfs.MAJORS.values()))


@given(st.lists(st.one_of(st.sampled_from(["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb", "1g.10gb+me"]), st.integers(0, 14)), max_size=25))  # fmt: skip
def test_mig_instances_never_overlap_and_never_share_an_id(steps: list[str | int]) -> None:
    now = tree.first_state("p", profile.load("a100-80"), "580.1", tree.ROOT_BASE)
    now.gpu(0).fields["mig"] = "1"
    for step in steps:
        try:
            if isinstance(step, str):
                mig.add_instance(now, 0, step)
            else:
                mig.remove_instance(now, 0, step)
        except UsageError:
            continue

    instances = now.find("gi", gpu=0)
    slices = [
        n
        for gi in instances
        for n in range(int(gi.fields["start"]), int(gi.fields["start"]) + int(gi.fields["size"]))
    ]
    ids = [gi.fields["id"] for gi in instances]
    minors = [cap.fields["minor"] for cap in now.find("cap", gpu=0)]
    assert len(slices) == len(set(slices))
    assert len(ids) == len(set(ids)) == len(now.find("ci", gpu=0))
    assert len(minors) == len(set(minors)) == 2 * len(ids)
