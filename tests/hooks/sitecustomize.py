"""Record what trains, and perturb the weights that tests start from: here, and in every Python that
a test starts.

conftest.py puts this folder on PYTHONPATH for `--trains FILE` and `--perturb SEED`, so that
workers, kernels and launched processes read it as well. Without the two variables nothing happens.

    WORKBOOK_TRAINS    file to which a line is added for each test, or fixture, in which an
                       optimizer steps
    WORKBOOK_PERTURB   seed of a relative noise of SCALE on weights that were committed or freshly
                       drawn

The noise of a parameter follows from the seed, its place and its shape, so two runs that start from
the same weights still do. Weights of a checkpoint, or of a folder that a test wrote, are left
alone: they have been perturbed.
"""

import functools
import importlib.util
import os
import sys

SCALE = 1e-6  # relative: about ten roundings of float32, as another order of summation makes


def perturb(model, seed):
    """Scale every weight in floating point by 1 + SCALE * noise, in place."""
    import torch

    with torch.no_grad():
        for index, parameter in enumerate(model.parameters()):
            if parameter.is_floating_point() and not parameter.is_meta:
                generator = torch.Generator().manual_seed(
                    hash((seed, index, *parameter.shape)) % 2**63
                )
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(
                    parameter.device
                )
                parameter.copy_(parameter.double() * (1 + SCALE * noise))


def record_steps(module):
    """Write down, once per process, each test or fixture in which an optimizer steps."""
    seen = set()

    def record(optimizer, args, kwargs):
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
        line = os.environ.get("WORKBOOK_FIXTURE") or test
        if line and line not in seen:
            seen.add(line)
            with open(os.environ["WORKBOOK_TRAINS"], "a", encoding="utf-8") as file:
                file.write(line + "\n")

    module.register_optimizer_step_pre_hook(record)


def perturb_loaded(module):
    """Perturb what `load_policy` returns, unless it was read from a folder."""
    load = module.load_policy

    @functools.wraps(load)
    def load_policy(name, *args, **options):
        policy = load(name, *args, **options)
        if not os.path.isdir(name):
            perturb(policy.model, int(os.environ["WORKBOOK_PERTURB"]))
        return policy

    module.load_policy = load_policy


def perturb_drawn(module):
    """Perturb the weights that a model draws when it is made."""
    post_init = module.PreTrainedModel.post_init

    @functools.wraps(post_init)
    def wrapped(self):
        post_init(self)
        perturb(self, int(os.environ["WORKBOOK_PERTURB"]))

    module.PreTrainedModel.post_init = wrapped


class AfterImport:
    """Calls a function with a module once it is imported."""

    def __init__(self, hooks):
        self.hooks = hooks

    def find_spec(self, name, path=None, target=None):
        if name not in self.hooks:
            return None
        hook = self.hooks.pop(name)  # so that the search below passes by
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            hook(module)

        spec.loader.exec_module = exec_module
        return spec


def install():
    hooks = {}
    if os.environ.get("WORKBOOK_TRAINS"):
        hooks["torch.optim.optimizer"] = record_steps
    if os.environ.get("WORKBOOK_PERTURB"):
        hooks["workbook.policies.load"] = perturb_loaded
        hooks["transformers.modeling_utils"] = perturb_drawn
    for name in hooks.keys() & sys.modules.keys():
        hooks.pop(name)(sys.modules[name])
    if hooks:
        sys.meta_path.insert(0, AfterImport(hooks))


install()
