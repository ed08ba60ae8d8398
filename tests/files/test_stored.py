"""Fitted models as JSON."""

from __future__ import annotations

from dataclasses import make_dataclass
from typing import Any, TypeVar

import numpy as np
from typing_extensions import TypeAliasType

from cdmpp.files.stored import from_json, to_json

_Scalar = TypeVar("_Scalar", bound=np.generic)


def test_an_alias_of_arrays_is_read_as_arrays() -> None:
    """From numpy 2.5 on, `NDArray` is such an alias."""
    kind: Any = np.ndarray[tuple[Any, ...], np.dtype[_Scalar]]  # type: ignore[valid-type]
    alias: Any = TypeAliasType("alias", kind, type_params=(_Scalar,))  # type: ignore[arg-type]
    model = make_dataclass("Model", [("values", alias[np.float64])])
    found: Any = from_json(model, to_json(model(np.array([1.0, 2.0]))))
    assert isinstance(found.values, np.ndarray)
    assert found.values.dtype == np.float64
