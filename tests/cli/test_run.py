"""Options of `tcbench run` that act within the worker or on which configs there are."""

from __future__ import annotations

import json
import os

import odd_images
import pytest
from command import tcbench
from factories import make_record
from typer.testing import CliRunner

from tcbench.accelerators.cpu.kind import KIND
from tcbench.cli import app
from tcbench.cli import run as command
from tcbench.core import messages
from tcbench.core.errors import SelectionError


def invoke(*arguments: str):
    return CliRunner().invoke(app, ["run", *arguments], catch_exceptions=False)


@pytest.mark.parametrize("asked", [True, False])
def test_fresh_autotune_reaches_the_workers_through_their_environment(monkeypatch, asked):
    seen = []
    monkeypatch.delenv(messages.FRESH_AUTOTUNE, raising=False)
    monkeypatch.setattr(command, "_run", lambda *_: seen.append(messages.fresh_autotune()))
    monkeypatch.setattr(os, "environ", dict(os.environ))
    done = invoke("cpu", "--device", "cpu", "--data", "synthetic", *(["--fresh-autotune"] if asked else []))
    assert done.exit_code == 0
    assert seen == [asked]


def test_an_ablation_is_chosen_by_its_name_and_waits_for_a_gpu():
    done = invoke(
        "settings", "--device", "cpu", "--dry-run", "--json", "--bs", "64", "--config", "fp16*:no-autotune,fp16"
    )
    cells = json.loads(done.stdout)["cells"]
    assert [cell["config"] for cell in cells] == [
        *("fp16", "fp16:no-autotune", "fp16+dali+batched+nhwc+fused:no-autotune")
    ]
    assert cells[0]["skip_reason"] is None
    assert cells[1]["skip_reason"] == "no-autotune: cuDNN's settings act on a GPU only"


def test_an_ablation_combines_with_any_rungs():
    done = invoke(
        "settings", "--device", "cpu", "--dry-run", "--json", "--bs", "64", "--config", "fp32+nhwc:no-autotune"
    )
    assert [cell["config"] for cell in json.loads(done.stdout)["cells"]] == ["fp32+nhwc:no-autotune"]


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        ("settings", "unknown ablation 'nope'; scenario settings has workspace-8-mib, no-autotune, no-fast-batch-norm"),
        ("cpu", "unknown ablation 'nope'; scenario cpu has none"),
    ],
)
def test_an_unknown_ablation_is_one_clear_line(scenario, expected):
    with pytest.raises(SelectionError, match=expected):
        invoke(scenario, "--device", "cpu", "--dry-run", "--config", "fp16:nope")


def test_a_folder_with_an_image_that_not_every_feed_takes_is_refused_before_any_trial(tmp_path):
    (tmp_path / "data" / "a").mkdir(parents=True)
    (tmp_path / "data" / "a" / "good.jpg").write_bytes(odd_images.taken()["plain"])
    (tmp_path / "data" / "a" / "bad.jpg").write_bytes(odd_images.refused()["gif"][0])
    done = tcbench(tmp_path, "run", "cpu", "--device", "cpu", "--bs", "4", "--data", "data")
    assert done.code == 2
    assert "a/bad.jpg is a GIF, expected a JPEG or PNG of 8 bits a channel" in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not (tmp_path / "results").exists()


def test_a_run_says_first_which_library_computes_and_where_a_faster_one_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr("tcbench.run.runner.Runner._trial", lambda _, cell, trial: make_record(cell=cell, trial=trial))
    arguments = ("--config", "fp32", "--bs", "4", "--data", "synthetic", "--device", "cpu", "--out", str(tmp_path))
    monkeypatch.setattr(type(KIND), "shortfall", lambda _: "oneDNN needs libgomp.so.1: apt-get install libgomp1")
    assert "computes: oneDNN needs libgomp.so.1: apt-get install libgomp1" in invoke(*arguments).stderr
    monkeypatch.setattr(type(KIND), "shortfall", lambda _: None)
    assert f"\n{KIND.library()} computes\n" in invoke(*arguments).stderr
