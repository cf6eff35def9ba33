import factories
import reports

from tcbench.views.report.build import build


def test_the_title_is_the_model_and_the_device_or_what_was_asked_for():
    records = [factories.make_record()]
    assert build(reports.results(records)).title == "resnet50 training on AMD EPYC"
    assert build(reports.machines()).title == "resnet50 training on 4 devices"
    assert build(reports.results(records, title="Ours\n today")).title == "Ours today"
    skipped = [factories.make_record(status="skipped")]
    assert build(reports.results(skipped)).title == "resnet50 training"
