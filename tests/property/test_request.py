# SPDX-License-Identifier: Apache-2.0
"""No value of a container makes its request larger than its words."""

from contextlib import suppress

from hypothesis import example, given
from hypothesis import strategies as st

from nvct.config.model import Config
from nvct.container.request.model import Request
from nvct.container.request.requirements import holds
from nvct.container.request.resolve import resolve_request
from nvct.container.request.visible_devices import BLANK, check_word, evaluate, split
from nvct.errors import RequestError, line
from nvct.oci.bundle import clean

UUID = "8a56d3b8-0f8c-4a6e-9e5f-0123456789ab"
KNOWN = st.sampled_from(
    ["0", "1", "0:1", "10", f"GPU-{UUID}", f"MIG-{UUID}", f"MIG-GPU-{UUID}/1/0", "0000:18:00.0"]
)
CDI = st.sampled_from(["nvidia.com/gpu=0", "nvidia.com/gpu=all", "v.org/net=eth0"])
SPECIAL = st.sampled_from(
    ["all", "none", "void", "", " ", "ALL", "0-3", "foo", "-1", "0x1", "\u0663"]
)
WORD = st.one_of(KNOWN, CDI, SPECIAL, st.text(max_size=12))
VALUE = st.one_of(st.text(max_size=60), st.lists(WORD, max_size=6).map(",".join))
MODE = st.sampled_from(["auto", "jit-cdi", "cdi", "csv", "legacy"])
CAPS = st.sampled_from([[], ["CAP_CHOWN"], ["CAP_SYS_ADMIN"]])
NAME = st.sampled_from(
    ["NVIDIA_VISIBLE_DEVICES", "SWARM", "CUDA_VERSION", "NVIDIA_REQUIRE_CUDA", "NVIDIA_IMEX_CHANNELS"]
)  # fmt: skip
ENV = st.lists(st.one_of(st.builds("{}={}".format, NAME, VALUE), st.text(max_size=8)), max_size=6)
ROOT = "/var/run/nvidia-container-devices"
MOUNTS = st.lists(
    st.fixed_dictionaries(
        {
            "source": st.sampled_from(["/dev/null", "/dev//null", "/dev/zero", 1]),
            "destination": st.one_of(
                WORD.map(lambda word: f"{ROOT}/{word}"),
                CDI.map(lambda word: f"{ROOT}/cdi/{word}"),
                st.text(max_size=20),
            ),
        }
    ),
    max_size=4,
)
ANNOTATIONS = st.dictionaries(st.sampled_from(["cdi.k8s.io/a", "cdi.k8s.io/b", "x"]), VALUE)


@st.composite
def configs(draw: st.DrawFn) -> Config:
    return Config(
        mode=draw(MODE),
        accept_volume_mounts=draw(st.booleans()),
        accept_envvar_when_unprivileged=draw(st.booleans()),
        swarm_resource=draw(st.sampled_from([[], ["SWARM"]])),
    )


def words_of(value: str) -> list[str]:
    return [word.strip(BLANK) for word in value.split(",")]


@given(VALUE)
def test_a_list_requests_only_words_in_it(value: str) -> None:
    written = words_of(value)
    try:
        ids = evaluate(split(value, "x"), "x")
    except RequestError:
        return

    assert ids is None or set(ids) <= set(written)
    assert ids is None or len(ids) == len(set(ids))
    if ids is None:
        assert "void" in written or not any(written)
    elif ids == []:
        assert "none" in written
    elif "all" in ids:
        assert ids == ["all"]


@given(st.lists(WORD, max_size=5), st.lists(WORD, max_size=5), st.text(max_size=12))
def test_a_word_that_names_no_device_fails_wherever_it_stands(
    before: list[str], after: list[str], malformed: str
) -> None:
    try:
        check_word(malformed, "x")
    except RequestError:
        pass
    else:
        return
    words = [word for word in (*before, malformed, *after) if word]
    if not malformed or "void" in words or malformed in {"all", "none"}:
        return

    try:
        evaluate(words, "x")
    except RequestError:
        return
    raise AssertionError(f"{malformed!r} was hidden by {words!r}")


@given(st.lists(st.one_of(KNOWN, CDI), min_size=1, max_size=6))
def test_names_keep_their_order_without_duplicates(words: list[str]) -> None:
    ids = evaluate(words, "x")

    assert ids is not None
    assert ids == sorted(set(words), key=words.index)


@given(ENV, MOUNTS, ANNOTATIONS, CAPS, configs())
@example(["CUDA_VERSION=10"], [], {}, [], Config())
def test_nothing_widens_a_request(
    env: list[str],
    mounts: list[dict[str, object]],
    annotations: dict[str, object],
    bounding: list[str],
    config: Config,
) -> None:
    try:
        request, _ = resolve_request(env, mounts, annotations, bounding, config)
    except RequestError:
        return
    if request is None:
        return
    variables = dict(entry.split("=", 1) for entry in env if "=" in entry)
    written = _written(variables, mounts, annotations, config)

    assert set(request.ids) <= written | _implied(variables, config)
    assert ("all" in request.ids) <= (request.ids == ["all"])
    assert request.none == (request.ids == [])
    assert not request.none or "none" in written
    assert not _is_from_env(request) or _env_may_ask(bounding, config)


def _written(
    variables: dict[str, str],
    mounts: list[dict[str, object]],
    annotations: dict[str, object],
    config: Config,
) -> set[str]:
    """Return every word of every source that may ask at all."""
    plain = "SWARM" if "SWARM" in variables and config.swarm_resource else "NVIDIA_VISIBLE_DEVICES"
    written = set(words_of(variables.get(plain, "")))
    if config.mode in {"auto", "cdi"}:
        for key, value in annotations.items():
            if key.startswith("cdi.k8s.io/"):
                written |= set(words_of(str(value)))
    if config.accept_volume_mounts:
        for mount in mounts:
            if mount["source"] != "/dev/zero":
                path = clean(str(mount["destination"]))
                written.add(path.removeprefix(f"{ROOT}/").removeprefix("cdi/"))
    return written


def _implied(variables: dict[str, str], config: Config) -> set[str]:
    """Return "all" where an image of the old kind, and only that, asks."""
    asks = {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_REQUIRE_CUDA", *config.swarm_resource}
    return {"all"} if variables.get("CUDA_VERSION") and not asks & set(variables) else set()


def _is_from_env(request: Request) -> bool:
    return request.source in {"NVIDIA_VISIBLE_DEVICES", "SWARM", "CUDA_VERSION"}


def _env_may_ask(bounding: list[str], config: Config) -> bool:
    return config.accept_envvar_when_unprivileged or "CAP_SYS_ADMIN" in bounding


@given(
    st.lists(
        st.text(max_size=20).filter(lambda text: "VISIBLE" not in text and "CUDA" not in text)
    ),
    CAPS,
    MODE,
)
def test_a_container_without_a_request_never_fails(
    env: list[str], bounding: list[str], mode: str
) -> None:
    config = Config(mode=mode)

    assert resolve_request(
        [*env, "NVIDIA_VISIBLE_DEVICES=void"], [], {"x": "y"}, bounding, config
    ) == (
        None,
        [],
    )


@given(ENV, MOUNTS, ANNOTATIONS, CAPS, configs())
def test_any_error_about_a_container_is_one_printable_line(
    env: list[str],
    mounts: list[dict[str, object]],
    annotations: dict[str, object],
    bounding: list[str],
    config: Config,
) -> None:
    rendered = ""
    try:
        resolve_request(env, mounts, annotations, bounding, config)
    except RequestError as error:
        rendered = line("nvidia-container-runtime", error)

    assert len(rendered) <= 200
    assert rendered.isprintable()


@given(st.text(max_size=40))
def test_an_expression_holds_or_not_or_is_malformed(expression: str) -> None:
    facts = {"cuda": "13.0", "driver": "580.1", "arch": "9.0", "brand": "tesla"}
    with suppress(RequestError):
        assert holds(expression, facts) in {True, False}


@given(
    parts=st.lists(st.sampled_from(["a", "..", ".", "", "b c"]), max_size=8), rooted=st.booleans()
)
def test_cleaning_twice_is_cleaning_once(parts: list[str], *, rooted: bool) -> None:
    path = "/" * rooted + "/".join(parts)

    assert clean(clean(path)) == clean(path)
    assert not rooted or ".." not in clean(path).split("/")
