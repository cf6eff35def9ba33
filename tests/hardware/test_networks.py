import pytest

from tcbench.core.errors import SelectionError
from tcbench.hardware import networks


def test_a_network_is_known_by_its_name_in_any_case():
    network = networks.load(" ABCI ")
    assert (network.name, network.ranks_per_node) == ("abci", 4)
    assert network.between.bytes_s == 25e9  # two adapters of 100 Gbit/s
    assert network.between.latency_s == pytest.approx(9.6e-6)


def test_bandwidth_and_latency_put_every_rank_on_a_node_of_its_own():
    network = networks.load("12.5, 10")
    assert network.ranks_per_node == 1
    assert network.inside == network.between == networks.Link(12.5e9, pytest.approx(10e-6))
    assert network.says == "12.5 GB/s and 10 us between any two ranks"


@pytest.mark.parametrize("text", ["12.5", "0,10", "12.5,-1", "12.5,1e3", "a,b", "", "12.5,10,3", "١٢,1", "nan,1"])
def test_anything_else_is_refused_with_what_was_expected(text):
    with pytest.raises(SelectionError, match=r"--link .*expected a? ?bandwidth.*12\.5,10"):
        networks.load(text)
    with pytest.raises(SelectionError, match="did you mean 'dgx-h100'"):
        networks.load("dgxh100")


def test_every_network_names_sources_that_say_how_they_were_had():
    known = networks.sources()
    used = {source for name in networks.names() for source in networks.load(name).sources}
    assert used == known.keys()
    for source in known.values():
        assert source["confirmed"].split()[0] in {"read", "known", "assumed"}
        assert "url" in source or not source["confirmed"].startswith("read")


@pytest.mark.parametrize("name", networks.names())
def test_ranks_of_a_node_are_nearer_than_those_of_another(name):
    network = networks.load(name)
    assert network.inside.latency_s < network.between.latency_s
    per_rank = network.between.bytes_s / network.ranks_per_node
    assert per_rank < network.inside.bytes_s
