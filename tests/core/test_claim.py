from dataclasses import replace
from pathlib import Path

import pytest

from tcbench.core.claim import LOW_PRECISIONS, RELATIONS
from tcbench.core.errors import ScenarioError
from tcbench.run import scenario

SCENARIO = """
schema = 1
title = "t"
[measure]
batch_sizes = [4, 8]
[[ladder]]
name = "fp16"
steps = ["fp16", "dali"]
[[config]]
rungs = ["fp32"]
"""

CLAIM = """
[[claim]]
slide = 12
says = "fp16 is faster"
left = "fp16"
relation = "faster"
right = "fp32"
"""


@pytest.fixture
def load(tmp_path: Path):
    def load(text: str) -> scenario.Scenario:
        path = tmp_path / "x.toml"
        path.write_text(SCENARIO + text, encoding="utf-8")
        return scenario.load(str(path))

    return load


def test_the_limits_of_a_ratio_follow_from_relation_factor_and_margin(load):
    def limits(relation: str, more: str = "") -> tuple[float | None, float | None]:
        [claim] = load(CLAIM.replace("faster", relation) + more).claims
        return claim.least, claim.most

    assert limits("faster") == (1.0, None)
    assert limits("slower") == (None, 1.0)
    assert limits("about") == pytest.approx((1 / 1.1, 1.1))
    assert limits("faster", "factor = 3\nmargin = 0.5\n") == (2.0, None)
    assert limits("about", "factor = 0.5\nmargin = 0.25\n") == pytest.approx((0.4, 0.625))


LOW_CLAIM = """
[[config]]
rungs = ["bf16"]
[[claim]]
says = "+ DALI is faster than {low} without"
left = "best of {low}*"
relation = "faster"
right = "{low}"
"""


def test_a_claim_may_leave_the_low_precision_to_the_machine_and_must_be_there_in_each(load):
    [claim] = load(LOW_CLAIM).claims
    in_bf16 = claim.with_precision("bf16")
    assert (claim.depends_on_precision, in_bf16.depends_on_precision) == (True, False)
    words = (in_bf16.says, str(in_bf16.left), str(in_bf16.right))
    assert words == ("+ DALI is faster than bf16 without", "best of bf16*", "bf16")
    of_the_talk = replace(claim, slide=21)
    assert of_the_talk.with_precision("bf16").says == "+ DALI is faster than fp16 without (bf16 here, fp16 in the talk)"
    assert of_the_talk.with_precision("fp16").says == "+ DALI is faster than fp16 without"
    [fixed] = load(CLAIM).claims
    assert not fixed.depends_on_precision
    assert fixed.with_precision("bf16") == fixed
    with pytest.raises(ScenarioError, match=r"right: unknown config 'bf16\+dali'"):
        load(LOW_CLAIM.replace('right = "{low}"', 'right = "{low}+dali"'))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('left = "fp16"', 'left = "fp61"', "left: unknown config 'fp61'; did you mean 'fp16'?"),
        ('left = "fp16"', 'left = "zzz"', "left: unknown config 'zzz'; expected one of fp16, fp16+dali, fp32"),
        ('right = "fp32"', 'right = "fp3"', "right: unknown config 'fp3'; did you mean 'fp32'?"),
        ('left = "fp16"', 'left = "best of bf16*"', "left: 'best of bf16*' matches none of fp16, fp16+dali, fp32"),
        ('left = "fp16"', 'left = "fp16*"', "left: unknown config 'fp16*'; did you mean"),
        ('"faster"', '"fastr"', "relation: unknown 'fastr'; did you mean 'faster'?"),
        ('"faster"', '"zzz"', "relation: unknown 'zzz'; expected one of faster, slower, about, runs"),
        ('right = "fp32"', "", "right: expected for 'faster', or images_per_s instead"),
        ('right = "fp32"', 'right = "fp32"\nimages_per_s = 9', "right: expected for 'faster', or images_per_s"),
        (
            'right = "fp32"',
            "images_per_s = 9\nright_batch_size = 8",
            "right_batch_size: expected only together with right",
        ),
        ('"faster"', '"runs"', "right: not allowed for 'runs'; expected for faster, slower, about"),
        ('"faster"', '"trains like"\nfactor = 2', "factor: not allowed for 'trains like'"),
        ('"faster"\nright = "fp32"', '"fewer kernels"', "right: missing; expected for 'fewer kernels'"),
        ('right = "fp32"', "images_per_s = 0", "images_per_s: expected a number > 0.0, got 0"),
        ('right = "fp32"', 'right = "fp32"\nmargin = 1', "margin: expected a number < 1.0, got 1"),
        ('right = "fp32"', 'right = "fp32"\nat = "some"', "at: expected all or any, got 'some'"),
        ('right = "fp32"', 'right = "fp32"\nbatch_sizes = [8, 16]', "batch_sizes[1]: expected one of 4, 8, got 16"),
        ('right = "fp32"', 'right = "fp32"\nbatch_sizes = []', "batch_sizes: expected a list of length >= 1"),
        ('right = "fp32"', 'right = "fp32"\nright_batch_size = 9', "right_batch_size: expected one of 4, 8, got 9"),
        ('right = "fp32"', 'right = "fp32"\nfactr = 9', "factr: unknown key; did you mean 'factor'?"),
        (
            'left = "fp16"\nrelation = "faster"\nright = "fp32"',
            'left = "best of fp16*"\nrelation = "runs"',
            "left: 'best of ...' is not allowed for 'runs'",
        ),
        ('says = "fp16 is faster"', "", "says: missing"),
        ("slide = 12", 'slide = "12"', "slide: expected a whole number or null, got a text in quotes"),
    ],
)
def test_a_claim_that_makes_no_sense_names_its_key(load, tmp_path, old, new, expected):
    assert old in CLAIM
    with pytest.raises(ScenarioError) as error:
        load(CLAIM + CLAIM.replace(old, new))
    assert str(error.value).startswith(f"{tmp_path}/x.toml: claim[1].{expected}")
    assert "\n" not in str(error.value)


def test_a_scenarios_claims_about_what_its_cpu_form_has_not_are_not_made_there(load):
    about_8 = CLAIM + "batch_sizes = [8]\n"
    about_dali = CLAIM.replace('left = "fp16"', 'left = "fp16+dali"')
    cpu = '[cpu]\nmeasure.batch_sizes = [4, 2]\nladder = [{ name = "fp16", steps = ["fp16"] }]\n'
    loaded = load(CLAIM + about_8 + about_dali + cpu)
    assert len(loaded.claims) == 3
    assert [(c.left.config, c.batch_sizes) for c in loaded.on("cpu").claims] == [("fp16", (4, 2))]


def test_the_cpu_forms_own_claims_replace_the_scenarios_and_are_checked(load):
    cpu = '[cpu]\nmeasure.batch_sizes = [2]\n[[cpu.claim]]\nsays = "it runs"\nleft = "fp16"\nrelation = "runs"\n'
    assert [claim.says for claim in load(CLAIM + cpu).on("cpu").claims] == ["it runs"]
    with pytest.raises(ScenarioError, match=r"cpu\.claim\[0\]\.left: unknown config 'fp61'"):
        load(CLAIM + cpu.replace('"fp16"', '"fp61"'))


@pytest.mark.parametrize("name", scenario.shipped())
@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_every_shipped_claim_names_configs_and_batch_sizes_that_exist(name, kind):
    shipped = scenario.load(name).on(kind)
    configs = [config.name for config in shipped.configs]
    assert shipped.claims or name == "networks", "of other networks the talk claims nothing"
    for claim in (claim.with_precision(low) for claim in shipped.claims for low in LOW_PRECISIONS):
        for side in filter(None, (claim.left, claim.right)):
            assert any(map(side.matches, configs)), claim
        assert set(claim.batch_sizes) | {claim.right_batch_size or claim.batch_sizes[0]} <= set(shipped.batch_sizes)
        assert claim.relation in RELATIONS
        assert len(claim.says.partition(" (bf16 here")[0]) < 80
    assert len({claim.says for claim in shipped.claims}) == len(shipped.claims)


def test_every_checkable_slide_of_the_talk_has_its_claim():
    slides = {claim.slide for name in ("naruse2018", "settings") for claim in scenario.load(name).claims}
    assert slides == {5, 6, 10, 12, 14, 16, 18, 21, 22, 26, 27, 28, 31, 32, 33, 34}
    assert len([claim for claim in scenario.load("settings").claims if claim.slide == 10]) == 3
    unsaid = {claim.slide for name in ("beyond", "peers") for claim in scenario.load(name).claims}
    assert unsaid == {None}
