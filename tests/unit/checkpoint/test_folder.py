"""The folder of a checkpoint: versions that are whole or absent, and files that are those that were written."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from support.raised import raises
from support.users import as_nobody

from workbench.checkpoint import folder
from workbench.errors import CheckpointNotFound, InvalidRequest

CONTENT = {"X": {"kind": "object"}}


def save(root, content=b"content", keep=2, name="X", without=None):
    """Write a version with one sealed and one plain file."""
    part = folder.begin(root)
    (part / name).mkdir()
    files = {
        f"{name}/c.0": folder.write(part / name / "c.0", [content, content], sealed=True),
        f"{name}/plain": folder.write(part / name / "plain", [content]),
    }
    return folder.commit(
        part,
        keep,
        without=without,
        created=1.0,
        cluster="mpi",
        ranks=2,
        entries={name: {"kind": "object"}},
        files=files,
    )


def test_the_newest_versions_are_kept(tmp_path):
    root = tmp_path / "run"
    for number in range(1, 5):
        assert save(root, bytes([number])).name == f"v00000{number}"

    assert [version.number for version in folder.versions(root)[0]] == [3, 4]
    assert folder.read(root).number == 4
    assert folder.read_file(folder.read(root, 3).folder, "X/plain") == bytes([3])
    assert sorted(each.name for each in root.iterdir()) == ["v000003", "v000004"]
    assert folder.damages(folder.read(root)) == []


def test_a_version_that_another_writer_has_completed_meanwhile_is_not_replaced(tmp_path):
    first = folder.begin(tmp_path)
    assert save(tmp_path, b"other").name == "v000001"

    version = folder.commit(first, 2, created=1.0, cluster="mpi", ranks=2, entries={}, files={})

    assert version.name == "v000002"
    assert folder.read_file(tmp_path / "v000001", "X/plain") == b"other"


def test_folders_of_other_programs_are_neither_versions_nor_removed(tmp_path):
    others = [tmp_path / name for name in ("v000007", "v20240101", "v999999999", "v9999999999", "notes")]
    for other in others:
        other.mkdir()
        (other / "thesis.txt").write_text("mine")
    (tmp_path / "v000009").write_text("a file")

    save(tmp_path, keep=1)
    version = save(tmp_path, keep=1)

    assert version.name == "v000002"
    assert folder.read(tmp_path).folder == version
    assert all((other / "thesis.txt").read_text() == "mine" for other in others)


def test_a_version_that_cannot_be_read_does_not_hide_the_others(tmp_path):
    save(tmp_path)
    (save(tmp_path) / folder.MANIFEST).write_text("{")

    found, (error,) = folder.versions(tmp_path)

    assert [version.number for version in found] == [1]
    assert error.given == "v000002/manifest.json"


def test_only_a_folder_whose_writer_has_died_is_removed(tmp_path):
    live, dead = folder.begin(tmp_path), folder.begin(tmp_path)
    os.utime(dead, (0, 0))

    save(tmp_path)

    assert live.is_dir()
    assert not dead.exists()


def no_links(*_, **__):
    """Refuse a hard link, as some file systems do."""
    raise PermissionError(1, "Operation not permitted")


@pytest.mark.parametrize("links", [True, False], ids=["by links", "by copies"])
def test_a_version_carries_over_what_it_lacks_apart_from_names_that_are_dropped(tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    save(tmp_path, b"dropped", name="dropped")
    former = save(tmp_path, b"former", name="former", without=())
    save(tmp_path, b"before", name="new", without=["dropped"])
    version = save(tmp_path, b"after", keep=1, name="new", without=["dropped"])

    found = folder.read(tmp_path)
    assert found.folder == version
    assert found.entries.keys() == {"former", "new"}
    assert folder.damages(found) == []
    assert folder.read_file(version, "former/plain") == b"former"
    assert folder.read_file(version, "new/plain") == b"after"
    # The former versions are removed, and the file has one name again.
    assert not former.exists()
    assert (version / "former" / "plain").stat().st_nlink == 1


def test_a_name_is_that_of_the_cluster_that_has_kept_values_last(tmp_path):
    kept = tmp_path / folder.KEPT
    assert folder.of_name(tmp_path / "run") == tmp_path / "run"
    for number, name in enumerate(["run-00000001", "run-00000002", "run-of-another-00000003", "run-00000004"]):
        version = save(kept / name)
        os.utime(version, (number, number))
    (kept / "run-00000002" / "v000001").rename(kept / "run-00000002" / "v000002")
    os.utime(kept / "run-00000002" / "v000002", (10, 10))
    folder.begin(kept / "run-00000005")

    assert folder.of_name(tmp_path / "run") == kept / "run-00000002"
    (tmp_path / "run").mkdir()
    assert folder.of_name(tmp_path / "run") == tmp_path / "run"


def killed_at(root, number):
    """Save in a copy of this process that dies at one of its system calls; return whether it has come to the end."""
    calls = iter(range(1, 10**6))

    def dying(function):
        def call(*args, **kwargs):
            if next(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    child = os.fork()
    if child == 0:
        for name in ("open", "write", "fsync", "close", "mkdir", "rename", "unlink", "rmdir"):
            setattr(os, name, dying(getattr(os, name)))
        try:
            save(root, b"new", keep=1)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_process_that_is_killed_at_any_system_call_leaves_a_whole_version(tmp_path):
    root, number, ended, seen = tmp_path / "run", 0, False, set()
    while not ended:
        number += 1
        save(root, b"old", keep=1)
        ended = killed_at(root, number)
        version = folder.read(root)
        assert folder.damages(version) == []
        seen.add(folder.read_file(version.folder, "X/plain"))
    assert seen == {b"old", b"new"}
    assert number > 20


@pytest.mark.parametrize("name", ["X/c.0", "X/plain"])
@pytest.mark.parametrize("harm", ["flip", "cut", "remove", "link", "pipe", "folder link"])
def test_a_file_that_is_not_the_one_that_was_written_is_found(tmp_path, name, harm):
    version = save(tmp_path)
    file = version / name
    content = file.read_bytes()
    if harm == "flip":
        file.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    elif harm == "cut":
        file.write_bytes(content[:-1])
    elif harm == "folder link":
        (version / "X").rename(tmp_path / "X")
        (version / "X").symlink_to(tmp_path / "X")
    else:
        file.rename(tmp_path / "moved")
        if harm == "link":
            file.symlink_to(tmp_path / "moved")
        elif harm == "pipe":
            os.mkfifo(file)
    (damage, *_) = [each for each in folder.damages(folder.read(tmp_path)) if each.given == f"v000001/{name}"]
    assert damage.option == "file"
    info = folder.read(tmp_path).files[name]
    with raises(InvalidRequest, option="file", given=f"v000001/{name}"):
        if info.sealed:
            folder.read_sealed(version, name, np.empty(info.bytes - 4, np.uint8))
        else:
            folder.read_file(version, name, info)


def test_sealed_files_that_changed_places_are_found(tmp_path):
    part = folder.begin(tmp_path)
    (part / "X").mkdir()
    files = {f"X/c.{n}": folder.write(part / "X" / f"c.{n}", [bytes([n]) * 8], sealed=True) for n in range(2)}
    version = folder.commit(part, 1, created=1.0, cluster="mpi", ranks=2, entries=CONTENT, files=files)
    (version / "X" / "c.0").rename(tmp_path / "c")
    (version / "X" / "c.1").rename(version / "X" / "c.0")
    (tmp_path / "c").rename(version / "X" / "c.1")

    assert len(folder.damages(folder.read(tmp_path))) == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("files", {"X/../../secret": [1, 1, False]}),
        ("files", {"../X/plain": [1, 1, False]}),
        ("files", {"/etc/passwd": [1, 1, False]}),
        ("entries", {"../X": {"kind": "object"}}),
        ("entries", {".": {"kind": "object"}}),
        ("format", 2),
        ("ranks", None),
        ("created", "x"),
        ("cluster", 7),
    ],
)
def test_a_manifest_that_names_anything_else_is_refused(tmp_path, field, value):
    manifest = save(tmp_path) / folder.MANIFEST
    content = json.loads(manifest.read_text())
    del content["crc32c"]
    content[field] = value
    if value is None:
        del content[field]
    content["crc32c"] = google_crc32c.value(json.dumps(content).encode())
    manifest.write_text(json.dumps(content))

    with raises(InvalidRequest, option="file", given="v000001/manifest.json"):
        folder.read(tmp_path)


def test_a_changed_manifest_is_refused(tmp_path):
    manifest = save(tmp_path) / folder.MANIFEST
    manifest.write_text(manifest.read_text().replace('"ranks": 2', '"ranks": 3'))

    with raises(InvalidRequest, option="file", given="v000001/manifest.json"):
        folder.read(tmp_path)


def test_a_folder_that_others_can_change_is_neither_written_nor_read(tmp_path):
    save(tmp_path)
    tmp_path.chmod(0o770)

    for use in (folder.begin, folder.read, folder.versions):
        with raises(InvalidRequest, option="path", given=str(tmp_path)):
            use(tmp_path)


@pytest.fixture
def open_folder():
    """A folder that other users can enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as path:
        Path(path).chmod(0o755)
        yield Path(path)


@pytest.mark.parametrize(
    ("name", "option"), [("", "path"), ("X", "path"), ("X/plain", "file"), ("manifest.json", "file")]
)
def test_what_others_can_change_in_a_version_is_not_read(tmp_path, name, option):
    path = save(tmp_path) / name
    path.chmod(path.stat().st_mode | 0o020)

    with raises(InvalidRequest, option=option):
        folder.read_file(folder.read(tmp_path).folder, "X/plain")


def test_another_user_reads_only_what_the_owner_has_opened(open_folder):
    root = open_folder / "run"
    save(root)
    with as_nobody(), raises(InvalidRequest, option="path", given=str(root)):
        folder.read(root)

    for each in [root, *root.rglob("*")]:
        each.chmod(0o755 if each.is_dir() else 0o644)

    with as_nobody():
        assert folder.damages(folder.read(root)) == []
        with raises(InvalidRequest, option="path", given=str(root)):
            folder.begin(root)


def test_a_folder_without_a_complete_version_has_an_error_of_its_own(tmp_path):
    for root in (tmp_path, tmp_path / "missing"):
        with pytest.raises(CheckpointNotFound):
            folder.read(root)
    folder.begin(tmp_path)
    with pytest.raises(CheckpointNotFound):
        folder.versions(tmp_path)
    save(tmp_path)
    with raises(CheckpointNotFound, option="version", given=7, allowed=("1",)):
        folder.read(tmp_path, 7)


def test_a_folder_that_cannot_be_created_is_named(tmp_path):
    with raises(InvalidRequest, option="path", given=str(tmp_path / "a" / "b")):
        folder.begin(tmp_path / "a" / "b")
    (tmp_path / "file").write_text("")
    with raises(InvalidRequest, option="path", given=str(tmp_path / "file")):
        folder.begin(tmp_path / "file")
