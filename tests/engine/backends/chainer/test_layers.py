import pytest
from training import run_step, small_session


class Told:
    def __init__(self) -> None:
        self.names: list[str] = []
        self.open = 0
        self.deepest = 0

    def begin(self, name: str) -> None:
        self.names.append(name)
        self.open += 1
        self.deepest = max(self.deepest, self.open)

    def end(self) -> None:
        self.open -= 1


def reported_layers(config: str) -> Told:
    layers = Told()
    with small_session(config) as session:
        run_step(session)
        with session.detail(layers):
            run_step(session)
        seen = len(layers.names)
        run_step(session)
        assert len(layers.names) == seen  # nothing is reported any more
    return layers


def test_every_layer_is_told_forward_and_in_the_opposite_order_backward():
    layers = reported_layers("fp32")
    half = len(layers.names) // 2
    forward, backward = layers.names[:half], layers.names[half:]
    assert forward[:4] == ["stem/conv", "stem/bn", "stem/relu", "max pool"]
    assert {"block1.shortcut/conv", "block1.a/conv", "block3.c/add", "head/fc", "loss"} <= set(forward)
    assert sorted(forward) == sorted(backward)
    assert (backward[0], backward[-1]) == ("loss", "stem/conv")
    assert (layers.open, layers.deepest) == (0, 1)


def test_what_a_rung_fuses_is_one_layer():
    assert reported_layers("fp32+nhwc+fused").names.count("block1.c/bn+add+relu") == 2  # forward and backward


@pytest.mark.parametrize("config", ["fp32", "fp16+batched+nhwc+fused"])
def test_a_recorded_graph_tells_the_layers_of_the_graph_that_it_replays(config):
    replayed, layers = reported_layers(f"{config}+static_graph"), reported_layers(config)
    half = len(layers.names) // 2
    # The gradient of an addition is that of its inputs: nothing is launched, and there is nothing to tell of.
    backward = [name for name in layers.names[half:] if not name.endswith("/add")]
    assert (replayed.names, replayed.open, replayed.deepest) == (layers.names[:half] + backward, 0, 1)
