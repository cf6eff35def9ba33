import codecs
import errno
import fcntl
import os
import shutil
import stat
import time
from pathlib import Path

import factories
import msgspec
import pytest

from tcbench.core import files, record, store
from tcbench.core.errors import StorageFullError, StorageGoneError, StoreError
from tcbench.core.record import HostLoad
from tcbench.core.store import Store


def line(*args, **kwargs) -> bytes:
    return record.encode(factories.make_record(*args, **kwargs)) + b"\n"


def test_each_record_is_on_disk_before_append_returns(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd, real=os.fsync: (synced.append(os.fstat(fd).st_size), real(fd)))
    path = tmp_path / "run.jsonl"
    with Store(path) as records:
        records.append(factories.make_record())
        assert synced[-1] == path.stat().st_size > 0


def configs(path: Path) -> list[str]:
    return [record.cell.config for record in store.read([path]).records]


@pytest.mark.parametrize(
    ("last", "before", "after"),
    [
        (line("fp16")[:100], ["fp32"], ["fp32", "fp16"]),
        # Only the last line may hold what is no text.
        (line("fp16").replace(b"AMD EPYC", b"AMD \xff").rstrip(b"\n"), ["fp32"], ["fp32", "fp16"]),
        (line("fp16").rstrip(b"\n"), ["fp32", "fp16"], ["fp32", "fp16", "fp16"]),  # whole, without its end
    ],
    ids=["half", "no text", "whole"],
)
def test_a_half_line_at_the_end_is_left_out_and_said_and_going_on_drops_it(tmp_path, last, before, after):
    path = tmp_path / "run.jsonl"
    path.write_bytes(line("fp32") + last)
    notes = (f"{path}: the last line is cut off and was left out; 1 records read",)
    assert (configs(path), store.read([path]).notes) == (before, notes if before == ["fp32"] else ())
    with Store(path) as records:
        records.append(factories.make_record("fp16"))
    assert configs(path) == after


@pytest.mark.parametrize(
    ("content", "blank"),
    [
        (b"", True),
        (line()[:100], True),
        (line()[:-1], False),
        (line(), False),
        (line() + line()[:100], False),
        (b"{", True),
        (b"foreign", False),
        (b"\n", False),
    ],
)
def test_a_run_is_blank_until_its_first_record_is_whole(tmp_path, content, blank):
    path = tmp_path / "machine" / "cpu-20250102-030405.jsonl"
    path.parent.mkdir()
    path.write_bytes(content)
    assert store.is_blank(path) == blank
    assert store.latest(tmp_path, "machine", "cpu") == (None if blank else path)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (line("fp32") + b"{oops}\n" + line("fp16"), "2: not JSON"),
        (line() + line().replace(b"AMD EPYC", b"AMD \xff") + line(), r"2: not (UTF-8 \(inv|JSON \(Inv)alid .*"),
        (b"\x89PNG\r\n", "1: "),
        (line() + line().replace(b'"device":"cpu"', b'"device":""'), r"2: not a valid record \(.*device"),
    ],
    ids=["broken", "no text", "a picture", "no device"],
)
def test_a_line_that_is_no_record_is_named(tmp_path, content, error):
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=rf"^{path}:{error}"):
        store.read([path])


def test_a_second_writer_is_refused(tmp_path):
    path = tmp_path / "run.jsonl"
    with Store(path), pytest.raises(StoreError, match="another tcbench is writing this run"):
        Store(path)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK])
def test_a_file_system_without_locks_is_reported_once_and_takes_records(tmp_path, monkeypatch, caplog, number):
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    files._report_no_locks.cache_clear()
    for name in ("a", "b"):
        with Store(tmp_path / f"{name}.jsonl") as records:
            records.append(factories.make_record("fp32"))
        assert configs(tmp_path / f"{name}.jsonl") == ["fp32"]
    assert [record.message.partition(":")[0] for record in caplog.records] == ["note"]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EIO])
def test_a_folder_whose_names_cannot_be_made_durable_is_written_all_the_same(tmp_path, monkeypatch, number):
    real = os.fsync

    def refuse(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode) or number != errno.EIO:
            raise OSError(number, os.strerror(number))
        real(fd)

    monkeypatch.setattr(os, "fsync", refuse)
    with Store(tmp_path / "run.jsonl") as records:
        records.append(factories.make_record("fp32"))
    files.write(tmp_path / "chart.png", b"chart")
    assert configs(tmp_path / "run.jsonl") == ["fp32"]
    assert (tmp_path / "chart.png").read_bytes() == b"chart"


def test_text_of_other_editors_is_read_or_named(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_bytes(codecs.BOM_UTF8 + line().replace(b"\n", b"\r\n") + line().rstrip())
    assert len(store.read([path]).records) == 2
    with Store(path) as records:
        records.append(factories.make_record("fp16"))
    assert configs(path) == ["fp32", "fp32", "fp16"]
    for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
        path.write_bytes(line().decode().encode(encoding))
        with pytest.raises(
            StoreError, match=r"run\.jsonl: cannot be read \(UTF-16 text; convert it with `iconv -f UTF-16 -t UTF-8`"
        ):
            store.read([path])


def test_a_folder_that_cannot_be_written_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot be written \(.*\); name another folder with --out"):
        Store(tmp_path / "file" / "run.jsonl")


@pytest.mark.parametrize("how", ["error", "short write"])
def test_a_full_disk_loses_no_earlier_record(tmp_path, monkeypatch, how):
    path = tmp_path / "run.jsonl"
    real = os.write

    def full(fd: int, data: bytes) -> int:
        written = real(fd, data[:50])
        if how == "error":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written

    with Store(path) as records:
        records.append(factories.make_record("fp32"))
        before = path.read_bytes()
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(StorageFullError, match=r"No space left on device.*earlier records are intact"):
            records.append(factories.make_record("fp16"))
        assert path.read_bytes() == before
        monkeypatch.undo()
        records.append(factories.make_record("fp16"))
    assert configs(path) == ["fp32", "fp16"]


def replace(path: Path) -> None:
    path.unlink()
    path.write_bytes(b"another's")


FAULTS = {
    "removed": Path.unlink,
    "renamed": lambda path: path.rename(path.with_name("renamed.jsonl")),
    "its folder renamed": lambda path: path.parent.rename(path.parent.with_name("elsewhere")),
    "its folder removed": lambda path: shutil.rmtree(path.parent),
    "replaced": replace,
    "overwritten": lambda path: path.write_bytes(b"another's"),
    "appended to": lambda path: path.write_bytes(path.read_bytes() + b"another's"),
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
}
STAY = ("replaced", "overwritten", "appended to", "cut")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("when", ["append", "close"])
def test_a_file_that_goes_away_while_a_run_goes_on_is_written_again(tmp_path, fault, when):
    path = tmp_path / "machine" / "cpu-20250102-030405-2.jsonl"
    rescued = path.with_name(f"cpu-20250102-030405-{3 if fault in STAY else 2}.jsonl")
    written = [factories.make_record("fp32", 4), factories.make_record("fp16", 8)]
    with pytest.raises(StorageGoneError) as error, Store(path) as records:
        records.append(written[0])
        if when == "close":
            records.append(written[1])
        FAULTS[fault](path)
        if when == "append":
            records.append(written[1])
    assert error.value.exit_code == 3
    assert str(error.value) == (
        f"{path}: the file was removed, renamed, replaced or changed during the run; all records were "
        f"saved to {rescued}; continue with --resume"
    )
    assert store.read([rescued]).records == tuple(written)
    assert store.latest(tmp_path, "machine", "cpu") == rescued
    if fault in STAY[:2]:
        assert path.read_bytes() == b"another's"


@pytest.mark.parametrize("error", [errno.EPERM, errno.EIO])
def test_a_record_that_the_file_does_not_take_any_more_is_kept_beside_it(tmp_path, monkeypatch, error):
    """The file was made immutable, so that it cannot be cut back to complete records either."""

    def refuse(*_: object) -> None:
        raise OSError(error, os.strerror(error))

    written = [factories.make_record("fp32", 4), factories.make_record("fp16", 8)]
    with pytest.raises(StorageGoneError) as raised, Store(tmp_path / "run.jsonl") as records:
        records.append(written[0])
        monkeypatch.setattr(os, "write", refuse)
        monkeypatch.setattr(os, "ftruncate", refuse)
        records.append(written[1])
    assert str(raised.value) == (
        f"{tmp_path}/run.jsonl: the file can no longer be written ({os.strerror(error)}); all records were "
        f"saved to {tmp_path}/run-2.jsonl; continue with --resume"
    )
    assert store.read([tmp_path / "run-2.jsonl"]).records == tuple(written)


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder for temporary files."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return tmp_path / "temporary"


def test_what_is_rescued_follows_no_link_that_another_has_laid(tmp_path, temporary):
    (temporary / "run.jsonl").symlink_to(tmp_path / "victim")
    folder = tmp_path / "results" / "m"
    with pytest.raises(StorageGoneError) as error, Store(folder / "run.jsonl") as records:
        shutil.rmtree(folder)
        folder.touch()
        records.append(factories.make_record())
    rescued = temporary / "run-2.jsonl"
    assert len(store.read([rescued]).records) == 1
    assert not (tmp_path / "victim").exists()
    assert str(error.value).endswith(f"mkdir -p {folder} && mv {rescued} {folder}/, and then continue with --resume")


def test_a_name_that_another_process_takes_meanwhile_does_not_lose_the_records(tmp_path, monkeypatch, temporary):
    files_of_others = []

    def replacing(path, *args, real=store.files.replacing, **options):
        if not files_of_others:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            files_of_others.append(path)
        return real(path, *args, **options)

    with pytest.raises(StorageGoneError) as error, Store(tmp_path / "m" / "run.jsonl") as records:
        shutil.rmtree(tmp_path / "m")
        monkeypatch.setattr(store.files, "replacing", replacing)
        records.append(factories.make_record())
    assert files_of_others == [tmp_path / "m" / "run.jsonl"]
    rescued = tmp_path / "m" / "run-2.jsonl"
    assert f"all records were saved to {rescued};" in str(error.value)
    assert len(store.read([rescued]).records) == 1


def test_where_its_folder_cannot_be_made_again_either_it_goes_to_the_temporary_folder(tmp_path, monkeypatch, temporary):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(StorageGoneError) as error, Store(Path("results/m/run.jsonl")) as records:
        shutil.rmtree(tmp_path / "here")
        records.append(factories.make_record())
    rescued = temporary / "run.jsonl"
    assert f"all records were saved to {rescued};" in str(error.value)
    assert len(store.read([rescued]).records) == 1


def test_the_last_record_of_a_trial_counts_and_two_machines_runs_of_one_second_stay_apart():
    failed = factories.make_record("fp32", status="failed")
    first_machine = factories.make_record("fp32")
    assert store.current([failed, first_machine]) == (first_machine,)
    assert store.current([first_machine, failed]) == (failed,)
    second_machine = factories.make_record("fp32", environment=factories.make_environment("other"))
    died = factories.make_record("fp32", status="crashed")
    assert died.environment is None
    assert store.current([first_machine, second_machine]) == (first_machine, second_machine)
    assert (
        store.current([died, first_machine]) == store.current([first_machine, died, first_machine]) == (first_machine,)
    )
    assert store.current([first_machine, second_machine, first_machine]) == (first_machine, second_machine)


def test_runs_have_names_of_their_own_and_the_newest_is_latest(tmp_path):
    first = store.new_path(tmp_path, "m", "cpu")
    with Store(first):
        pass
    second = store.new_path(tmp_path, "m", "cpu")
    assert second != first
    other_scenarios = ("cpu-big-20990101-000000", "cpu-9-20990101-000000")  # of other scenarios
    for name in ("cpu-20980101-000000", "cpu-20980101-000000-2", "cpu-20980101-000000-10", *other_scenarios):
        (tmp_path / "m" / f"{name}.jsonl").write_bytes(line())
    (tmp_path / "m" / "cpu-20990101-000000.jsonl").touch()  # a run that has no record yet
    assert store.latest(tmp_path, "m", "cpu").name == "cpu-20980101-000000-10.jsonl"
    assert store.latest(tmp_path, "other", "cpu") is None
    assert store.latest(tmp_path, "m", "c*") is None


def test_an_empty_name_is_not_the_folder_one_stands_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.jsonl").write_bytes(line())
    with pytest.raises(StoreError, match="'': an empty name; expected a file, a folder, or the id of a run"):
        store.resolve("", tmp_path)
    assert store.resolve(".", tmp_path).is_dir()


def test_the_newest_run_is_that_of_the_same_ending_on_one_machine_or_on_any(tmp_path):
    for machine, name in [
        ("a", "cpu-20260101-000000"),
        ("a", "cpu-20260101-000000-2_a100"),
        ("a", "cpu-20260101-000001_gpu_a100"),
        ("b", "cpu-20260101-000000-3_a100"),
    ]:
        factories.write(tmp_path / machine / f"{name}.jsonl", factories.make_record())
    assert store.latest(tmp_path, "a", "cpu").stem == "cpu-20260101-000000"
    assert store.latest(tmp_path, "a", "cpu", "_a100").stem == "cpu-20260101-000000-2_a100"
    assert store.latest(tmp_path, None, "cpu", "_a100").stem == "cpu-20260101-000000-3_a100"
    assert store.latest(tmp_path, "b", "cpu") is None
    assert store.latest(tmp_path / "none", None, "cpu") is None


def test_a_new_run_takes_away_what_killed_ones_left_empty_and_nothing_else(tmp_path):
    folder = tmp_path / "m"
    folder.mkdir()
    left, begun, written, unrelated = (
        folder / f"{name}.jsonl"
        for name in ("cpu-20250102-030405", "cpu-20250102-030406", "cpu-20250102-030407", "cpu")
    )
    for path in (left, begun, written, unrelated):
        path.write_bytes(line() if path == written else b"")
        os.utime(path, (0, 0))
    with Store(begun):
        new_path = store.new_path(tmp_path, "m", "cpu")
    assert {*folder.iterdir()} == {begun, written, unrelated, new_path}
    assert store.new_path(tmp_path, "m", "cpu") != new_path  # one that has just begun
    assert new_path.exists()


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (
            {"step_times_s": (1e-9,) * 10},
            "its steps return at once, after 0.001 us; nothing shorter than 10 us can be timed",
        ),
        ({"step_times_s": (0.001,) * 10}, "its steps took 1 ms, but their phases took 100 ms"),
        ({}, "its steps took 1 s by the session's clock, but 50 s by tcbench's"),
    ],
)
def test_what_contradicts_itself_is_kept_and_not_judged(changed, reason):
    host = HostLoad(elapsed_s=1.05, processors=2, own_s=1, waited_s=0, others_s=0, stolen_s=0)
    phases = factories.make_phases({"forward": 0.1})
    plausible = factories.remeasured(factories.make_record(host=host), step_times_s=(0.1,) * 10, phases=phases)
    assert store.current([plausible]) == (plausible,)
    slow = msgspec.structs.replace(plausible, host=msgspec.structs.replace(host, elapsed_s=50.0))
    (seen,) = store.current([factories.remeasured(plausible, **changed) if changed else slow])
    assert (seen.status, seen.reason, seen.measurement) == ("failed", f"contradictory times: {reason}", None)


def test_a_run_whose_name_lies_in_the_future_is_as_old_as_its_file(tmp_path):
    """Otherwise every command would take a run with a wrong clock for the newest one for years."""
    (tmp_path / "m").mkdir()
    now_s = time.time()
    yesterday, hour_ago, future = store.stamp(now_s - 86400), store.stamp(now_s - 3600), store.stamp(now_s + 10**8)
    for name, written_at in ((yesterday, now_s), (hour_ago, now_s), (future, now_s - 7200)):
        file = tmp_path / "m" / f"cpu-{name}.jsonl"
        file.write_text("{}\n")
        os.utime(file, (written_at, written_at))
    order = [path.stem for path in store.newest_first(tmp_path, "m", "cpu")]
    assert order == [f"cpu-{hour_ago}", f"cpu-{future}", f"cpu-{yesterday}"]
    os.utime(tmp_path / "m" / f"cpu-{future}.jsonl", (now_s + 10**8, now_s + 10**8))
    assert store.newest_first(tmp_path, "m", "cpu")[-1].stem == f"cpu-{future}"
