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


def told(config: str) -> Told:
    layers = Told()
    with small_session(config) as session:
        run_step(session)
        with session.detail(layers):
            run_step(session)
        seen = len(layers.names)
        run_step(session)
        assert len(layers.names) == seen  # nobody is told any more
    return layers


def test_every_layer_is_told_forward_and_in_the_opposite_order_backward():
    layers = told("fp32")
    half = len(layers.names) // 2
    forward, backward = layers.names[:half], layers.names[half:]
    assert forward[:4] == ["stem/conv", "stem/bn", "stem/relu", "max pool"]
    assert {"block1.shortcut/conv", "block1.a/conv", "block3.c/add", "head/fc", "loss"} <= set(forward)
    assert sorted(forward) == sorted(backward)
    assert (backward[0], backward[-1]) == ("loss", "stem/conv")
    assert (layers.open, layers.deepest) == (0, 1)


@pytest.mark.parametrize(
    ("config", "name"), [("fp32+nhwc+fused", "block1.c/bn+add+relu"), ("fp16+batched+static_graph", "recorded graph")]
)
def test_what_a_rung_fuses_is_one_layer(config, name):
    assert told(config).names.count(name) == 2  # forward and backward
