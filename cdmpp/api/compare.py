"""Comparison of networks on many devices, as in `cdmpp compare`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdmpp.analytic.sweep.predict import SweptKernels
from cdmpp.api.answers import Answers, draw_times, new_axes, time_axis
from cdmpp.api.arguments import PATH, check_type, several
from cdmpp.api.model import load
from cdmpp.api.sources import Device, is_of, split_devices
from cdmpp.comparison.cell import OBJECTIVES, CompareCell, Objective, ranked
from cdmpp.comparison.compiled import compiled_cell
from cdmpp.comparison.llm.config_file import read_model
from cdmpp.comparison.llm.decoder import Decoder, Parallel
from cdmpp.comparison.llm.load import LoadCell
from cdmpp.comparison.llm.schedule import LEAST_SHARE, Load
from cdmpp.comparison.llm.server_options import BACKENDS, Backend
from cdmpp.comparison.llm.sweep import load_cells, sweep_json, sweep_notes, sweep_rows
from cdmpp.comparison.plots import draw_front
from cdmpp.comparison.prices import prices_of
from cdmpp.comparison.run import Question, TorchNetwork, asked_devices
from cdmpp.comparison.run import compare as compared
from cdmpp.comparison.tables import axes_of, groups, json_rows, notes, number, rows, titles
from cdmpp.comparison.transformer import all_parallels, all_passes
from cdmpp.comparison.what_if import parse_scales
from cdmpp.devices.registry import THIS_CPU, load_registry
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import UsageError
from cdmpp.networks.graph.execution import Dtype, Layout, Mode, Running, check_word
from cdmpp.networks.graph.factory import load_factory
from cdmpp.networks.graph.network_file import onnx_batch
from cdmpp.networks.onnx_files.sizes import InputSizes
from cdmpp.replay.file_kind import file_kind

if TYPE_CHECKING:
    import torch
    from matplotlib.axes import Axes

#: A torch module, a function that returns one, a network file (.onnx, .pt2), or a language model:
#: Hugging Face's config.json, its folder, or the name of a shipped one.
Network = Any
Numbers = int | Sequence[int]
_FILES = (".onnx", ".pt2")


class Comparison(Answers[CompareCell]):
    """Latency, memory and cost of networks on devices.

    Attributes:
        objective: the criterion that ranks the rows.
    """

    objective: Objective

    def __init__(
        self, found: Iterable[CompareCell], *, objective: Objective = "latency",
        notes: Iterable[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(found, notes=notes)
        self.objective = objective

    def _part(self, found: tuple[CompareCell, ...]) -> Comparison:
        return Comparison(found, objective=self.objective, notes=self.notes)

    def to_json(self) -> list[dict[str, Any]]:
        """Returns the rows that `cdmpp compare --json` prints."""
        return json_rows(self._found, self.objective)

    def table(self) -> list[list[str]]:
        """Returns titles and lines by network, best first; `notes` has the missing devices."""
        parts = [part for _, part in groups(self._found)]
        lines = [
            [part[0].network, str(part[0].batch), *line]
            for part in parts
            for line in rows(part, self.objective)
        ]
        return [["network", "batch", *titles(self._found)], *lines]

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draws the latencies with their intervals, by network, fastest first.

        Raises:
            UsageError: no row has a latency.
        """
        parts = groups(self._found)
        return draw_times(axes, [
            (
                f"{cell.device}, {title}" if len(parts) > 1 else cell.device,
                cell.latency_s, cell.low_s, cell.high_s, None,
            )
            for title, part in parts
            for cell in ranked(part, "latency")
            if cell.latency_s is not None
        ])  # fmt: skip

    def plot_front(self, axes: Axes | None = None) -> Axes:
        """Draws cost (energy with fewer than two known prices) against latency, with the front.

        Raises:
            UsageError: there are several networks or batches, or no values to draw.
        """
        if len(groups(self._found)) != 1:
            raise UsageError(
                f"plot_front() needs one network at one batch, got {len(groups(self._found))}; "
                "compare only one, or select some of the rows"
            )
        first, second = axes_of(self._found)
        if all(cell.value(first) is None for cell in self._found):
            raise UsageError(f"nothing to plot: the {first} is unknown for all devices")
        axes = new_axes(axes, 4.2)
        draw_front(axes, self._found, first, second)
        return axes


class LoadComparison(Answers[LoadCell]):
    """Servers of language models under different loads."""

    def to_json(self) -> list[dict[str, Any]]:
        """Returns the rows that `cdmpp compare --concurrency ... --json` prints."""
        return sweep_json(self._found)

    def table(self) -> list[list[str]]:
        """Returns titles and lines by model, cheapest first."""
        found: list[list[str]] = []
        for name in dict.fromkeys(cell.network for cell in self._found):
            part = [cell for cell in self._found if cell.network == name]
            own, *lines = sweep_rows(part, number)
            found = found or [["model", *own]]
            found += [[name, *line] for line in lines]
        return found

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draws tokens per second per GPU against time per token, one curve per server.

        Raises:
            UsageError: no row has a time.
        """
        if all(cell.tpot_s is None for cell in self._found):
            raise UsageError("nothing to plot: no result has a time; see `reasons` of each")
        axes = new_axes(axes, 4.2)

        def server(cell: LoadCell) -> tuple[str, str, Parallel]:
            return cell.network, cell.device, cell.parallel

        is_one = len({cell.network for cell in self._found}) == 1
        for (name, device, parallel), found in groupby(self._found, server):
            points = [
                (cell.tpot_s, cell.tokens_per_s_gpu[0], cell.load.concurrency)
                for cell in found
                if cell.tpot_s is not None and cell.tokens_per_s_gpu is not None
            ]
            if not points:
                continue
            label = f"{parallel.gpus} x {device}" + ("" if is_one else f", {name}")
            times = [tpot for tpot, _, _ in points]
            heights = [rate for _, rate, _ in points]
            (line,) = axes.plot([one[0] for one in times], heights, "o-", ms=4, label=label)
            axes.hlines(
                heights, [one[1] for one in times], [one[2] for one in times],
                color=line.get_color(), alpha=0.3,
            )  # fmt: skip
            for time, height, users in points:
                axes.annotate(
                    str(users), (time[0], height), xytext=(3, 4), textcoords="offset points",
                    fontsize="x-small",
                )  # fmt: skip
        time_axis(axes)
        axes.set_yscale("log")
        axes.set_xlabel("time per token; the labels are concurrent requests")
        axes.set_ylabel("tokens/s per GPU")
        axes.legend(frameon=False, fontsize="small")
        return axes


def compare(
    networks: Network | Sequence[Network],
    device: Device | Sequence[Device],
    *,
    batch: Numbers | None = None,
    shapes: Sequence[tuple[int, ...]] = ((3, 224, 224),),
    dtypes: Sequence[torch.dtype] | None = None,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    dtype: Dtype | None = None,
    layout: Layout = "nchw",
    compiled: bool = False,
    mode: Mode | None = None,
    precision: str | None = None,
    kv_precision: str | None = None,
    prefill: Numbers = (),
    decode_at: Numbers = (),
    tensor_parallel: Numbers = 1,
    data_parallel_attention: Numbers = 1,
    expert_parallel: Numbers = 1,
    pipeline_parallel: Numbers = 1,
    concurrency: Numbers = (),
    input_tokens: int | None = None,
    output_tokens: int | None = None,
    backend: Backend = "vllm",
    server_options: Mapping[str, Any] | None = None,
    measured: str | Path | None = None,
    objective: Objective = "latency",
    scale: Mapping[str, float] | None = None,
    prices: Sequence[str | Path] = (),
    provider: str | None = None,
) -> Comparison | LoadComparison:
    """Predicts latency, memory, cost and energy of networks on many devices without running them.

    Example:
        >>> import cdmpp
        >>> found = cdmpp.compare("Qwen/Qwen3-32B", ["h100", "l40s"], decode_at=2048)
        >>> [cell.device for cell in found]
        ['h100', 'l40s']

    Args:
        networks: one or several: torch modules, functions that return one (also `module:factory`),
            files (`.onnx`, `.pt2`), language models (config.json, its folder, or the name of a
            shipped one).
        device: labels, `DeviceSpec`s, device files, or `all`.
        batch: samples or sequences per run; None = 1, or the batch of a file.
        shapes, dtypes: of a torch module's inputs, without the batch; see `Model.network`.
        input_shapes: of an ONNX file's inputs with dynamic sizes.
        dtype, layout, compiled, mode: how torch runs the networks; see `Model.network`.
        precision, kv_precision: formats of a language model's weights and KV cache; None = from
            its config.
        prefill: tokens of the prompt, processed in one pass.
        decode_at: tokens in the KV cache before the next token.
        tensor_parallel, data_parallel_attention, expert_parallel, pipeline_parallel: ways to split
            a language model over devices; all combinations are predicted.
        concurrency: requests in flight; predicts servers under load instead of single passes.
        input_tokens, output_tokens: lengths of a request.
        backend: serving framework; sets the scheduler and kernels.
        server_options: launch options by the backend's names, e.g. `{"max_num_seqs": 64}`.
        measured: file with a few measured loads of the server, which calibrate the predictions;
            CSV or Parquet with `concurrency`, `isl`, `osl`, `ttft_ms` and `tpot_ms`.
        objective: criterion that ranks the rows: `latency`, `throughput`, `cost` or `energy`.
        scale: also compare each device with these values multiplied, e.g. `{"bandwidth": 1.5}`.
        prices: your price files; they take precedence over the shipped prices.
        provider: use only the shipped prices of this provider.

    Returns:
        a row per network, batch and device, with the reason if there is no prediction; under load a
        row per server and load.

    Raises:
        UsageError: nothing to compare, or incompatible options.
        DataError: a network cannot be read, or no device can be predicted.
        DeviceError: an unknown device.
    """
    check_word("objective", objective, OBJECTIVES)
    check_word("backend", backend, BACKENDS)
    check_type("compiled", compiled, bool, "True or False")
    check_type("scale", scale, Mapping | None, "a mapping of values to factors, or None")
    check_type("provider", provider, str | None, "a provider of the shipped prices, or None")
    check_type("server_options", server_options, Mapping | None, "names and values, or None")
    check_type("measured", measured, PATH | None, "a file of measured loads, or None")
    for name, value in (("input_tokens", input_tokens), ("output_tokens", output_tokens)):
        check_type(name, value, Integral | None, "a whole number or None")
    files_of_prices = map(Path, several("prices", prices, PATH, "a price file"))
    asked = list(networks) if isinstance(networks, list | tuple) else [networks]
    labels, files = split_devices(device)
    takes_all = labels == ["all"]
    scaled = ",".join(f"{name}={factor}" for name, factor in (scale or {}).items())
    factors = parse_scales(scaled) if scaled else {}
    devices, hypothetical = asked_devices(
        [] if takes_all else labels, files, factors, takes_all=takes_all
    )
    models = [
        read_model(str(one), precision=precision, kv_precision=kv_precision)
        for one in asked
        if _is_language_model(one)
    ]
    of_torch = [_torch_network(one, shapes, dtypes) for one in asked if not _is_language_model(one)]
    parallels = all_parallels(
        _numbers("tensor_parallel", tensor_parallel),
        _numbers("data_parallel_attention", data_parallel_attention),
        _numbers("expert_parallel", expert_parallel),
        _numbers("pipeline_parallel", pipeline_parallel),
    )  # fmt: skip
    own_prices = prices_of(files_of_prices, [spec.name for spec in devices], provider=provider)
    users = _numbers("concurrency", concurrency)
    of_passes = {
        "batch": batch, "prefill": prefill, "decode_at": decode_at,
        "objective": objective != OBJECTIVES[0],
    }  # fmt: skip
    of_load = {
        "input_tokens": input_tokens, "output_tokens": output_tokens, "measured": measured,
        "backend": backend != BACKENDS[0], "server_options": server_options,
    }  # fmt: skip
    unused = [name for name, value in (of_passes if users else of_load).items() if value]
    if unused:
        kind = "without" if users else "with"
        raise UsageError(f"{unused[0]} can only be used {kind} concurrency; leave it out")
    if users:
        return _under_load(
            models, of_torch, parallels, devices, hypothetical, own_prices,
            _loads(users, input_tokens, output_tokens), backend,
            None if measured is None else Path(measured), server_options,
        )  # fmt: skip
    batches = _numbers("batch", 1 if batch is None else batch)
    question = Question(
        devices, hypothetical, networks=of_torch, transformers=models,
        passes=all_passes(
            _numbers("prefill", prefill), _numbers("decode_at", decode_at), batches, parallels
        ),
        batches=batches, prices=own_prices, running=Running(dtype, layout, compiled, mode),
    )  # fmt: skip
    found = compared(
        question,
        onnx_cells=partial(
            onnx_cells, batches=[None] if batch is None else batches, shapes=input_shapes or {}
        ),
        kernels=SweptKernels.packaged,
    )
    said = [note for _, part in groups(found) for note in notes(part, objective)]
    return Comparison(found, objective=objective, notes=dict.fromkeys(said))


def onnx_cells(
    path: Path,
    name: str,
    devices: Sequence[DeviceSpec],
    *,
    batches: Sequence[int | None],
    shapes: Mapping[str, tuple[int, ...]],
) -> list[CompareCell]:
    """Returns the cells of an ONNX file, compiled by TVM.

    Args:
        batches: None = the batch of the file.
        shapes: shapes of inputs with dynamic sizes.

    Raises:
        CdmppError: the file cannot be read or compiled.
    """
    known, model = load_registry(), load()
    real = [spec for spec in devices if spec.name == THIS_CPU or known.get(spec.name) == spec]
    found: list[CompareCell] = []
    for batch in batches:
        samples = onnx_batch(path, InputSizes(shapes, batch))
        predicted = model.network(
            path, real, name=name, ways=("tvm-untuned",), input_shapes=shapes,
            batches=None if batch is None else [batch],
        ) if real else ()  # fmt: skip
        answers = {
            one.device: (one.latency_s, one.low_s, one.high_s, one.reasons) for one in predicted
        }
        found += [compiled_cell(name, samples, spec, answers.get(spec.name)) for spec in devices]
    return found


def _under_load(
    models: Sequence[Decoder], others: Sequence[TorchNetwork], parallels: Sequence[Parallel],
    devices: Sequence[DeviceSpec], hypothetical: frozenset[str], prices: Mapping[str, Any],
    loads: Sequence[Load], backend: Backend, measured: Path | None,
    options: Mapping[str, Any] | None,
) -> LoadComparison:  # fmt: skip
    if others or not models:
        names = ", ".join(one.name for one in others) or "no network"
        raise UsageError(
            f"concurrency is for servers of language models: got {names}, expected config.json "
            "or a name such as Qwen/Qwen3-32B"
        )
    cells = load_cells(
        models, parallels, devices, loads, backend, SweptKernels.packaged(), prices, hypothetical,
        measured, options,
    )  # fmt: skip
    return LoadComparison(cells, notes=sweep_notes(cells, None))


def _loads(users: Sequence[int], tokens_in: int | None, tokens_out: int | None) -> list[Load]:
    if tokens_in is None or tokens_out is None:
        raise UsageError(
            "concurrency needs input_tokens and output_tokens, the lengths of a request"
        )
    return [Load(one, tokens_in, tokens_out, LEAST_SHARE) for one in users]


def _is_language_model(network: Network) -> bool:
    is_named = isinstance(network, str | Path) and not str(network).endswith(_FILES)
    return is_named and not _is_factory(network)


def _is_factory(network: Network) -> bool:
    return isinstance(network, str) and ":" in network and not Path(network).exists()


def _torch_network(
    network: Network, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[torch.dtype] | None
) -> TorchNetwork:
    if _is_factory(network):
        name = network.rpartition(":")[2]
        return TorchNetwork(name, load_factory(network), shapes, dtypes)
    if isinstance(network, str | Path):
        path = Path(network)
        file_kind(path, ["network"])
        return TorchNetwork(path.stem, path)
    is_module = is_of(network, "torch") and not isinstance(network, type)
    if not (is_module or callable(network)):
        raise UsageError(
            f"cannot compare {type(network).__name__}; expected a torch module or a function "
            "that returns one, a file (.onnx, .pt2), or a language model's config.json"
        )
    name = getattr(network, "__name__", type(network).__name__)
    return TorchNetwork(name, (lambda: network) if is_module else network, shapes, dtypes)


def _numbers(name: str, given: Numbers) -> list[int]:
    """Returns the distinct numbers of an option.

    Raises:
        UsageError: a number is not a positive integer.
    """
    found = dict.fromkeys(given if isinstance(given, Iterable) else [given])
    for one in found:
        if isinstance(one, bool) or not isinstance(one, Integral) or one < 1:
            raise UsageError(f"{name} is {one!r}, expected whole numbers from 1 up")
    return [int(one) for one in found]
