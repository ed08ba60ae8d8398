"""Execution of a network in torch: element types, memory format, compiler and mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from cdmpp.errors import UsageError

#: `amp-*`: float32 weights under `torch.autocast` to that type; others: type of weights and inputs.
Dtype = Literal["float32", "float16", "bfloat16", "amp-fp16", "amp-bf16"]
Layout = Literal["nchw", "nhwc"]
Mode = Literal["infer", "train"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
MODES: tuple[Mode, ...] = get_args(Mode)


def check_word(name: str, value: str, known: Sequence[str]) -> None:
    """Checks that an option has one of the known values.

    Raises:
        UsageError: the value is unknown.
    """
    if value not in known:
        raise UsageError(f"{name} is {value!r}, expected one of {', '.join(known)}")


@dataclass(frozen=True)
class Execution:
    """How a network is run.

    Attributes:
        dtype: type of weights and inputs, or of autocast.
        layout: memory format of images; `nhwc` is `torch.channels_last`.
        compiled: whether the network is compiled by `torch.compile` (inductor, default mode).
        mode: `infer`, or `train` (forward, backward and update).
    """

    dtype: Dtype = "float32"
    layout: Layout = "nchw"
    compiled: bool = False
    mode: Mode = "infer"

    def __post_init__(self) -> None:
        check_word("dtype", self.dtype, DTYPES)
        check_word("layout", self.layout, LAYOUTS)

    @property
    def is_autocast(self) -> bool:
        """Whether autocast chooses the type of each operator."""
        return self.dtype.startswith("amp-")

    @property
    def is_half(self) -> bool:
        """Whether products are in 16 bits."""
        return self.dtype != "float32"

    @property
    def is_plain(self) -> bool:
        """Whether this is torch's default: float32, eager, NCHW."""
        return replace(self, mode="infer") == Execution()

    @property
    def text(self) -> str:
        """Readable description without the mode."""
        words: list[str] = [self.dtype]
        if self.layout == "nhwc":
            words.append("channels_last")
        words.append("compiled" if self.compiled else "eager")
        return ", ".join(words)


@dataclass(frozen=True)
class Running:
    """Requested execution of a network.

    Attributes:
        dtype: see `Execution`; None = the type of the weights.
        layout: see `Execution`.
        compiled: whether to compile the network; a compiled module stays compiled.
        mode: None = both modes.
    """

    dtype: Dtype | None = None
    layout: Layout = "nchw"
    compiled: bool = False
    mode: Mode | None = None

    def __post_init__(self) -> None:
        if self.mode is not None:
            check_word("mode", self.mode, MODES)

    @property
    def is_plain(self) -> bool:
        """Whether at most a mode was requested."""
        return replace(self, mode=None) == Running()

    def execution(self, name: str, weights: Dtype, *, is_compiled: bool, mode: Mode) -> Execution:
        """Returns the execution of a network.

        Args:
            name: name of the network in the error message.
            weights: type of its weights.
            is_compiled: whether the module was already compiled.

        Raises:
            UsageError: the weights are in 16 bits and another type was requested.
        """
        if weights != "float32" and self.dtype not in (None, weights):
            raise UsageError(
                f"{name}: its weights are {weights}, and {self.dtype} was requested; leave out "
                "the type, or give the module in float32"
            )
        dtype = weights if self.dtype is None else self.dtype
        return Execution(dtype, self.layout, self.compiled or is_compiled, mode)
