"""Short names of kernels: without template arguments and parameters."""

from __future__ import annotations

_OPEN = {"<": ">", "(": ")", "[": "]", "{": "}"}
_CLOSE = frozenset(_OPEN.values())
_ANONYMOUS = "(anonymous namespace)"


def short_name(name: str) -> str:
    """Returns a name without template arguments, parameter list and return type.

    Only matching brackets are removed. Names that start with a bracket (`[CUDA memcpy HtoD]`) or
    have unmatched brackets stay unchanged.
    """
    text = name.strip().replace(_ANONYMOUS, "{anonymous}").replace("{anonymous}::", "")
    if not text or text[0] in _OPEN:
        return name.strip()
    for operator in ("operator<<", "operator>>", "operator<", "operator>", "operator()", "->"):
        if operator in text:
            return name.strip().split("(")[0] if operator != "operator()" else name.strip()
    kept: list[str] = []
    expected: list[str] = []
    for char in text:
        if char in _OPEN:
            expected.append(_OPEN[char])
        elif char in _CLOSE:
            if not expected or expected.pop() != char:
                return name.strip()
        elif not expected:
            kept.append(char)
    if expected:
        return name.strip()
    words = "".join(kept).split()
    # `void kernel` has a return type to remove; a range such as `load data` does not.
    is_function = "(" in text or "<" in text
    if is_function and len(words) > 1:
        words = [word for word in words if word not in ("const", "volatile", "noexcept")][-1:]
    return " ".join(words) or name.strip()
