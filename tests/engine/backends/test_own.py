"""Backends that users bring: how they are found, what they must have, what is said when they have not."""

import sys
from types import MappingProxyType, SimpleNamespace
from unittest.mock import Mock

import factories
import msgspec
import numpy as np
import pytest

from tcbench import step as own_step
from tcbench.core.errors import ScenarioError
from tcbench.core.packages import Package
from tcbench.core.record import Cell
from tcbench.engine import backends
from tcbench.engine.backends.own import FreeRungs, checked_session, problem
from tcbench.engine.rung import Rung, RungSet
from tcbench.engine.session import Phase


def session(*names: str, **changes) -> SimpleNamespace:
    valid = own_step.step(loss=lambda: 1.0)
    phases = [Phase(name, lambda: None) for name in names]
    fields = {"phases": phases, "clock": valid.clock, "facts": valid.facts, "close": valid.close, **changes}
    return SimpleNamespace(**{name: value for name, value in fields.items() if value is not None})


@pytest.mark.parametrize(
    ("candidate", "message"),
    [
        (session(), "no phases"),
        (session("a", "a"), "two phases are named 'a'"),
        (session(phases=[print]), "expected phases to be tcbench.engine.session.Phase"),
        (session("a", close=None), "without 'close'"),
        (session("a", clock=object()), "its clock has no 'mark'"),
        (None, "got NoneType without 'phases'"),
    ],
)
def test_what_is_no_session_says_what_it_lacks(candidate, message):
    with pytest.raises(ScenarioError, match=f"^backend 'mine:make': .*{message}"):
        checked_session(candidate, "mine:make")


def test_a_session_of_functions_is_one():
    candidate = own_step.step(lambda: None, loss=lambda: 2, parameters=7)
    assert checked_session(candidate, "x") is candidate
    assert [phase.name for phase in candidate.phases] == ["<lambda>"]
    facts = candidate.facts()
    assert (facts.loss, facts.parameters, facts.peak_memory_of, facts.prefetch_depth) == (2.0, 7, "process", 0)
    assert facts.peak_memory_bytes > 2**20


@pytest.mark.parametrize("name", ["mine:", ":make", "mine:make it", "a b:c", "a..b:c"])
def test_what_is_not_spelt_like_a_module_and_a_factory_is_refused(name):
    assert "expected module:factory" in (problem(name) or "")


def test_a_module_in_the_current_directory_is_found_and_left_off_the_path(tmp_path, monkeypatch):
    (tmp_path / "found_here.py").write_text("x = 1", "utf-8")
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    before = list(sys.path)
    assert "no module 'found_here'" in (problem("found_here:make") or "")
    monkeypatch.chdir(tmp_path)
    assert problem("found_here:make") is None
    assert sys.path == before
    assert "found_here" not in sys.modules


def test_looking_for_a_dotted_module_runs_none_of_its_parents(tmp_path, monkeypatch):
    inner = tmp_path / "parent_of_step" / "inner"
    inner.mkdir(parents=True)
    for folder in (inner.parent, inner):
        (folder / "__init__.py").write_text("raise SystemExit('imported')", "utf-8")
    (inner / "step.py").touch()
    monkeypatch.chdir(tmp_path)
    assert problem("parent_of_step.inner.step:make") is None
    assert "no module 'parent_of_step.inner.other'" in (problem("parent_of_step.inner.other:make") or "")
    assert "no module 'parent_of_step.none.step'" in (problem("parent_of_step.none.step:make") or "")
    assert "no module 'nowhere.at.all'" in (problem("nowhere.at.all:make") or "")
    assert problem("xml.dom.minidom:parse") is None


def test_a_factory_may_import_its_neighbours_when_it_is_called(tmp_path, monkeypatch):
    (tmp_path / "late_step.py").write_text(
        "from tcbench import step as own_step\ndef make(cell):\n    import late_neighbour\n"
        "    return own_step.step(print, loss=late_neighbour.loss)\n",
        "utf-8",
    )
    (tmp_path / "late_neighbour.py").write_text("def loss(): return 4", "utf-8")
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    monkeypatch.chdir(tmp_path)
    assert backends.backend("late_step:make").open_session(factories.make_cell()).facts().loss == 4


def test_the_rungs_of_ours_are_known_and_nobody_elses(registered):
    registered("whole", lambda: pytest.fail("loaded"))
    assert "fp32" in backends.backend("torch").RUNGS
    assert [backends.builds_models(name) for name in ("torch", "whole", "mine:make", "nobody")] == [True] + [False] * 3


def test_a_nested_factory_is_called_with_the_cell(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "nested_step.py").write_text(
        "from tcbench import step as own_step\nclass Maker:\n    @staticmethod\n    def make(cell):\n"
        "        return own_step.step(print, loss=lambda: cell.batch_size)\nPACKAGES = ('numpy',)\nnumber = 3\n",
        "utf-8",
    )
    monkeypatch.chdir(tmp_path)
    backend = backends.backend("nested_step:Maker.make")
    assert backend.open_session(factories.make_cell(batch_size=5)).facts().loss == 5
    assert backend.PACKAGES == ("numpy",)
    assert set(backend.DEVICES) == {"cpu", "cuda"}
    with pytest.raises(ScenarioError, match=r"module 'nested_step' has no 'make' \(it has: Maker\)"):
        backends.backend("nested_step:make").open_session(factories.make_cell())
    with pytest.raises(ScenarioError, match="'number' is not a function"):
        backends.backend("nested_step:number").open_session(factories.make_cell())


def test_free_rungs_take_any_name_once():
    rungs = FreeRungs("mine")
    assert rungs.problem(("a", "b")) is None
    assert rungs.problem(("a", "a")) == "'a' is named twice"
    assert rungs["anything"].requires.packages == ()


# ------------------------------------------------------------------------------------------------------ entry points


class Whole:
    """A registered backend with everything."""

    class Fast(Rung):
        name, says, source = "fast", "is fast", "tests"

    RUNGS = RungSet.from_rungs("whole", [Fast()])
    DEVICES = MappingProxyType({"cuda": (Package("jax", "pip install jax"),)})
    PACKAGES = ("jax",)

    @staticmethod
    def open_session(cell: Cell):
        return own_step.step(print, loss=lambda: 0.0)


@pytest.fixture
def registered(monkeypatch):
    def register(name, loads):
        point = SimpleNamespace(name=name, value="package:thing", load=loads)
        monkeypatch.setattr(backends, "_registered", lambda: {name: point})

    return register


def test_a_package_registers_a_whole_backend(registered):
    registered("whole", lambda: Whole)
    assert backends.backend_names() == ("chainer", "torch", "whole")
    backend = backends.backend("whole")
    assert backend.RUNGS.problem(("slow",)) == "unknown rung 'slow' (known: fast)"
    assert backend.PACKAGES == ("jax",)
    assert backends.kinds_of_backends(["whole"]) == {"cuda": Package("jax", "pip install jax")}
    assert backend.open_session(factories.make_cell()).facts().loss == 0.0


def test_a_package_may_register_a_factory_alone(registered):
    registered("mine", lambda: Whole.open_session)
    backend = backends.backend("mine")
    assert backend.RUNGS.problem(("anything",)) is None
    assert set(backend.DEVICES) == {"cpu", "cuda"}
    assert backend.open_session(factories.make_cell()).facts().loss == 0.0


def test_a_registered_name_does_not_replace_one_of_ours(registered):
    registered("torch", lambda: Whole)
    assert backends.backend_names() == ("chainer", "torch")
    assert "fp32" in backends.backend("torch").RUNGS


def test_a_registered_backend_that_cannot_be_imported_is_named(registered):
    registered("broken", Mock(side_effect=ImportError("no such\nthing")))
    with pytest.raises(
        ScenarioError, match=r"^backend 'broken' \(package:thing\) cannot be imported: .*no such thing$"
    ):
        backends.backend("broken")


def test_what_is_no_backend_is_named_with_the_nearest_that_is():
    assert backends.backend_problem("troch") == "unknown backend 'troch'; did you mean 'torch'?"
    with pytest.raises(ScenarioError, match="expected one of chainer, torch, or module:factory"):
        backends.backend("jax")


def test_a_kind_needs_what_its_first_backend_lacks_unless_another_has_all(monkeypatch):
    missing = {"cupy", "cudnn", "torch"}
    monkeypatch.setattr(Package, "is_installed", lambda package: package.module not in missing)
    kinds = backends.kinds_of_backends()
    assert kinds["cpu"] is None
    assert kinds["cuda"] is not None
    assert kinds["cuda"].module == "cupy"
    missing.remove("torch")
    assert backends.kinds_of_backends()["cuda"] is None
    assert backends.kinds_of_backends(["chainer"])["cuda"] is not None
    assert backends.kinds_of_backends(["nobody"]) == {}


def test_numbers_of_numpy_are_taken():
    """`np.prod(shape)` gives one: a whole trial was lost to it, after its last step."""
    candidate = own_step.step(
        lambda: None,
        loss=lambda: np.float32(2),
        parameters=np.int64(7),
        flops={"<lambda>": np.int64(10)},
        bytes=np.float64(1e9),
        peak_memory=lambda: (np.int64(2**20), "process"),
    )
    facts = candidate.facts()
    assert msgspec.json.decode(msgspec.json.encode(facts))["parameters"] == 7
    assert {(work.phase, work.flops, work.bytes) for work in facts.declared} == {("<lambda>", 10, 0), ("", 0, 1e9)}


@pytest.mark.parametrize(
    ("fact", "field"),
    [
        *(({"parameters": value}, "parameters") for value in (25.0, None, True, "5", -1, 2**70)),
        ({"prefetch_depth": 1.5}, "prefetch_depth"),
        ({"flops": "many"}, "flops"),
        ({"peak_memory": lambda: (5.5, "process")}, "peak_memory_bytes"),
        ({"peak_memory": lambda: (-5, "process")}, "peak_memory_bytes"),
        ({"peak_memory": lambda: (5, "gpu")}, "peak_memory"),
        ({"peak_memory": lambda: 5}, "peak_memory"),
    ],
)
def test_a_fact_that_no_record_can_hold_is_refused_by_name(fact, field):
    with pytest.raises(ScenarioError, match=rf"^{field}: expected .*, got "):
        own_step.step(lambda: None, loss=lambda: 1.0, **fact).facts()
