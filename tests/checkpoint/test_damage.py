"""Whatever happens to a checkpoint's files is noticed, said, and never passed over in silence."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.checkpoint.states import is_same_state, job_state

from easyscale.core.errors import RefusedError
from easyscale.train.checkpoint.manifest import MANIFEST_NAME, TENSORS_NAME, DamagedError, Manifest
from easyscale.train.checkpoint.read import find_newest, load
from easyscale.train.checkpoint.store import CheckpointStore
from easyscale.train.checkpoint.sums import PIECE_BYTES, piece_sum, sums_of

Breakage = Callable[[Path], None]
FILES = [MANIFEST_NAME, TENSORS_NAME]


def save(folder: Path, *steps: int) -> list[Path]:
    with CheckpointStore(folder, keep=None) as store:
        results = [store.save(job_state(step)) for step in steps]
    return [result.path for result in results if result.path is not None]


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_one_byte_changed_anywhere_is_noticed(name: str, tmp_path: Path) -> None:
    (path,) = save(tmp_path, 1)
    whole = (path / name).read_bytes()
    for position in range(len(whole)):
        for change in (0x01, 0x20, 0xFF):
            changed = bytearray(whole)
            changed[position] ^= change
            (path / name).write_bytes(changed)
            with pytest.raises(RefusedError, match="cannot be used"):
                load(path)
    (path / name).write_bytes(whole)
    assert is_same_state(load(path).state, job_state(1))


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_at_any_length_is_noticed(name: str, tmp_path: Path) -> None:
    (path,) = save(tmp_path, 1)
    whole = (path / name).read_bytes()
    for length in range(len(whole)):
        (path / name).write_bytes(whole[:length])
        with pytest.raises(RefusedError, match="cannot be used"):
            load(path)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("added", [b"\0", b" ", b"\n"])
def test_a_byte_more_is_noticed(name: str, added: bytes, tmp_path: Path) -> None:
    (path,) = save(tmp_path, 1)
    with (path / name).open("ab") as file:
        file.write(added)
    with pytest.raises(RefusedError, match="cannot be used"):
        load(path)


def test_parts_of_two_checkpoints_are_no_checkpoint(tmp_path: Path) -> None:
    first, second = save(tmp_path, 1, 2)
    shutil.copy(first / TENSORS_NAME, second / TENSORS_NAME)
    with pytest.raises(RefusedError, match="not as it was written"):
        load(second)


def test_damage_is_told_with_the_tensors_that_it_hit(tmp_path: Path) -> None:
    (path,) = save(tmp_path, 1)
    data = bytearray((path / TENSORS_NAME).read_bytes())
    data[-1] ^= 1
    (path / TENSORS_NAME).write_bytes(data)
    with pytest.raises(RefusedError, match=r"tensors\.safetensors is not as it was written .*module0\.weight"):
        load(path)


def test_sums_notice_what_moved_or_went_missing_within_a_piece() -> None:
    page, other = bytes(range(256)) * 16, bytes(range(1, 256)) * 16 + bytes(16)
    variants = {
        "whole": page + other,
        "pages swapped": other + page,
        "words swapped": page[8:16] + page[:8] + page[16:] + other,
        "page lost": page + bytes(4096),
        "page repeated": page + page,
        "one up and one down in a row": bytes([page[0] + 1]) + page[1:8] + bytes([page[8] - 1]) + page[9:] + other,
        "one up and one down in a column": bytes([page[0] + 1]) + page[1:] + bytes([other[0] - 1]) + other[1:],
    }
    assert len({piece_sum(memoryview(data)) for data in variants.values()}) == len(variants)


def test_the_sum_of_a_piece_is_what_the_format_says() -> None:
    piece = bytes(range(1, 252)) * 100
    words = [int.from_bytes(piece[at : at + 8], "little") for at in range(0, 6 * 4096, 8)]
    sums = [sum(words[row * 512 : (row + 1) * 512]) for row in range(6)] + [sum(words[at::512]) for at in range(512)]
    material = b"".join((value % 2**64).to_bytes(8, "little") for value in sums) + piece[6 * 4096 :]
    assert piece_sum(memoryview(piece)) == hashlib.sha256(material).hexdigest()[:32]
    assert piece_sum(memoryview(b"short")) == hashlib.sha256(b"short").hexdigest()[:32]
    assert sums_of(memoryview(bytes(PIECE_BYTES + 1)))[1] == hashlib.sha256(bytes(1)).hexdigest()[:32]


def break_tensors(path: Path) -> None:
    (path / TENSORS_NAME).write_bytes((path / TENSORS_NAME).read_bytes()[:-100])


def remove_tensors(path: Path) -> None:
    (path / TENSORS_NAME).unlink()


def remove_manifest(path: Path) -> None:
    (path / MANIFEST_NAME).unlink()


def make_foreign(path: Path) -> None:
    (path / MANIFEST_NAME).write_text('{"model": "foreign"}')


def make_older(path: Path) -> None:
    """As version 0 could have been: its sums need not be ours."""
    data = (path / MANIFEST_NAME).read_bytes()
    (path / MANIFEST_NAME).write_bytes(data.replace(b'checkpoint": 1', b'checkpoint": 0', 1))


BREAKAGES = {
    break_tensors: "has [0-9,]+ bytes instead of [0-9,]+",
    remove_tensors: "tensors.safetensors is missing",
    remove_manifest: "has no manifest.json",
    make_foreign: "does not begin as a checkpoint's does",
    make_older: "format version 0, and this version of EasyScale reads 1",
}


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.__name__)
def test_the_newest_whole_one_is_used_and_the_others_are_named(breakage: Breakage, tmp_path: Path) -> None:
    paths = save(tmp_path, 10, 20, 30)
    breakage(paths[2])
    found = find_newest(tmp_path)
    assert found is not None
    assert found.checkpoint.path == paths[1]
    assert is_same_state(found.checkpoint.state, job_state(20))
    assert [item.path for item in found.skipped] == [paths[2]]
    with pytest.raises(RefusedError, match=BREAKAGES[breakage]):
        raise RefusedError(str(found.skipped[0]))


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.__name__)
def test_where_none_is_whole_the_run_is_refused(breakage: Breakage, tmp_path: Path) -> None:
    for path in save(tmp_path, 10, 20):
        breakage(path)
    with pytest.raises(RefusedError, match=rf"no whole checkpoint.*step-000000[12]0: .*{BREAKAGES[breakage]}"):
        find_newest(tmp_path)


def test_a_foreign_file_alone_is_not_taken_for_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"PK")
    with pytest.raises(RefusedError, match=r"model\.pt: it has no manifest\.json"):
        find_newest(tmp_path)


def test_a_foreign_file_beside_checkpoints_is_named(tmp_path: Path) -> None:
    (path,) = save(tmp_path, 1)
    (tmp_path / "model.pt").write_bytes(b"PK")
    found = find_newest(tmp_path)
    assert found is not None
    assert found.checkpoint.path == path
    assert [item.path.name for item in found.skipped] == ["model.pt"]


@pytest.mark.parametrize("name", ["new", "."])
def test_a_folder_with_nothing_in_it_has_no_newest_one(name: str, tmp_path: Path) -> None:
    assert find_newest(tmp_path / name) is None


def test_a_path_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RefusedError, match="cannot be read"):
        find_newest(tmp_path / "file")
    with pytest.raises(RefusedError, match=r"has no manifest\.json"):
        load(tmp_path / "file")


def test_garbage_is_no_manifest() -> None:
    for data in (b"", b"{}", b"\xff" * 100, b'{"easyscale_checkpoint": 1, "sequence": 1, "sha256": "'):
        with pytest.raises(DamagedError):
            Manifest.from_bytes(data)


def test_a_sha256_that_differs_is_noticed_when_asked_for(tmp_path: Path) -> None:
    """The sums agree with the file, the SHA-256 does not: as if the writer had been at fault."""
    (path,) = save(tmp_path, 1)
    manifest = Manifest.from_bytes((path / MANIFEST_NAME).read_bytes())
    block = next(iter(manifest.block_by_name.values()))
    object.__setattr__(block, "sha256", "0" * 64)
    (path / MANIFEST_NAME).write_bytes(manifest.to_bytes())
    load(path)
    with pytest.raises(RefusedError, match="SHA-256 of module0"):
        load(path, check_sha256=True)
