"""Ceilings are measured where the device is, kept, and otherwise taken from a GPU's file, which says so."""

from pathlib import Path

import msgspec
import pytest
from factories import make_cell, make_environment, make_record

from tcbench.analysis.roofline import WorkPart
from tcbench.analysis.summary import CellSummary, summarise
from tcbench.core.errors import SelectionError, TcbenchError
from tcbench.core.process import CommandAnswer
from tcbench.engine.accelerators import device
from tcbench.engine.accelerators.ceilings import Ceilings
from tcbench.engine.accelerators.peaks import peak_rates
from tcbench.hardware import gpus, machine
from tcbench.run import ceilings


def made(bytes_s: float, **flops_s: float) -> Ceilings:
    return Ceilings(device_name="this", flops_s=flops_s, bandwidth_bytes_s=bytes_s, says="measured")


VALUE = made(2e10, fp32=1e11)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TCBENCH_CACHE", str(tmp_path))
    return tmp_path


def of_machine(name: str, device_name: str = "AMD EPYC", device: str = "cpu") -> CellSummary:
    record = make_record(cell=make_cell(device=device), environment=make_environment(name, device_name))
    return summarise([record])[0]


def here() -> CellSummary:
    return of_machine(device.host().machine)


def test_they_are_measured_once_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []
    monkeypatch.setattr(ceilings, "_measure", lambda summary: measured.append(1) or VALUE)
    assert ceilings._kept(here()) is None
    limits = ceilings.of(here())
    assert (limits.flops_s, limits.bandwidth_bytes_s, limits.measured) == ({"fp32": 1e11}, 2e10, True)
    assert ceilings.of(here()) == ceilings._kept(here()) == limits
    assert len(measured) == 1
    ceilings.of(here(), fresh=True)
    assert len(measured) == 2


def test_the_best_ever_measured_is_kept_by_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy moment can only lower a rate."""
    for value in (made(1e10, fp32=1e11, bf16=5e11), made(2e10, fp32=3e10, fp16=2e11)):
        monkeypatch.setattr(ceilings, "_measure", lambda summary, value=value: value)
        ceilings.of(here(), fresh=True)
    kept = ceilings._kept(here())
    assert kept.flops_s == {"fp32": 1e11, "fp16": 2e11, "bf16": 5e11}
    assert kept.bandwidth_bytes_s == 2e10


def test_a_ceiling_that_was_beaten_is_measured_anew_and_withdrawn_if_it_still_is(monkeypatch) -> None:
    busy = Ceilings("this", {"fp32": 3.8e10}, 2e10, "measured")
    fast = WorkPart("forward", "forward", flops=8 * 10**8, bytes=10, time_s=0.01)  # 8e10 FLOP/s
    faster = WorkPart("forward", "forward", flops=2 * 10**9, bytes=10, time_s=0.01)  # 2e11
    measured = []
    monkeypatch.setattr(ceilings, "_measure", lambda summary: measured.append(1) or VALUE)
    slow = [(WorkPart("forward", "forward", flops=10**8, bytes=10, time_s=0.01), "fp32")]
    assert ceilings.standing(here(), busy, slow, fresh=False) == busy and not measured
    anew = ceilings.standing(here(), busy, [(fast, "fp32")], fresh=False)
    assert (anew.at("fp32"), anew.withdrawn, len(measured)) == (1e11, frozenset(), 1)
    assert ceilings.standing(here(), busy, [(faster, "fp32")], fresh=False).withdrawn == {"fp32"}
    # Just measured, or another machine's: it is withdrawn at once.
    for summary, fresh in ((here(), True), (of_machine("elsewhere"), False)):
        assert ceilings.standing(summary, busy, [(fast, "fp32")], fresh).withdrawn == {"fp32"}
    assert len(measured) == 2


def test_what_is_kept_and_damaged_counts_as_missing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "_measure", lambda summary: VALUE)
    ceilings.of(here())
    [file] = cache.rglob("*.json")
    file.write_text('{"device_name": ', encoding="utf-8")
    assert ceilings._kept(here()) is None
    assert ceilings.of(here()).device_name == "this"


def test_another_machines_ceilings_cannot_be_measured_here() -> None:
    with pytest.raises(SelectionError, match="the ceilings of elsewhere are not known here; run `tcbench roofline` on"):
        ceilings.of(of_machine("elsewhere"))


def test_a_gpu_that_is_not_here_has_its_published_peak_and_says_so() -> None:
    v100 = gpus.load("V100")
    limits = ceilings.of(of_machine("tesla-v100", v100.device_name, "cuda:0"))
    assert not limits.measured
    assert limits.says == "the published peak of the V100, not measured"
    assert limits.at("fp16") == peak_rates(v100).at("fp16")
    with pytest.raises(SelectionError, match="not known here"):
        ceilings.of(of_machine("unheard-of", "Unheard-of GPU", "cuda:0"))


def test_a_measurement_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings.sys, "executable", "/bin/false")
    with pytest.raises(TcbenchError, match="could not be measured: exit code 1"):
        ceilings.of(here())


def test_a_record_of_many_threads_gets_no_more_than_there_are_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the process does not look for modules in the current directory."""
    started: list[tuple[list[str], str]] = []

    def ask(command: list[str], environment: dict[str, str]) -> CommandAnswer:
        started.append((command, environment["OMP_NUM_THREADS"]))
        return CommandAnswer(0, msgspec.json.encode(VALUE).decode(), "")

    monkeypatch.setattr(ceilings.process, "ask", ask)
    name = device.host().machine
    for threads in (400, 0, -3, 1):
        record = make_record(cell=make_cell(threads=threads), environment=make_environment(name))
        ceilings.of(summarise([record])[0], fresh=True)
    most = str(machine.usable_cpus())
    assert [(command[-1], pinned) for command, pinned in started] == [(most, most), ("1", "1"), ("1", "1"), ("1", "1")]
    assert all(command[1] == "-P" for command, _ in started)
