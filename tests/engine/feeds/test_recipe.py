"""How a config's feed is put together: what one rung brings, no other takes away, whatever their order."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import factories
import pytest

from tcbench.engine.backends import backend
from tcbench.engine.feeds.base import FeedRecipe
from tcbench.engine.feeds.spec import FeedSpec, TensorSpec

SPEC = FeedSpec(None, 2, 32, 10, TensorSpec(), seed=0, threads=1)


def _source(*where: Any) -> Any:
    raise AssertionError("nothing is made here")


def _folded(name: str, rungs: tuple[str, ...], recipe: FeedRecipe) -> FeedRecipe:
    for rung in rungs:
        recipe = backend(name).RUNGS[rung].feed(recipe, factories.make_cell())
    return recipe


def _changes(name: str, rung: str) -> tuple[bool, int]:
    """Whether a rung alone brings a source of its own, and how many wrappers."""
    alone = _folded(name, (rung,), FeedRecipe(SPEC, _source))
    return alone.source is not _source, len(alone.wrappers)


def _configs(name: str) -> Iterator[tuple[str, ...]]:
    """Every config that the rungs which change the feed make, with any one other rung, in every order that is valid."""
    rungs = backend(name).RUNGS
    feeding = [rung for rung in rungs.rungs if any(_changes(name, rung))]
    for size in (2, 3):
        for config in itertools.permutations(rungs.rungs, size):
            if sum(rung not in feeding for rung in config) <= 1 and rungs.problem(config) is None:
                yield config


@pytest.mark.parametrize("name", ["chainer", "torch"])
def test_no_order_of_rungs_loses_a_source_or_a_wrapper(name):
    if name == "torch":
        pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch==2.13.0")
    both = 0
    for config in _configs(name):
        recipe = _folded(name, config, FeedRecipe(SPEC, _source))
        alone = [_changes(name, rung) for rung in config]
        assert (recipe.source is not _source) == any(source for source, _ in alone), config
        assert len(recipe.wrappers) == sum(wrappers for _, wrappers in alone), config
        both += recipe.source is not _source and bool(recipe.wrappers)
    assert both >= 4, "cuda_graph with dali and with opencv, in both orders"


def test_what_is_asked_of_the_feed_is_kept_when_its_source_changes():
    """A rung that switches augmentation off would rely on this."""
    plain = FeedRecipe(SPEC, lambda spec, where: ["plain", spec.augment, where])
    without = dataclasses.replace(plain, spec=dataclasses.replace(plain.spec, augment=False))
    other = without.with_source(lambda spec, where: ["other", spec.augment, where])
    assert other.make("here") == ["other", False, "here"]


def test_wrappers_stand_around_the_source_in_the_order_in_which_they_came():
    recipe = (
        FeedRecipe(SPEC, lambda spec: "feed")
        .with_wrapper(lambda feed: f"({feed})")
        .with_wrapper(lambda feed: f"[{feed}]")
    )
    assert recipe.with_source(lambda spec: "other").make() == "[(other)]"
