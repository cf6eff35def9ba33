from pathlib import Path

import msgspec
import pytest

from tcbench.core.errors import ScenarioError
from tcbench.core.record import KfacSettings
from tcbench.run import scenario

MINIMAL = """
schema = 1
title = "t"
[measure]
batch_sizes = [4]
[[ladder]]
name = "fp32"
steps = ["fp32", ["nhwc", "fused"]]
"""


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str) -> str:
        path = tmp_path / "x.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def test_a_ladder_becomes_configs_that_each_add_rungs(write):
    loaded = scenario.load(write(MINIMAL))
    assert [config.name for config in loaded.configs] == ["fp32", "fp32+nhwc+fused"]
    assert loaded.ladders[0].configs == loaded.configs
    assert loaded.name == "x"


def test_a_single_config_stands_beside_ladders_and_is_not_repeated(write):
    text = MINIMAL + '[[config]]\nrungs = ["fp32", "opencv"]\n[[config]]\nrungs = ["fp32"]\n'
    assert [c.name for c in scenario.load(write(text)).configs] == ["fp32", "fp32+nhwc+fused", "fp32+opencv"]


TALK_LADDER = ["", "+dali", "+dali+batched", "+dali+batched+nhwc+fused", "+dali+batched+nhwc+fused+static_graph"]


@pytest.mark.parametrize(("name", "dtypes"), [("cpu", ("fp32", "bf16", "fp16")), ("naruse2018", ("fp32", "fp16"))])
def test_the_shipped_scenarios_hold_the_talks_ladder_for_each_dtype(name, dtypes):
    expected = [dtype + rungs for dtype in dtypes for rungs in TALK_LADDER]
    assert [config.name for config in scenario.load(name).configs] == expected


def test_naruse2018_has_the_talks_settings():
    talk = scenario.load("naruse2018")
    assert talk.batch_sizes == (32, 64, 128, 256)
    assert talk.image_size == 224
    assert talk.cudnn.workspace_bytes == 512 * 2**20
    assert talk.cudnn.autotune
    assert talk.cudnn.fast_batch_norm
    assert talk.variant == "v1"


BEST = "+dali+batched+nhwc+fused"


def test_beyond_goes_on_from_the_talks_best():
    names = [config.name for config in scenario.load("beyond").configs]
    assert names == [
        *("fp32", "tf32", f"tf32{BEST}", f"tf32{BEST}+cuda_graph", "fp16", f"fp16{BEST}", f"fp16{BEST}+cuda_graph"),
        *(f"fp16{BEST}+cuda_graph+convstats", "bf16", f"bf16{BEST}", f"bf16{BEST}+cuda_graph"),
    ]
    assert scenario.load("beyond").batch_sizes == scenario.load("naruse2018").batch_sizes


def test_settings_changes_each_of_slide_10s_settings_alone():
    loaded = scenario.load("settings")
    assert loaded.cudnn == scenario.load("naruse2018").cudnn
    changed = {config.ablation: config.cudnn for config in loaded.configs}
    assert changed == {
        "": None,
        "workspace-8-mib": msgspec.structs.replace(loaded.cudnn, workspace_bytes=8 * 2**20),
        "no-autotune": msgspec.structs.replace(loaded.cudnn, autotune=False),
        "no-fast-batch-norm": msgspec.structs.replace(loaded.cudnn, fast_batch_norm=False),
    }
    names = [config.name for config in loaded.configs]
    assert names[:4] == ["fp32", "fp32:workspace-8-mib", "fp32:no-autotune", "fp32:no-fast-batch-norm"]
    assert len(names) == 3 * 4


ABLATION = '[[ablation]]\nname = "no-autotune"\ncudnn.autotune = false\n'


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("schema = 1", "schema = 2", "schema: 2 is newer"),
        ("schema = 1", "", "schema: expected the number 1, got nothing"),
        ("schema = 1", 'schema = "1"', "schema: expected the number 1, got '1'"),
        ("schema = 1", "schema = 0", "schema: expected the number 1, got 0"),
        ('title = "t"', "", "title: missing"),
        ('title = "t"', 'titel = "t"', "titel: unknown key; did you mean 'title'?"),
        ("[4]", "[4, 0]", "measure.batch_sizes[1]: expected a whole number >= 1, got 0"),
        ("[4]", "[]", "measure.batch_sizes: expected a list of length >= 1"),
        ("[4]", '"4"', "measure.batch_sizes: expected a list, got a text"),
        ("[4]", "[4]\ntrails = 2", "measure.trails: unknown key; did you mean 'trials'?"),
        ("[4]", "[4]\ntarget = 2", "measure.target: expected a number < 1.0, got 2"),
        ("[4]", "[4]\nblock_steps = 2", "measure.block_steps: expected a whole number >= 5, got 2"),
        ("[4]", "[4]\nmin_timed_steps = 3", "measure.min_timed_steps: expected a whole number >= 5, got 3"),
        ("[4]", "[4]\nmin_warmup_steps = 9\nmax_warmup_steps = 5", "measure.max_warmup_steps: expected at least"),
        ("[measure]", '[model]\nname = "vgg"\n[measure]', "model.name: 'vgg' is unknown; did you mean 'vgg16'?"),
        ("[measure]", '[model]\nvariant = "v2"\n[measure]', "model.variant: expected one of v1, v1.5, got 'v2'"),
        ("[measure]", '[model]\nname = ["resnet05"]\n[measure]', "'resnet05' is unknown; did you mean 'resnet50'?"),
        (MINIMAL[MINIMAL.index("[[ladder]]") :], "", "expected at least one"),
        (
            'title = "t"',
            'title = "t"\nbase = "plane"',
            "base: no config 'plane'; expected one of fp32, fp32+nhwc+fused",
        ),
        ('title = "t"', 'title = "t"\nunit = "$x$"', "unit: expected a text in quotes matching regex"),
        ("[measure]", "[model]\nname = []\n[measure]", "model.name: expected a list of length >= 1"),
        ("[measure]", "[model]\nimage_size = 31\n[measure]", "model.image_size: expected at least 32, got 31"),
        ("[measure]", '[input]\ndata = "web"\n[measure]', "input.data: expected one of generated, synthetic"),
        ("[measure]", "[input]\nhw_decoder_load = 65\n[measure]", "input.hw_decoder_load: expected a number <= 1.0"),
        ("[measure]", "[train]\nloss_scale = 0\n[measure]", "train.loss_scale: expected a number > 0.0, got 0"),
        ('"fp32", [', "3, [", "ladder[0].steps[0]: expected a text in quotes or a list, got a whole number"),
        ("[[ladder]]", "[[ladders]]", "ladders: unknown key; did you mean 'ladder'?"),
        ("schema = 1", "schema = = 1", "not valid TOML"),
    ],
)
def test_every_error_names_file_key_and_what_was_expected(write, old, new, expected):
    assert old in MINIMAL
    refused(write(MINIMAL.replace(old, new, 1)), expected)


CPU, OF_BACKEND = "[cpu]\n", '[[config]]\nbackend = "{}"\nrungs = ["x"]\n'


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (ABLATION * 2, "ablation[1].name: 'no-autotune' is used twice"),
        (ABLATION.replace("false", "true"), "ablation[0].cudnn: expected a setting that differs from [cudnn]"),
        (
            ABLATION.replace("autotune =", "autotun ="),
            "ablation[0].cudnn.autotun: unknown key; did you mean 'autotune'?",
        ),
        (ABLATION.replace("no-autotune", "no+autotune"), "ablation[0].name: expected a text in quotes matching regex"),
        ('[[ablation]]\nname = "x"\n', "ablation[0].cudnn: missing"),
        ('[[ladder]]\nname = "fp32"\nsteps = ["fp16"]\n', "ladder[1].name: 'fp32' is used twice"),
        (CPU + "modle.image_size = 64", "cpu.modle: unknown key; did you mean 'model'?"),
        (CPU + "model.image_siz = 64", "cpu.model.image_siz: unknown key; did you mean 'image_size'?"),
        (CPU + "measure.batch_sizes = []", "cpu.measure.batch_sizes: expected"),
        (CPU + "model.image_size = 3", "cpu.model.image_size: expected at least 32, got 3"),
        (CPU + "ladder = []", "cpu.ladder: expected at least one"),
        ("[cpu.cpu]\nladder = []", "cpu.cpu: unknown key"),
        ("[[cpu]]\nladder = []", "cpu: expected a table, got a list"),
        (
            OF_BACKEND.format("a:f") + OF_BACKEND.format("a:g"),
            "backend: two of them have a config 'a/x'; expected names that differ",
        ),
    ],
)
def test_a_mistake_in_a_table_beside_them_is_named_with_its_key(write, more, expected):
    refused(write(MINIMAL + more), expected)


def refused(path: str, expected: str) -> None:
    with pytest.raises(ScenarioError) as error:
        scenario.load(path)
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    assert expected in message
    assert "\n" not in message
    assert "`" not in message


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cpus", "did you mean 'cpu'?"),
        ("zzz", "expected one of beyond, cpu, naruse2018, networks, peers, scaling, settings"),
        ("no/such.toml", "no such scenario file"),
        (".", "unknown"),
        ("/", "cannot be read"),
        ("binary.toml", "not a text file"),
    ],
)
def test_an_unknown_scenario_is_one_clear_line(tmp_path, monkeypatch, name, expected):
    monkeypatch.chdir(tmp_path)
    Path("binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScenarioError) as error:
        scenario.load(name)
    assert expected in str(error.value)


# -------------------------------------------------------------------------------------------------------- on the CPU

ON_CPU = (
    MINIMAL
    + """
[cpu]
model.image_size = 64
measure.batch_sizes = [2, 3]
ladder = []
config = [{ rungs = ["fp32", "batched"] }]
"""
)


def test_the_cpu_table_changes_the_scenario_on_a_cpu_alone(write):
    loaded = scenario.load(write(ON_CPU))
    on_gpu, on_cpu = loaded.on("cuda"), loaded.on("cpu")
    assert on_gpu is loaded
    assert (on_gpu.image_size, on_gpu.batch_sizes, len(on_gpu.configs)) == (224, (4,), 2)
    assert (on_cpu.image_size, on_cpu.batch_sizes) == (64, (2, 3))
    assert [config.name for config in on_cpu.configs] == ["fp32+batched"]
    assert on_cpu.ladders == ()
    assert (on_cpu.title, on_cpu.train, on_cpu.n_classes) == (loaded.title, loaded.train, loaded.n_classes)


def test_without_a_cpu_table_a_scenario_is_the_same_everywhere(write):
    loaded = scenario.load(write(MINIMAL))
    assert loaded.on("cpu") is loaded


# ---------------------------------------------------------------------------------------------------------- backends


def test_a_config_of_another_backend_says_so_in_its_name(write):
    text = MINIMAL + '[[config]]\nbackend = "torch"\nrungs = ["fp32", "nhwc"]\n'
    text += '[[config]]\nbackend = "some.where:make.it"\nrungs = ["mine"]\n'
    assert [c.name for c in scenario.load(write(text)).configs[2:]] == ["torch/fp32+nhwc", "where/mine"]


OF_ONES_OWN = """
schema = 1
title = "t"
model.name = "transformer"
measure.batch_sizes = [4]
[[config]]
backend = "my_step:make"
rungs = ["eager"]
"""


def test_a_step_of_ones_own_may_be_of_any_model(write):
    assert scenario.load(write(OF_ONES_OWN)).models == ("transformer",)
    with pytest.raises(ScenarioError, match=r"model\.name: 'transformer' is unknown; expected one of alexnet, "):
        scenario.load(write(OF_ONES_OWN + '[[config]]\nbackend = "torch"\nrungs = ["fp32"]\n'))


def test_peers_pairs_our_base_and_best_with_pytorchs_on_both_kinds_of_device():
    peers = scenario.load("peers")
    assert (peers.image_size, peers.batch_sizes) == (224, (32, 64, 128, 256))
    assert (peers.on("cpu").image_size, peers.on("cpu").batch_sizes) == (64, (8, 16))
    for kind in ("cuda", "cpu"):
        names = [config.name for config in peers.on(kind).configs]
        assert {"fp32", "torch/fp32"} < set(names)
        assert sum(name.startswith("torch/") for name in names) > 1
        assert sum(not name.startswith("torch/") for name in names) == (3 if kind == "cpu" else 2)


def test_settings_of_kfac_are_the_scenarios_and_change_no_cell_without_them(tmp_path):
    plain = (scenario.scenario_folder() / "cpu.toml").read_text()
    path = tmp_path / "second.toml"
    path.write_text(plain.replace("[measure]", "[train.kfac]\ninterval = 5\n\n[measure]", 1))
    assert scenario.load(str(path)).train.kfac == KfacSettings(damping=0.01, decay=0.95, interval=5)
    assert "kfac" not in msgspec.json.encode(scenario.load("cpu").train).decode()
    path.write_text(plain.replace("[measure]", "[train.kfac]\ninterval = 0\n\n[measure]", 1))
    with pytest.raises(ScenarioError, match=r"train\.kfac\.interval: expected a whole number >= 1, got 0"):
        scenario.load(str(path))


OWN = """
schema = 1
title = "t"
UNIT
[measure]
batch_sizes = [4]
[[config]]
backend = "my_step:open_session"
rungs = ["plain"]
[[config]]
backend = "my_step:open_session"
rungs = ["plain", "fast"]
"""


def test_a_step_of_ones_own_has_a_unit_a_base_and_no_model_but_its_own(write):
    loaded = scenario.load(write(OWN.replace("UNIT", 'unit = "sequences"\nbase = "plain+fast"')))
    assert (loaded.unit, loaded.base, loaded.models) == ("sequences", "my_step/plain+fast", ("own",))
    plain = scenario.load(write(OWN.replace("UNIT", "")))
    assert (plain.unit, plain.base) == ("images", None)
    assert scenario.load(write(MINIMAL)).models == ("resnet50",)
