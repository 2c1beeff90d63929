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
