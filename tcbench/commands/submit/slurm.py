"""submitit's executor for Slurm, with our own scripts, and job states from squeue.

Only this module imports submitit at its top; `tcbench.commands.submit.cluster` can write scripts without it."""

import logging
from pathlib import Path

import submitit
from submitit.slurm.slurm import SlurmInfoWatcher, SlurmJob

from tcbench.core.variables import outside_jobs_command

logging.getLogger("submitit").setLevel(logging.CRITICAL)  # its warnings are about sacct, which is not asked

_ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "GONE", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
    *("REVOKED", "TIMEOUT"),
}
"""States of a job that will not run again, as squeue names them; GONE is a job that Slurm has forgotten."""


class _Queue(SlurmInfoWatcher):
    """Job states from squeue, which every Slurm has. sacct would need a database, which small clusters lack."""

    def _make_command(self) -> list[str] | None:
        return [*outside_jobs_command(), "squeue", "--me", "--noheader", "--states=all", "--format=%i %T"]

    def read_info(self, string: bytes | str) -> dict[str, dict[str, str]]:
        lines = (string if isinstance(string, str) else string.decode()).splitlines()
        states = dict(line.split(maxsplit=1) for line in lines)
        return {job: {"State": states.get(job, "GONE")} for job in self._registered}

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        return self.get_state(job_id, mode=mode) in _ENDED


class _SlurmJob(SlurmJob[int]):
    watcher = _Queue(delay_s=30)


class Slurm(submitit.SlurmExecutor):
    """submitit's executor of a job with a given script; states need no job database."""

    job_class = _SlurmJob

    def __init__(self, folder: Path, script: str) -> None:
        super().__init__(folder)
        self._script = script

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        return [*outside_jobs_command(), "sbatch", str(submission_file_path)]

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        return self._script
