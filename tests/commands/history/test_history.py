"""A cell over commits: order, grouping, verdicts, and where lines begin anew."""

from collections.abc import Sequence

import msgspec
import pytest
from factories import make_record
from histories import commit, over_commits

from tcbench.analysis import compare
from tcbench.analysis.stats import images_per_s
from tcbench.commands.history.history import build_history
from tcbench.core.record import Record


def verdicts(records: list[Record], **options: object) -> list[str | None]:
    [cell] = build_history(records, **options).cells  # type: ignore[arg-type]
    return [point.change.verdict if point.change else None for point in cell.points]


def test_a_cell_that_stops_running_regresses_once_and_what_comes_after_is_compared_with_what_ran() -> None:
    ok, oom = over_commits([40, 40, 40, 40, 36]), over_commits([40] * 4, trials=1, status="oom")
    records = [*ok[:16], *oom[2:], *ok[32:]]
    [cell] = build_history(records).cells
    assert verdicts(records) == [None, "pass", "changed status", "not measured", "regression"]
    assert [point.regressed for point in cell.points] == [False, False, True, False, True]
    assert cell.points[4].since.name == commit(1)
    assert (cell.points[2].images_per_s, cell.points[2].side.status) == (None, "oom")


def test_a_new_driver_begins_a_new_line_and_says_why() -> None:
    records = over_commits([40, 40, 30, 30], environments=[{}, {}, {"kernel": "6.2.0"}, {"kernel": "6.2.0"}])
    [cell] = build_history(records).cells
    assert verdicts(records) == [None, "pass", None, "pass"]
    assert [d.says for d in cell.points[2].broken_by] == ["kernel: 6.1.0 -> 6.2.0"]
    assert build_history(records).regressions == 0
    assert verdicts(records, allow=["os"]) == [None, "pass", "regression", "pass"]


def test_stacks_that_one_commit_was_measured_on_are_cells_of_their_own_unless_that_is_allowed() -> None:
    old = over_commits([40, 40, 40], environments=[{}, {}, {}])
    new = over_commits([50, 40], environments=[{"python": "3.12.1"}] * 2)
    records = old + [msgspec.structs.replace(record, run_id=f"{record.run_id}-2") for record in new]
    cells = build_history(records).cells
    assert [(cell.beneath, len(cell.points)) for cell in cells] == [(("python: 3.11.2",), 3), (("python: 3.12.1",), 2)]
    assert [point.side.trials for point in cells[0].points] == [8, 8, 8]
    assert [[point.regressed for point in cell.points] for cell in cells] == [[False] * 3, [False, True]]
    [pooled] = build_history(records, allow=["python"]).cells
    assert [point.side.trials for point in pooled.points] == [16, 16, 8]


def test_libraries_that_may_differ_are_no_stacks_whatever_they_are_called() -> None:
    records = over_commits([40, 40], environments=[{}, {"packages": {"numpy": "3"}}])
    [cell] = build_history(records, allow=["libraries"]).cells
    assert [point.broken_by for point in cell.points] == [(), ()]


def test_changed_files_stand_after_their_commit() -> None:
    environments = [{"commit": commit(1)}, {"commit": commit(0) + "+"}, {"commit": commit(0)}]
    result = build_history(over_commits([40, 40, 40], environments=environments), places={commit(0): 0, commit(1): 1})
    assert [revision.name for revision in result.revisions] == [commit(0), commit(0) + "+", commit(1)]


@pytest.mark.parametrize(
    ("facts", "short"),
    [
        ([{"project_commit": c * 12, "commit": "c" * 12} for c in "ab"], ["aaaaaaa", "bbbbbbb"]),
        # Two tcbenches at one commit of a project.
        ([{"project_commit": "a" * 12}] * 2, [f"aaaaaaa ({commit(n)[:7]})" for n in (0, 1)]),
        # Without a commit each run of a version stands by itself, and so do runs of files that differ from one.
        ([{"commit": None}] * 2, [f"0.1.0 cpu-2025010{n}-000000" for n in (1, 2)]),
        ([{"commit": "abcdefabcdef+"}] * 2, ["abcdefa+", "abcdefa+"]),
    ],
)
def test_a_revision_is_a_projects_commit_or_tcbenchs_or_a_run_and_two_are_never_mixed(facts: list, short: list) -> None:
    result = build_history(over_commits([40, 36], environments=facts))
    assert [revision.short for revision in result.revisions] == short
    assert result.regressions == 1


def test_a_trial_that_knows_nothing_belongs_to_its_runs_commit_and_nothing_gives_nothing() -> None:
    started = {"run_id": "cpu-20250102-000000", "started_at": "2025-01-02T03:05:00.000+00:00"}
    result = build_history([*over_commits([40, 40]), make_record("fp16", status="skipped", **started)])
    assert [point.revision.name for point in result.cells[1].points] == [commit(1)]
    assert result.cells[1].points[0].images_per_s is None
    # A run of which no trial knows anything has its own name.
    result = build_history([make_record("fp16", status="skipped", run_id="r1")])
    assert [revision.short for revision in result.revisions] == ["r1"]
    assert result.cells[0].machine is None
    nothing = build_history([])
    assert (nothing.revisions, nothing.cells, nothing.regressions) == ((), (), 0)


def test_every_trial_is_worked_out_once_though_two_steps_rest_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    worked_out: list[int] = []

    def counted(batch_size: int, times_s: Sequence[float]) -> float:
        worked_out.append(id(times_s))
        return images_per_s(batch_size, times_s)

    monkeypatch.setattr(compare, "images_per_s", counted)
    records = over_commits([40, 40, 36, 36, 36])
    build_history(records)
    assert len(worked_out) == len(records)
