"""Hostile archives are refused whole, with the reason, and write nothing outside their target."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from onnx_models.archive import HostileArchive, Limits, extract

Change = Callable[[tarfile.TarInfo], None]


def tar(path: Path, *members: tuple[str, bytes, Change | None]) -> Path:
    with tarfile.open(path, "w:gz") as out:
        for name, content, change in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            if change:
                change(info)
            out.addfile(info, io.BytesIO(content))
    return path


def typed(kind: bytes, link: str = "") -> Change:
    def change(info: tarfile.TarInfo) -> None:
        info.type, info.linkname, info.size = kind, link, 0

    return change


def zipped(path: Path, *members: tuple[str | zipfile.ZipInfo, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, content in members:
            out.writestr(name, content)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def everything(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*")}


def refused(archive: Path, words: str, limits: Limits | None = None) -> None:
    """Refuse, and leave the archive's surroundings as they were."""
    around = archive.parent.parent
    before = everything(around)
    with pytest.raises(HostileArchive, match=words) as caught:
        extract(archive, archive.parent / "target", limits=limits)
    assert str(archive) in str(caught.value)
    assert everything(around) == before


GOOD = ("mnist/test_data_set_0/input_0.pb", b"one")


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_a_good_archive_is_unpacked(folder: Path, kind: str) -> None:
    model = ("mnist/model.onnx", b"two" * 1000)
    if kind == "tar":
        archive = tar(
            folder / "a.tar.gz", ("mnist", b"", typed(tarfile.DIRTYPE)), (*GOOD, None), (*model, None)
        )
    else:
        archive = zipped(folder / "a.zip", ("mnist/", b""), GOOD, model)
    target = extract(archive, folder / "out" / "target", keep=lambda name: name.endswith(".pb"))
    assert {str(p.relative_to(target)) for p in target.rglob("*") if p.is_file()} == {GOOD[0]}
    assert (target / GOOD[0]).read_bytes() == b"one"
    assert [p.name for p in target.parent.iterdir()] == ["target"]
    assert extract(folder / "gone.tar.gz", target) == target


NAMES = [
    ("/etc/evil", "has an absolute path"),
    ("../evil", "leads out of its folder"),
    ("a/../../evil", "leads out of its folder"),
    ("C:/evil", "has an absolute path"),
    ("a\\..\\evil", "has a backslash"),
    ("a\nb", "has a control character"),
    ("x" * 2000, "has a name of 2,000 characters"),
]


@pytest.mark.parametrize(("name", "words"), NAMES)
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_names_that_lead_astray(folder: Path, name: str, words: str, kind: str) -> None:
    if kind == "tar":
        refused(tar(folder / "a.tar.gz", (*GOOD, None), (name, b"evil", None)), words)
    else:
        refused(zipped(folder / "a.zip", GOOD, (name, b"evil")), words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (typed(tarfile.SYMTYPE, "/etc/passwd"), "is a link to '/etc/passwd'"),
        (typed(tarfile.SYMTYPE, "inside"), "is a link"),
        (typed(tarfile.LNKTYPE, "../../evil"), "is a link"),
        (typed(tarfile.CHRTYPE), "is a device or a pipe"),
        (typed(tarfile.BLKTYPE), "is a device or a pipe"),
        (typed(tarfile.FIFOTYPE), "is a device or a pipe"),
    ],
    ids=["link-away", "link-inside", "hard-link", "character-device", "block-device", "pipe"],
)
def test_members_that_are_no_files(folder: Path, change: Change, words: str) -> None:
    refused(tar(folder / "a.tar.gz", (*GOOD, None), ("evil", b"", change)), words)


def test_a_write_through_a_link_is_refused(folder: Path) -> None:
    members = (("d", b"", typed(tarfile.SYMTYPE, str(folder.parent))), ("d/evil", b"x", None))
    refused(tar(folder / "a.tar.gz", *members), "is a link")


def test_a_link_in_a_zip_is_refused(folder: Path) -> None:
    info = zipfile.ZipInfo("evil")
    info.external_attr = 0o120777 << 16
    refused(zipped(folder / "a.zip", (info, b"/etc/passwd")), "is a link")


def test_an_encrypted_zip_is_refused(folder: Path) -> None:
    archive = zipped(folder / "a.zip", ("secret", b"x"))
    data = bytearray(archive.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    archive.write_bytes(data)
    refused(archive, "is encrypted")


def test_sparse_members_are_refused(folder: Path) -> None:
    def sparse(info: tarfile.TarInfo) -> None:
        info.pax_headers = {"GNU.sparse.map": "0,1", "GNU.sparse.size": "100"}

    with tarfile.open(folder / "a.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as out:
        info = tarfile.TarInfo("holes")
        info.size = 1
        sparse(info)
        out.addfile(info, io.BytesIO(b"x"))
    refused(folder / "a.tar.gz", "is sparse")


@pytest.mark.parametrize("names", [("a", "a"), ("a/b", "A/B"), ("a", "./a"), ("a", "a/b"), ("a/b", "a")])
def test_duplicate_names_are_refused(folder: Path, names: tuple[str, str]) -> None:
    words = "is there twice|lies below a file"
    refused(tar(folder / "a.tar.gz", *((name, b"x", None) for name in names)), words)
    with pytest.warns(UserWarning, match="Duplicate") if names == ("a", "a") else contextlib.nullcontext():
        archive = zipped(folder / "a.zip", *((name, b"x") for name in names))
    refused(archive, words)


def header_only(path: Path, size: int, kind: bytes = tarfile.REGTYPE) -> Path:
    """A gzipped tar whose first header promises `size` bytes; 20 MB of zeros follow."""
    info = tarfile.TarInfo("zeros")
    info.size, info.type = size, kind
    with gzip.open(path, "wb", compresslevel=1) as out:
        out.write(info.tobuf(tarfile.GNU_FORMAT))
        for _ in range(20):
            out.write(bytes(1 << 20))
    return path


def test_a_bomb_of_10_gb_is_refused_at_its_header(folder: Path) -> None:
    refused(
        header_only(folder / "a.tar.gz", 10 << 30), "member 'zeros' brings the content to 10.7 GB, 268.4 MB"
    )


def test_a_bomb_that_lies_about_nothing_is_refused_by_growth(folder: Path) -> None:
    archive = tar(folder / "a.tar.gz", *((f"{k}", bytes(1 << 20), None) for k in range(4)))
    refused(archive, "brings the content to 3.1 MB, 2.1 MB allowed", Limits(floor=2 << 20))
    refused(zipped(folder / "a.zip", ("z", bytes(4 << 20))), "brings the content", Limits(floor=2 << 20))


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_that_would_fill_the_memory_is_refused(folder: Path, kind: bytes) -> None:
    refused(
        header_only(folder / "a.tar.gz", 10 << 30, kind), "a header of the archive is larger than 262.1 kB"
    )


def test_a_sparse_map_that_would_fill_the_memory_is_refused(folder: Path) -> None:
    body = b"9999999\n" + b"1\n" * (4 << 20)
    with tarfile.open(folder / "a.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as out:
        info = tarfile.TarInfo("map")
        info.size = len(body)
        info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
        out.addfile(info, io.BytesIO(body))
    refused(folder / "a.tar.gz", "a header of the archive is larger")


def test_too_many_members_are_refused(folder: Path) -> None:
    archive = tar(folder / "a.tar.gz", *((f"{k}", b"", None) for k in range(30)))
    refused(archive, "is one of more than 20 members", Limits(members=20))


def test_a_zip_whose_sizes_lie_is_refused(folder: Path) -> None:
    archive = zipped(folder / "a.zip", ("z", b"x" * 5000))
    data = bytearray(archive.read_bytes())
    struct.pack_into("<L", data, data.index(b"PK\x01\x02") + 24, 100)
    archive.write_bytes(data)
    refused(archive, "damaged or no archive|refused")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "expected a .tar.gz or .zip, found something else"),
        (b"<!doctype html><title>Sign in</title>", "found an HTML page titled 'Sign in'"),
        (b"version https://git-lfs.github.com/spec/v1\n", "found a Git LFS pointer"),
        (gzip.compress(b""), "damaged or no archive|it is empty"),
        (gzip.compress(b"not a tar" * 1000), "damaged or no archive"),
        (b"PK\x03\x04 broken", "expected a .tar.gz or .zip"),
    ],
)
def test_what_is_no_archive_is_named(folder: Path, content: bytes, words: str) -> None:
    (folder / "a.tar.gz").write_bytes(content)
    refused(folder / "a.tar.gz", words)


@pytest.mark.parametrize("at", [0.3, 0.9])
def test_a_truncated_archive_is_refused(folder: Path, at: float) -> None:
    archive = tar(folder / "a.tar.gz", (*GOOD, None), ("big", os.urandom(50_000), None))
    archive.write_bytes(archive.read_bytes()[: int(archive.stat().st_size * at)])
    refused(archive, "damaged or no archive|bytes early")
