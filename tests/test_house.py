"""Architecture rules: imports between packages, size of folders, loading without TVM."""

from __future__ import annotations

import subprocess
import sys

from tests import house
from tests.paths import ROOT

#: Packages that work without today's TVM.
WITHOUT_TVM = ("cdmpp", "tvm_helper.cost_model.ansor", "tvm_helper.legacy")
#: Reasons why modules without TVM are in tvm_helper.
IN_THE_HELPER = {
    "plugs a model into TVM's searches, today's and the old one's": (
        "cost_model.ansor.client", "cost_model.ansor.run", "cost_model.ansor.scorer",
        "cost_model.ansor.served", "cost_model.ansor.server", "cost_model.ansor.setup",
        "cost_model.measured_programs", "cost_model.neighbours", "cost_model.reference",
        "cost_model.safety_net", "cost_model.scoring", "cost_model.state_file", "cost_model.usage",
    ),
    "a part of measuring a device with programs that TVM compiles": (
        "device_add.clock", "device_add.curve", "device_add.fit", "device_add.kernels",
        "device_add.options", "device_add.plan",
    ),
    "the side of the old TVM, which runs in an environment of its own": (
        "legacy.ansor", "legacy.block_tir", "legacy.client", "legacy.dividends",
        "legacy.environment", "legacy.fallback", "legacy.fast_calls", "legacy.featurise",
        "legacy.gpu_code", "legacy.metaschedule", "legacy.setup", "legacy.tir", "legacy.validity",
    ),
    "a part of measuring programs that TVM compiles": (
        "drawn.task_names", "measure.failures", "measure.health", "measure.journal",
        "measure.options", "measure.timing",
    ),
    "a part of TVM's search": (
        "search.expected_gain", "search.folder_files", "search.options", "search.progress",
    ),
    "reads what TVM writes or compiles": (
        "tasks.block_names", "tasks.gpu_kernels", "tasks.nvrtc", "tir.regions",
    ),
}  # fmt: skip


def test_imports_go_down_the_layers():
    assert house.upward() == []


def test_folders_of_a_package_do_not_import_each_other():
    assert house.folder_breaches() == []


def test_private_modules_stay_in_their_folder():
    assert house.private_breaches() == []


def test_no_modules_import_each_other_in_a_circle():
    assert house.circles() == []


def test_no_folder_is_crowded():
    assert house.crowded() == {}


def test_what_runs_only_by_hand_finds_what_it_imports():
    assert house.unresolved_imports() == []


def test_cdmpp_imports_no_tvm():
    names = ("tvm", "tvm_ffi")
    found = [
        name
        for name, path in house.modules().items()
        if name.startswith("cdmpp") and house.imports_any(path, names)
    ]
    assert found == []


def test_the_product_imports_no_laboratory_and_no_tests():
    found = [
        name for name, path in house.modules().items() if house.imports_any(path, ("lab", "tests"))
    ]
    assert found == []


def test_only_the_api_and_the_commands_import_the_helper():
    places = {
        arrow.source
        for arrow in house.arrows()
        if arrow.target.startswith("tvm_helper") and arrow.source.startswith("cdmpp")
    }
    assert [name for name in places if not name.startswith(("cdmpp.api.", "cdmpp.cli."))] == []


def test_the_helper_holds_what_needs_tvm_and_named_exceptions():
    listed = [f"tvm_helper.{name}" for names in IN_THE_HELPER.values() for name in names]
    assert sorted(house.helper_modules_without_tvm()) == sorted(listed)


def test_only_fetching_and_serving_use_a_network():
    names = ("pooch", "requests", "urllib3", "urllib.request", "http", "ftplib", "aiohttp", "httpx")
    found = [
        name
        for name, path in house.modules().items()
        if not name.startswith(("cdmpp.datasets.fetch.", "cdmpp.serve."))
        and house.imports_any(path, names)
    ]
    assert found == []


def test_below_run_no_function_of_the_command_line_takes_parsed_arguments():
    assert house.namespace_breaches() == []


def test_every_package_says_what_it_is_for():
    for name, path in house.modules().items():
        if path.name == "__init__.py":
            text = house.docstring(path)
            assert len(text.split()) >= 5, f"{name}: {text!r} is no description"


def test_what_needs_no_tvm_loads_without_it():
    names = [
        name
        for name, path in house.modules().items()
        if any(f"{name}.".startswith(f"{place}.") for place in WITHOUT_TVM)
        and not (name.startswith("tvm_helper") and house.imports_any(path, ("tvm",)))
    ]
    code = (
        "import importlib, sys\n"
        "sys.modules['tvm'] = sys.modules['tvm_ffi'] = None\n"
        f"for name in {names}: importlib.import_module(name)\n"
        "print('all loaded')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "all loaded\n"), done.stderr


def test_one_name_is_one_class():
    places: dict[str, list[str]] = {}
    for name, path in house.modules().items():
        for class_name in house.public_classes(path):
            places.setdefault(class_name, []).append(name)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
