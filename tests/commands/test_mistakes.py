"""Mistakes in what a command is given: one line that says what was expected, exit code 2, and nothing written.

More of them, with all that is said, are in tests/corpus/shown."""

import json
import shlex
from pathlib import Path

import factories
import pytest
from command import tcbench
from corpus_inputs import QUICK
from timelines import busy_timeline

from tcbench.hardware import gpus
from tcbench.tracing import perfetto

TEXTS = {
    "quick.toml": QUICK,
    "few.toml": QUICK.replace("classes = 20", "classes = 2"),
    "half.toml": 'schema = 1\ntitle = "x"\n',
    "claim.toml": QUICK + '[[claim]]\nsays = "it runs"\nleft = "fp23"\nrelation = "runs"\n',
    "empty.jsonl": "",
    "empty.json": "",
    "bad.jsonl": "no JSON\n",
    "foreign.jsonl": '{"a": 1}\n',
    "foreign.json": '{"a": 1}\n',
    "newer.jsonl": '{"schema_version": 99}\n',
    "nan.jsonl": '{"schema_version": NaN}\n{"schema_version": NaN}\n',
    "half.jsonl": '{"schema_version": 1, "ru',
}
RECORDS = {
    "good.jsonl": factories.make_trials(),
    "again.jsonl": factories.make_trials(run_id="again"),
    "other.jsonl": [factories.make_record("fp16", size) for size in (8, 32)],
    "small.jsonl": [factories.make_record("fp32", 2)],
    "oom.jsonl": [factories.make_record(status="oom")],
    "results/baselines/main.jsonl": factories.make_trials(),
    "kept/m/cpu-20250101-000000.jsonl": factories.make_trials(),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Arguments of commands, valid and invalid ones."""
    folder = tmp_path_factory.mktemp("given")
    for name in ("empty", "folder.html"):
        (folder / name).mkdir()
    facts = json.loads((Path(gpus.__file__).parent / "v100.json").read_text())
    old = json.dumps(facts | {"deviceVer": 600, "deviceName": "Old"})
    for name, text in {**TEXTS, "old.json": old}.items():
        (folder / name).write_text(text, encoding="utf-8")
    for name, records in RECORDS.items():
        factories.write(folder / name, *records)
    perfetto.write([busy_timeline()], folder / "bare.json.gz")
    return folder


RUN, TRAINS = "expected 1 to 999999, e.g. --bs 32,64,128,256", "has no meaning with --rungs"
EMPTY = " is empty: expected a value, or leave it out; "

MISTAKES = {
    # The command line itself
    "plto": "No such command 'plto'. Did you mean 'plot'?; `tcbench -h` shows the commands",
    "baseline sett x": "No such command 'sett'. Did you mean 'set'?; `tcbench baseline -h` shows the",
    "data --nope": "No such option: --nope; `tcbench data -h` shows the options",
    "run --nope": "No such option: --nope",
    "--nope": "No such option: --nope; `tcbench -h` shows the options",
    "run ''": "an argument is empty: expected a value, or leave it out; `tcbench run -h` shows the options",
    "run --out '' --dry-run": "--out is empty: ",
    "run --config ''": "--config is empty: expected a value",
    **dict.fromkeys([f"{name} ''" for name in ("claims", "explain", "export", "history", "plot", "roofline")], EMPTY),
    **dict.fromkeys(["report ''", "report --compare '' good.jsonl", "baseline set main ''"], EMPTY),
    **dict.fromkeys(["compare good.jsonl ''", "compare '' good.jsonl"], EMPTY),
    "history --out=": "--out is empty: ",
    "run --threads 0": "'--threads 0': expected 1 or more; ",
    "run --threads=x": "'--threads x': expected a whole number; ",
    "plot --slide 33x": "'--slide 33x': expected a whole number; `tcbench plot -h` shows the options",
    "plot -o /no-such-folder/x.png": "-o /no-such-folder/x.png: no folder /no-such-folder; create it with `mkdir -p`",
    # Cells and measuring
    "run --config 'fp32 + dalli'": "error: config 'fp32+dalli': unknown rung 'dalli' (did you mean 'dali'?)",
    "run --bs abc": f"--bs: 'abc' is not a batch size; {RUN}",
    "run --bs 4,,8": "'' is not a batch size",
    f"run --bs {'9' * 5000}": "is not a batch size",
    "run --bs ٣": "is not a batch size",
    "run --image-size 10000000000": "'--image-size 10000000000': expected 8192 or less",
    "run --timeout inf": "--timeout inf: expected seconds above 0",
    "run --max-time 1e400": "--max-time inf: expected seconds above 0",
    "run --target 0": "--target 0: expected a share between 0 and 1",
    "run few.toml": "the images have 16 classes, the scenario's model 2: expected model.classes of at least 16",
    "run --dry-run --data nowhere": "nowhere does not exist",
    "run --data quick.toml": "is a file, not a folder",
    "run --data bad\udcffname": "expected a path of printable UTF-8 characters",
    "run --data empty": "has no class folders",
    "run --data modelled --device virtual:V100": "--data 'modelled': expected a decoding rate in images/s, such as",
    "run --data modelled:0 --device virtual:V100": "--data 'modelled:0': expected a decoding rate",
    "run --data modelled:2000 --device cpu": "--data modelled needs a virtual device (virtual:V100)",
    "run half.toml": "half.toml: measure: missing",
    "run quick.toml --out quick.toml --data synthetic --device cpu": "cannot be written",
    "run settings --device cpu --config fp16:nope": "unknown ablation 'nope'; scenario settings has workspace-8-mib, ",
    "run cpu --device cpu --config fp16:nope": "unknown ablation 'nope'; scenario cpu has none",
    # One cell
    "profile ,": "CELL: expected a name or a glob, got nothing",
    "profile 'fp32 + dalli'": "error: config 'fp32+dalli': unknown rung 'dalli' (did you mean 'dali'?)",
    "profile fp32 --device cpu --tool vtune": "'--tool': 'vtune' is not one of 'auto', 'nsys', 'cupti', 'ranges'",
    "profile fp32 --device cpu --tool nsys": "nsys is not on PATH",
    "profile fp32 --device cpu --tool nsys --ranks 2": "--tool nsys records one process",
    "profile fp32 --device cpu --tool nsys --host": "and --host samples with py-spy; omit one of them",
    "profile fp32* --device cpu": "expected one cell, got ",
    "profile cuda_graph+fp32 --device cpu": "cannot run here",
    # Training
    "numerics --scale big": "--scale big: expected a power of two",
    "numerics --lr 0": "--lr 0: expected a rate above 0",
    "numerics --margin 2": "--margin 2: expected a share between 0 and 1",
    "numerics --global-batch 8": "--global-batch 8: expected at least the batch size, 32",
    "numerics --bs 60000": "--bs 60000: the test set has fewer images than one batch",
    "numerics --data nowhere": "nowhere does not exist: expected CLASS/IMAGE.jpg in it, at least 10",
    "numerics --data empty": "has no class folders: expected CLASS/IMAGE.jpg in it, at least 10 images per class; ",
    "numerics --config fp16": "--config: has no meaning without --rungs",
    "numerics --rungs --config nothing": "error: config 'nothing': unknown",
    "numerics --rungs --second-order": f"--second-order: {TRAINS}",
    "numerics --rungs --ranks 4": f"--ranks: {TRAINS}",
    "numerics --second-order --lr 0.1": "--lr: has no meaning with --second-order: both methods train in fp32",
    "numerics --ranks 1": "'--ranks 1': expected 2 or more",
    "numerics --ranks 4 --scale 2^4": "--scale: has no meaning with --ranks: all of its runs are in fp32",
    "numerics --ranks 4 --global-batch 512": "--global-batch: has no meaning with --ranks",
    "numerics --ranks 4000": "--bs 128000: the test set has fewer images than one batch",
    "numerics nowhere": "scenario 'nowhere': unknown",
    # What results show
    "plot half.jsonl": "half.jsonl: the last line is cut off and was left out; 0 records read; measure some",
    "plot quick.toml": "quick.toml:2: not JSON",
    "plot good.jsonl --kind pie": "'--kind': 'pie' is not one of 'throughput', 'ladder'",
    "plot good.jsonl --by machine --kind ladder": "--by machine draws throughput",
    "plot good.jsonl --by machine --slide 33": "--by machine draws throughput",
    "plot good.jsonl --slide 33 --config fp32": "--slide 33 has its own configs",
    "plot good.jsonl --by machine --config fp33": "--config 'fp33': not in these results; did you mean 'fp32'?",
    "timeline no.json": "no.json: no such file",
    "timeline empty.json": "empty.json: the file is empty",
    "timeline foreign.json": "foreign.json",
    "timeline foreign.json -o x.gif": "x.gif: expected a file name that ends in .png, .svg, .pdf",
    "roofline foreign.json": "foreign.json: not a trace that `tcbench profile` wrote",
    "roofline bare.json.gz": "bare.json.gz: this timeline contains no record of its trial",
    "roofline good.jsonl --bs 64": "--bs 64: not in these results; expected some of 4",
    "roofline -o x.gif": "x.gif: expected a file name that ends in",
    "claims good.jsonl --scenario cpus": "scenario 'cpus': unknown; did you mean 'cpu'?",
    "claims good.jsonl --scenario claim.toml": "claim.toml: claim[0].left: unknown config 'fp23'",
    "history": "no results of this machine in results/; measure some with `tcbench run`, or name a file",
    "history --out kept cpu-20250101-00000": "did you mean 'cpu-20250101-000000'?",
    "history good.jsonl --config fp23": "--config 'fp23': not in these results; did you mean 'fp32'?",
    "history good.jsonl --config x*": "--config 'x*': not in these results; expected one of",
    "history good.jsonl --bs 5": "--bs 5: not in these results; expected some of 4",
    "history good.jsonl -o history.gif": "history.gif: expected a file name that ends in .png, .svg, .pdf",
    "export good.jsonl --per step --format bencher": "--per step: --format bencher has an entry for each cell",
    "export good.jsonl --format parquet": "--format parquet is not text: name a file with -o FILE",
    "export good.jsonl -o x.foo": "-o x.foo: expected a name that ends in .csv, .json or .parquet, or --format",
    "export oom.jsonl --format bencher": "no cell was measured in these results",
    "export good.jsonl -o bad.jsonl/a.csv": "bad.jsonl/a.csv: cannot be written (Not a directory); name another file",
    "report good.jsonl -o folder.html": "folder.html: cannot be written (Is a directory)",
    "report good.jsonl -o good.jsonl/report.html": "good.jsonl/report.html: cannot be written",
    "report good.jsonl -o /proc/report.html": "/proc/report.html: cannot be written (",
    "report good.jsonl foreign.json": "foreign.json: ",
    "report good.jsonl --compare nowhere": "nowhere: no such results",
    "report good.jsonl --compare empty.jsonl": "empty.jsonl: contains no records",
    "report good.jsonl --baseline nobody": "baseline 'nobody': not found",
    # Comparisons
    "compare good.jsonl": "expected two results: tcbench compare BASE CURRENT",
    "compare good.jsonl again.jsonl --threshold 3": "--threshold 3: expected a share above 0 and below 1, such as 3%",
    "compare good.jsonl again.jsonl --threshold 5": "such as 3% or 0.03; did you mean 5%?",
    "compare good.jsonl again.jsonl --threshold nonsense": "--threshold 'nonsense': expected a share such as 3%",
    "compare good.jsonl again.jsonl --allow drivers": "--allow 'drivers': unknown; did you mean 'driver'?",
    "compare good.jsonl again.jsonl --allow gpu,,os": "--allow '': unknown",
    "compare good.jsonl again.jsonl --metric througput": "--metric 'througput': unknown; did you mean 'throughput'?",
    "compare good.jsonl again.jsonl --format html": "'--format': 'html' is not one of 'table', 'markdown', 'json', 'ju",
    "compare good.jsonl again.jsonl -o chart.bmp": "chart.bmp: expected a file name that ends in .png, .svg, .pdf",
    "compare good.jsonl again.jsonl -o good.jsonl/out.md": "good.jsonl/out.md: cannot be written",
    "compare good.jsonl nowhere/": "nowhere/: no such file or folder",
    "diff good.jsonl --to fp16": "--config CONFIG --to fp16",
    "diff good.jsonl bare.json.gz": "expected two of the same kind",
    "diff good.jsonl other.jsonl --config fp32 --bs 4 --to x": "--config 'x': not in",
    "diff bare.json.gz bare.json.gz --bs 4": "a profile has one cell",
    "diff good.jsonl again.jsonl -o x.txt": "expected a file name that ends in",
    "baseline set b cpu-20250101-00000 --out kept": "did you mean 'cpu-20250101-000000'?",
    "baseline show mian": "did you mean 'main'?",
    "baseline remove zzz": "expected one of main",
    "baseline show x --out elsewhere": "`tcbench baseline set x` keeps the newest run",
    "baseline set b --out elsewhere": "no results in elsewhere/",
    # A GPU that is not here
    "forecast --gpu H2000": "unknown GPU 'H2000': expected one of V100, T4, A100, L40S, H100, H200, B200, or a JSON",
    "forecast --gpu old.json": "GPU Old: the peak rates of compute capability 6.0 are not known; expected one of 7.0",
    "forecast --gpu .": "unknown GPU '.'",
    "forecast --gpu V100 quick.toml --config fp17": "error: config 'fp17': unknown; did you mean 'fp16'?",
    "forecast --gpu V100 --image-size 31": "--image-size 31: resnet50 takes images of at least 32 pixels",
    "forecast --gpu V100 nowhere": "scenario 'nowhere': unknown",
    "forecast": "expected --gpu, such as --gpu V100, or --device cpu",
    "forecast --gpu V100 --device cpu": "--device cpu forecasts this machine only; omit --gpu",
    **dict.fromkeys(
        ("forecast --gpu V100 --ranks 8,64 --link abci", "forecast --over results --ranks 8 --link 12.5,10"),
        "--ranks, --link and --over were removed; measure ranks with `tcbench run scaling --ranks 1,2`",
    ),
    # Not comparable: 5
    "report good.jsonl --compare other.jsonl": "other.jsonl: no config and batch size in common",
    "diff good.jsonl other.jsonl": "nothing in common",
    "diff again.jsonl small.jsonl": "not the same training, so the change cannot be broken down: batch size 4 against",
}
NOT_COMPARABLE = list(MISTAKES)[-3:]


def refused(folder: Path, words: list[str], expected: str, code: int = 2) -> None:
    before = {path for path in folder.rglob("*") if "cache" not in path.parts}
    path = {"PATH": str(folder)} if words[:1] == ["profile"] else {}  # on which there is no tool
    done = tcbench(folder, *words, **path)
    lines = [line for line in done.err.splitlines() if not line.startswith(("the newest run: ", "note: it is "))]
    assert (done.code, done.out, len(lines)) == (code, "", 1), done
    assert lines[0].startswith("tcbench: error: ") and expected in lines[0]
    assert {path for path in folder.rglob("*") if "cache" not in path.parts} == before


@pytest.mark.parametrize("words", MISTAKES, ids=lambda words: words[:80])
def test_a_mistake_is_one_clear_line_and_exit_code_2(folder: Path, words: str) -> None:
    refused(folder, shlex.split(words), MISTAKES[words], 5 if words in NOT_COMPARABLE else 2)


@pytest.mark.parametrize(
    "words",
    ["claims", "explain", "export", "history", "plot", "report", "roofline", "baseline set b", "compare good.jsonl"],
)
def test_what_holds_no_results_is_named(folder: Path, words: str) -> None:
    for name, expected in {
        "nowhere": "nowhere: no such results; expected a file, a folder, or the id of a run",
        "nowhere.jsonl": "nowhere.jsonl: no such file or folder",
        "empty": "empty: no results here (*.jsonl)",
        "empty.jsonl": "empty.jsonl: contains no records",
        "bad.jsonl": "bad.jsonl:1: not JSON",
        "nan.jsonl": "nan.jsonl:1: not JSON",
        "foreign.jsonl": "foreign.jsonl:1: not a tcbench record (no schema_version)",
        "newer.jsonl": "newer.jsonl:1: schema version 99 is newer than this tcbench reads",
    }.items():
        refused(folder, [*words.split(), name], expected)
    if words not in ("history", "compare good.jsonl"):
        refused(folder, words.split(), "no results in results/; measure some with `tcbench run`")


@pytest.mark.parametrize("words", ["claims cut.jsonl", "export cut.jsonl", "history cut.jsonl", "report cut.jsonl"])
def test_a_last_line_that_is_cut_off_is_left_out_and_said(tmp_path: Path, words: str) -> None:
    content = factories.write(tmp_path / "cut.jsonl", *factories.make_trials(trials=3)).read_bytes()
    (tmp_path / "cut.jsonl").write_bytes(content[:-40])
    done = tcbench(tmp_path, *words.split())
    note = "cut.jsonl: the last line is cut off and was left out; 2 records read"
    assert (done.code, done.err.splitlines()[0]) == (0, f"note: {note}")
    if words.startswith("report"):
        assert "the last line is cut off" in (tmp_path / "cut-report.html").read_text("utf-8")


@pytest.mark.parametrize("started_by_uv", [False, True])
def test_a_command_that_an_error_or_a_note_quotes_runs_as_printed(tmp_path, monkeypatch, started_by_uv):
    environment = {"UV_RUN_RECURSION_DEPTH": "1"} if started_by_uv else {}
    error = tcbench(tmp_path, "explain", **environment)
    quoted = "`uv run tcbench run`" if started_by_uv else "`tcbench run`"
    assert (error.code, error.err.count("tcbench run`"), quoted in error.err) == (2, 1, True)
