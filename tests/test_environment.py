"""setup(): the profile that is chosen, the seeds, the report, and an import that stays quick."""

import logging
import random
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields
from importlib import metadata

import numpy as np
import pytest
import torch
from refusals import refused

import workbook
from workbook.environment import PROFILES, choose_profile


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    monkeypatch.delenv("WORKBOOK_PROFILE", raising=False)


def test_profile_comes_from_the_argument_then_the_environment_then_the_device(monkeypatch):
    assert choose_profile(None, "cpu").name == "teach"
    assert choose_profile(None, "cuda").name == "full"
    assert choose_profile(None, "mps").name == "teach"
    monkeypatch.setenv("WORKBOOK_PROFILE", "smoke")
    assert choose_profile(None, "cuda").name == "smoke"
    assert choose_profile("teach", "cpu").name == "teach"


def test_a_package_that_nothing_here_uses_is_not_asked_for():
    logger = logging.getLogger("bitsandbytes.backends.cpu.ops")

    def is_heard(message, *arguments):
        return logger.filter(
            logger.makeRecord(logger.name, logging.WARNING, "ops.py", 1, message, arguments, None)
        )

    assert not is_heard(
        "Failed to load CPU gemm_4bit_forward from kernels-community: %s. Please", "No module"
    )
    assert is_heard("Something else.")


def test_unknown_profile_is_refused_naming_the_valid_ones(monkeypatch):
    with refused("profile", "huge", ("smoke", "teach", "full")):
        workbook.setup(profile="huge")
    monkeypatch.setenv("WORKBOOK_PROFILE", "huge")
    with refused("profile", "huge"):
        workbook.setup()


def test_profiles_grow_and_are_frozen():
    sizes = [f.name for f in fields(workbook.Profile) if f.name not in ("name", "device", "dtype")]
    for small, large in zip(list(PROFILES.values())[:-1], list(PROFILES.values())[1:], strict=True):
        assert all(getattr(small, size) <= getattr(large, size) for size in sizes)
    with pytest.raises(FrozenInstanceError, match="group_size"):
        PROFILES["smoke"].group_size = 2


def test_setup_seeds_all_three_generators_and_reports(capsys):
    def draw(seed):
        profile = workbook.setup(seed=seed, profile="smoke")
        return profile, (random.random(), np.random.rand(), torch.rand(1).item())

    (profile, first), (_, again), (_, other) = draw(3), draw(3), draw(4)
    assert first == again
    assert all(a != b for a, b in zip(first, other, strict=True))
    text = capsys.readouterr().out
    dtype = str(profile.dtype).removeprefix("torch.")
    for expected in (metadata.version("torch"), "transformers", "GiB free", dtype, "smoke"):
        assert expected in text


def test_importing_the_package_imports_nothing_heavy():
    code = (
        "import workbook, sys; assert not {'torch', 'altair', 'pandas', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
