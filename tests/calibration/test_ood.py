"""The out-of-distribution flag, on programs whose leaves are made up and on real ones."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from cdmpp.calibration.ood import FILE_NAME, FORMAT, TrainingTasks, _packed
from cdmpp.errors import DataError
from cdmpp.testing.synthetic import FLOAT_ADD, make_samples, split_by_task


def shifted(samples, by):
    leaves = samples.programs.leaf_features.copy()
    leaves[:, FLOAT_ADD] += by
    tasks = np.array([f"other {task}" for task in samples.programs.tasks], object)
    return replace(samples, programs=replace(samples.programs, leaf_features=leaves, tasks=tasks))


@pytest.fixture(scope="module")
def samples():
    return make_samples(40, 6)


@pytest.fixture(scope="module")
def known(samples):
    return TrainingTasks.fit(split_by_task(samples)[0])


def test_training_tasks_are_their_own_nearest_and_not_flagged(samples, known):
    train = split_by_task(samples)[0]
    found = known.familiarity(train)
    assert not found.is_far.any()
    own = [
        near[0].task == train.programs.tasks[task]
        for near, task in zip(found.nearest, train.task_id, strict=True)
    ]
    assert np.mean(own) > 0.7
    for near in found.nearest:
        distances = [task.distance for task in near]
        assert distances == sorted(distances)


def test_other_tasks_of_the_same_kind_are_rarely_flagged(samples, known):
    assert known.familiarity(split_by_task(samples)[2]).is_far.mean() < 0.2


@pytest.mark.parametrize("by", [-200.0, 200.0])
def test_programs_far_away_are_flagged(samples, known, by):
    found = known.familiarity(shifted(split_by_task(samples)[2], by))
    assert found.is_far.all()
    assert (found.distance > known.threshold).all()


def test_a_column_that_never_varied_in_training_flags_when_it_does(samples, known):
    leaves = samples.programs.leaf_features.copy()
    constant = int(np.flatnonzero(leaves.std(axis=0) == 0)[0])
    leaves[:, constant] = 20.0
    changed = replace(samples, programs=replace(samples.programs, leaf_features=leaves))
    test = shifted(split_by_task(changed)[2], 0.0)
    assert known.familiarity(test).is_far.all()


def test_latency_is_not_looked_at(samples, known):
    blind = replace(samples, latency_s=np.full(len(samples), np.nan))
    first, second = known.familiarity(samples), known.familiarity(blind)
    np.testing.assert_array_equal(first.distance, second.distance)
    again = TrainingTasks.fit(split_by_task(blind)[0])
    assert again.threshold == known.threshold


def test_saved_tasks_give_the_same_flags(samples, known, tmp_path):
    known.save(tmp_path)
    loaded = TrainingTasks.load(tmp_path)
    assert loaded is not None
    pairs = [sorted(zip(one.tasks, one.operators, strict=True)) for one in (known, loaded)]
    assert pairs[0] == pairs[1]
    both = [tasks.familiarity(shifted(samples, 30.0)) for tasks in (known, loaded)]
    np.testing.assert_allclose(both[0].distance, both[1].distance, rtol=1e-2)
    for one, other in zip(both[0].nearest, both[1].nearest, strict=True):
        assert {near.task for near in one[:1]} <= {near.task for near in other}
    np.testing.assert_array_equal(both[0].is_far, both[1].is_far)


def test_a_fine_tuned_model_also_knows_the_new_tasks(samples, known):
    test = split_by_task(samples)[2]
    far = shifted(test, 200.0)
    more = known.extended(far)
    assert set(more.tasks) == set(known.tasks) | {
        str(name) for name in far.programs.tasks[np.unique(far.task_id)]
    }
    assert known.familiarity(far).is_far.all()
    assert not more.familiarity(far).is_far.any()
    assert known.extended(split_by_task(samples)[0]) is known


def test_equal_tasks_come_back(known, tmp_path):
    same = replace(known, centre=np.zeros_like(known.centre), threshold=0.0)
    same.save(tmp_path)
    assert not TrainingTasks.load(tmp_path).centre.any()


def test_one_task_alone_flags_nothing(samples):
    alone = samples.take(samples.task_id == 0)
    assert not TrainingTasks.fit(alone).familiarity(samples).is_far.any()


def test_no_samples_are_fine(samples, known):
    nothing = samples.take(np.zeros(len(samples), bool))
    assert len(known.familiarity(nothing).is_far) == 0


def test_steps_of_centres_change_distances_by_little(samples, known, tmp_path):
    known.save(tmp_path)
    loaded = TrainingTasks.load(tmp_path)
    before, after = known.familiarity(samples), loaded.familiarity(samples)
    assert np.abs(before.distance - after.distance).max() < 0.1 * known.threshold
    assert (before.is_far == after.is_far).all()
    loaded.save(tmp_path)  # steps of steps are the same ones
    assert TrainingTasks.load(tmp_path).centre == pytest.approx(loaded.centre, rel=1e-5)


@pytest.mark.parametrize("size", [-1, 1])
def test_packed_centres_of_another_size_are_refused(known, tmp_path, size):
    from safetensors.numpy import load_file, save_file

    known.save(tmp_path)
    parts = load_file(tmp_path / FILE_NAME)
    count = len(known.tasks)
    described = {"format": FORMAT, "count": count + size, "threshold": 1.5}
    metadata = {"training_tasks": json.dumps(described)}
    save_file(parts, tmp_path / FILE_NAME, metadata=metadata)
    with pytest.raises(DataError, match="damaged"):
        TrainingTasks.load(tmp_path)
    metadata["training_tasks"] = json.dumps({**described, "count": count})
    save_file(parts, tmp_path / FILE_NAME, metadata=metadata)
    assert len(TrainingTasks.load(tmp_path).tasks) == count
    for name in ("centre", "names"):
        cut = {**parts, name: parts[name][: len(parts[name]) // 2]}
        save_file(cut, tmp_path / FILE_NAME, metadata=metadata)
        with pytest.raises(DataError, match="damaged"):
            TrainingTasks.load(tmp_path)


def test_centres_unpack_to_no_more_than_the_named_tasks(known, tmp_path):
    from safetensors.numpy import load_file, save_file

    known.save(tmp_path)
    parts = {**load_file(tmp_path / FILE_NAME), "centre": _packed(bytes(1 << 20))}
    metadata = {"training_tasks": json.dumps({"format": FORMAT, "count": -1, "threshold": 1.5})}
    save_file(parts, tmp_path / FILE_NAME, metadata=metadata)
    with pytest.raises(DataError, match=r"unpacks to more than \d"):
        TrainingTasks.load(tmp_path)


def test_missing_damaged_and_foreign_files(samples, known, tmp_path):
    assert TrainingTasks.load(tmp_path) is None
    (tmp_path / FILE_NAME).write_bytes(b"nonsense")
    with pytest.raises(DataError, match="damaged"):
        TrainingTasks.load(tmp_path)
    from safetensors.numpy import save_file

    parts = {"mean": known.mean, "deviation": known.deviation, "centre": known.centre}
    described = {"format": 99, "tasks": [], "operators": [], "threshold": None}
    save_file(parts, tmp_path / FILE_NAME, metadata={"training_tasks": json.dumps(described)})
    with pytest.raises(DataError, match="format 99"):
        TrainingTasks.load(tmp_path)
    with pytest.raises(DataError, match="pooled leaf columns"):
        known.familiarity(make_samples(4, 4, extra=3))


def test_what_only_tasks_of_the_other_kind_of_device_do_is_flagged(samples):
    """Some training tasks of CPUs add integers; none of GPUs does."""
    some = np.isin(samples.programs.task_id, [0, 1, 2])
    leaves = samples.programs.leaf_features.copy()
    leaves[:, FLOAT_ADD + 40] = 0.0
    counts = np.diff(samples.programs.leaf_offset)
    owner = np.repeat(np.arange(len(counts)), counts)
    leaves[some[owner], FLOAT_ADD + 40] = 12.0

    def on(kind: str, prefix: str = ""):
        names = [f"{prefix}{task.rpartition('|')[0]}|{kind}" for task in samples.programs.tasks]
        programs = replace(samples.programs, leaf_features=leaves, tasks=np.array(names, object))
        return replace(samples, programs=programs)

    def flagged(kind: str, known: TrainingTasks):
        return known.familiarity(on(kind, "new ")).is_far[some[samples.program]].mean()

    cpu = TrainingTasks.fit(on("llvm"))
    without = on("cuda").take(np.flatnonzero(~some[samples.program]))
    both = cpu.extended(without)
    assert flagged("llvm", both) < 0.2
    assert flagged("cuda", both) == 1.0
    assert flagged("cuda", cpu) < 0.2, "nothing is known of GPUs: the distance alone decides"
