"""Coefficients of loop variables in index expressions."""

from __future__ import annotations

from tests.programs.reference.intervals import IndexNode

#: Coefficient of a variable whose way into an index is not understood.
_GUESSED_COEFFICIENT = 2


class CoefficientFinder:
    """Finds the coefficient of a variable in an index by the original's approximation.

    Every multiplication of the variable by a constant sets the coefficient, unless an addition was
    met before (operands come before operations); a later occurrence of the variable starts from a
    guess.

    Differs from the original: parts of the index without the variable are not looked at. There, a
    product right of the variable counts too, so that its result depends on the order of the terms.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[IndexNode, int], int] = {}

    def coefficient(self, index: IndexNode, variable: int) -> int:
        """Returns the coefficient of the variable with that bit, which occurs in `index`."""
        key = (index, variable)
        found = self._known.get(key)
        if found is None:
            self._multiplied = self._added = False
            self._value = _GUESSED_COEFFICIENT
            self._walk(index, variable)
            plain = not self._multiplied and not self._added
            found = self._known[key] = 1 if plain else self._value
        return found

    def _walk(self, node: IndexNode, variable: int) -> None:
        if node.op == "var":
            self._value = _GUESSED_COEFFICIENT
            return
        for child in node.children:
            if child.mask & variable:
                self._walk(child, variable)
        if node.op == "mul" and not self._added:
            for child in node.children:
                if child.op == "const":
                    self._multiplied = True
                    self._value = child.value
                    break
        elif node.op == "add" and not self._multiplied:
            self._added = True
            self._value = 1
