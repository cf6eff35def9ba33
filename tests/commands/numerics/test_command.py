"""`tcbench numerics` as a user meets it: real training in processes, tiny; mistakes; interrupts; workers that die."""

import itertools
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import msgspec
import pytest
from command import ended, finish, start, tcbench
from numerics_documents import make_document
from processes import children, soon

from tcbench.commands.numerics import plan
from tcbench.commands.numerics.runner import _WORKER, NumericsRunner
from tcbench.core.errors import StoreError
from tcbench.core.numerics import Run, TrainingFinished, read
from tcbench.engine.accelerators.device import host_device
from tcbench.run.scenario import load

TINY = ("numerics", "--device", "cpu", "--seeds", "1", "--steps", "2", "--image-size", "8")


@pytest.mark.slow
def test_one_command_leaves_a_document_and_two_charts_and_says_what_it_found(tmp_path):
    done = ended(tmp_path, *TINY, "--scale", "2^50")
    [path] = tmp_path.glob("results/*/numerics-*.json")
    document = read(path)
    techniques = ["fp32", "neither", "scaling", "masters", "both", "dynamic", "bf16"]
    assert [run.technique for run in document.runs] == techniques
    charts = {chart.name.rpartition("-")[2] for chart in path.parent.glob("*.png")}
    assert charts == {"gradients.png", "training.png"}
    assert not list(path.parent.glob("*.jsonl"))
    # A static scale that overflows is a result, with its step and the scale's name.
    both = next(run for run in document.runs if run.technique == "both")
    assert (both.status, both.test_loss) == ("diverged", None)
    assert "diverged by step 1: gradients overflowed float16 at a static loss scale of 2^50" in done.out
    derived = json.loads(path.read_text(encoding="utf-8"))["derived"]
    words = {verdict["technique"]: verdict["verdict"] for verdict in derived["verdicts"]}
    assert words["both"] == "does not"
    assert words["dynamic"] == "undecided"  # one seed


@pytest.mark.slow
def test_many_ranks_leave_a_document_of_their_own_with_one_chart(tmp_path):
    done = ended(tmp_path, *TINY, "--ranks", "2", "--bs", "4")
    [path] = tmp_path.glob("results/*/numerics-ranks-*.json")
    document = read(path)
    assert [run.technique for run in document.runs] == ["one-rank", "ranks", "no-warm-up", "unscaled", "own-batch"]
    assert {run.status for run in document.runs} == {"ok"}
    assert (document.setting.ranks, document.setting.batch_size) == (2, 8)
    assert [chart.name.rpartition("-")[2] for chart in path.parent.glob("*.png")] == ["training.png"]
    assert "2 ranks of 4: global batch size 8" in done.out
    assert "loss scale" not in done.out


def test_a_folder_that_takes_nothing_is_found_before_the_training(tmp_path, monkeypatch):
    monkeypatch.setattr(NumericsRunner, "run", lambda *_: pytest.fail("trained"))
    (tmp_path / "file").touch()
    done = ended(tmp_path, *TINY, "--out", "file", code=2)
    assert re.search(r"file/\S+\.json: cannot be written \(.*\); name another folder with --out", done.err)


@pytest.mark.slow
@pytest.mark.usefixtures("trains_here")
def test_what_cannot_be_kept_any_more_is_printed(tmp_path, monkeypatch):
    train = NumericsRunner.run

    def run(self, jobs):
        yield from train(self, jobs)
        for folder in filter(Path.is_dir, tmp_path.glob("results/*")):
            folder.rmdir()
            folder.touch()

    monkeypatch.setattr(NumericsRunner, "run", run)
    done = ended(tmp_path, *TINY, "--steps", "1", code=2)
    assert "cannot be written" in done.err
    assert len(json.loads(done.out)["runs"]) == 7


def test_only_an_fp32_that_diverged_is_told_to_lower_its_learning_rate(tmp_path, monkeypatch):
    diverged = Run(technique="fp32", seed=0, status="diverged", reason="diverged at step 1: the loss is nan")
    run = lambda _, jobs: ((job, TrainingFinished(diverged, None, None)) for job in jobs)  # noqa: E731
    monkeypatch.setattr(NumericsRunner, "run", run)
    done = tcbench(tmp_path, *TINY)
    assert (done.code, done.err.count("try a lower --lr")) == (2, 1), done.err


def test_an_fp32_that_failed_is_an_error_of_its_own(tmp_path):
    done = ended(tmp_path, *TINY, "--timeout", "0.01", code=3)
    assert done.err.strip().endswith("fp32 itself failed: no result after 0.01 s (--timeout)")


@pytest.mark.long
def test_an_interrupt_ends_all_workers_and_says_so(tmp_path):
    running = start(tmp_path, "numerics", "--device", "cpu", "--quiet", start_new_session=True)
    assert soon(lambda: children(running.pid, _WORKER), 600)
    time.sleep(0.5)
    workers = children(running.pid, _WORKER)
    os.kill(running.pid, signal.SIGINT)
    done = finish(running, code=130)
    assert done.err.strip() == "interrupted after 0 runs; nothing is kept"
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]
    assert not list(tmp_path.rglob("numerics-*"))


def test_a_worker_that_dies_talks_nonsense_or_takes_too_long_is_a_run_that_failed():
    setting = plan.training_setting(load("cpu"), host_device(), plan.NumericsRequest(steps=2), 1, None)
    [job] = plan.training_jobs(setting, 1, None)[:1]

    def reason(code: str, timeout_s: float = 30.0) -> str:
        runner = NumericsRunner(
            1, timeout_s, command=lambda pipe: [sys.executable, "-c", f"import os, time; p = {pipe}; {code}"]
        )
        [(_, last)] = runner.run([job])
        assert last.run.status == "failed"
        return last.run.reason

    assert reason("raise SystemExit('no luck')").endswith("(exit code 1): no luck")
    assert reason("os.write(p, b'{}\\n'); time.sleep(20)") == "the worker sent something that is not a message"
    assert reason("time.sleep(60)", 0.5) == "no result after 0.5 s (--timeout)"


def test_no_more_runs_train_at_once_than_asked(tmp_path):
    setting = plan.training_setting(load("cpu"), host_device(), plan.NumericsRequest(steps=2), 1, None)
    log = f"open({str(tmp_path / 'log')!r}, 'a').write"
    command = [sys.executable, "-c", f"import time; {log}('+'); time.sleep(0.3); {log}('-')"]
    ended = list(NumericsRunner(2, 30.0, command=lambda pipe: command).run(plan.training_jobs(setting, 1, None)[:5]))
    begun = (tmp_path / "log").read_text()
    at_once = max(itertools.accumulate(1 if sign == "+" else -1 for sign in begun))
    assert (len(ended), begun.count("+")) == (5, 5)
    assert at_once <= 2


def test_what_is_no_document_is_refused_by_name(tmp_path):
    for name, text, expected in (
        ("a.json", "{}", "expected a document of `tcbench numerics`"),
        ("b.json", '{"schema": "tcbench-numerics", "schema_version": 99}', "schema version 99, expected 1"),
        ("c.json", '{"schema": "tcbench-numerics", "schema_version": 1}', "not a valid document"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(StoreError, match=expected):
            read(tmp_path / name)
    with pytest.raises(StoreError, match="cannot be read"):
        read(tmp_path / "nothing.json")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda v: v.update(static_scale=0), "static_scale 0: expected a power of two"),
        (lambda v: v.update(static_scale=-2), "static_scale -2: expected a power of two"),
        (lambda v: v.update(static_scale=1000), "static_scale 1000: expected a power of two"),
        (lambda v: v["setting"].update(test_images=0), "setting.test_images 0: expected a number above 0"),
        (lambda v: v.update(runs=[]), "runs: expected at least one"),
        (lambda v: v["runs"].append(v["runs"][0]), "fp32, seed 0: listed twice"),
        (lambda v: v["runs"][0].update(technique="fp8"), "technique 'fp8': expected one of fp32, neither"),
        (lambda v: v["runs"][0].update(test_loss=None), "fp32, seed 0, status ok: expected losses, a test loss"),
        (lambda v: v["runs"][0].update(accuracy=1.5), "fp32, seed 0, status ok: expected losses, a test loss"),
        (lambda v: v["runs"][0].update(losses=[]), "fp32, seed 0, status ok: expected losses"),
        (lambda v: v["runs"][0].update(last_scale=0), "fp32, seed 0: expected loss scales above 0"),
        (
            lambda v: v["gradients"]["layers"][0]["magnitudes"].update(powers=[1]),
            "gradients: expected as many powers, almost and nearly as counts",
        ),
    ],
)
def test_a_document_that_says_what_cannot_be_is_refused(tmp_path, change, expected):
    value = json.loads(msgspec.json.encode(make_document()))
    path = tmp_path / "numerics-1.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    read(path)
    change(value)
    path.write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(StoreError, match=re.escape(f"not a valid document of `tcbench numerics` ({expected}")):
        read(path)


def test_the_divisor_is_that_of_resnet_50_at_the_talks_global_batch():
    setting = plan.training_setting(load("cpu"), host_device(), plan.NumericsRequest(), 1, None)
    # 131072 / 32 replicas, and a last feature map of 7 x 7 where the small network's is 2 x 2; a power of two below.
    assert setting.loss_divisor == 2**15 < 131072 / 32 * 49 / 4 < 2**16
    alone = plan.training_setting(load("cpu"), host_device(), plan.NumericsRequest(global_batch=32), 1, None)
    assert alone.loss_divisor == 1
