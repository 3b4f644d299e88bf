"""Stored files: found, checked, fetched, or named with what to do."""

import io
import os
import tarfile

import pytest

import notsodeep as nsd
from notsodeep.data import cache as checksum
from notsodeep.data.cache import Archive, StoredFile, obtain, search_folders
from tests.data.conftest import files_below, md5

A, B = b"first file", b"second file"


def put(folder, path, content):
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(content)
    return folder / path


def test_folders_in_order(folders, monkeypatch):
    data, cache = folders
    assert search_folders() == [data, cache]
    monkeypatch.setenv("NOTSODEEP_DATA", os.pathsep.join(["/one", "", "/two"]))
    assert [str(folder) for folder in search_folders()] == ["/one", "/two", str(cache)]
    monkeypatch.setenv("NOTSODEEP_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/somebody")
    assert [str(folder) for folder in search_folders()] == ["/somebody/.cache/notsodeep"]


def test_your_own_folder_comes_before_the_cache(folders):
    data, cache = folders
    put(cache, "s/a", A)
    file = StoredFile("s/a", md5(A))
    assert obtain([file], "s") == [cache / "s/a"]
    put(data, "s/a", A)
    assert obtain([file], "s") == [data / "s/a"]


@pytest.mark.parametrize("which", [0, 1])
def test_a_flipped_byte_is_named_and_never_replaced(folders, server, which):
    path = put(folders[which], "s/a", b"First file")
    file = StoredFile("s/a", md5(A), (server.serve("/a", A),))
    with pytest.raises(nsd.BadInput, match="10 bytes") as error:
        obtain([file], "s")
    for part in (str(path), md5(A), md5(b"First file"), "Delete it"):
        assert part in str(error.value)
    assert server.asked == []
    assert path.read_bytes() == b"First file"


def test_a_damaged_file_is_not_passed_over_for_a_good_one(folders):
    put(folders[0], "s/a", b"damaged")
    put(folders[1], "s/a", A)
    with pytest.raises(nsd.BadInput, match="damaged"):
        obtain([StoredFile("s/a", md5(A))], "s")


def test_each_sum_is_computed_once(folders, monkeypatch):
    path = put(folders[0], "s/a", A)
    file = StoredFile("s/a", md5(A))
    obtain([file], "s")
    with monkeypatch.context() as patch:
        patch.setattr(checksum.hashlib, "file_digest", lambda *_: pytest.fail("hashed again"))
        obtain([file], "s")
    path.write_bytes(b"Another one")  # changed: so it is looked at again
    with pytest.raises(nsd.BadInput, match="expected"):
        obtain([file], "s")


def test_downloaded_once_into_the_cache(folders, server):
    files = [StoredFile("s/a", md5(A), (server.serve("/a", A),)), StoredFile("s/b", md5(B), (server.serve("/b", B),))]
    put(folders[0], "s/b", B)
    assert obtain(files, "s") == [folders[1] / "s/a", folders[0] / "s/b"]
    assert server.asked == ["/a"]
    server.answers.clear()
    assert obtain(files, "s", download=False)[0].read_bytes() == A
    assert server.asked == ["/a"]


def test_a_half_download_is_not_found_the_next_time(folders, server):
    file = StoredFile("s/a", md5(A), (server.serve("/a", A[:4], len(A)),))
    for _ in range(2):
        with pytest.raises(nsd.BadInput, match="4 of 10 bytes"):
            obtain([file], "s")
        assert files_below(folders[1]) == []
    server.serve("/a", A)
    assert obtain([file], "s")[0].read_bytes() == A


@pytest.mark.parametrize("how", ["environment", "argument", "no address", "404"])
def test_what_is_missing_is_named(folders, server, monkeypatch, how):
    urls = () if how == "no address" else (server.url("/nothing"),)
    files = [StoredFile("s/a", md5(A), urls), StoredFile("s/b", md5(B), urls), StoredFile("s/c", md5(b"c"), urls)]
    put(folders[0], "s/c", b"c")
    if how == "environment":
        monkeypatch.setenv("NOTSODEEP_OFFLINE", "1")
    with pytest.raises(nsd.BadInput, match="needs 3 files, and 2 are not there") as error:
        obtain(files, "s", download=how != "argument")
    reason = {"environment": "NOTSODEEP_OFFLINE", "argument": "download=False", "no address": "address", "404": "404"}[how]
    for part in ("s/a", md5(A), "s/b", md5(B), *map(str, folders), reason):
        assert part in str(error.value)
    assert "s/c" not in str(error.value)
    assert error.value.missing == ["s/a", "s/b"]
    assert (server.asked != []) == (how == "404")


def test_a_computed_file_has_its_own_sum_beside_it(folders):
    file = StoredFile("s/f.npz", md5(A), made_by="notsodeep make s")
    path = put(folders[1], "s/f.npz", B)
    with pytest.raises(nsd.BadInput, match="notsodeep make s"):
        obtain([file], "s")
    put(folders[1], "s/f.npz.md5", f"{md5(B)}  f.npz\n".encode())
    assert obtain([file], "s") == [path]
    path.write_bytes(b"something else")
    with pytest.raises(nsd.BadInput, match=md5(B)):
        obtain([file], "s")
    path.unlink()
    with pytest.raises(nsd.BadInput, match="Make it with `notsodeep make s`"):
        obtain([file], "s")


def test_a_published_file_has_the_published_sum_only(folders):
    put(folders[0], "s/a", B)
    put(folders[0], "s/a.md5", md5(B).encode())
    with pytest.raises(nsd.BadInput, match=md5(A)):
        obtain([StoredFile("s/a", md5(A))], "s")


def tar(contents):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def archive_of(server, contents):
    content = tar(contents)
    members = (StoredFile("s/in/a", md5(A)), StoredFile("s/in/b", md5(B)))
    return Archive(StoredFile("s/all.tar.gz", md5(content), (server.serve("/all", content),)), members)


def test_an_archive_gives_its_named_members_only(folders, server):
    archive = archive_of(server, {"in/a": A, "../../out": b"x", "/never": b"x", "in/other": b"x", "in/b": B})
    assert obtain(archive.members[:1], "s", archive=archive) == [folders[1] / "s/in/a"]
    # b came along, and the archive is gone.
    assert files_below(folders[1].parent.parent) == ["cache/notsodeep/s/in/a", "cache/notsodeep/s/in/b"]
    assert obtain(archive.members[1:], "s", archive=archive)[0].read_bytes() == B
    assert server.asked == ["/all"]


def test_an_archive_with_a_wrong_member(folders, server):
    archive = archive_of(server, {"in/a": A, "in/b": b"wrong"})
    with pytest.raises(nsd.BadInput, match="'b' has the MD5 sum"):
        obtain(archive.members, "s", archive=archive)
    assert not (folders[1] / "s/in/b").exists()


@pytest.mark.usefixtures("folders")
def test_an_archive_without_a_member_or_with_a_link(server):
    archive = archive_of(server, {"in/a": A})
    with pytest.raises(nsd.BadInput, match="does not hold in/b"):
        obtain(archive.members, "s", archive=archive)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as links:
        link = tarfile.TarInfo("in/b")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        links.addfile(link)
    content = stream.getvalue()
    archive = Archive(StoredFile("s/l.tar", md5(content), (server.serve("/l", content),)), archive.members[1:])
    with pytest.raises(nsd.BadInput, match="does not hold in/b"):
        obtain(archive.members, "s", archive=archive)
