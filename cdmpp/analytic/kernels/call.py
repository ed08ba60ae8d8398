"""One call of an operator: its name and the tensors it takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """The operator behind a row, with its shapes.

    Attributes:
        name: as the framework calls it, e.g. `aten::conv2d`, `gemm`.
        shapes: of the inputs, in their order; () for what is no tensor.
        dtypes: of the inputs, e.g. `float`; empty = unknown.
        settings: other arguments by name: `stride`, `padding`, `groups`, ...
    """

    name: str
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    settings: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def setting(self, name: str) -> tuple[int, ...] | None:
        """Returns an argument; None = not given."""
        return dict(self.settings).get(name)
