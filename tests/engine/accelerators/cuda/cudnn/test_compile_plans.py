"""tools/compile_plans.py, with a frontend that compiles nothing."""

import json
from dataclasses import replace
from pathlib import Path

import compile_plans
import pytest

from tcbench.core import cache
from tcbench.engine.accelerators.cuda.cudnn import ahead, plans
from tcbench.engine.accelerators.cuda.cudnn.plans import Plans
from tcbench.engine.work import BatchNormBackward, Conv2d, ConvFprop, Norm, Relu
from tcbench.hardware.gpus import GpuProperties
from tcbench.run.demand import Demand

SMALL = Norm(64, 16, 7, 7, "NHWC", "float16", "relu")
NORMS = [SMALL, replace(SMALL, c=32), replace(SMALL, c=64, dtype="float32"), replace(SMALL, n=32)]
"""Three of a batch size whose plans are all compiled (64; float32 costs most), one of another batch size."""


@pytest.fixture
def fill(frontend, monkeypatch, tmp_path):
    """Plans a to f, all but b compiled when they are built; a convolution's are ready."""
    frontend.offers = [frontend.Offer(tag, runtime_compiled=tag != "b") for tag in "abcdef"]
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    monkeypatch.setattr(compile_plans.graphs, "absent_target", lambda properties, sm: {})
    compiled = []
    monkeypatch.setattr(compile_plans.kernels, "compile_kernel", lambda *module: compiled.append(module))

    def trace_all(cells, *_, **__):
        works = [(Relu(8, "float16"), 2), *((BatchNormBackward(norm), 1) for norm in NORMS)]
        return {cell: step_of(works, cell.batch_size) for cell in cells}

    def step_of(works, batch_size):
        mine = [(work, n) for work, n in works if not hasattr(work, "norm") or work.norm.n == batch_size]
        return Demand({}, 0, tuple(mine), 0)

    monkeypatch.setattr(compile_plans.demand, "trace_all", trace_all)

    def fill(limit):
        compile_plans.fill(tmp_path, limit, 0)
        tags = []
        for norm in NORMS:
            entry = compile_plans.entry_of((BatchNormBackward(norm), 512 << 20))
            tags.append("".join(plans.built_from_entry(entry)))
        return tags

    fill.kernels = compiled
    return fill


def test_each_work_gets_two_plans_and_those_at_64_get_all_while_there_is_room(fill, capsys, tmp_path):
    assert fill(0) == ["ac"] * 4
    assert ("stall.cu", (), 90) in fill.kernels
    assert "4 of them compiled: 8 plans, all plans of 0 works" in capsys.readouterr().out
    room = compile_plans.packed_bytes(tmp_path) + 150
    assert fill(room)[1] == "acdef"
    assert compile_plans.packed_bytes(tmp_path) <= room
    assert fill(1 << 20) == ["acdef"] * 3 + ["ac"]
    assert "same plans in the same order for 4 of 4 works" in capsys.readouterr().out


def test_a_work_that_exceeds_the_limit_keeps_its_two_plans(fill, tmp_path):
    fill(0)
    assert fill(compile_plans.packed_bytes(tmp_path)) == ["ac"] * 4


def test_an_interrupted_run_goes_on_where_it_ended(fill, frontend):
    fill(1 << 20)
    frontend.built.clear()
    fill(1 << 20)
    assert frontend.built == []


@pytest.mark.parametrize("name", ["NVIDIA H200", "NVIDIA H100 80GB HBM3"])
def test_a_machine_with_either_card_compiles_nothing_and_times_all(fill, frontend, bench, name):
    fill(1 << 20)
    frontend.built.clear()
    gpu = replace(compile_plans.CARD.properties(), name=name)
    work = BatchNormBackward(SMALL)
    assert ahead.missing_works(gpu, [(work, 512 << 20)], 2) == ([], 5)
    trial = Plans(
        77,
        gpu,
        workspace_bytes=512 << 20,
        tuning_budget_s=60.0,
        cache=plans.plan_cache(),
        workbench=bench(**dict(zip("abcdef", (3, 4, 1, 2, 5, 6), strict=True))),
    )
    assert (trial.prepare(work).facts.ahead, set(frontend.built)) == (5, {"b"})


def test_a_convolution_without_compiled_plans_is_not_looked_at_again(fill, frontend):
    frontend.offers = [frontend.Offer("ready")]
    work = ConvFprop(Conv2d(4, 8, 14, 14, 16, 3, 3, 1, 1, "NHWC", "float16"))
    compile_plans.compile_missing([(work, 7)], 2, 0)
    defined = frontend.defined
    compile_plans.compile_missing([(work, 7)], 2, 0)
    assert frontend.defined == defined


def test_the_key_is_the_one_that_the_h200_asked_for(frontend):
    """The facts in the H200's records give the same key."""
    run = Path(__file__).parents[5] / "results" / "h200" / "beyond-20261127-001002_graphs.jsonl"
    facts = json.loads(run.read_text().splitlines()[0])["environment"]["gpu"]
    major, minor = facts["compute_capability"]
    gpu = GpuProperties(facts["name"], 10 * major + minor, facts["multiprocessors"], facts["memory_bytes"])
    work = BatchNormBackward(SMALL)
    assert plans.built_key(work, gpu, 7) == plans.built_key(work, compile_plans.CARD.properties(), 7)
