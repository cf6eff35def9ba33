"""The waiting and transfer of several ranks, as a table and as fields of JSON."""

from tcbench.analysis.rank_traces import RankWait, RankWaits
from tcbench.show.document import fields
from tcbench.show.format import counted, milliseconds, percent
from tcbench.show.tables import COUNT, SECONDS, Column, Screen, Table

_MISMATCHES = {
    "runs": "a trace names no rank, the rank of another trace, or another number of ranks",
    "groups": "no process group has at least 3 collectives in each trace",
    "ends": "the ranks' collectives differ in number or do not end together, as if the traces show different steps",
}


def show(console: Screen, waits: RankWaits) -> None:
    """Print the slowest rank, and the transfer and waiting of each; or why they are not known."""
    if waits.mismatch != "none":
        console.say("", f"Waiting for other ranks cannot be told from transfer: {_MISMATCHES[waits.mismatch]}.")
        return
    per_step, line = " per step" if waits.ranks[0].verdict.n_steps else "", "No rank is slower than the others by 1%."
    if slowest := waits.slowest:
        lead_ns = waits.lead_ns(slowest)
        lead_ms, share = milliseconds(slowest.verdict.per_step_s(lead_ns)), percent(slowest.verdict.share(lead_ns))
        lead = f"{lead_ms}{per_step} ({share}) longer"
        line = f"rank {slowest.rank} is the slowest: the other ranks wait {lead} than it does, on average"
    columns: list[Column[RankWait]] = [
        Column("rank", lambda each: each.rank, COUNT),
        Column("transfer", lambda each: each.verdict.per_step_s(each.transfer_ns), SECONDS),
        Column("waiting for ranks", lambda each: each.verdict.per_step_s(each.waiting_ns), SECONDS),
        Column("with no other work beside it", lambda each: each.verdict.per_step_s(each.exposed_waiting_ns), SECONDS),
        Column("last to arrive", lambda each: each.times_last, COUNT),
    ]
    collectives = f"{counted(waits.collectives, 'collective')} of a process group that all traces share"
    console.say("", line, "")
    console.table(Table(columns, waits.ranks), f"Time{per_step} in {collectives}")
    if waits.ranks[0].verdict.ranks > len(waits.ranks):
        console.say("Ranks of the group without a trace may arrive last: waiting may be longer, and transfer shorter.")


def rank_fields(waits: RankWaits) -> dict[str, object]:
    """Return the ranks as fields of JSON. Times are of the window."""
    times = ("transfer", "waiting", "exposed_waiting")
    traces = [
        fields(each, "rank times_last") | {f"{time}_s": getattr(each, f"{time}_ns") * 1e-9 for time in times}
        for each in waits.ranks
    ]
    return fields(waits, "mismatch collectives slowest=slowest.rank") | {"traces": traces}
