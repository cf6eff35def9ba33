"""The same figure is the same file, and what cannot be written is one clear line."""

from pathlib import Path

import pytest
from show.charts.charts import TALK, run

from tcbench.commands.run.chart import throughput_chart
from tcbench.core.errors import SelectionError, StoreError
from tcbench.show.charts.files import save


@pytest.mark.long
@pytest.mark.parametrize("suffix", [".PNG", ".svg", ".pdf"])
def test_a_chart_written_twice_is_the_same_file(tmp_path: Path, suffix: str) -> None:
    paths = [tmp_path / "new" / f"{i}{suffix}" for i in range(2)]
    for path in paths:
        save(throughput_chart(run(("fp32",), (4,)), title=TALK), path)
    first, other = (path.read_bytes() for path in paths)
    assert first == other
    assert first.startswith({".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix.lower()])


def test_a_png_is_wide_enough_to_read(tmp_path: Path) -> None:
    from PIL import Image

    save(throughput_chart(run(), title="T"), tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        assert image.width == 1600


def test_another_suffix_is_refused_with_those_that_work() -> None:
    figure = throughput_chart(run(("fp32",), (4,)), title="T")
    for name in ("chart.jpg", "chart"):
        with pytest.raises(SelectionError, match=r"expected a file name that ends in \.png, \.svg, \.pdf"):
            save(figure, Path(name))


def test_a_file_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    figure = throughput_chart(run(("fp32",), (4,)), title="T")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"file/chart\.png: cannot be written \(Not a directory\)"):
        save(figure, tmp_path / "file" / "chart.png")
