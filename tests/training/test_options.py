"""Options of a training: where it runs, and the name of its folder."""

from __future__ import annotations

from dataclasses import replace

from cdmpp.training.finetune.run import FinetuneRunOptions
from cdmpp.training.finetune.run import run_name as finetune_name
from cdmpp.training.options import TrainOptions, run_name, trained_on


def test_all_nets_train_on_the_asked_kind_of_device():
    options = trained_on(TrainOptions(), "cuda")
    parts = (options.transformer, options.ensemble.transformer, options.ensemble.perceptron)
    assert {part.loop.device_type for part in parts} == {"cuda"}
    assert trained_on(options, "cpu") == TrainOptions()


def test_equal_options_have_equal_names_and_others_do_not():
    options = TrainOptions(dataset="data/a", devices=("x", "y"), model="gbdt", seed=3)
    assert run_name(options).startswith("a-x+y-gbdt-by-task-seed3-")
    assert run_name(options) == run_name(replace(options))
    assert run_name(options) != run_name(replace(options, baselines=()))
    assert run_name(TrainOptions(devices=("a", "b", "c"))).startswith("3-devices-transformer-")
    assert run_name(TrainOptions(devices=("a",))).startswith("a-transformer-")
    assert run_name(TrainOptions()).startswith("tenset-cpu-transformer-")


def test_a_finetuning_is_named_after_model_and_target():
    options = FinetuneRunOptions(from_run="runs/base", devices=("t4",), budget=5)
    assert finetune_name(options).startswith("base-to-t4-5tasks-")
