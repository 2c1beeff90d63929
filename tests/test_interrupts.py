"""Interrupts at every line that changes a policy or puts it back, and what `restoring` does with them."""

import inspect
import signal
import threading

import pytest
import torch
from soak import interrupts, sample

from workbook.policies.restoring import evaluating, no_gradients, restoring
from workbook.probes import directions, step
from workbook.rollouts import generation as sampling
from workbook.rollouts import states

MANAGERS = (
    ("token_flips", step.untouched),
    ("logps", evaluating),
    ("sample_rollouts", sampling._generation_config),
    ("output_states", states._watched),
    ("gradient_products jvp", directions._forward_mode),
)


@pytest.mark.parametrize(("probe", "manager"), MANAGERS, ids=[probe for probe, _ in MANAGERS])
def test_an_interrupt_at_any_line_that_lends_or_puts_back_leaves_nothing_changed(probe, manager):
    bench, (lines, _, expected) = interrupts.prepare(), interrupts.rehearse(probe)
    function = inspect.unwrap(manager)
    source, first = inspect.getsourcelines(function)
    inside = [(inspect.getsourcefile(function), first + i) for i in range(len(source))]
    inside = [line for line in inside if line in lines]
    assert len(inside) >= 3
    for number, line in enumerate(inside):
        before = interrupts.state(bench["policy"])
        call = interrupts.PROBES[probe]
        second = (None, 3, 20)[number % 3]
        assert interrupts.interrupt_at_line(lambda call=call: call(bench), line, 1 + number % lines[line], second)
        assert not interrupts.differences(before, interrupts.state(bench["policy"])), line
    assert interrupts.same(interrupts.PROBES[probe](bench), expected)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the second one may hit a finalizer
def test_interrupts_anywhere_in_probes_leave_nothing_changed(tmp_path):
    for name, arguments in sample("interrupts", 2 * len(interrupts.PROBES)):
        assert interrupts.attempt(tmp_path, *arguments) is None, name


@restoring
def lending(log, during=lambda: None):
    log.append("lent")
    try:
        during()
        yield "value"
    finally:
        during()
        log.append("put back")


def interrupt():
    signal.raise_signal(signal.SIGINT)


def test_an_interrupt_in_a_managers_own_code_waits_until_all_is_put_back():
    log, handler = [], signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), lending(log, interrupt):
        log.append("the body is not reached")
    assert log == ["lent", "put back"]
    assert signal.getsignal(signal.SIGINT) is handler


def test_one_in_the_body_is_raised_there_and_nested_managers_put_back_in_turn():
    inner, outer = [], []
    with pytest.raises(KeyboardInterrupt), lending(outer), lending(inner):
        interrupt()
    assert inner == outer == ["lent", "put back"]


def test_one_that_outlives_another_defers_interrupts_all_the_same():
    first, second = lending([]), lending(log := [], interrupt_when(log_of_second := []))
    handler = signal.getsignal(signal.SIGINT)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert signal.getsignal(signal.SIGINT) is handler
    log_of_second.append("now")
    with pytest.raises(KeyboardInterrupt):
        second.__exit__(None, None, None)
    assert log == ["lent", "put back"]
    assert signal.getsignal(signal.SIGINT) is handler


def interrupt_when(armed):
    return lambda: interrupt() if armed else None


@restoring
def lending_twice(log):
    with lending(log, interrupt):
        yield


def test_a_manager_inside_another_ones_code_leaves_the_interrupt_to_it():
    log = []
    with pytest.raises(KeyboardInterrupt), lending_twice(log):
        log.append("the body is not reached")
    assert log == ["lent", "put back"]


def cut_in_two():
    torch.no_grad().__enter__()  # as when the interrupt comes before the `with` that called it has begun
    interrupt()


def test_gradients_come_back_even_if_torchs_own_switch_was_cut_in_two():
    with pytest.raises(KeyboardInterrupt), lending([]):
        cut_in_two()
    assert torch.is_grad_enabled()
    with no_gradients():
        assert not torch.is_grad_enabled()


def test_errors_pass_through_and_other_threads_need_no_signals():
    log = []
    with pytest.raises(ZeroDivisionError), lending(log):
        raise ZeroDivisionError
    thread = threading.Thread(target=lambda: log.extend(work()))
    thread.start()
    thread.join()
    assert log == ["lent", "put back", "lent", "put back"]


def work():
    log = []
    with lending(log):
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return log


def test_ignored_interrupts_stay_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with lending([], interrupt):
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
