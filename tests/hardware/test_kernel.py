"""Limits of control groups, as a process of a container, of a service and of a job sees them."""

from pathlib import Path

import pytest

from tcbench.hardware import kernel, machine


@pytest.fixture
def group(tmp_path, monkeypatch):
    """Makes a hierarchy in which this process is in a group, and files of that group and those above."""
    (tmp_path / "proc/self").mkdir(parents=True)
    monkeypatch.setattr(kernel, "_PROC", tmp_path / "proc")

    def write(line: str, mount: str, files: dict[str, str]) -> None:
        (tmp_path / "proc/self/cgroup").write_text(f"7:pids:/\n{line}\n")
        root, kind, options = mount.split()
        point = str(tmp_path / "a mount").replace(" ", "\\040")
        other = "31 23 0:28 / /proc rw - proc proc rw\nbroken\n"
        described = f"{other}41 31 0:38 {root} {point} rw,relatime shared:9 - {kind} cgroup {options}\n"
        (tmp_path / "proc/self/mountinfo").write_text(described)
        for name, text in files.items():
            path = tmp_path / "a mount" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return write


V1, V2 = "/ cgroup rw,cpu,cpuacct", "/ cgroup2 rw"


@pytest.mark.parametrize(
    ("line", "mount", "files", "quota"),
    [
        ("0::/", V2, {"cpu.max": "150000 100000"}, 1.5),
        ("0::/", V2, {"cpu.max": "max 100000"}, 0.0),
        ("0::/a/b", V2, {"cpu.max": "", "a/cpu.max": "50000 100000", "a/b/cpu.max": "max 100000"}, 0.5),
        ("0::/a/b", V2, {"a/cpu.max": "300000 100000", "a/b/cpu.max": "200000 100000"}, 2.0),
        ("3:cpu,cpuacct:/a", V1, {"a/cpu.cfs_quota_us": "100000", "a/cpu.cfs_period_us": "50000"}, 2.0),
        ("3:cpu,cpuacct:/a", V1, {"a/cpu.cfs_quota_us": "-1", "a/cpu.cfs_period_us": "100000"}, 0.0),
        ("3:cpuset:/a", V1, {"a/cpu.cfs_quota_us": "100000", "a/cpu.cfs_period_us": "100000"}, 0.0),
        ("0::/docker/abc", "/docker/abc cgroup2 rw", {"cpu.max": "100000 100000"}, 1.0),
        ("0::/elsewhere", "/docker/abc cgroup2 rw", {"cpu.max": "100000 100000"}, 1.0),
        ("0::/../sibling", V2, {"cpu.max": "100000 100000"}, 1.0),
        ("0::/", V2, {"cpu.max": "100000 0"}, 0.0),
        ("no group", V2, {"cpu.max": "100000 100000"}, 0.0),
    ],
)
def test_the_least_quota_of_a_group_and_of_those_above_it_counts(group, line, mount, files, quota):
    group(line, mount, files)
    assert kernel.cpu_quota() == quota


@pytest.mark.parametrize(
    ("line", "mount", "files", "limit"),
    [
        ("0::/a", V2, {"memory.max": "3000", "a/memory.max": "max"}, 3000),
        ("0::/a", V2, {"memory.max": "max"}, None),
        ("3:memory:/a", "/ cgroup rw,memory", {"a/memory.limit_in_bytes": "2000"}, 2000),
        ("3:memory:/a", "/ cgroup rw,memory", {"a/memory.limit_in_bytes": "9223372036854771712"}, None),
    ],
)
def test_the_least_memory_limit_counts(group, line, mount, files, limit):
    group(line, mount, files)
    assert kernel.memory_limit_bytes() == limit


def test_memory_is_left_within_the_narrowest_limit_and_caches_do_not_count(group):
    v2 = {"memory.max": "900\n", "memory.current": "200\n", "memory.stat": "anon 5\ninactive_file 50\n"}
    group("0::/a", V2, {**v2, "a/memory.max": "max\n", "a/memory.current": "90\n"})
    assert kernel.memory_left_bytes() == 750
    group("0::/a", V2, {**v2, "a/memory.max": "500\n", "a/memory.current": "700\n"})
    assert kernel.memory_left_bytes() == 0
    v1 = {"b/memory.limit_in_bytes": "900", "b/memory.usage_in_bytes": "400"}
    v1["b/memory.stat"] = "inactive_file 1\ntotal_inactive_file 100\n"
    group("3:memory:/b", "/ cgroup rw,memory", v1)
    assert kernel.memory_left_bytes() == 600
    group("no group", V2, {})
    assert kernel.memory_left_bytes() is None


def test_throttled_time_is_that_of_the_group_that_was_throttled_most(group):
    group("0::/a", V2, {"cpu.stat": "nr_throttled 9\nthrottled_usec 2500000\n", "a/cpu.stat": "throttled_usec 7\n"})
    assert kernel.throttled_s("self") == 2.5
    group("3:cpu:/a", V1, {"a/cpu.stat": "nr_periods 5\nthrottled_time 4000000000\n"})
    assert kernel.throttled_s("self") == 4.0


@pytest.mark.parametrize(
    ("quota", "cpus", "expected_quota"), [(0.3, 1, 0.3), (1.5, 1, 1.5), (2.9, 2, 2.9), (9.0, 4, 0.0), (0.0, 4, 0.0)]
)
def test_a_quota_of_part_of_a_processor_gives_no_thread(monkeypatch, quota, cpus, expected_quota):
    monkeypatch.setattr(kernel, "cpu_quota", lambda: quota)
    monkeypatch.setattr(machine, "_MASK", frozenset(range(4)))
    assert machine.usable_cpus.__wrapped__() == cpus
    assert machine.cpu_quota.__wrapped__() == expected_quota


X86 = (
    "processor : {n}\nvendor_id : AuthenticAMD\ncpu family : {family}\nmodel : 17\nmodel name : AMD EPYC\n"
    "flags : fpu ht {flags}\n\n"
)
ARM = "processor : {n}\nBogoMIPS : 50\nFeatures : fp asimd {flags}\nCPU implementer : 0x41\nCPU part : {part}\n\n"


@pytest.fixture
def identity(monkeypatch):
    """Gives the identity of the processors that a text of /proc/cpuinfo describes."""

    def read(text: str, mask: set[int] = frozenset({0, 1})) -> str:
        monkeypatch.setattr(kernel, "text", lambda path: text)
        monkeypatch.setattr(machine, "_MASK", frozenset(mask))
        for cached in (machine._processors, machine.cpu_flags):
            cached.cache_clear()
        return machine.processor.__wrapped__()

    yield read
    monkeypatch.undo()
    for cached in (machine._processors, machine.cpu_flags):
        cached.cache_clear()


def test_processors_that_differ_have_different_identities_and_a_newer_kernel_changes_none(identity):
    both = [X86.format(n=0, family=25, flags="avx2"), X86.format(n=0, family=26, flags="avx2")]
    both += [X86.format(n=0, family=25, flags="avx2 avx512f"), ARM.format(n=0, part="0xd0c", flags="")]
    both += [ARM.format(n=0, part="0xd40", flags="sve bf16"), ARM.format(n=0, part="0xd40", flags="sve")]
    assert len({identity(text) for text in both}) == len(both)
    assert identity(both[0]) == identity(X86.format(n=0, family=25, flags="avx2 user_shstk"))
    assert identity(both[0]).startswith("AuthenticAMD/25/17 ")


def test_a_processor_of_several_kinds_is_identified_by_those_that_this_process_may_use(identity):
    text = ARM.format(n=0, part="0xd05", flags="") + ARM.format(n=1, part="0xd0b", flags="")
    little, large, both = (identity(text, mask) for mask in ({0}, {1}, {0, 1}))
    assert "0xd05" in little and "0xd0b" not in little
    assert "0xd0b" in large and "0xd05" not in large
    assert "0xd05" in both and "0xd0b" in both
    assert machine.cpu_flags() == {"fp", "asimd"}


@pytest.mark.parametrize("text", ["", "\n\n", "no colon", "\ufffd: \ufffd"])
def test_a_text_that_names_no_processor_leaves_it_unknown(identity, text):
    assert identity(text) == ""


def test_a_file_that_cannot_be_read_or_is_not_text_says_nothing(tmp_path):
    (tmp_path / "odd").write_bytes(b"\xff\xfe governor")
    assert kernel.text(tmp_path / "odd").endswith(" governor")
    assert kernel.text(tmp_path / "absent") == kernel.text(tmp_path) == ""
    assert kernel.text(Path("/proc/self/mem")) == ""


def test_a_system_that_tells_no_affinity_has_all_processors(monkeypatch):
    def refused(pid):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("os.sched_getaffinity", refused)
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    assert kernel.affinity() == {0, 1, 2, 3, 4, 5}


def test_only_one_place_asks_for_the_affinity():
    """Commands failed in sandboxes that refuse it when other modules asked for the affinity."""
    package = Path(kernel.__file__).parents[1]
    asking = [path.name for path in package.rglob("*.py") if "sched_getaffinity" in path.read_text("utf-8")]
    assert asking == ["kernel.py"]
