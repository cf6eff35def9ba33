import pytest

from tcbench.engine.backends import backend
from tcbench.engine.rung import Needs, Requires, Rung, RungSet


class _A(Rung):
    name = "a"
    says = "a"
    source = "-"
    conflicts = frozenset({"b"})


class _B(Rung):
    name = "b"
    says = "b"
    source = "-"


class _C(Rung):
    name = "c"
    says = "c"
    source = "-"
    requires = Requires(rungs=(Needs("b", when="a", why="because"), Needs("d", why="always")))


class _D(Rung):
    name = "d"
    says = "d"
    source = "-"


RUNGS = RungSet.of("test", [_A(), _B(), _C(), _D()])


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ((), None),
        (("a", "d"), None),
        (("b", "d", "c"), None),
        (("x",), "unknown rung 'x' (known: a, b, c, d)"),
        (("a", "a"), "rung 'a' is named twice"),
        (("a", "b"), "rungs 'a' and 'b' cannot be used together"),
        (("b", "a"), "rungs 'b' and 'a' cannot be used together"),
        (("c",), "rung 'c' needs 'd' before it: always"),
        (("c", "d"), "rung 'c' needs 'd' before it: always"),
        (("a", "d", "c"), "rung 'c' with 'a' needs 'b' before it: because"),
    ],
)
def test_a_list_of_rungs_is_a_config_or_says_why_not(names, expected):
    assert RUNGS.problem(names) == expected


def test_every_stage_of_a_plain_rung_is_identity():
    rung, thing = _D(), object()
    for stage in ("parts", "optimizer", "feed", "step"):
        assert getattr(rung, stage)(thing, None) is thing
    with rung.scope(None) as scope:
        assert scope is None


def test_every_shipped_rung_declares_itself():
    for rung in backend("chainer").RUNGS.rungs.values():
        assert rung.says
        assert rung.source
        assert str(rung.parity)
        assert "\n" not in rung.says
