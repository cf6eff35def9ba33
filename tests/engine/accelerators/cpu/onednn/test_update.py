"""A batched update is NumPy's to the bit where C does it, and NumPy does it where no compiler is."""

from pathlib import Path

import pytest
from engine.accelerators.cpu.reference.test_accelerator import CASES
from engine.accelerators.cuda.kernels.cases import Case, check_on

from tcbench.engine import work as w
from tcbench.engine.accelerators.cpu import compiled
from tcbench.engine.accelerators.cpu.onednn import update
from tcbench.engine.accelerators.cpu.onednn.accelerator import OneDnnAccelerator
from tcbench.engine.accelerators.cpu.onednn.tuning import NUMPY

SOURCE = Path(update.__file__).with_name("update.c")
UPDATES = [case for case in CASES if isinstance(case.work, w.BatchedUpdate)]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("case", UPDATES, ids=[case.id for case in UPDATES])
def test_without_a_compiler_numpy_makes_the_update(
    case: Case, fresh_engine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update, "_compiled", lambda: None)
    processor = OneDnnAccelerator(threads=2)
    check_on(processor, case)
    (plan,) = processor.plans()
    assert plan.plan == NUMPY


needs_a_compiler = pytest.mark.skipif(compiled.compiler() is None, reason="no C compiler on this machine")


@needs_a_compiler
def test_the_function_does_as_numpy() -> None:
    assert update._compiled() is not None


@pytest.mark.long
@needs_a_compiler
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("next += of_weight * w[i];", "next += of_weight * g[i];"),
        ("if (overflow && !is_finite(g[i])) continue;", ""),
        ("overflow |= !is_finite(g[i]);", ""),
        ("+ (bits[i] >> 16 & 1)", ""),
        ("from[i], 0)", "from[i], 3)"),
        ("gradients[narrowed != NULL]", "gradients[1]"),
        ("i += TILE", "i += TILE + 1"),
        ("n = (int64_t)values;", "n = (int64_t)values - 1;"),
        ("if (dtype > 0)", "if (dtype > 1)"),
    ],
)
@pytest.mark.usefixtures("quickly_compiled")
def test_a_function_that_does_not_do_as_numpy_is_not_taken(right: str, wrong: str, tmp_path: Path) -> None:
    assert compiled.load_library(SOURCE, update._matches_numpy) is not None
    text = SOURCE.read_text()
    assert text.count(right) == 1
    source = tmp_path / "update.c"
    source.write_text(text.replace(right, wrong))
    assert compiled.load_library(source, update._matches_numpy) is None
