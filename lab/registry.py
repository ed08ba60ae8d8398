"""All experiments: names, functions, options and pages."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cdmpp.config import load_config
from cdmpp.errors import UsageError
from cdmpp.text import nearest


@dataclass(frozen=True)
class Experiment:
    """An experiment, or a tool of the laboratory if it has no pages.

    Attributes:
        name: as in `python -m lab run NAME`.
        what: what it measures.
        cpu_time: approximate time on one core.
        place: `module`, or `module:function`, of lab.experiments; empty for the module of its
            name. The default function is `experiment`. Its keyword arguments are the options.
        pages: names of the full pages that it writes; None for one page of its own name.
        options: options with which its pages are made.
        is_one_thread: whether numpy, torch and TVM use one thread.
        is_pinned: whether it is pinned to one core, because it measures times.
    """

    name: str
    what: str
    cpu_time: str = ""
    place: str = ""
    pages: tuple[str, ...] | None = None
    options: tuple[str, ...] = ()
    is_one_thread: bool = True
    is_pinned: bool = False

    @property
    def written(self) -> tuple[str, ...]:
        """Names of the full pages that it writes."""
        return (self.name,) if self.pages is None else self.pages

    def function(self) -> Callable[..., None]:
        """Returns the function; imports its module."""
        place, _, name = self.place.partition(":")
        module = importlib.import_module(f"lab.experiments.{place or self.name.replace('-', '_')}")
        found: Callable[..., None] = getattr(module, name or "experiment")
        return found

    def command(self) -> str:
        """Returns the command that reproduces its pages."""
        return " ".join(["python -m lab run", self.name, *self.options])

    def run(self, options: Sequence[str]) -> None:
        """Calls the function.

        Args:
            options: texts `name=value`; the value is read as YAML.

        Raises:
            UsageError: an unknown name, a value of the wrong type, or a missing value.
        """
        function = self.function()
        config = load_config(options_of(function), overrides=options)
        function(**{one.name: getattr(config, one.name) for one in dataclasses.fields(config)})


def options_of(function: Callable[..., None]) -> type[Any]:
    """Returns a dataclass with a field for each keyword argument of a function."""
    hints = typing.get_type_hints(function)
    fields: list[Any] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.default is inspect.Parameter.empty:
            fields.append((name, hints[name]))
        else:
            fields.append((name, hints[name], dataclasses.field(default=parameter.default)))
    return dataclasses.make_dataclass("Options", fields, frozen=True, kw_only=True)


def find(name: str) -> Experiment:
    """Returns an experiment by name.

    Raises:
        UsageError: there is no such experiment.
    """
    known = {one.name: one for one in EXPERIMENTS}
    if name not in known:
        near = nearest(name, known)
        raise UsageError(f"no experiment {name!r}{near}; `python -m lab list` shows them")
    return known[name]


EXPERIMENTS = (
    # Leaderboards.
    Experiment("cross-model", "all models on all data sets, by task and by network",
               "3 h; 2 h without AutoTVM's logs", place="suites:cross_model"),
    Experiment("cross-device", "CPUs of the shipped data left out: zero-shot, fine-tuned, "
               "baselines", "50 min", place="suites:cross_device"),
    Experiment("cross-device-autotvm", "the same on five GPUs and four CPUs of AutoTVM's logs",
               "100 min", place="suites:cross_device_autotvm"),
    Experiment("by-task", "the transformer on the shipped data", "4 min", place="suites:by_task"),
    Experiment("peer-tuning", "the trials that select the settings of the baselines", "70 min",
               pages=()),
    # Searches and replays.
    Experiment("search", "schedule searches with our model and TVM's, on a CPU in the training "
               "data", "100 min, a quiet core", is_pinned=True),
    Experiment("search-elsewhere", "schedule searches on an unseen CPU", "100 min, a quiet core",
               place="search", options=("page=search-elsewhere",), is_pinned=True),
    Experiment("scoring", "candidates scored per second, ours and TVM's model",
               "2 min, a quiet core", is_pinned=True),
    Experiment("search-drawing", "the cost of sampling the programs of a search, ours and TVM's",
               "10 min"),
    Experiment("replay", "known networks, replayed and measured", "65 min, a quiet core",
               options=("device=epyc-avx512-1c", "model=pretrained"), is_pinned=True),
    Experiment("replay-drawn", "replays of networks that were drawn after the model was fixed",
               "15 min, a quiet core", place="replay:drawn",
               options=("device=epyc-avx512-1c", "trials=0"), is_pinned=True),
    Experiment("replay-tuned", "replays of other drawn networks, untuned and after a search",
               "100 min, a quiet core", place="replay:drawn",
               options=("device=epyc-avx512-1c", "trials=16", "seed=2053", "count=10",
                        "page=replay-tuned"), is_pinned=True),
    Experiment("replay-elsewhere", "replays on an unseen CPU, zero-shot and after `cdmpp device "
               "add`", "60 min, a quiet core", place="replay:elsewhere",
               options=("seed=2044", "model=runs/without-icelake",
                        "added=runs/left-out/device-measured-here"), is_pinned=True),
    Experiment("answers", "predictions of the replayed networks in every way of running", "30 min"),
    Experiment("explain", "explained shares of stores, checked by timing programs without them",
               "6 min, a quiet core", is_pinned=True),
    # Whole networks and analytic models.
    Experiment("networks", "time, memory and utilisation of whole networks", "20 min"),
    Experiment("networks-gpu", "steps of timm's networks on three GPUs, families and devices left "
               "out", "1 min; 100 min with the trainings"),
    Experiment("compare", "whole networks measured on nine GPUs, and `cdmpp compare`", "5 min"),
    Experiment("compare-serving", "passes of LLaMA that NVIDIA published, and `cdmpp compare`",
               "1 min"),
    Experiment("serving-load", "published runs of LLM servers under load, models and systems left "
               "out", "4 min"),
    Experiment("cases", "inputs on which an earlier version was wrong, with today's output",
               "8 min"),
    Experiment("bounds", "lower bounds against every measurement", "3 min"),
    Experiment("tvm-gpu", "GPU programs unlike the training data: devices and kinds of operators "
               "left out", "10 min"),
    Experiment("hand-check", "ten operators on four GPUs with their lower bounds", "1 min"),
    Experiment("conv", "the convolution model on measured layers", "3 min"),
    Experiment("operators", "the operator model and NeuSight's predictions", "1 min",
               place="analytic:operators"),
    Experiment("gpu-kernels", "kernels of serving frameworks on today's GPUs: devices left out, "
               "larger shapes", "5 min", place="analytic:gpu_kernels"),
    Experiment("llm-kernels", "kernels of LLM serving: devices and versions of frameworks left out",
               "15 min", place="analytic:llm_kernels",
               options=("families=moe,latent_prefill,linear,quantize,hyper", "seeds=0,1,2")),
    Experiment("latent-decode", "latent attention of one token, as llm-kernels judges it", "3 min",
               place="analytic:llm_kernels",
               options=("page=latent-decode", "families=latent_decode", "seeds=0,1,2")),
    Experiment("exchanges", "all-to-all and frameworks' all-reduces, as llm-kernels judges them",
               "2 min", place="analytic:llm_kernels",
               options=("page=exchanges", "families=exchange,one_shot", "seeds=0,1,2")),
    Experiment("sparse-attention", "whole blocks of sparse attention, as llm-kernels judges them",
               "4 min", place="analytic:llm_kernels",
               options=("page=sparse-attention", "families=sparse", "seeds=0,1,2")),
    Experiment("mla-blocks", "whole blocks of latent attention as the sum of their kernels",
               "1 min"),
    Experiment("embedding", "the embedding models on a CPU", "2 min"),
    # Devices and machine code.
    Experiment("adapting", "the model that fine-tuning selects, and every candidate", "16 min"),
    Experiment("device-add", "adding an unseen CPU in ten minutes", "15 min, a quiet core",
               options=("run=runs/left-out/device-measured-here",
                        "model=runs/without-icelake")),
    Experiment("device-add-gpu", "adding a GPU with a sweep of kernels, simulated: every measured "
               "GPU left out", "40 min"),
    Experiment("h200", "an H200 that no model has learned from: kernels, convolutions, programs",
               "1 min"),
    Experiment("torch-kernels", "torch's kernels from a sweep of one H200: shapes held out, other "
               "GPUs", "2 min"),
    Experiment("new-devices", "errors and interval coverage on unseen devices", "5 min"),
    Experiment("compiled", "what machine code adds on programs of unseen tasks", "8 min"),
    Experiment("sealed", "the shipped model on test-once sets, with and without machine code",
               "2 min"),
    Experiment("learning-curve", "errors over the number of programs, both tiers, with and "
               "without attention", "2 h"),
    # Records, speed and robustness.
    Experiment("golden", "features compared with the original toolchain's, record by record",
               "1 min"),
    Experiment("extract-speed", "records read per second, and their outcomes", "2 min",
               pages=("extract-speed", "ansor-gpu"), is_one_thread=False),
    Experiment("scale", "extraction and training on more and more synthetic records: seconds and "
               "memory of every step", "30 min"),
    Experiment("model-speed", "training and prediction speed of all models", "8 min"),
    Experiment("tvm-releases", "which releases of TVM and tvm-ffi work", "20 min", pages=()),
    Experiment("serve", "a server under load", "10 min, two quiet cores"),
    Experiment("program-sweep", "generated tensor programs: every prediction within bounds, "
               "marked or rejected", "3 min"),
    Experiment("network-sweep", "networks of torch, torchvision, timm, transformers and our "
               "generator: every prediction within bounds, marked or rejected", "15 min"),
    Experiment("faults", "commands that are killed, run out of disk, lose their folder, get "
               "another time, or run twice at once", "2 h", place="robustness:faults"),
    Experiment("fuzz", "broken, hostile and hand-made input against every reader", "90 min",
               place="robustness:fuzz"),
    # Tools that make data.
    Experiment("varied-networks", "networks drawn at random, whose kernels a campaign measures",
               pages=()),
    Experiment("in-network", "kernels of searched networks, timed in their network", pages=()),
    Experiment("pack-campaign", "measured programs in the format of data/", pages=()),
    Experiment("kernel-intervals", "the intervals of the packaged operator model", pages=()),
    Experiment("library-kernels", "the tables of AMD's and pipeweave's kernels in "
               "data/gpu-kernels", pages=()),
)  # fmt: skip
