"""A Slurm cluster of one node on this machine, from Debian's packages, for the time of some tests.

Two partitions, a100 and h100, of one node that pretends to have a GPU of each kind. Needs root, since slurmd does.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

COMMANDS = ("munged", "slurmctld", "slurmd", "sbatch", "sinfo", "squeue", "scancel")

MEMORY_MB = 2000

_CONF = """
ClusterName=tcbench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
KillWait=5
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory} Gres=gpu:a100:1,gpu:h100:1 State=UNKNOWN
PartitionName=a100 Nodes={host} Default=YES State=UP OverSubscribe=FORCE:2
PartitionName=h100 Nodes={host} State=UP OverSubscribe=FORCE:2
"""

_GPUS = """
NodeName={host} Name=gpu Type=a100 File=/dev/null
NodeName={host} Name=gpu Type=h100 File=/dev/zero
"""


def why_not() -> str | None:
    """Why there can be no Slurm here; None: there can."""
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    missing = [name for name in COMMANDS if shutil.which(name, path=path) is None]
    if missing:
        return f"no {missing[0]}: apt-get install slurm-wlm munge"
    return None if os.geteuid() == 0 else "Slurm's node runs as root"


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Path]:
    """Start it, with all of its files in a folder; the path of its configuration, for SLURM_CONF. Ends it, with its
    jobs."""
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    values = {
        "folder": folder,
        "host": socket.gethostname().partition(".")[0],
        "controller": _free_port(),
        "daemon": _free_port(),
        "cpus": os.cpu_count(),
        "memory": MEMORY_MB,
    }
    conf = folder / "slurm.conf"
    conf.write_text(_CONF.format(**values))
    (folder / "gres.conf").write_text(_GPUS.format(**values))
    environment = {**os.environ, "SLURM_CONF": str(conf), "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    daemons: list[subprocess.Popen[bytes]] = []

    def start(*words: str | Path) -> None:
        with (folder / f"{words[0]}.out").open("wb") as log:
            daemons.append(subprocess.Popen(list(map(str, words)), env=environment, stdout=log, stderr=log))

    try:
        # It asks for folders that nobody else may write to, which those under /tmp are not.
        files = (f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed"))
        start("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket", *files)
        _wait(lambda: (folder / "munge.socket").exists(), folder)
        start("slurmctld", "-D")
        start("slurmd", "-D")
        _wait(lambda: b"idle" in _output_of("sinfo", "--noheader", "--format=%t", environment=environment), folder)
        yield conf
    finally:
        _output_of("scancel", "--full", "--user=root", environment=environment)
        with contextlib.suppress(TimeoutError):
            _wait(lambda: not _output_of("squeue", "--noheader", environment=environment), folder)
        for daemon in reversed(daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in daemons:
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _output_of(*words: str, environment: dict[str, str]) -> bytes:
    return subprocess.run(words, env=environment, capture_output=True, timeout=30).stdout


def _wait(happened, folder: Path, within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while not happened():
        if time.monotonic() > deadline:
            logs = "\n".join(f"{path}: {path.read_text()[-2000:]}" for path in folder.glob("*.out"))
            raise TimeoutError(f"Slurm did not come up\n{logs}")
        time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


if __name__ == "__main__":  # by hand, as root: python tests/slurm_node.py FOLDER
    import sys

    if (reason := why_not()) is not None:
        sys.exit(reason)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with running(Path(sys.argv[1])) as started:
        print(f"export SLURM_CONF={started}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
