import dataclasses
import itertools
import os
import subprocess
import sys

import factories
import msgspec
import pytest

from tcbench.analysis.summary import summarise
from tcbench.core.errors import ScenarioError, SelectionError
from tcbench.core.packages import INSTALL_LADDER, LADDER, Package
from tcbench.core.record import Cell, Input, TrainSettings
from tcbench.engine.accelerators.cuda.cudnn import libraries
from tcbench.engine.accelerators.device import Device
from tcbench.engine.backends.torch.rungs import _Compiler, _Header
from tcbench.engine.rung import Requires
from tcbench.run import plan, scenario
from tcbench.run.plan import Selection
from tcbench.run.scenario import Config

CPU = Device("cpu", "A Processor", 2**34)
AVX2 = Device("cpu", "A Processor", 2**34, instructions=frozenset({"avx2"}))
V100 = Device("cuda:0", "V100", 2**34, (7, 0))


@pytest.fixture
def cpu():
    return scenario.load("cpu")


def names(plan_):
    return [(planned.cell.config, planned.cell.batch_size) for planned in plan_.cells]


def test_a_cells_key_stays_when_it_is_stored(cpu):
    [planned, *_] = plan.make(cpu, Selection(), CPU).cells
    encoded = msgspec.json.encode(planned.cell)
    assert msgspec.json.decode(encoded, type=Cell).key == planned.cell.key


@pytest.mark.parametrize(
    ("name", "device", "expected"),
    [
        ("cpu", CPU, [("fp32", 8), ("bf16+dali+batched+nhwc+fused+static_graph", 8)]),
        ("cpu", AVX2, [("fp32", 8), ("fp32+dali+batched+nhwc+fused+static_graph", 8)]),
        ("naruse2018", V100, [("fp32", 128), ("fp16+dali+batched+nhwc+fused+static_graph", 128)]),
    ],
)
def test_quick_is_the_base_and_the_best_at_one_batch_size_three_times(name, device, expected):
    quick = plan.make(scenario.load(name), Selection(quick=True), device, remote=True)
    assert (names(quick), quick.trials, quick.budget_s) == (expected, 3, None)
    options = plan.make(scenario.load(name), Selection(quick=True, trials=5, batch_sizes=(2,)), device, remote=True)
    assert ({size for _, size in names(options)}, options.trials) == ({2}, 5)


def test_quick_needs_a_ladder_to_climb(cpu):
    with pytest.raises(SelectionError, match="--quick measures two configs, fp32 and the top of a ladder: select"):
        plan.make(cpu, Selection(quick=True, configs=("fp32",)), CPU)


def test_quick_takes_both_of_two_configs_without_a_ladder(cpu):
    """Scenarios of the user's own steps have no ladders."""
    two = dataclasses.replace(cpu, ladders=())
    quick = plan.make(two, Selection(quick=True, configs=("fp32", "fp32+dali")), CPU, remote=True)
    assert names(quick) == [("fp32", 8), ("fp32+dali", 8)]


def test_the_load_of_a_gpus_jpeg_decoder_is_the_scenarios_whatever_images_are_asked_for(cpu):
    folder = Input(kind="folder", path="/data")
    with_decoder = dataclasses.replace(cpu, input=Input(kind="generated", hw_decoder_load=0.8))
    inputs = [plan.make(with_decoder, Selection(input=source), CPU).cells[0].cell.input for source in (None, folder)]
    facts = [(source.kind, source.path, source.hw_decoder_load) for source in inputs]
    assert facts == [("generated", None, 0.8), ("folder", "/data", 0.8)]
    assert plan.make(cpu, Selection(), CPU).cells[0].cell.input == Input(kind="generated")


def test_the_selection_overrides_the_scenario(cpu):
    measuring = {"trials": 3, "target": 0.1, "max_time_s": 7.0, "timeout_s": 11.0}
    selection = Selection(input=Input(kind="synthetic"), image_size=96, seed=5, threads=3, **measuring)
    planned = plan.make(cpu, selection, CPU)
    cell = planned.cells[0].cell
    assert (cell.image_size, cell.seed, cell.threads, cell.input.kind) == (96, 5, 3, "synthetic")
    assert (cell.measure.target, cell.measure.max_time_s) == (0.1, 7.0)
    assert (planned.trials, planned.timeout_s) == (3, 11.0)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("fp3", "unknown; did you mean 'fp32'?"),
        ("zzz", "unknown; expected a config such as"),
        ("zz*", "matches none of fp32, "),
        ("fp16+foo", "unknown rung 'foo' (known: "),
        ("fp16+fused+convstats", "rung 'convstats' needs 'nhwc' before it"),
        ("fp16+fp32", "cannot be used together"),
        ("fp32+fp32", "named twice"),
        ("fp32+", "unknown rung ''"),
        ("torch/fp32+batched", "unknown rung 'batched'"),
        ("troch/fp32", "unknown backend 'troch'; did you mean 'torch'?"),
        ("torch/fp16+cuda_graph", "with 'fp16' needs 'fused_optimizer' before it"),
    ],
)
def test_an_unknown_config_is_one_clear_line(cpu, pattern, expected):
    with pytest.raises(SelectionError) as error:
        plan.select(scenario.load("peers") if "/" in pattern else cpu, (pattern,))
    assert expected in str(error.value)
    assert str(error.value).startswith(f"config '{pattern}': ")


def test_models_that_are_named_stand_in_for_the_scenarios(cpu):
    planned = plan.make(cpu, Selection(models=("resnet18", "resnet152"), configs=("fp32",)), CPU)
    expected = [*itertools.product(("resnet18", "resnet152"), (4, 8))]
    assert [(cell.cell.model, cell.cell.batch_size) for cell in planned.cells] == expected
    v15 = dataclasses.replace(cpu, model=msgspec.structs.replace(cpu.model, variant="v1.5"))
    planned = plan.make(v15, Selection(models=("resnet18", "resnet50"), configs=("fp32",), batch_sizes=(4,)), CPU)
    assert [cell.cell.variant for cell in planned.cells] == ["v1", "v1.5"]  # a model has its first where it lacks that
    with pytest.raises(SelectionError, match=r"--model 'resnet05': unknown; did you mean 'resnet50'?"):
        plan.make(cpu, Selection(models=("resnet05",)), CPU)


def test_a_model_without_batch_normalisation_trains_at_a_rate_that_it_can(cpu):
    planned = plan.make(cpu, Selection(models=("alexnet", "resnet50"), configs=("fp32",), batch_sizes=(4,)), CPU)
    assert [cell.cell.train.learning_rate for cell in planned.cells] == [0.001, cpu.train.learning_rate]
    slow = dataclasses.replace(cpu, train=TrainSettings(learning_rate=1e-4))
    (planned,) = plan.make(slow, Selection(models=("alexnet",), configs=("fp32",), batch_sizes=(4,)), CPU).cells
    assert planned.cell.train.learning_rate == 1e-4


H200 = Device("cuda:0", "NVIDIA H200", 2**37, (9, 0))


@pytest.mark.parametrize(
    ("requires", "device", "expected"),
    [
        (Requires(), CPU, None),
        (Requires(devices=frozenset({"cuda"})), CPU, "needs cuda"),
        (Requires(compute_capability=(10, 0)), H200, "needs compute capability 10.0, NVIDIA H200 has 9.0"),
        (Requires(compute_capability=(8, 0)), H200, None),
        (Requires(packages=(Package("no_such.sub", "uv sync"),)), CPU, "needs the package no_such.sub: uv sync"),
        (Requires(packages=(Package("json", "-"),)), CPU, None),
    ],
)
def test_a_requirement_that_is_not_met_names_its_remedy(requires, device, expected):
    assert plan.missing(requires, device) == expected


OLD = dataclasses.replace(CPU, title="Old CPU", instructions=frozenset({"avx2"}))
NEW = dataclasses.replace(CPU, instructions=frozenset({"avx2", "amx_bf16"}))
BOTH = dataclasses.replace(CPU, instructions=frozenset({"amx_bf16", "amx_fp16"}))
FP16 = dataclasses.replace(CPU, instructions=frozenset({"amx_fp16"}))
ENOUGH = "one low precision is enough, and this processor has instructions for"


@pytest.mark.parametrize(
    ("device", "low", "left_out"),
    [
        (NEW, "bf16", f"fp16 is left out: {ENOUGH} bf16; --config 'fp16*' selects it"),
        (BOTH, "bf16", f"fp16 is left out: {ENOUGH} bf16; --config 'fp16*' selects it"),
        (FP16, "fp16", f"bf16 is left out: {ENOUGH} fp16; --config 'bf16*' selects it"),
        (
            OLD,
            "fp16",
            "bf16 is left out: this processor has instructions for neither bf16 nor fp16; fp16 shows the rungs, but no "
            "gain; --config 'bf16*' selects it",
        ),
    ],
    ids=["bf16", "both", "fp16", "neither"],
)
def test_unasked_a_processor_runs_the_low_precision_that_it_computes_in(cpu, device, low, left_out):
    default_plan = plan.make(cpu, Selection(), device)
    assert {planned.cell.rungs[0] for planned in default_plan.cells} == {"fp32", low}
    assert not any(planned.skip_reason for planned in default_plan.cells)
    assert default_plan.left_out.startswith(left_out)
    chosen = plan.make(cpu, Selection(configs=("fp16*", "bf16*")), device)
    assert ({planned.cell.rungs[0] for planned in chosen.cells}, chosen.left_out) == ({"fp16", "bf16"}, "")


def test_a_rung_that_a_processor_would_emulate_is_skipped_unless_it_is_named(cpu):
    cpu = dataclasses.replace(cpu, configs=(cpu.configs[0], Config("chainer", ("bf16",))))

    def reason(device: Device, *configs: str) -> str | None:
        chosen_plan = plan.make(cpu, Selection(configs=configs), device)
        return next(planned.skip_reason for planned in chosen_plan.cells if planned.cell.config == "bf16")

    assert reason(OLD) == (
        "bf16: needs avx512_bf16 or amx_bf16, Old CPU has none of them: emulated, bf16 is computed in fp32; "
        "--config bf16 runs it anyway"
    )
    assert reason(OLD, "bf16") is None
    assert reason(NEW) is None


def test_another_machines_device_is_not_judged_by_what_is_installed_here():
    requires = Requires(compute_capability=(8, 0), packages=(Package("no_such_module.sub", "uv sync --extra x"),))
    assert plan.missing(requires, H200, remote=True) is None
    assert plan.missing(requires, V100, remote=True) == "needs compute capability 8.0, V100 has 7.0"
    beyond = plan.make(scenario.load("beyond"), Selection(), V100, remote=True)
    reasons = {planned.cell.config: planned.skip_reason for planned in beyond.cells}
    assert reasons["fp16"] is None
    assert reasons["tf32"] == "tf32: needs compute capability 8.0, V100 has 7.0"


def test_a_gpu_that_the_installed_cudnn_does_not_serve_is_refused_with_its_remedy(cpu, monkeypatch):
    monkeypatch.setattr(libraries, "version", lambda: "9.28.0")
    monkeypatch.setattr(Package, "is_installed", lambda package: True)
    with pytest.raises(SelectionError) as error:
        plan.make(cpu, Selection(), V100)
    assert str(error.value) == (
        "--device cuda:0 (V100): cuDNN 9.28.0 does not support compute capability 7.0; "
        "the last version that does is 9.10.2: uv sync --extra volta; --device cpu works"
    )
    monkeypatch.setattr(libraries, "version", lambda: "9.10.2")
    assert plan.make(cpu, Selection(configs=("fp32",)), V100).cells[0].skip_reason is None


def test_beside_a_backend_that_does_without_it_only_the_cells_that_need_cudnn_are_skipped(monkeypatch):
    monkeypatch.setattr(libraries, "version", lambda: "9.28.0")
    monkeypatch.setattr(Package, "is_installed", lambda package: True)
    peers = plan.make(scenario.load("peers"), Selection(), V100)
    reasons = {(planned.cell.backend, (planned.skip_reason or "")[:30]) for planned in peers.cells}
    assert ("chainer", "cuDNN 9.28.0 does not support ") in reasons
    assert ("torch", "") in reasons
    assert ("chainer", "") not in reasons


def test_an_ablation_runs_its_own_settings_and_remembers_the_scenarios():
    planned = plan.make(scenario.load("settings"), Selection(configs=("fp16", "fp16:no-autotune")), H200, remote=True)
    base, changed = planned.cells[0].cell, planned.cells[2].cell
    assert (base.config, changed.config) == ("fp16", "fp16:no-autotune")
    assert base.rungs == changed.rungs == ("fp16",)
    assert base.cudnn.autotune and not changed.cudnn.autotune
    assert base.scenario_cudnn is None and changed.scenario_cudnn == base.cudnn


def test_planning_imports_no_framework():
    code = """
import sys
from tcbench.engine.accelerators import device
from tcbench.run import plan, scenario
made = plan.make(scenario.load("cpu"), plan.Selection(), device.find_device("cpu", {"cpu": None}))
assert len(made.cells) == 20
assert not {"chainer", "cupy", "cudnn", "torch", "numpy", "nvidia.dali", "cv2", "ml_dtypes"} & sys.modules.keys()
"""
    # Where oneDNN is held to fewer instructions it is asked which, and that takes NumPy.
    environment = {name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_without_its_package_a_backends_cells_are_skipped_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(Package, "is_installed", lambda package: package.module != "torch")
    planned = plan.make(scenario.load("peers"), Selection(), CPU)
    reasons = {p.cell.config: p.skip_reason for p in planned.cells}
    assert reasons["fp32"] is None
    assert reasons["torch/fp32"] == "backend torch needs the package torch: uv pip install torch --torch-backend=cpu"


def test_without_the_extra_ladder_only_own_steps_are_planned(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_step.py").touch()
    monkeypatch.setattr(Package, "is_installed", lambda package: package not in LADDER)
    for name in ("cpu", "peers"):
        with pytest.raises(SelectionError, match=r"need the extra 'ladder' \(chainer is not .*: uv sync, or PIP_"):
            plan.make(scenario.load(name), Selection(), CPU)
    own_config = Config("my_step:open_session", ("plain",))
    mixed = dataclasses.replace(scenario.load("cpu"), configs=(own_config, Config("chainer", ("fp32",))))
    reasons = {planned.cell.backend: planned.skip_reason for planned in plan.make(mixed, Selection(), CPU).cells}
    assert reasons[own_config.backend] is None
    assert reasons["chainer"] == f"backend chainer needs the package chainer: {INSTALL_LADDER}"


@pytest.mark.parametrize(
    ("device", "image_size", "batch_sizes"), [(CPU, 64, {8, 16}), (H200, 224, {32, 64, 128, 256})], ids=["CPU", "GPU"]
)
def test_every_config_of_peers_can_run(monkeypatch, device, image_size, batch_sizes):
    for kind in (Package, _Compiler, _Header):
        monkeypatch.setattr(kind, "is_installed", lambda package: True)
    cells = plan.make(scenario.load("peers"), Selection(), device).cells
    assert {(p.cell.image_size, p.cell.batch_size) for p in cells} == {(image_size, size) for size in batch_sizes}
    assert [p.skip_reason for p in cells if p.skip_reason] == []


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("fp32", ["fp32"]),
        ("torch/fp32", ["torch/fp32"]),
        ("torch/*optimizer", ["torch/fp32+dali+fused_optimizer", "torch/bf16+dali+fused_optimizer"]),
        ("bf16*", ["bf16+dali+batched+nhwc+fused+static_graph"]),
        ("torch/bf16+nhwc", ["torch/bf16+nhwc"]),
        ("fp32+nhwc", ["fp32+nhwc"]),
    ],
)
def test_a_config_of_another_backend_is_chosen_by_its_name(pattern, expected):
    chosen = plan.select(scenario.load("peers").on("cpu"), [pattern])
    assert [config.name for config in chosen] == expected
    assert all((config.backend == "torch") == config.name.startswith("torch/") for config in chosen)


def test_a_step_of_ones_own_has_its_own_input_and_free_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("raise SystemExit('imported while planning')", "utf-8")
    (tmp_path / "x.toml").write_text(
        'schema = 1\ntitle = "t"\nmodel.name = "m"\nmeasure.batch_sizes = [4]\n'
        '[[config]]\nbackend = "mine:make"\nrungs = ["whatever", "you like"]\n',
        "utf-8",
    )
    (planned,) = plan.make(scenario.load("./x.toml"), Selection(), CPU).cells
    cell = planned.cell
    assert planned.skip_reason is None
    assert (cell.config, cell.backend, cell.rungs) == ("mine/whatever+you like", "mine:make", ("whatever", "you like"))
    assert (cell.input.kind, cell.model) == ("own", "m")
    (tmp_path / "mine.py").unlink()
    with pytest.raises(ScenarioError, match=r"x\.toml: config 'mine/whatever\+you like': .*no module 'mine' in "):
        plan.make(scenario.load("./x.toml"), Selection(), CPU)


@pytest.mark.parametrize("emulated", [(), ("fp16",)])
def test_fp32_is_advised_in_place_of_a_low_precision_that_is_emulated_alone(emulated):
    environment = factories.make_environment(emulated=emulated)
    [summary] = summarise([factories.make_record("fp16", environment=environment)])
    assert (plan.advisable(summary)(("fp32",)) is None) is bool(emulated)
