"""What the training tests share: the bundled policy's task, small settings, and a trainer built from them."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
from small_run import SMALL


@pytest.fixture
def make_trainer(tmp_path):
    """Build a trainer of the given class on the bundled policy and task; settings override SMALL."""
    from workbook.policies import load_policy
    from workbook.tasks import get_task

    def make(trainer_class, config_class, model=None, **settings):
        policy = load_policy("bundled")
        task = get_task("chain")
        args = config_class(output_dir=str(tmp_path / trainer_class.__name__), **SMALL | settings)
        return trainer_class(
            model or policy.model,
            task.reward,
            args=args,
            train_dataset=task.dataset(64, seed=0),
            processing_class=policy.tokenizer,
        )

    return make
