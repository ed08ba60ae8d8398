"""Mutated datasets, run folders, tuning databases, networks, and TVMScript."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.extraction.extracted import MANIFEST
from cdmpp.datasets.metaschedule.databases import (
    RECORD_FILE,
    WORKLOAD_FILE,
    read_module_json,
    read_tuning_records,
    read_workloads,
)
from cdmpp.datasets.metaschedule.older import module_format
from cdmpp.datasets.read_report import ReadReport
from cdmpp.devices.registry import get_device
from cdmpp.models.assemble import AskedProgram
from cdmpp.models.ensemble import EnsembleCostModel
from cdmpp.models.nets.options import LoopOptions, NetOptions
from cdmpp.models.options import EnsembleOptions, GbdtOptions, TransformerOptions
from cdmpp.predict.estimates import load_trained
from cdmpp.predict.prediction import estimated
from cdmpp.predict.saved_model import ModelCard
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.testing.synthetic import make_samples, split_by_task
from cdmpp.training.run_folder import save_trained
from tests.fuzz.bombs import ZEROS
from tests.fuzz.fuzz_readers import METASCHEDULE_LINE
from tests.fuzz.fuzz_texts import Case
from tests.fuzz.mutate import ODD_VALUES, mutate_bytes, mutate_value
from tests.fuzz.outcome import check_finite
from tests.paths import ROOT
from tests.serve.attack import SCRIPT, damaged_text

#: Scripts that reach for what is not theirs; `{}` is a file that they would make.
EVIL_SCRIPTS = (
    "import os\nos.system('touch {}')",
    "from os import system\nsystem('touch {}')",
    SCRIPT.replace("T.float32(1)", "__import__('os').system('touch {}')"),
    SCRIPT.replace("range(16)", "range(open('{}', 'w').write('x'))"),
    SCRIPT.replace("T.Buffer((16,)", "T.Buffer((__import__('os').system('touch {}'),)", 1),
    SCRIPT.replace('"float32"', "\"__import__('os').system('touch {}')\"", 1),
    SCRIPT.replace("def f(", "def f(x: \"__import__('os').system('touch {}')\", "),
    SCRIPT.replace("B[vi] =", "[c for c in ().__class__.__base__.__subclasses__()]; B[vi] ="),
    SCRIPT.replace("with T.sblock", "with open('{}', 'w'), T.sblock"),
    SCRIPT.replace("@T.prim_func", "@(lambda f: open('{}', 'w') and f)\n@T.prim_func"),
    SCRIPT.replace("T.float32(1)", "T.call_packed('testing.echo', 1)"),
    SCRIPT.replace("T.float32(1)", "T.call_extern('int32', 'system', 'touch {}')"),
    SCRIPT.replace("16", "9" * 400), SCRIPT.replace("A[vi]", "(" * 300 + "A[vi]" + ")" * 300),
    SCRIPT.replace("A[vi] +", "A[vi] + " * 3000), SCRIPT.replace("vi]", "vi ** vi ** vi]"),
    SCRIPT.replace("16", str(2**62)), SCRIPT.replace("16", "0"), SCRIPT.replace("16", "-1"),
    SCRIPT.replace("range(16)", "range(16 ** 16 ** 16)"), "x" * 100_000, "\x00", "#" * 100,
)  # fmt: skip


def datasets(rng: random.Random, folder: Path) -> Iterator[Case]:
    """Yields an extracted dataset with a damaged shard, its bytes or its values; the manifest
    says of most of them that they are as they should be.
    """
    import pyarrow.parquet as pq

    source, place = ROOT / "data" / "metaschedule-cpu", folder / "dataset"
    manifest = json.loads((source / MANIFEST).read_text("utf-8"))
    shard = manifest["shards"][-1]
    manifest["shards"] = [shard]
    few = folder / "few.parquet"
    kept: dict[str, Any] = {}
    ids: Any = None
    for name in ("programs", "measurements"):
        table = pq.read_table(source / shard[name]["file"])
        if ids is None:
            ids = table["program_id"].slice(0, 12)
            kept[name] = table.slice(0, 12)
        else:
            import pyarrow.compute as pc

            kept[name] = table.filter(pc.is_in(table["program_id"], ids.combine_chunks()))
    whole = {}
    for name, table in kept.items():
        pq.write_table(table, few)
        whole[name] = few.read_bytes()

    def read(tables: dict[str, bytes], honest: bool, text: bytes) -> None:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        for name, data in tables.items():
            (place / shard[name]["file"]).write_bytes(data)
            if honest:
                shard[name]["sha256"] = hashlib.sha256(data).hexdigest()
        (place / MANIFEST).write_bytes(text or json.dumps(manifest).encode())
        _check_samples(load_samples(place))

    while True:
        name = rng.choice(("programs", "measurements"))
        kind, text = rng.random(), b""
        if kind < 0.4:
            case = mutate_bytes(rng, whole[name])
        elif kind < 0.9:
            case = _table_with_odd_values(rng, kept[name], few)
        else:
            value = mutate_value(rng, json.loads(json.dumps(manifest)))
            case, text = whole[name], json.dumps(value).encode("utf-8", "surrogatepass")
        tables = {**whole, name: case}
        honest = kind >= 0.9 or rng.random() < 0.9
        yield case + text, lambda t=tables, h=honest, x=text: read(t, h, x)  # type: ignore[misc]


def _table_with_odd_values(rng: random.Random, table: Any, path: Path) -> bytes:
    """Returns a table in which some values of a column are others of its own type."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    place = rng.randrange(table.num_columns)
    field = table.schema.field(place)
    values = table.column(place).to_pylist()
    for _ in range(rng.randint(1, 3)):
        row = rng.randrange(len(values))
        old = values[row]
        new = rng.choice(ODD_VALUES)
        if isinstance(old, list) and old and rng.random() < 0.7:
            at = rng.randrange(len(old))
            new = [*old[:at], new, *old[at + rng.randrange(2) :]]
        values[row] = new
    try:
        column = pa.array(values, field.type)
        pq.write_table(table.set_column(place, field, column), path)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return _table_with_odd_values(rng, table, path)
    return path.read_bytes()


def _check_samples(samples: Any) -> None:
    programs = samples.programs
    assert len(samples) > 0
    assert bool((samples.latency_s > 0).all()), "a latency that is not positive"
    check_finite(samples.latency_s)
    for name in ("leaf_features", "leaf_extra"):
        check_finite(np.asarray(getattr(programs, name)))
    assert samples.program.max() < len(programs.program_id)
    assert programs.leaf_offset[-1] == len(programs.leaf_features) == len(programs.leaf_position)


def run_folders(rng: random.Random, folder: Path) -> Iterator[Case]:
    """Yields a run folder with a mutated file: weights, trees, training tasks or what is known of
    the model. A model that is taken must have finite answers.
    """
    whole, place = folder / "whole", folder / "run"
    whole.mkdir()
    train, validation, test = split_by_task(make_samples(30, 6))
    network = NetOptions(hidden=8, layers=1, heads=2, feed_forward=8, head_hidden=8)
    model = EnsembleCostModel(EnsembleOptions(
        transformer=TransformerOptions(network=network, loop=LoopOptions(epochs=1)),
        trees=GbdtOptions(trees=4, depth=2, threads=1),
    ))  # fmt: skip
    model.fit(train, validation, seed=0)
    card = ModelCard.of(model.kind, train, {"kind": "task", "seed": 0})
    save_trained(model, whole, card, train=train, validation=validation)
    asked = AskedProgram("", "", CompactAst(*[np.zeros(0)] * 4), train.devices[0])
    files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())

    def answers(run: Path) -> Any:
        trained = load_trained(run)
        found = trained.estimate(test, latency_s=trained.model.predict(test))
        return [estimated(asked, found, row, name="") for row in range(len(test))]

    def read(name: Path, case: bytes, has_digest: bool) -> str | None:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(whole, place)
        (place / name).write_bytes(case)
        rows = answers(place)
        check_finite([[row.latency_s, row.low_s, row.high_s, row.mean_s] for row in rows])
        assert not has_digest or repr(rows) == expected, "damaged weights were taken"
        return next((row.reason for row in rows if row.reason), None)

    expected = repr(answers(whole))
    while True:
        name = rng.choice(files)
        data = (whole / name).read_bytes()
        case, has_digest = mutate_bytes(rng, data), name.suffix == ".safetensors"
        if name.suffix == ".json" and rng.random() < 0.7:
            value = json.loads(data)
            for _ in range(rng.randint(1, 3)):
                value = mutate_value(rng, value)
            case = json.dumps(value).encode("utf-8", "surrogatepass")
        elif name.suffix == ".safetensors" and rng.random() < 0.5:
            case, has_digest = _mutated_safetensors(rng, data), False
        yield case, lambda n=name, d=case, h=has_digest: read(n, d, h)  # type: ignore[misc]


def _mutated_safetensors(rng: random.Random, data: bytes) -> bytes:
    """Returns a file without a digest, with another header, or with numbers that are none."""
    size = int.from_bytes(data[:8], "little")
    head, body = json.loads(data[8 : 8 + size]), bytearray(data[8 + size :])
    del head["__metadata__"]["sha256"]
    if rng.random() < 0.5:
        at = 4 * rng.randrange(len(body) // 4)
        odd = np.array([rng.choice((np.nan, np.inf, -np.inf, 1e38, -1e38))], np.float32)
        body[at : at + 4] = odd.tobytes()
    else:
        head = mutate_value(rng, head)
    text = json.dumps(head).encode("utf-8", "surrogatepass")
    size = rng.choice((len(text), len(text), len(text), 0, 2**40, 2**63))
    return size.to_bytes(8, "little") + text + bytes(body)


def tuning_databases(rng: random.Random, folder: Path) -> Iterator[Case]:
    """Yields mutated databases of MetaSchedule."""
    import base64

    module = json.dumps({"root": 1, "nodes": [{"type_key": ""}, {"type_key": "IRModule"}]}).encode()
    packed = base64.b64encode(len(module).to_bytes(8, "little") + module).decode()
    seeds = {
        WORKLOAD_FILE: json.dumps(["1", packed]),
        RECORD_FILE: json.dumps(json.loads(METASCHEDULE_LINE)),
    }

    def read(files: dict[str, bytes]) -> str | None:
        for name, data in files.items():
            (folder / name).write_bytes(data)
        workloads = read_workloads(folder)
        for one in workloads:
            module_format(read_module_json(folder, one))
        report = ReadReport()
        for found in read_tuning_records(folder, workloads, report, device="fuzz"):
            record = found.record
            assert all(cost > 0 for cost in record.costs_s), "a cost that is not positive"
            check_finite([list(record.costs_s), record.all_cost_s])
            assert len(found.program_id) == 64
        return f"line: {next(iter(report.skipped))}" if report.skipped_total else None

    while True:
        files = {}
        for name, text in seeds.items():
            value = json.loads(text)
            if rng.random() < 0.6:
                value = mutate_value(rng, value)
            line = json.dumps(value).encode("utf-8", "surrogatepass")
            if rng.random() < 0.3:
                line = mutate_bytes(rng, line)
            files[name] = b"\n".join([line] * rng.randint(1, 3))
        yield files[RECORD_FILE], lambda f=files: read(f)  # type: ignore[misc]


def networks(rng: random.Random, folder: Path) -> Iterator[Case]:
    """Yields mutated ONNX files."""
    import onnx
    from google.protobuf import json_format
    from onnx import helper

    from tvm_helper.tasks.network_tasks import load_network

    path = folder / "network.onnx"
    weights = helper.make_tensor("w", onnx.TensorProto.FLOAT, [8, 4], [0.5] * 32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        "network",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 8])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 4])],
        initializer=[weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    whole = model.SerializeToString()
    value = json_format.MessageToDict(model)

    def read(case: bytes) -> None:
        path.write_bytes(case)
        load_network(path)

    while True:
        case = ZEROS if rng.random() < 0.01 else mutate_bytes(rng, whole)
        if rng.random() < 0.7:
            # A value that no message can hold.
            with contextlib.suppress(Exception):
                other = json_format.ParseDict(mutate_value(rng, value), onnx.ModelProto())
                case = other.SerializeToString()
        yield case, lambda d=case: read(d)  # type: ignore[misc]


def scripts(rng: random.Random, folder: Path) -> Iterator[Case]:
    """Yields damaged TVMScript, and such that would run something; what is taken has finite
    columns.
    """
    from tvm_helper.predict.reading import features_of, look_at
    from tvm_helper.tasks.script import read_script
    from tvm_helper.tasks.target import device_target

    trace = folder / "ran"
    target = device_target(get_device("epyc-avx2-2c"))

    def read(text: str) -> str | None:
        try:
            programs = read_script(text)
            reasons = [_featurised(program) for program in programs]
        finally:
            assert not trace.exists(), "a script was run"
        return next((reason for reason in reasons if reason), None)

    def _featurised(program: Any) -> str | None:
        look_at(program.module)
        found = features_of(program.module, target)
        if isinstance(found, str):
            return f"program: {found[:50]}"
        check_finite(found.leaf_features)
        check_finite(found.leaf_extra)
        return None

    while True:
        kind = rng.random()
        if kind < 0.1:
            text = rng.choice(EVIL_SCRIPTS).replace("{}", str(trace))
        else:
            text = damaged_text(SCRIPT, rng) if kind < 0.3 else _with_other_words(SCRIPT, rng)
        yield text.encode("utf-8", "replace"), lambda t=text: read(t)  # type: ignore[misc]


def _with_other_words(text: str, rng: random.Random) -> str:
    """Returns a script in which one to three words or numbers are others of it, or odd ones."""
    words = re.findall(r"\w+|[^\w\s]", text)
    odd = ("0", "-1", "2147483648", "1e999", "T.int64(3)", "B[vi, vi]", "T.max(vi, 3)", "int8", "i")
    for _ in range(rng.randint(1, 3)):
        found = rng.choice(list(re.finditer(r"\w+|[^\w\s]", text)))
        new = rng.choice(odd if rng.random() < 0.4 else words)
        text = text[: found.start()] + new + text[found.end() :]
    return text
