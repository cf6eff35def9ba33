import pytest

from tcbench.engine.backends import backend
from tcbench.engine.rung import Needs, Requires, Rung, RungSet, sgd, storage_of


def rung(name: str, **declared: object) -> Rung:
    return type(name, (Rung,), {"name": name, "says": name, "source": "-", **declared})()


NEEDS = Requires(rungs=(Needs("b", when="a", why="because"), Needs("d", why="always")))
RUNGS = RungSet.from_rungs(
    "test", [rung("a", conflicts=frozenset({"b"})), rung("b"), rung("c", requires=NEEDS), rung("d")]
)


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
    plain, thing = rung("d"), object()
    for stage in ("parts", "optimizer", "feed", "step"):
        assert getattr(plain, stage)(thing, None) is thing
    with plain.scope(None) as scope:
        assert scope is None


def test_every_shipped_rung_declares_itself():
    for shipped in backend("chainer").RUNGS.rungs.values():
        assert shipped.says and shipped.source and str(shipped.parity)
        assert "\n" not in shipped.says


def test_the_earlier_names_of_a_declaration_still_count():
    class Earlier(Rung):
        name = "earlier"
        shows = {"storage": "float16"}  # noqa: RUF012 (as another package may write it)

        def applies(self, update):
            return update, self.name

    rungs = RungSet.of("other", [Earlier()])
    assert storage_of([rungs["earlier"]]) == "float16"
    assert rungs["earlier"].reference_update(sgd) == (sgd, "earlier")
