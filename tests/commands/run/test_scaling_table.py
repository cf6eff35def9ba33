"""Scaling over ranks as a table, in notes and as JSON."""

import json

import msgspec
from consoles import printed, texts
from factories import make_cell, make_environment, make_measurement_of_ranks, make_ranks, make_record

from tcbench.commands.export.formats import to_json
from tcbench.commands.run import scaling_table as scaling
from tcbench.commands.run.scaling import curves
from tcbench.core.record import Record
from tcbench.show.document import encoded


def on(ranks: int, images_per_s: float, config: str = "fp32", **changes: object) -> Record:
    cell = make_cell(config, 4, ranks=ranks)
    times_s = (cell.images_per_step / images_per_s,) * 12
    measurement = make_measurement_of_ranks(times_s, ranks, **(changes if ranks > 1 else {}))  # type: ignore[arg-type]
    environment = make_environment(ranks=make_ranks() if ranks > 1 else None)
    return make_record(cell=cell, measurement=measurement, environment=environment)


def rows(*records: Record) -> list[dict[str, str]]:
    """Each row's texts by the names of their columns."""
    return texts(scaling.table(curves(records)))


def test_a_row_has_throughput_efficiency_the_exchange_and_the_imbalance() -> None:
    measured = {"allreduce": 0.5, "reduced_bytes": 100_000_000, "slow": {1: 1.5}}
    first, two = rows(on(1, 40.0), on(2, 64.0, **measured))
    names = ("ranks", "images/s per rank", "efficiency")
    assert [first[name] for name in ("batch", "config", *names)] == ["4", "fp32", "1", "40.0", "100.0%"]
    # A step takes 125 ms, half of it the exchange: 1.6 GB/s; the slow rank works 1.5 times as long as the other.
    assert [two[name] for name in names] == ["2", "32.0", "80.0%"]
    assert [two[name] for name in ("all-reduce", "algo GB/s", "bus GB/s")] == ["62.5 ms", "1.60", "1.60"]
    assert two["imbalance (slowest)"] == "19.7% (1)"


def test_the_base_and_its_ranks_say_how_many_cores_each_had() -> None:
    base = on(1, 40.0)
    assert base.measurement is not None
    part = msgspec.structs.replace(make_measurement_of_ranks((0.1,) * 12, 2).ranks[0], cores=(0, 1))
    base = msgspec.structs.replace(base, measurement=msgspec.structs.replace(base.measurement, ranks=(part,)))
    assert [row["cores per rank"] for row in rows(base, on(2, 64.0))] == ["2", "1"]


def test_a_config_that_adds_rungs_is_named_by_them_below_the_other() -> None:
    table = rows(on(1, 40.0), on(2, 64.0), on(1, 40.0, "fp32+batched"), on(2, 64.0, "fp32+batched"))
    assert [row["batch"] + row["config"] for row in table if row["ranks"] == "1"] == ["4fp32", "  + batched"]


def test_what_is_left_of_an_exchange_has_no_bandwidth_and_a_note() -> None:
    records = [on(1, 40.0), on(2, 64.0, reduce_overlaps=True)]
    row = rows(*records)[-1]
    assert (row["all-reduce"], row["algo GB/s"], row["bus GB/s"]) == ("25 ms left", "", "")
    assert any(note.startswith("left: ") for note in scaling.notes(curves(records)))


def test_notes_say_what_efficiency_is_over_and_what_joined_the_ranks() -> None:
    notes = scaling.notes(curves([on(2, 64.0), on(4, 100.0)]))
    assert "fp32, batch size 4: over 2 ranks, the fewest measured." in notes
    assert "ranks: ChainerMN naive over Open MPI v5.0.11; one core each" in notes


def test_the_json_has_every_figure_with_its_unit() -> None:
    [curve] = json.loads(encoded(scaling.to_json(curves([on(1, 40.0), on(2, 64.0)]))))
    assert (curve["kind"], curve["config"], curve["images"], curve["base_ranks"]) == ("weak", "fp32", 4, 1)
    first, two = curve["cells"]
    assert (first["allreduce_s"], first["bus_bandwidth_bytes_s"], first["imbalance"]) == (None, None, None)
    assert round(two["efficiency"]["value"], 6) == 0.8
    assert two["allreduce_s"]["value"] > 0 and two["bus_bandwidth_bytes_s"]["value"] > 0
    assert round(first["time_to_train_s"]["value"]) == 2_880_000  # 90 epochs of 1.28 million images at 40 images/s
    assert len(two["steps"]) == 5 and two["slowest_rank"] == 0


def test_an_export_of_cells_has_them_as_columns_only_where_ranks_are_many() -> None:
    first, two = json.loads(to_json([on(1, 40.0), on(2, 64.0)], "cell"))["rows"]
    assert (first["ranks"], two["ranks"]) == (1, 2)
    assert (first["images_per_s_per_rank"], first["efficiency"], first["allreduce_s"]) == (40.0, 1.0, None)
    assert round(two["images_per_s"], 6) == 64 and round(two["images_per_s_per_rank"], 6) == 32
    assert two["efficiency_over_ranks"] == 1 and two["bus_bandwidth_bytes_s"] > 0 and two["imbalance"] == 0
    [alone] = json.loads(to_json([on(1, 40.0)], "cell"))["rows"]
    assert alone["ranks"] == 1 and "efficiency" not in alone


def test_an_efficiency_has_its_interval_in_percent_and_a_narrow_terminal_loses_nothing() -> None:
    records = [r for n, rate in ((1, 40.0), (2, 64.0)) for r in trials(n, rate)]
    text = printed(scaling.table(curves(records)), width=80)
    assert "80.0% (77 to 83)" in text and "…" not in text


def trials(ranks: int, images_per_s: float) -> list[Record]:
    """Trials that do not drift alike at all ranks: what a round has in common does not count."""
    cell, drift = make_cell("fp32", 4, ranks=ranks), (0.0, 0.01, 0.02)
    rates = [images_per_s * (1 + drift[(trial + ranks) % 3]) for trial in range(3)]
    return [make_record(cell=cell, trial=trial, images_per_s=rate, noise=0.0) for trial, rate in enumerate(rates)]
