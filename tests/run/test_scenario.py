from pathlib import Path

import pytest
from projects import git

from tcbench.core.errors import ScenarioError
from tcbench.core.record import Command, CudnnSettings, Selection
from tcbench.engine.api import host_device
from tcbench.run import scenario
from tcbench.run.plan import make

FOLDER = Path(__file__).parents[2] / "scenarios"

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


TALK_LADDER = ["", "+dali", "+dali+batched", "+dali+batched+nhwc+fused", "+dali+batched+nhwc+fused+static_graph"]


@pytest.mark.parametrize(("name", "dtypes"), [("cpu", ("fp32", "bf16", "fp16")), ("naruse2018", ("fp32", "fp16"))])
def test_the_shipped_scenarios_hold_the_talks_ladder_for_each_dtype(name, dtypes):
    expected = [dtype + rungs for dtype in dtypes for rungs in TALK_LADDER]
    assert [config.name for config in scenario.load(name).configs] == expected


def test_naruse2018_has_the_talks_settings():
    talk = scenario.load("naruse2018")
    assert (talk.batch_sizes, talk.model.image_size, talk.model.variant) == ((32, 64, 128, 256), 224, "v1")
    assert talk.cudnn == CudnnSettings(workspace_bytes=512 * 2**20, autotune=True, fast_batch_norm=True)


CONFIG = '[[config]]\nrungs = ["x"]\n'
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
        ("[4]", str([*range(1, 258)]), "measure.batch_sizes: expected a list of length <= 256"),
        ("[4]", '"4"', "measure.batch_sizes: expected a list, got a text"),
        ("[4]", "[4]\ntrails = 2", "measure.trails: unknown key; did you mean 'trials'?"),
        ("[4]", "[4]\ntarget = 2", "measure.target: expected a number < 1.0, got 2"),
        ("[4]", "[4]\nblock_steps = 2", "measure.block_steps: expected a whole number >= 4, got 2"),
        ("[4]", "[4]\nmin_timed_steps = 2", "measure.min_timed_steps: expected a whole number >= 3, got 2"),
        ("[4]", "[4]\nmin_warmup_steps = 9\nmax_warmup_steps = 5", "measure.max_warmup_steps: expected at least"),
        ("[measure]", '[model]\nname = "vgg"\n[measure]', "model.name: 'vgg' is unknown; did you mean 'vgg16'?"),
        ("[measure]", '[model]\nvariant = "v2"\n[measure]', "model.variant: expected one of v1, v1.5, got 'v2'"),
        ("[measure]", '[model]\nname = ["resnet05"]\n[measure]', "'resnet05' is unknown; did you mean 'resnet50'?"),
        (MINIMAL[MINIMAL.index("[[ladder]]") :], "", "expected at least one"),
        ("[measure]", 'base = "plane"\n[measure]', "base: no config 'plane'; expected one of fp32, fp32+nhwc+fused"),
        ('title = "t"', 'title = "t"\nunit = "$x$"', "unit: expected a text in quotes matching regex"),
        ("[measure]", "[model]\nname = []\n[measure]", "model.name: expected a list of length >= 1"),
        ("[measure]", "[model]\nimage_size = 31\n[measure]", "model.image_size: expected at least 32, got 31"),
        ("[measure]", '[input]\ndata = "web"\n[measure]', "input.data: expected one of generated, synthetic"),
        ("[measure]", "[input]\nhw_decoder_load = 65\n[measure]", "input.hw_decoder_load: expected a number <= 1.0"),
        ("[measure]", "[train]\nloss_scale = 0\n[measure]", "train.loss_scale: expected a number > 0.0, got 0"),
        ("[measure]", "[train.kfac]\ndampling = 1\n[measure]", "train.kfac.dampling: unknown key; did you mean"),
        ("[measure]", "[train.kfac]\ndecay = 1\n[measure]", "train.kfac.decay: expected a number < 1.0, got 1"),
        ('"fp32", [', "3, [", "ladder[0].steps[0]: expected a text in quotes or a list, got a whole number"),
        ("[[ladder]]", "[[ladders]]", "ladders: unknown key; did you mean 'ladder'?"),
        ("schema = 1", "schema = = 1", "not valid TOML"),
        (CONFIG, f'{CONFIG}command = "a \'b"\n', "config[0].command: no closing quotation: expected the words"),
        (CONFIG, f'{CONFIG}command = " "\n', "config[0].command: expected the words of a command line, got ' '"),
        (CONFIG, f'{CONFIG}backend = "a:f"\ncommand = "a"\n', "config[0]: expected either a backend or a command"),
        (CONFIG, f'{CONFIG}command = "a {{stesp}}"\n', "command: unknown value {stesp}; did you mean 'steps'?"),
        (CONFIG, f'{CONFIG}command = "a > b"\n', "no shell runs it, so '>' is a mere word: sh -c '...' runs one"),
        (
            CONFIG,
            f'{CONFIG}command = "a"\nenvironment = {{ "A=B" = "1" }}\n',
            "config[0].environment: expected the names of variables of the program, got 'A=B'",
        ),
        (CONFIG, f'{CONFIG}loop = "b"\n', "config[0].loop: only a config with a command has one"),
        (CONFIG, f'{CONFIG}branch = "b"\n', "config[0].branch: only a config with a command has one"),
        (CONFIG, f'{CONFIG}backend = "command"\n', "config[0].backend: expected a backend, or in its place command ="),
    ],
)
def test_every_error_names_file_key_and_what_was_expected(write, old, new, expected):
    content = MINIMAL + (CONFIG if old == CONFIG else "")
    assert old in content
    refused(write(content.replace(old, new, 1)), expected)


def test_a_config_may_be_a_program_in_a_branch(write, tmp_path, monkeypatch):
    keys = 'command = "train --bs {batch_size}"\nenvironment = { B = "2", A = "1" }\nbranch = "main"\nloop = "gan"\n'
    path = write(f"{MINIMAL.partition('[[ladder]]')[0]}{CONFIG}{keys}")
    loaded = scenario.load(path)
    (config,) = loaded.configs
    assert (config.name, config.backend, loaded.unit, loaded.models) == ("x", "command", "samples", ("own",))
    assert config.command == Command(line="train --bs {batch_size}", environment=(("A", "1"), ("B", "2")), loop="gan")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ScenarioError, match="config 'x': branch 'main': no such commit"):
        make(loaded, Selection(), host_device())
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "-m", "empty")
    (planned,) = make(loaded, Selection(goes_on=True, threads=None), host_device()).cells
    assert len(planned.cell.command.revision) == 40
    assert (planned.cell.command.goes_on, planned.cell.threads, planned.cell.measure.max_time_s) == (True, 0, 10.0)


CPU = "[cpu]\n"
OF_BACKENDS = "".join(f'[[config]]\nbackend = "{name}"\nrungs = ["x"]\n' for name in ("a:f", "a:g"))


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (ABLATION * 2, "ablation[1].name: 'no-autotune' is used twice"),
        (ABLATION.replace("false", "true"), "ablation[0].cudnn: expected a setting that differs from [cudnn]"),
        (ABLATION.replace("tune =", "tun ="), "ablation[0].cudnn.autotun: unknown key; did you mean 'autotune'?"),
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
        (OF_BACKENDS, "backend: two backends have a config 'a/x'; expected different names"),
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
        ("zzz", f"expected one of {', '.join(sorted(path.stem for path in FOLDER.glob('*.toml')))}, or a path"),
        ("no/such.toml", "no such scenario file"),
        (".", "unknown"),
        ("/", "cannot be read"),
        ("binary.toml", "not a text file"),
    ],
)
def test_an_unknown_scenario_is_one_clear_line(tmp_path, monkeypatch, name, expected):
    monkeypatch.chdir(tmp_path)
    Path("binary.toml").write_bytes(b"\x80\x00")
    with pytest.raises(ScenarioError) as error:
        scenario.load(name)
    assert expected in str(error.value)


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


def test_a_step_of_ones_own_has_a_unit_a_base_and_any_model_or_its_own(write):
    of_a_model = OWN.replace("UNIT", 'model.name = "transformer"')
    assert scenario.load(write(of_a_model)).models == ("transformer",)
    with pytest.raises(ScenarioError, match=r"model\.name: 'transformer' is unknown; expected one of alexnet, "):
        scenario.load(write(of_a_model + '[[config]]\nbackend = "torch"\nrungs = ["fp32"]\n'))
    loaded = scenario.load(write(OWN.replace("UNIT", 'unit = "sequences"\nbase = "plain+fast"')))
    assert (loaded.unit, loaded.base, loaded.models) == ("sequences", "my_step/plain+fast", ("own",))
    plain = scenario.load(write(OWN.replace("UNIT", "")))
    assert (plain.unit, plain.base) == ("images", None)
    assert scenario.load(write(MINIMAL)).models == ("resnet50",)
