"""The report's section on the environment: machines, software, settings and runs."""

from collections.abc import Iterable, Sequence

from tcbench.core.groups import grouped
from tcbench.core.record import Record
from tcbench.show import naming
from tcbench.show.format import counted, libraries, listed, size
from tcbench.show.naming import project_name, tcbench_name
from tcbench.show.page.page import AnyBlock, Data, FactList, Heading, Section
from tcbench.show.page.settings import MOST_RUNS, Settings
from tcbench.show.tables import COUNT, Column, Table, many_ranks


def environment_section(records: Sequence[Record], settings: Settings) -> Section:
    """Return the section with facts and packages of each machine, the settings, and a table of runs."""
    machines = grouped((record.environment.machine, record) for record in records if record.environment)
    blocks: list[AnyBlock] = []
    for machine, trials in machines.items():
        blocks += [Heading(machine), FactList(tuple(_facts(trials)))]
        packages = _packages(trials)
        if packages.rows:
            blocks.append(Data(packages, folded=True))
    if not machines:
        blocks.append(FactList((("machine", "unknown: no trial recorded it"),)))
    blocks.append(Heading("Settings"))
    blocks.append(FactList(tuple(_settings(records, settings))))
    blocks.append(Heading("Runs"))
    blocks.append(Data(_runs(records)))
    return Section("environment", "Environment", tuple(blocks))


def _facts(records: Sequence[Record]) -> Iterable[tuple[str, str]]:
    """Return the facts of a machine as pairs of a name and a text. If trials differ, the text joins all their values.

    Unknown facts are left out. `records` are the trials of the machine."""
    # Trials of a file share their environment object, so `id` finds most duplicates without a slow comparison.
    environments = list({id(r.environment): r.environment for r in records if r.environment is not None}.values())
    ranks = [e.ranks for e in environments if e.ranks is not None]
    torch_threads = [e.threads for e in environments if e.threads]
    codes, gpus = [e.code for e in environments], [e.gpu for e in environments if e.gpu is not None]
    facts: dict[str, Iterable[str | None]] = {
        "device": (e.device_name for e in environments),
        "simulation": naming.simulation_lines(environments),
        "GPU": (
            f"{gpu.name}, compute capability {'.'.join(map(str, gpu.compute_capability))}, {gpu.multiprocessors} SMs, "
            f"{size(gpu.memory_bytes)}"
            for gpu in gpus
        ),
        "driver": (f"{g.driver} (CUDA up to {g.driver_cuda})" if g.driver_cuda else g.driver for g in gpus if g.driver),
        "GPU state": map(_state, records),
        "processor": (f"{e.cpu}, {counted(e.cpus, 'usable core')}" for e in environments),
        "memory": (size(e.memory_bytes) for e in environments),
        "system": (f"{e.os}, kernel {e.kernel}" for e in environments),
        "Python": (e.python for e in environments),
        "BLAS": (e.blas for e in environments),
        "computed by": libraries(environments),
        "PyTorch": (f"{t['intra']} threads within and {t['inter']} between operators" for t in torch_threads),
        "ranks": (f"{r.engine}; {r.binding}; started by {r.launcher}" for r in ranks),
        "hosts": [", ".join(dict.fromkeys(host for r in ranks for host in r.hosts))],
        "tcbench": [tcbench_name(codes).removeprefix("tcbench ")],
        "project": [project_name(codes).removeprefix("project ")],
    }
    texts = ((name, "; ".join(dict.fromkeys(filter(None, values)))) for name, values in facts.items())
    return ((name, text) for name, text in texts if text)


def _state(record: Record) -> str | None:
    """Return the settings of the GPU during a trial, such as its power limit; None if none was recorded."""
    if record.gpu is None:
        return None
    state = record.gpu.state
    facts = []
    if state.power_limit_w is not None:
        facts.append(f"power limit {state.power_limit_w:.0f} W")
    if state.sm_clock_set_mhz is not None:
        facts.append(f"SM clock set to {state.sm_clock_set_mhz} MHz")
    switches = {"ECC": state.ecc, "MIG": state.mig}
    facts += [f"{name} {'on' if on else 'off'}" for name, on in switches.items() if on is not None]
    return ", ".join(facts) or None


def _packages(records: Sequence[Record]) -> Table[tuple[str, list[str]]]:
    """Return a table with a row per Python package and all versions of it that the trials recorded."""
    environments = {id(record.environment): record.environment for record in records}.values()
    versions = grouped(pair for environment in environments if environment for pair in environment.packages.items())
    columns = (
        Column[tuple[str, list[str]]]("package", lambda row: row[0]),
        Column[tuple[str, list[str]]]("version", lambda row: ", ".join(dict.fromkeys(row[1]))),
    )
    return Table(columns, sorted(versions.items()), "Packages")


def _settings(records: Sequence[Record], settings: Settings) -> Iterable[tuple[str, str]]:
    """Yield pairs of a setting's name and its value, or all values in which cells differ."""
    cells = tuple(dict.fromkeys(record.cell for record in records))

    def list_unique(texts: Iterable[str]) -> str:
        return listed(list(dict.fromkeys(texts)))

    yield "scenario", list_unique(cell.scenario for cell in cells)
    networks = [cell for cell in cells if not cell.is_own]
    own_steps = [cell.model for cell in cells if cell.is_own]
    yield (
        "model",
        list_unique([*own_steps, *(f"{cell.model} {cell.variant}, {cell.n_classes} classes" for cell in networks)]),
    )
    if networks:
        yield "images", list_unique(f"{cell.image_size} × {cell.image_size}, {cell.input.label}" for cell in networks)
    yield (
        "device",
        list_unique(
            f"{cell.device}, {counted(cell.threads, 'thread')}" if cell.threads else cell.device for cell in cells
        ),
    )
    if commands := [f"{cell.config}: {cell.command.line}" for cell in cells if cell.command]:
        yield "command", list_unique(commands)
    if many_ranks(cells):
        yield "ranks", listed([str(ranks) for ranks in sorted({cell.ranks for cell in cells})])
    trained = [
        f"learning rate {c.train.learning_rate:g}, momentum {c.train.momentum:g}, weight decay "
        f"{c.train.weight_decay:g}, loss scale {c.train.loss_scale:g}, seed {c.seed}"
        for c in networks
    ]
    yield "training", list_unique([*(f"seed {cell.seed}" for cell in cells if cell.is_own), *trained])
    programs = (f"about {c.measure.max_time_s:g} s of steps, as many in each trial" for c in cells if c.command)
    limits = (
        (r.cell.measure, (r.measurement and r.measurement.turns_max_time_s) or r.cell.measure.max_time_s)
        for r in [r for r in records if r.measurement] or records
        if not r.cell.command
    )
    passes = (
        f"until the interval is within {m.target:.1%} or {max_time_s:g} s are spent, at least {m.min_timed_steps} "
        f"counted steps, in blocks of {m.block_steps}"
        for m, max_time_s in dict.fromkeys(limits)
    )
    yield "timed pass", list_unique([*programs, *passes])
    if len(settings.parts) > 1:
        yield "settings", str(len(settings.parts))
    if decoding := list_unique(r.measurement.decoding for r in records if r.measurement and r.measurement.decoding):
        yield "decoding", decoding


def _runs(records: Sequence[Record]) -> Table[list[Record]]:
    """Return the table of runs, or of the last MOST_RUNS."""
    runs = grouped((record.run_id, record) for record in records)
    title = "Runs" if len(runs) <= MOST_RUNS else f"The last {MOST_RUNS:,} of {len(runs):,} runs"
    columns: list[Column[list[Record]]] = [
        Column("run", lambda run: run[0].run_id),
        Column("scenario", lambda run: listed(list(dict.fromkeys(record.cell.scenario for record in run)))),
        Column("began (UTC)", lambda run: start_time(min(record.started_at for record in run))),
        Column("cells", lambda run: len({record.cell for record in run}), COUNT),
        Column("trials", len, COUNT),
        Column("ok", lambda run: sum(record.status == "ok" for record in run), COUNT),
    ]
    return Table(columns, [*runs.values()][-MOST_RUNS:], title)


def start_time(started_at: str) -> str:
    """Format an ISO 8601 time: "2026-11-21 03:56:58"."""
    return started_at[:19].replace("T", " ")
