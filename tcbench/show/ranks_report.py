"""The waiting and transfer of several ranks, as lines and as fields of JSON."""

from collections.abc import Mapping

from tcbench.analysis.rank_traces import Mismatch, RankWait, RankWaits
from tcbench.show.format import counted, milliseconds, percent

_MISMATCHES: Mapping[Mismatch, str] = {
    "none": "",
    "too few": "they have fewer than 3 collectives in common",
    "counts": "the ranks ran different numbers of collectives in their steps",
    "names": "the ranks ran different collectives",
    "ends": "collectives that should be the same do not end together, as if the traces show different steps",
}


def lines(waits: RankWaits) -> list[str]:
    """Return lines on the ranks: the slowest, and the transfer and waiting of each."""
    if waits.mismatch != "none":
        return [f"Waiting for other ranks cannot be told from transfer: {_MISMATCHES[waits.mismatch]}."]
    slowest = waits.slowest
    if slowest is None:
        verdict = "No rank is slower than the others by 1% of the step."
    else:
        lead_ns = waits.lead_ns(slowest)
        lead = f"{_per_step(slowest, lead_ns)} per step ({percent(lead_ns / slowest.window_ns)}) longer than it does"
        verdict = f"rank {slowest.rank} is the slowest: the other ranks wait {lead}, on average"
    missing = waits.world_size - len(waits.ranks)
    note = f"{counted(missing, 'rank')} without a trace may arrive last: waiting may be longer, and transfer shorter."
    return [
        verdict,
        "",
        "Per step: transfer, waiting for other ranks, the part of it with no other work beside it; and in how many of "
        f"{counted(waits.collectives, 'collective')} the rank was the last to arrive:",
        *(
            f"  {_per_step(each, each.transfer_ns):>9}  {_per_step(each, each.waiting_ns):>9}  "
            f"{_per_step(each, each.exposed_ns):>9}  {each.times_last:>5}  rank {each.rank}"
            for each in waits.ranks
        ),
        *(["", note] if missing > 0 else []),
    ]


def _per_step(rank: RankWait, time_ns: float) -> str:
    """Return a time of the window per step."""
    return milliseconds(time_ns * 1e-9 / (rank.n_steps or 1))


def fields(waits: RankWaits) -> dict[str, object]:
    """Return the ranks as fields of JSON. Times are of the window."""
    return {
        "mismatch": waits.mismatch,
        "world_size": waits.world_size,
        "collectives": waits.collectives,
        "slowest": waits.slowest.rank if waits.slowest else None,
        "traces": [
            {
                "rank": each.rank,
                "transfer_s": each.transfer_ns * 1e-9,
                "waiting_s": each.waiting_ns * 1e-9,
                "exposed_waiting_s": each.exposed_ns * 1e-9,
                "times_last": each.times_last,
            }
            for each in waits.ranks
        ],
    }
