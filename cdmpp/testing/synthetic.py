"""Synthetic samples whose latency is a known function of the leaves and the device."""

from __future__ import annotations

import numpy as np

from cdmpp.datasets.samples import ProgramArrays, Samples
from cdmpp.devices.spec import DeviceSpec
from cdmpp.programs.schema import LEAF_FEATURE_NAMES
from cdmpp.records import canonical_json

FLOAT_ADD = LEAF_FEATURE_NAMES.index("float_addsub")
NOISE_COLUMNS = 10
VECTOR_LENGTH = LEAF_FEATURE_NAMES.index("vec_len")

DEVICES = (
    DeviceSpec("fast", "cpu", peak_fp32_flop_per_s=2e11, simd_bits=512, threads=2),
    DeviceSpec("slow", "cpu", peak_fp32_flop_per_s=5e10, simd_bits=256, threads=1),
)


def make_samples(
    tasks: int = 12,
    programs_per_task: int = 8,
    *,
    seed: int = 0,
    most_leaves: int = 6,
    extra: int = 0,
    leaf_schema: int = 1,
) -> Samples:
    """Returns samples of random leaves. The time of a leaf is its operations divided by the
    device's peak, less with a larger vector length.
    """
    rng = np.random.default_rng(seed)
    count = tasks * programs_per_task
    leaf_count = np.repeat(rng.integers(1, most_leaves + 1, tasks), programs_per_task)
    offset = np.concatenate([[0], np.cumsum(leaf_count)]).astype(np.int64)
    total = int(offset[-1])
    owner = np.repeat(np.arange(count), leaf_count)
    task = np.repeat(np.arange(tasks), programs_per_task).astype(np.int64)
    leaves = np.zeros((total, len(LEAF_FEATURE_NAMES)), np.float32)
    # Some columns are noise; the others stay zero, as many do in real programs.
    leaves[:, -NOISE_COLUMNS:] = rng.normal(0, 1, (total, NOISE_COLUMNS))
    task_size = rng.uniform(14, 22, tasks)
    leaves[:, FLOAT_ADD] = task_size[task[owner]] + rng.uniform(0, 2, total)
    for name in LEAF_FEATURE_NAMES:
        if name.startswith("float_") and name != "float_addsub":
            leaves[:, LEAF_FEATURE_NAMES.index(name)] = 0
        if name.endswith(".unique_bytes"):
            leaves[:, LEAF_FEATURE_NAMES.index(name)] = rng.uniform(5, 10, total)
    leaves[:, VECTOR_LENGTH] = rng.integers(0, 4, total)
    trees = [_tree(int(leaves)) for leaves in leaf_count]
    schedules = [_schedule(rng).encode() for _ in range(count)]
    programs = ProgramArrays(
        program_id=np.array([f"{seed:02x}{i:062x}" for i in range(count)], object),
        task_id=task,
        tasks=np.array([f'["task{seed}_{t}"]|llvm' for t in range(tasks)], object),
        operator=np.array(["dense"] * count, object),
        networks=[[("net_a", 2)] if t % 3 else [] for t in range(tasks)],
        flop_count=np.full(count, np.nan),
        leaf_offset=offset,
        leaf_features=leaves,
        leaf_extra=np.zeros((total, extra), np.float32),
        leaf_position=(np.arange(total) - np.repeat(offset[:-1], leaf_count)).astype(np.int32) * 4
        + 2,
        data_hash=f"synthetic-{seed}",
        feature_schema={"leaf": leaf_schema, "leaf_extra": 0},
        tree_offset=np.cumsum([0, *map(len, trees)]).astype(np.int64),
        tree=np.array([node for tree in trees for node in tree], np.int32),
        schedule_offset=np.cumsum([0, *map(len, schedules)]).astype(np.int64),
        schedule=np.frombuffer(b"".join(schedules), np.uint8),
    )
    program = np.repeat(np.arange(count), len(DEVICES)).astype(np.int64)
    device = np.tile(np.arange(len(DEVICES)), count).astype(np.int64)
    peak = np.array([spec.peak_fp32_flop_per_s or 0.0 for spec in DEVICES])
    leaf_flop = np.exp2(leaves[:, FLOAT_ADD]) * np.exp2(4.0 - 2.0 * leaves[:, VECTOR_LENGTH])
    flop = np.add.reduceat(leaf_flop, offset[:-1])
    noise = rng.normal(0, 0.02, len(program))
    latency = flop[program] / peak[device] * np.exp(noise)
    return Samples(
        programs=programs,
        devices=DEVICES,
        program=program,
        device=device,
        latency_s=latency.astype(np.float64),
        latency_std_s=(latency * 0.02).astype(np.float64),
    )


def _tree(leaves: int) -> list[int]:
    """Returns a serialised tree: a root with one loop per leaf; leaf k is at position 4 k + 2."""
    inner = [entry for k in range(leaves) for entry in (2 * k + 1, 2 * k + 2, -1, -1)]
    return [0, *inner, -1]


def _schedule(rng: np.random.Generator) -> str:
    """Returns a schedule with one to three splits and one annotation."""
    splits = [["SP", 1, n, 64, [int(rng.integers(1, 9))], 1] for n in range(rng.integers(1, 4))]
    return canonical_json([*splits, ["AN", 1, 0, int(rng.integers(1, 4))]])


def split_by_task(samples: Samples) -> tuple[Samples, Samples, Samples]:
    """Returns training, validation and test parts made of whole tasks."""
    part = samples.task_id % 5
    return samples.take(part < 3), samples.take(part == 3), samples.take(part == 4)
