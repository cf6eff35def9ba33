import factories
import reports

from tcbench.views.report.build import build


def titles(page):
    return [section.title for section in page.sections]


def test_a_page_with_everything_has_every_section_in_order():
    assert titles(build(reports.whole())) == [
        *("Comparison", "Summary", "Throughput", "What each rung buys", "Claims", "What holds it back", "Timelines"),
        *("Environment", "Every trial"),
    ]


def test_the_title_is_the_model_and_the_device_or_what_was_asked_for():
    records = [factories.make_record()]
    assert build(reports.results(records)).title == "resnet50 training on AMD EPYC"
    assert build(reports.machines()).title == "resnet50 training on 4 devices"
    assert build(reports.results(records, title="Ours\n today")).title == "Ours today"
    skipped = [factories.make_record(status="skipped")]
    assert build(reports.results(skipped)).title == "resnet50 training"


def test_the_facts_under_the_title():
    facts = build(reports.results(reports.ladders(3))).facts
    assert facts == (
        *("AMD EPYC", "resnet50 v1", "64 × 64 images", "generated JPEGs"),
        *("2 cores, 8.00 GiB", "20 cells, 3 trials each", "2025-01-02"),
    )
    assert "1 cell, 1 trial each" in build(reports.single()).facts
