"""Cells of tcbench as ReFrame checks (tried with ReFrame 4.10): each config at each batch size runs and gives images/s.

    reframe -c docs/reframe/tcbench_checks.py -r --performance-report

`tcbench` must be on PATH. This runs anywhere with ReFrame's own configuration; for a site's, set `valid_systems`, name
the GPU's environment in `valid_prog_environs`, and set `reference` to what it reached before.
"""

import json
from typing import ClassVar

import reframe as rfm
import reframe.utility.sanity as sn


@rfm.simple_test
class TrainingThroughput(rfm.RunOnlyRegressionTest):
    """One config of a scenario at one batch size."""

    config = parameter(["fp32", "fp16+dali+batched+nhwc+fused"])
    batch_size = parameter([4])
    scenario = variable(str, value="cpu")
    device = variable(str, value="auto")
    max_time_s = variable(float, value=5.0)

    valid_systems: ClassVar = ["*"]
    valid_prog_environs: ClassVar = ["*"]
    executable = "tcbench"
    time_limit = "20m"
    # A system's name to (images/s, how much lower and higher, as shares, it may be, unit).
    reference: ClassVar = {"*": {"throughput": (0, None, None, "images/s")}}

    @run_before("run")
    def set_options(self):
        self.executable_opts = [
            *("run", self.scenario, "--config", self.config, "--bs", str(self.batch_size), "--device", self.device),
            *("--max-time", str(self.max_time_s), "--out", "results", "--json", "--quiet"),
        ]

    @deferrable
    def cell(self):
        """The only cell of the run's JSON."""
        with open(str(self.stdout)) as file:
            (cell,) = json.load(file)["cells"]
        return cell

    @sanity_function
    def is_measured(self):
        return sn.assert_eq(self.cell()["status"], "ok", "the cell is {0}, expected {1}")

    @performance_function("images/s")
    def throughput(self):
        return self.cell()["images_per_s"]["value"]
