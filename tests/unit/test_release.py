# SPDX-License-Identifier: Apache-2.0
"""What `make release` assembles, of small packages: apt, helm, pip and gpg take it from a web server."""

import gzip
import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nvct.version import __version__ as version
from tests.kubernetes.rendering import find_helm
from tests.support import released
from tests.support.processes import captured

pytestmark = pytest.mark.slow
SIGNATURES = {
    "InRelease", "Release.gpg", "repomd.xml.asc", "SHA256SUMS.asc", f"nvct-{version}.tgz.prov",
}  # fmt: skip


@pytest.fixture(scope="module")
def env() -> Iterator[dict[str, str]]:
    with released.keyring() as env:
        yield env


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small") / "dist"
    released.packages(folder)
    return folder


@pytest.fixture
def release(tmp_path: Path, dist: Path, env: dict[str, str]) -> Iterator[tuple[Path, str]]:
    out = tmp_path / "www"
    out.mkdir()
    with released.served(out) as url:
        done = released.assembled(dist, out / "nvct", env, f"{url}/nvct/")
        assert done.returncode == 0, done.stderr
        yield out / "nvct", f"{url}/nvct"


def apt(folder: Path, source: Path, *words: str) -> str:
    """Run apt-get with one source and folders of its own; return what it says, "ok: " first if it is content."""
    for name in ("lists/partial", "archives/partial", "sources", "none"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "status").touch()
    shutil.copy(source, folder / "sources")
    config = {
        "Dir::State::lists": "lists", "Dir::State::status": "status", "Dir::Cache::archives": "archives",
        "Dir::Cache::pkgcache": "pkgcache", "Dir::Cache::srcpkgcache": "srcpkgcache",
        "Dir::Etc::sourcelist": "none/list", "Dir::Etc::sourceparts": "sources",
        "Dir::Etc::trustedparts": "none", "Dir::Etc::trusted": "none/gpg",
    }  # fmt: skip
    options = [f"-o{name}={folder}/{path}" for name, path in config.items()]
    options += ["-oAPT::Sandbox::User=root", "-oAPT::Update::Error-Mode=any"]
    try:
        done = captured(["apt-get", *options, *words], cwd=folder)
    except FileNotFoundError:
        pytest.skip("no apt-get")
    return f"{'ok: ' if done.returncode == 0 else ''}{done.stdout}{done.stderr}"


def test_apt_takes_a_package(release: tuple[Path, str], tmp_path: Path, dist: Path) -> None:
    folder, _ = release
    said = apt(tmp_path / "apt", folder / "nvct.sources", "update")
    assert said.startswith("ok: "), said
    assert "\nW: " not in said
    said = apt(tmp_path / "apt", folder / "nvct.sources", "download", "nvct", "nvct-mig-manager")
    assert said.startswith("ok: "), said
    got = {path.name: path.read_bytes() for path in (tmp_path / "apt").glob("*.deb")}
    assert len(got) == 2
    assert got == {name: (dist / name).read_bytes() for name in got}


def changed(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_apt_refuses_a_package_with_a_changed_byte(
    release: tuple[Path, str], tmp_path: Path
) -> None:
    folder, _ = release
    changed(next((folder / "apt/pool").glob("nvct_*.deb")))
    assert apt(tmp_path / "apt", folder / "nvct.sources", "update").startswith("ok: ")
    said = apt(tmp_path / "apt", folder / "nvct.sources", "download", "nvct")
    assert not said.startswith("ok: ")
    assert "Hash Sum mismatch" in said


def of_another(folder: Path, env: dict[str, str]) -> None:
    """Let somebody else sign."""
    suite = folder / "apt/dists/stable"
    (suite / "InRelease").unlink()
    (suite / "Release.gpg").unlink()
    with released.keyring() as other:
        words = ("--output", f"{suite}/InRelease", "--clearsign", f"{suite}/Release")
        captured(["gpg", "--batch", *words], env=other, check=True)


def of_another_index(folder: Path, _: dict[str, str]) -> None:
    for path in folder.glob("apt/dists/*/main/*/Packages*"):
        changed(path)


def of_another_label(folder: Path, _: dict[str, str]) -> None:
    path = folder / "apt/dists/stable/InRelease"
    path.write_text(path.read_text().replace("Label: nvct", "Label: nvcu"))


REFUSED = {"index": of_another_index, "Release": of_another_label, "signature": of_another}


@pytest.mark.parametrize("what", REFUSED)
def test_apt_refuses_what_the_key_has_not_signed(
    what: str, release: tuple[Path, str], tmp_path: Path, env: dict[str, str]
) -> None:
    folder, _ = release
    REFUSED[what](folder, env)
    said = apt(tmp_path / "apt", folder / "nvct.sources", "update")
    assert not said.startswith("ok: "), said


def test_the_rpm_repository_names_its_packages_and_is_signed(
    release: tuple[Path, str], tmp_path: Path, env: dict[str, str]
) -> None:
    folder, url = release
    data = folder / "rpm/repodata"
    keyring = tmp_path / "key.gpg"
    words = ("--batch", "--output", keyring, "--dearmor", folder / "nvct.asc")
    captured(["gpg", *words], env=env, check=True)
    for path in (data / "repomd.xml", folder / "SHA256SUMS"):
        done = captured(["gpgv", "--keyring", keyring, f"{path}.asc", path])
        assert done.returncode == 0, done.stderr
    primary = gzip.decompress(next(data.glob("*primary.xml.gz")).read_bytes()).decode()
    sums = {hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("rpm/*.rpm")}
    assert set(re.findall(r'<checksum type="sha256" pkgid="YES">(\w+)<', primary)) == sums
    assert len(sums) == 6
    text = (folder / "nvct.repo").read_text()
    assert f"baseurl={url}/rpm\n" in text
    assert f"gpgkey={url}/nvct.asc\n" in text
    assert "repo_gpgcheck=1\n" in text


def test_helm_takes_the_chart_and_no_other(
    release: tuple[Path, str], tmp_path: Path, env: dict[str, str]
) -> None:
    folder, url = release
    helm, keyring = find_helm(), tmp_path / "key.gpg"
    words = ("--batch", "--output", keyring, "--dearmor", folder / "nvct.asc")
    captured(["gpg", *words], env=env, check=True)
    env = {f"HELM_{name}_HOME": str(tmp_path / name) for name in ("CACHE", "CONFIG", "DATA")}
    env |= {"HOME": str(tmp_path)}
    captured([helm, "repo", "add", "nvct", f"{url}/helm"], env=env, check=True)
    pull: list[str | Path] = [
        helm,
        "pull",
        "nvct/nvct",
        "--untar",
        "--verify",
        "--keyring",
        keyring,
    ]
    captured(pull, env=env, check=True, cwd=tmp_path)
    ours = released.REPOSITORY / "packaging/helm/nvct"
    assert (tmp_path / "nvct/values.yaml").read_bytes() == (ours / "values.yaml").read_bytes()
    shown = captured([helm, "template", "nvct", tmp_path / "nvct"], env=env)
    assert shown.returncode == 0, shown.stderr
    with gzip.open(folder / f"helm/nvct-{version}.tgz", "ab") as chart:
        chart.write(b"more")
    done = captured([*pull, "--untardir", "other"], env=env, cwd=tmp_path)
    assert (done.returncode, "sha256 sum does not match" in done.stderr) == (1, True), done.stderr


def tree(folder: Path) -> dict[str, bytes]:
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items()}


def test_each_file_has_a_bill_of_what_is_in_it(release: tuple[Path, str]) -> None:
    folder, _ = release
    bills = {path.name: json.loads(path.read_text()) for path in folder.glob("sbom/*")}
    named = {path.name.removesuffix(".spdx.json") for path in folder.glob("sbom/*")}
    files = [p for p in folder.rglob("*") if p.suffix in {".deb", ".rpm", ".whl", ".tgz"}]
    files += folder.glob("*/nvct-*.tar.gz")
    assert {path.name for path in files} == named
    assert len(files) == 5 + 6 + 1 + 1 + 2
    for path in files:
        bill = bills[f"{path.name}.spdx.json"]
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        (checksum,) = bill["packages"][0]["checksums"]
        assert checksum == {"algorithm": "SHA256", "checksumValue": digest}
        others = [package["name"] for package in bill["packages"][1:]]
        assert others == (["others"] if path.name.endswith(".tar.gz") else []), path.name


def test_two_assemblies_differ_in_signatures_alone(
    tmp_path: Path, dist: Path, env: dict[str, str]
) -> None:
    copy = shutil.copytree(
        dist, tmp_path / "copy", copy_function=shutil.copyfile
    )  # with other times
    for name, source in (("one", dist), ("two", copy)):
        done = released.assembled(source, tmp_path / name, env)
        assert done.returncode == 0, done.stderr
    one, two = tree(tmp_path / "one"), tree(tmp_path / "two")
    assert one.keys() == two.keys()
    differ = {name for name in one if one[name] != two[name]}
    assert {Path(name).name for name in differ} <= SIGNATURES
    checked = captured(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path / "one")
    assert checked.returncode == 0, checked.stderr
    named = {line.split("  ")[1] for line in one["SHA256SUMS"].decode().splitlines()}
    unnamed = {Path(name).name for name in one.keys() - named}
    assert unnamed == SIGNATURES | {"SHA256SUMS"}
    notes = one["notes.md"].decode()
    assert notes.startswith(f"# nvct {version}\n\n")
    assert "### Containers and engines\n" in notes


def test_the_release_before_stays_for_the_way_back(
    release: tuple[Path, str], tmp_path: Path, dist: Path, env: dict[str, str]
) -> None:
    folder, _ = release
    former = shutil.copytree(folder, tmp_path / "former")
    old: list[Path] = []
    for pattern in ("apt/pool/nvct_*", "rpm/nvct-[0-9]*.rpm", "images/*.tar", "helm/*.tgz"):
        path = next(former.glob(pattern))
        old.append(path.with_name(path.name.replace(version, "0.0.9")))
        shutil.copy(path, old[-1])
    sums = "rm SHA256SUMS*; find * -type f -exec sha256sum {} + > s; mv s SHA256SUMS"
    captured(["sh", "-c", f"{sums}; gpg -ab SHA256SUMS"], cwd=former, env=env, check=True)

    done = released.assembled(dist, tmp_path / "next", env, former=former)
    assert done.returncode == 0, done.stderr
    assert {str(path.relative_to(former)) for path in old} <= tree(tmp_path / "next").keys()
    packages = next((tmp_path / "next").glob("apt/dists/*/main/*/Packages")).read_text()
    assert f"Filename: pool/{old[0].name}" in packages
    assert "nvct-0.0.9.tgz" in (tmp_path / "next/helm/index.yaml").read_text()

    with released.keyring() as other:
        done = released.assembled(dist, tmp_path / "no", other, former=former)
    assert done.stderr.startswith("release: gpg failed: "), done.stderr
    changed(old[1])
    for wrong, sentence in ((former, "sha256sum failed"), (tmp_path, f"{tmp_path} is no release")):
        done = released.assembled(dist, tmp_path / "no", env, former=wrong)
        assert done.stderr.startswith(f"release: {sentence}"), done.stderr
    assert not (tmp_path / "no").exists()


def test_what_is_wrong_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, dist: Path, env: dict[str, str]
) -> None:
    short = shutil.copytree(dist, tmp_path / "short")
    next(short.glob("nvct-sim-*.rpm")).unlink()
    (tmp_path / "there").mkdir()
    (tmp_path / "file").touch()
    words = ("--faked-system-time", "20200101T000000", "--passphrase", "", "--quick-generate-key")
    captured(["gpg", "--batch", *words, "old", "ed25519", "sign", "1y"], env=env, check=True)
    out = tmp_path / "out/release"
    wrong: dict[str, dict[str, Any]] = {
        'release: gpg has no secret key of the name "nobody"': {"key": "nobody"},
        'release: gpg has no secret key of the name ""': {"key": ""},
        f"release: {short} has no nvct-sim-{version}-*.rpm: run make bundle rpm": {"dist": short},
        'release: "ftp://x" is no address of a web server': {"url": "ftp://x"},
        f"release: {tmp_path}/there exists": {"out": tmp_path / "there"},
        f"release: {tmp_path}/file/x cannot be made: ": {"out": tmp_path / "file/x"},
        "release: gpg failed: gpg: signing failed: Unusable secret key": {"key": "old"},
        "release: false failed": {"helm": "/bin/false"},
        "release: /no/helm is not installed": {"helm": "/no/helm"},
    }
    for sentence, given in wrong.items():
        done = released.assembled(**{"dist": dist, "out": out, "env": env, **given})
        assert done.returncode == 1, sentence
        assert done.stderr.startswith(sentence), done.stderr
        assert done.stderr.count("\n") == 1
    assert not out.parent.exists() or list(out.parent.iterdir()) == []
    assert list((tmp_path / "there").iterdir()) == []


def test_what_is_in_no_commit_is_in_no_release(tmp_path: Path, env: dict[str, str]) -> None:
    source = tmp_path / "source"
    shutil.copytree(released.REPOSITORY / "packaging", source / "packaging")
    shutil.copy(released.REPOSITORY / "CHANGELOG.md", source)
    git: list[str | Path] = ["git", "-C", source, "-c", "user.name=x", "-c", "user.email=x"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        captured([*git, *words], check=True)

    def refused() -> str:
        out = tmp_path / "out/x"
        return released.assembled(tmp_path, out, env, source=source, check=True).stderr

    assert refused() == ""
    (source / "packaging/mine").touch()
    assert refused().startswith("release: packaging/mine is not as committed: ")
    shutil.rmtree(source / ".git")
    assert refused() == ""
    assert list((tmp_path / "out").iterdir()) == []
