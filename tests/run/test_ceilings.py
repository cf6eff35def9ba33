"""Ceilings are measured where the device is, kept, and otherwise taken from a GPU's file, which says so."""

import platform
from pathlib import Path

import msgspec
import pytest
from factories import make_cell, make_environment, make_record

from tcbench.analysis.summary import CellSummary, summarise
from tcbench.core.errors import SelectionError, TcbenchError
from tcbench.core.process import CommandAnswer
from tcbench.core.record import HostLoad
from tcbench.engine.accelerators import device
from tcbench.engine.accelerators.ceilings import Ceilings, Reached
from tcbench.engine.accelerators.peaks import peak_rates
from tcbench.hardware import gpus, machine
from tcbench.run import ceilings


def make_ceilings(bytes_s: float, **flops_s: float) -> Ceilings:
    return Ceilings(device_name="this", flops_s=flops_s, bandwidth_bytes_s=bytes_s, says="measured")


VALUE = make_ceilings(2e10, fp32=1e11)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TCBENCH_CACHE", str(tmp_path))
    return tmp_path


def of_machine(name: str, device_name: str = "AMD EPYC", device: str = "cpu", **facts: object) -> CellSummary:
    record = make_record(cell=make_cell(device=device), environment=make_environment(name, device_name, **facts))
    return summarise([record])[0]


def local_summary() -> CellSummary:
    facts = {"kernel": platform.release(), "memory_bytes": machine.memory_bytes()}
    return of_machine(device.host_device().machine, **facts)


def of_kept(summary: CellSummary, fresh: bool = False) -> Ceilings:
    return ceilings.find_ceilings(summary, {}, fresh=fresh, progress=lambda *_: None)


def of_fresh(summary: CellSummary) -> Ceilings:
    return of_kept(summary, fresh=True)


def test_they_are_measured_once_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []
    monkeypatch.setattr(ceilings, "_measure", lambda summary: measured.append(1) or VALUE)
    assert ceilings._cached(local_summary()) is None
    limits = of_kept(local_summary())
    assert (limits.flops_s, limits.bandwidth_bytes_s, limits.measured) == ({"fp32": 1e11}, 2e10, True)
    assert of_kept(local_summary()) == ceilings._cached(local_summary()) == limits
    assert len(measured) == 1
    of_fresh(local_summary())
    assert len(measured) == 2


def test_the_best_ever_measured_is_kept_by_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy moment can only lower a rate."""
    for value in (make_ceilings(1e10, fp32=1e11, bf16=5e11), make_ceilings(2e10, fp32=3e10, fp16=2e11)):
        monkeypatch.setattr(ceilings, "_measure", lambda summary, value=value: value)
        of_fresh(local_summary())
    cached = ceilings._cached(local_summary())
    assert cached.flops_s == {"fp32": 1e11, "fp16": 2e11, "bf16": 5e11}
    assert cached.bandwidth_bytes_s == 2e10


def test_what_a_busy_machine_measures_is_not_kept_and_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = msgspec.structs.replace(make_ceilings(1e10, fp32=5e10), lost=0.4)
    measured = [busy, busy, VALUE, busy]
    monkeypatch.setattr(ceilings, "_measure", lambda summary: measured.pop(0))
    assert of_kept(local_summary()).busy and ceilings._cached(local_summary()) is None
    assert (
        ceilings.find_ceilings(local_summary(), reached(6e10), fresh=False, progress=lambda *_: None).peak_flops_s(
            "fp32"
        )
        == 6e10
    )
    assert ceilings._cached(local_summary()) is None  # what was reached is no better than these
    assert of_kept(local_summary()) == ceilings._cached(local_summary()) == VALUE
    assert of_fresh(local_summary()) == VALUE


def test_the_process_that_measures_says_that_the_machine_was_busy(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    loads = [HostLoad(elapsed_s=1, processors=2, own_s=1, waited_s=w, others_s=w, stolen_s=0) for w in (0.0, 1.0)]
    monkeypatch.setattr(ceilings.sys, "argv", ["ceilings", "cpu", "1"])
    monkeypatch.setattr(type(device.kind_of("cpu")), "ceilings", lambda *_: msgspec.to_builtins(VALUE))
    monkeypatch.setattr(ceilings.load, "between", lambda *_: loads.pop(0))
    for lost, says in (
        (0.0, "measured"),
        (0.5, "measured on a busy machine (other processes used 50% of the processor time: "),
    ):
        ceilings.main()
        answer = msgspec.json.decode(capsys.readouterr().out, type=Ceilings)
        assert answer.lost == lost and answer.says.startswith(says)


def reached(rate: float, name: str = "fp32") -> dict[str, Reached]:
    return {name: Reached(rate, "forward of fp32, batch size 8")}


def test_what_beats_a_ceiling_has_it_measured_anew_and_is_kept_in_its_place_if_it_still_does(monkeypatch) -> None:
    measured, stages = [], []
    busy = make_ceilings(2e10, fp32=3.8e10)
    ceilings._keep(local_summary(), busy)
    monkeypatch.setattr(ceilings, "_measure", lambda summary: measured.append(1) or VALUE)

    def raised_ceilings(summary: CellSummary, **reached: Reached) -> Ceilings:
        return ceilings.find_ceilings(summary, reached, fresh=False, progress=lambda *stage: stages.append(stage))

    assert raised_ceilings(local_summary(), **reached(1e10)) == busy and not measured
    assert (
        raised_ceilings(local_summary(), **reached(8e10)) == VALUE and len(measured) == 1
    )  # a busy moment had told it
    assert [done for _, done, _ in stages] == [0, 1]
    assert raised_ceilings(local_summary(), **reached(2e11)).peak_flops_s("fp32") == 2e11 and len(measured) == 2
    # Kept: nothing measures again, and whatever asks has it, until more is measured or reached.
    assert (
        raised_ceilings(local_summary(), **reached(2e11)).peak_flops_s("fp32")
        == ceilings.recorded_ceilings(local_summary()).peak_flops_s("fp32")
        == 2e11
    )
    assert (
        raised_ceilings(local_summary(), **reached(3e11)).reached
        == ceilings.recorded_ceilings(local_summary()).reached
        == reached(3e11)
    )
    assert len(measured) == 2
    assert raised_ceilings(local_summary(), **reached(3e10, "memory")).memory_bytes_s == 3e10 and len(measured) == 3
    monkeypatch.setattr(ceilings, "_measure", lambda summary: make_ceilings(1e10, fp32=4e11))
    anew = of_fresh(local_summary())
    assert (anew.peak_flops_s("fp32"), anew.memory_bytes_s, anew.reached.keys()) == (4e11, 3e10, {"memory"})
    # What others measured is not this machine's to change, and what ran on another of its name tells nothing of it.
    namesake = of_machine(device.host_device().machine, kernel="another")
    assert (
        raised_ceilings(namesake, **reached(9e12)).peak_flops_s("fp32") == 9e12
        and ceilings.recorded_ceilings(local_summary()) == anew
    )
    assert ceilings._keep(of_machine("elsewhere"), busy) == busy
    assert raised_ceilings(of_machine("elsewhere"), **reached(2e11)).peak_flops_s("fp32") == 2e11
    assert ceilings.recorded_ceilings(of_machine("elsewhere")) == busy


def test_what_is_kept_and_damaged_counts_as_missing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "_measure", lambda summary: VALUE)
    of_kept(local_summary())
    [file] = cache.rglob("*.json")
    file.write_text('{"device_name": ', encoding="utf-8")
    assert ceilings._cached(local_summary()) is None
    assert of_kept(local_summary()).device_name == "this"


def test_another_machines_ceilings_cannot_be_measured_here() -> None:
    with pytest.raises(SelectionError, match="the ceilings of elsewhere are not known here; run `tcbench roofline` on"):
        of_kept(of_machine("elsewhere"))


def test_a_gpu_that_is_not_here_has_its_published_peak_and_says_so() -> None:
    v100 = gpus.load("V100")
    limits = of_kept(of_machine("tesla-v100", v100.device_name, "cuda:0"))
    assert not limits.measured
    assert limits.says == "the published peak of the V100, not measured"
    assert limits.peak_flops_s("fp16") == peak_rates(v100).peak_flops_s("fp16")
    with pytest.raises(SelectionError, match="not known here"):
        of_kept(of_machine("unheard-of", "Unheard-of GPU", "cuda:0"))


def test_a_measurement_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings.sys, "executable", "/bin/false")
    with pytest.raises(TcbenchError, match="could not be measured: exit code 1"):
        of_kept(local_summary())


def test_a_record_of_many_threads_gets_no_more_than_there_are_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the process does not look for modules in the current directory."""
    started: list[tuple[list[str], str]] = []

    def ask(command: list[str], environment: dict[str, str]) -> CommandAnswer:
        started.append((command, environment["OMP_NUM_THREADS"]))
        return CommandAnswer(0, msgspec.json.encode(VALUE).decode(), "")

    monkeypatch.setattr(ceilings.process, "ask", ask)
    name = device.host_device().machine
    for threads in (400, 0, -3, 1):
        record = make_record(cell=make_cell(threads=threads), environment=make_environment(name))
        of_fresh(summarise([record])[0])
    most = str(machine.usable_cpus())
    assert [(command[-1], pinned) for command, pinned in started] == [(most, most), ("1", "1"), ("1", "1"), ("1", "1")]
    assert all(command[1] == "-P" for command, _ in started)
