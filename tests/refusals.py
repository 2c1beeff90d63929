"""How tests look at what the workbook refuses: at the field, the value and what would be valid."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from workbook.messages import InvalidValue

ANY = object()


@contextmanager
def refused(field: str, value: object = ANY, valid: object = ANY) -> Iterator:
    """An InvalidValue of this field is raised, in one sentence that names the field.

    Yields what `pytest.raises` yields. Values are compared as Python writes them, so that NaN is
    NaN, and 1 is neither 1.0 nor True.
    """
    with pytest.raises(InvalidValue) as caught:
        yield caught
    error = caught.value
    sentence = str(error)
    assert error.field == field, sentence
    assert error.valid, sentence
    assert field in sentence, sentence
    assert "\n" not in sentence, sentence
    if value is not ANY:
        assert repr(error.value) == repr(value), sentence
    if valid is not ANY:
        assert error.valid == valid, sentence
