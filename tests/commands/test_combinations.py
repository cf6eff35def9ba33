"""Commands with options drawn by chance: whatever meets, each ends as designed and in words."""

import random
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import faulty
import options
import pytest
from processes import soon

pytestmark = pytest.mark.slow

SHIPPED = Path(__file__).parents[2] / "results"
ALL = options.options()
COMMANDS = options.commands()

WORDS = {
    "BATCH": "1 2 4,8 64 256",
    "CONFIG": "fp32 * best fp32+nhwc bf16+batched fp16* my_step/one base,dali",
    "DEVICE": "auto cpu virtual:V100 virtual:H100 cuda:0",
    "PATH": "synthetic modelled:2000 . images",
    "NAME": "resnet18 resnet50,vgg16 googlenet throughput memory energy main dgx-1 a-label fp16 numpy",
    "TIME": "1 2s 0.5s 1m",
    "NUMBER": "0.01 0.5 1 2 3 7 12 21 33 100",
    "SHARE": "3% 0.05 50%",
    "LOOKS": "2,3 2,4,8 5",
    "GPU": "V100 H100 A100",
    "REVISION": "HEAD HEAD~1 HEAD~3..HEAD nowhere",
    "FACET": "host os,python code simulated libraries",
    "FILE": "out.png out.svg out.json out.html out.csv out.trace results/mixed.jsonl missing/deep/out.png",
    "FOLDER": "results other missing",
    "COMMAND": "mpirun true",
}
"""Values by their kind. An option gets any of the words that it takes, and now and then one that it does
not."""

PLACES = ("results", "results/mixed.jsonl", "results/cpu", "missing.jsonl", "quick.toml", "naruse2018", "fp32", "ci")


def drawn(draw: random.Random, words: tuple[str, ...]) -> list[str]:
    """A command's words with up to five of its options."""
    command, _ = COMMANDS[words]
    line = list(words)
    for argument in (parameter for parameter in command.params if parameter.param_type_name == "argument"):
        if argument.name == "scenario":
            line += draw.choice([["quick.toml"], ["quick.toml"], ["cpu"], ["settings"], ["scaling"]])
        elif argument.name == "config":
            line += [draw.choice(["fp32", "my_step/one", "fp32+dali"])]
        else:
            line += draw.choices(PLACES, k=draw.choice([1, 1, 2] if argument.required else [0, 1, 1, 2]))
    available = [option for option in ALL if option.command == words]
    for option in draw.sample(available, min(len(available), draw.randrange(6))):
        line += _value(draw, option)
    if any(option.name == "--dry-run" for option in available) and draw.random() < 0.4:
        line.append("--dry-run")
    return line


def _value(draw: random.Random, option: options.Option) -> list[str]:
    if option.kind is bool:
        return [option.name]
    odd = [*option.outside()]
    if odd and draw.random() < 0.05:
        return [f"{option.name}={draw.choice(odd)}"]
    words = [*option.choices] or [word for several in WORDS.values() for word in several.split() if option.takes(word)]
    return [f"{option.name}={draw.choice(words)}"] if words else []


@pytest.mark.parametrize("seed", range(150))
def test_a_command_with_any_options_ends_as_designed_and_without_a_traceback(tmp_path, seed):
    """Run a command, and interrupt it if it measures for longer than ten seconds."""
    folder = faulty.make(tmp_path)
    (folder / "results" / "cpu").mkdir(parents=True)
    records = sorted(SHIPPED.glob("*/*.jsonl"))
    shutil.copy(records[seed % len(records)], folder / "results" / "cpu")
    text = "".join(file.read_text("utf-8") for file in records[seed % 3 :: 3])
    (folder / "results" / "mixed.jsonl").write_text(text, "utf-8")
    for command in ("git init -q", "git add .", "git -c user.name=a -c user.email=a@b commit -qm one"):
        subprocess.run(shlex.split(command), cwd=folder, check=True)
    draw = random.Random(seed)
    names = [*COMMANDS]
    line = drawn(draw, names[seed % len(names)])
    process = faulty.start(folder, *line)
    try:
        out, err = process.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    outcome = (shlex.join(["tcbench", *line]), process.returncode, out[-2000:], err[-2000:])
    assert process.returncode in (0, 1, 2, 3, 4, 5, 130), outcome
    assert "Traceback" not in out + err, outcome
    if process.returncode == 2:
        assert "tcbench: error: " in err or line[0] in ("doctor",), outcome
    assert not [*folder.rglob(".tcbench-*")], outcome
    assert soon(lambda: not faulty.left(folder), 60), outcome
