"""Files are whole or absent, damage is noticed, and state trees survive without pickle."""

import errno
import json
import os

import pytest
import torch

from workbook.training import files
from workbook.training.files import StorageError, atomic_folder, damage, load_state, save_state, write_text


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "status.json"
    write_text(path, "old")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(StorageError, match=r"disk is full .* MiB free.*intact"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["status.json"]


def test_a_pipe_or_device_stays_one(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match=r"pipe is a device or pipe and can't be replaced by a file"):
        write_text(tmp_path / "pipe", "new")
    assert (tmp_path / "pipe").is_fifo()


def test_a_failed_folder_leaves_the_old_one(tmp_path):
    with atomic_folder(tmp_path / "final") as folder:
        (folder / "a").write_text("1")

    def fail():
        with atomic_folder(tmp_path / "final") as folder:
            (folder / "a").write_text("2")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (tmp_path / "final" / "a").read_text() == "1"
    assert os.listdir(tmp_path) == ["final"]


@pytest.mark.parametrize("harm", ["truncate", "flip", "remove", "no sums"])
def test_damage_is_noticed(tmp_path, harm):
    with atomic_folder(tmp_path / "c") as folder:
        (folder / "weights").write_bytes(b"12345678")
    assert damage(tmp_path / "c") is None
    weights = tmp_path / "c" / "weights"
    {
        "truncate": lambda: weights.write_bytes(b"1234"),
        "flip": lambda: weights.write_bytes(b"12345679"),
        "remove": weights.unlink,
        "no sums": (tmp_path / "c" / files.SUMS).unlink,
    }[harm]()
    assert "c" in damage(tmp_path / "c")


def test_state_trees_survive(tmp_path):
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.randn(3))], lr=0.1)
    optimizer.param_groups[0]["params"][0].sum().backward()
    optimizer.step()
    state = {
        "optimizer": optimizer.state_dict(),
        "tuple": (1, 0.1, None, "a"),
        "big": 2**63 + 1,
        "rng": torch.get_rng_state(),
    }
    save_state(tmp_path, "s", state)
    back = load_state(tmp_path, "s")
    assert back["tuple"] == state["tuple"]
    assert back["big"] == state["big"]
    assert torch.equal(back["rng"], state["rng"])
    assert back["optimizer"]["param_groups"] == state["optimizer"]["param_groups"]
    for key, value in state["optimizer"]["state"][0].items():
        assert torch.equal(back["optimizer"]["state"][0][key], value)
    assert json.loads((tmp_path / "s.json").read_text())


def test_what_json_cannot_hold_is_refused(tmp_path):
    with pytest.raises(TypeError, match="s/f is a function"):
        save_state(tmp_path, "s", {"f": lambda: None})


@pytest.mark.parametrize("write", [lambda path: write_text(path, "new"), lambda path: write_folder(path)])
def test_writing_changes_nothing_else(tmp_path, write):
    """A link under the temporary name or the name itself is not followed, and what lies there is kept aside."""
    (tmp_path / "elsewhere").write_text("mine")
    (tmp_path / f".made.{os.getpid()}.tmp").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "made").symlink_to(tmp_path / "elsewhere")
    write(tmp_path / "made")
    assert (tmp_path / "elsewhere").read_text() == "mine"
    assert (tmp_path / f".made.{os.getpid()}.tmp").is_symlink()
    assert not (tmp_path / "made").is_symlink()


def write_folder(path):
    with atomic_folder(path) as folder:
        (folder / "a").write_text("new")


def test_a_folder_that_holds_more_than_was_written_is_kept_aside(tmp_path):
    for _ in range(2):
        write_folder(tmp_path / "made")
    assert os.listdir(tmp_path) == ["made"]
    (tmp_path / "made" / "sub").mkdir()
    (tmp_path / "made" / "sub" / "b").write_text("mine")
    write_folder(tmp_path / "made")
    assert sorted(os.listdir(tmp_path)) == ["made", "made.kept"]
    assert (tmp_path / "made.kept" / "sub" / "b").read_text() == "mine"
    assert sorted(os.listdir(tmp_path / "made")) == ["a", files.SUMS]


def test_damage_below_a_folder_is_noticed(tmp_path):
    with atomic_folder(tmp_path / "made") as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "weights").write_bytes(b"1234")
    (tmp_path / "made" / "sub" / "weights").write_bytes(b"123")
    assert damage(tmp_path / "made") == "made/sub/weights has 3 bytes instead of 4"
    assert damage(tmp_path / "made", needed=("b",)) == "made/b is missing"
