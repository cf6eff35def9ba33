import subprocess
import sys
import time

from tcbench.engine import clock
from tcbench.engine.clock import HostClock


def test_the_clock_gives_the_seconds_between_marks_and_forgets_them():
    clock = HostClock()
    clock.mark()
    time.sleep(0.05)
    clock.mark()
    clock.mark()
    first, second = clock.read()
    assert 0.05 <= first < 1.0
    assert 0 <= second < 0.05
    assert clock.read() == ()


def test_peak_memory_is_known_where_linux_does_not_tell_it_by_that_name(tmp_path, monkeypatch):
    (tmp_path / "status").write_text("VmRSS: 12 kB\n")
    for path in (tmp_path / "status", tmp_path / "absent"):
        monkeypatch.setattr(clock, "_STATUS", path)
        assert clock.peak_resident_bytes() > 2**20


def test_peak_memory_keeps_what_was_freed():
    """A new process is needed, because the peak of this one may already be higher."""
    code = """
from tcbench.engine.clock import peak_resident_bytes
before = peak_resident_bytes()
block = bytearray(before + 2**26)
block[::4096] = b"x" * len(block[::4096])
del block
assert peak_resident_bytes() >= before + 2**26
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_peak_memory_counts_children_that_live_and_a_larger_one_that_has_ended():
    code = """
import subprocess, sys
from tcbench.engine.clock import peak_resident_bytes
takes = "block = bytearray(%d); block[::4096] = b'x' * len(block[::4096]); print(flush=True); input()"
alone = peak_resident_bytes()
child = subprocess.Popen([sys.executable, "-c", takes % (alone + 2**26)], stdin=-1, stdout=-1, text=True)
child.stdout.readline()
assert peak_resident_bytes() >= 2 * alone + 2**26, "alive"
child.communicate("\\n")
assert peak_resident_bytes() >= 2 * alone + 2**26, "ended"
subprocess.run([sys.executable, "-c", ""], check=True)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
