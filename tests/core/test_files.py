"""Files are there whole or not at all, and nothing is left beside them."""

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tcbench.core import files
from tcbench.core.errors import StoreError


def test_a_file_appears_whole_with_its_folders(tmp_path):
    path = tmp_path / "a" / "b" / "file.txt"
    files.write(path, b"new")
    assert path.read_bytes() == b"new"
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask
    assert list(path.parent.iterdir()) == [path]


def test_until_the_end_and_when_anything_goes_wrong_the_old_file_stays(tmp_path):
    path = tmp_path / "file.txt"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), files.replacing(path) as file:
        file.write(b"half")
        file.flush()
        assert path.read_bytes() == b"old"
        raise ZeroDivisionError
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_that_takes_no_more_leaves_the_old_file_and_one_line(tmp_path):
    path = tmp_path / "file.txt"
    path.write_bytes(b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    try:
        with pytest.raises(StoreError) as error:
            files.write(path, bytes(9000), "mend it")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(error.value) == f"{path}: cannot be written (File too large); mend it"
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_rights_and_links_are_kept(tmp_path):
    target, link = tmp_path / "there" / "target", tmp_path / "link"
    target.parent.mkdir()
    target.write_bytes(b"old")
    target.chmod(0o640)
    link.symlink_to(target)
    files.write(link, b"new")
    assert link.is_symlink()
    assert (target.read_bytes(), target.stat().st_mode & 0o777) == (b"new", 0o640)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can lay another user's link")
@pytest.mark.parametrize("name", ["link", "folder/new", "mine"])
def test_a_link_that_another_user_laid_where_anyone_may_write_is_not_followed(tmp_path, name):
    anyones, victim = tmp_path / "tmp", tmp_path / "victim"
    anyones.mkdir()
    anyones.chmod(0o1777)
    victim.mkdir()
    for planted, target in (("link", victim / "file"), ("folder", victim)):
        (anyones / planted).symlink_to(target)
        os.lchown(anyones / planted, 65534, 65534)
    (anyones / "mine").symlink_to("link")
    with pytest.raises(StoreError, match=rf"{name}: cannot be written \(another user created the link {anyones}/"):
        files.write(anyones / name, b"new")
    assert list(victim.iterdir()) == []
    (anyones / "mine").unlink()
    (anyones / "mine").symlink_to(victim / "file")
    files.write(anyones / "mine", b"new")
    assert (victim / "file").read_bytes() == b"new"


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    files.write(pipe, b"new")
    assert os.read(reader, 10) == b"new"
    os.close(reader)
    assert pipe.is_fifo()
    with pytest.raises(StoreError, match=r"/dev/full: cannot be written \(No space left on device\)"):
        files.write(Path("/dev/full"), b"new")
    assert Path("/dev/full").is_char_device()


@pytest.mark.parametrize(
    ("name", "why"),
    [("folder", "Is a directory"), ("file/a.txt", "Not a directory"), ("x" * 300, "File name too long")],
)
def test_a_place_that_takes_no_file_is_one_line(tmp_path, name, why):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=rf"{re.escape(str(tmp_path / name))}: cannot be written \({why}\)$"):
        files.write(tmp_path / name, b"new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
    files.write(tmp_path / ("x" * 255), b"new")  # the longest name there is
    assert (tmp_path / ("x" * 255)).read_bytes() == b"new"


def test_a_file_that_is_taken_is_kept(tmp_path):
    path = tmp_path / "file.txt"
    with files.replacing(path, error_if_exists="it is taken") as file:
        file.write(b"first")
    replacing = files.replacing(path, error_if_exists="it is taken")
    with pytest.raises(StoreError, match=r"^it is taken$"), replacing as file:
        file.write(b"second")
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_user_named_alike_stays_with_all_it_holds(tmp_path):
    for number, name in enumerate(("ci", "token", "0123456789abcde")):
        (tmp_path / f".tcbench-{name}{number}").write_text("a user's")
        (tmp_path / f".tcbench-{number}{name}" / "empty").mkdir(parents=True)
        (tmp_path / f".tcbench-{number}{name}" / "file").write_text("a user's")
    before = sorted(tmp_path.rglob("*"))
    with files.scratch(tmp_path):
        files.write(tmp_path / "out", b"new")
    assert sorted(tmp_path.rglob("*")) == [*before, tmp_path / "out"]


@pytest.mark.parametrize("holds", ["replacing(place / 'a') as file", "scratch(place) as folder"])
def test_what_a_killed_process_left_goes_with_the_next_one_and_what_is_held_stays(tmp_path, holds):
    code = "import time\nfrom pathlib import Path\nfrom tcbench.core import files\n"
    code += f"place = Path({str(tmp_path)!r})\nwith files.{holds}: print('held', flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"held\n"
    process.kill()
    process.communicate()
    assert len(list(tmp_path.iterdir())) == 1
    with files.scratch(tmp_path) as folder, files.replacing(tmp_path / "b") as file:
        file.write(b"b")
        files.write(tmp_path / "c", b"c")
        assert folder.is_dir()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "c"]


def test_many_at_once_do_not_take_each_others_away(tmp_path):
    code = (
        "from pathlib import Path\nfrom tcbench.core import files\n"
        f"for n in range(50):\n    files.write(Path({str(tmp_path)!r}) / 'same', b'whole' * 2000)\n"
        f"    with files.scratch(Path({str(tmp_path)!r})) as folder: (folder / 'x').touch()\n"
    )
    many = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    assert [process.wait() for process in many] == [0, 0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["same"]
    assert (tmp_path / "same").read_bytes() == b"whole" * 2000


def test_only_regular_files_of_a_bounded_size_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "file").write_bytes(b"12345")
    assert files.read(tmp_path / "file", 5) == b"12345"
    for name, why in (("pipe", "not a regular file"), ("zero", "not a regular file"), (".", "Is a directory")):
        with pytest.raises(OSError, match=why):
            files.read(tmp_path / name, 5)
    os.truncate(tmp_path / "file", 2**20 + 1)
    with pytest.raises(OSError, match="more than 1 MiB"):
        files.read(tmp_path / "file", 2**20)
