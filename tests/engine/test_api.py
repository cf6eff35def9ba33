"""The engine's public interface stays small, documented and cheap to import."""

import inspect
import subprocess
import sys
from dataclasses import is_dataclass

import msgspec

from tcbench.engine import api

PUBLIC = {name: public for name, public in vars(api).items() if not name.startswith("__")}


def test_the_interface_has_at_most_thirty_names_and_no_module_among_them():
    assert len(PUBLIC) <= 30
    assert not [name for name, public in PUBLIC.items() if inspect.ismodule(public)]


def test_every_name_is_the_one_of_its_definition():
    defined = {name: public for name, public in PUBLIC.items() if hasattr(public, "__name__")}
    assert {name: public.__name__ for name, public in defined.items()} == {name: name for name in defined}
    assert {*PUBLIC} - {*defined} == {"SMALL_RESNET"}


def test_every_function_and_class_is_documented():
    assert not [name for name, public in PUBLIC.items() if not inspect.getdoc(public)]


def test_data_classes_are_frozen():
    classes = [public for public in PUBLIC.values() if inspect.isclass(public)]
    assert all(public.__dataclass_params__.frozen for public in classes if is_dataclass(public))
    structs = [public for public in classes if issubclass(public, msgspec.Struct)]
    assert structs
    assert all(public.__struct_config__.frozen for public in structs)


def test_importing_it_loads_no_framework_and_nothing_heavy():
    heavy = "numpy scipy pandas matplotlib chainer cupy torch nvidia.dali PIL typer rich"
    code = f"import sys, tcbench.engine.api; print(*[name for name in {heavy.split()} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() == []
