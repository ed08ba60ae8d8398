"""One call of an operator: its name and input tensors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """An operator call with its shapes.

    Attributes:
        name: name in the framework, e.g. `aten::conv2d`, `gemm`.
        shapes: shapes of the inputs, in order; () for an input that is not a tensor.
        dtypes: types of the inputs, e.g. `float`; empty if unknown.
        settings: other arguments by name: `stride`, `padding`, `groups`, ...
    """

    name: str
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    settings: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def setting(self, name: str) -> tuple[int, ...] | None:
        """Returns an argument; None if not given."""
        return dict(self.settings).get(name)
