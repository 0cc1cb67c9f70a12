"""The output of a job: what is refused, what is never emptied, who owns it. Processes are in ``tests/cli``."""

import errno
import os
import stat
import subprocess
import sys

import pytest

from batchclient.errors import ConfigError
from batchclient.jobs import owner as owner_module
from batchclient.jobs.output import Output


def write(output, data=b"new\n", *, is_complete=True):
    with output:
        os.write(output.open(), data)
        output.close(is_complete=is_complete)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.jsonl"


def refused(path, **options):
    with pytest.raises(ConfigError) as caught:
        Output(str(path), **options)
    assert "\n" not in str(caught.value)
    return caught.value.message


def test_a_new_file_is_there_and_nothing_else(out):
    write(Output(str(out)))
    assert out.read_bytes() == b"new\n"
    assert names(out.parent) == ["out.jsonl"]


def test_a_file_that_appears_between_check_and_opening_is_left_alone(out):
    with Output(str(out)) as output:
        out.write_text("precious")
        with pytest.raises(ConfigError, match=r"out\.jsonl: the file has appeared meanwhile"):
            output.open()
    assert out.read_text() == "precious"
    assert names(out.parent) == ["out.jsonl"]


def test_a_link_that_appears_is_not_followed(out, tmp_path):
    with Output(str(out)) as output:
        out.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(ConfigError):
            output.open()
    assert not (tmp_path / "elsewhere").exists()


def test_the_old_file_is_whole_until_the_new_one_is(out):
    out.write_text("old")
    out.chmod(0o640)
    with Output(str(out), overwrite=True) as output:
        os.write(output.open(), b"new\n")
        assert out.read_text() == "old"
        assert (out.parent / "out.jsonl.part").read_bytes() == b"new\n"
        output.close(is_complete=True)
        assert output.where == str(out)
    assert out.read_bytes() == b"new\n"
    assert stat.S_IMODE(out.stat().st_mode) == 0o640
    assert names(out.parent) == ["out.jsonl"]


def test_a_job_that_ends_early_leaves_the_old_file(out):
    out.write_text("old")
    output = Output(str(out), overwrite=True)
    write(output, is_complete=False)
    assert output.where == f"{out}.part ({out} is as it was)"
    assert (out.read_text(), names(out.parent)) == ("old", ["out.jsonl", "out.jsonl.part"])
    # The next one begins anew.
    write(Output(str(out), overwrite=True), b"newer\n")
    assert (out.read_text(), names(out.parent)) == ("newer\n", ["out.jsonl"])


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_job_that_ends_before_its_first_row_leaves_nothing(out, overwrite):
    if overwrite:
        out.write_text("old")
    write(Output(str(out), overwrite=overwrite), b"", is_complete=False)
    assert names(out.parent) == ["out.jsonl"] * overwrite


def test_a_failed_sync_leaves_the_old_file(out, monkeypatch):
    def fail(file):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    out.write_text("old")
    monkeypatch.setattr(os, "fsync", fail)
    with Output(str(out), overwrite=True) as output:
        os.write(output.open(), b"new\n")
        with pytest.raises(OSError, match="Input/output"):
            output.close(is_complete=True)
    assert out.read_text() == "old"


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_dangling_link_is_refused_by_name(out, tmp_path, overwrite):
    out.symlink_to(tmp_path / "nowhere")
    assert refused(out, overwrite=overwrite) == (
        f"{out}: a link to {tmp_path / 'nowhere'}, which does not exist; name the file itself"
    )
    assert not (tmp_path / "nowhere").exists()


def test_a_link_is_not_followed_into_another_folder(out, tmp_path):
    (tmp_path / "other").mkdir()
    target = tmp_path / "other" / "file"
    target.write_text("precious")
    out.symlink_to(target)
    assert refused(out) == f"{out}: the file exists; give --overwrite to replace it"
    assert refused(out, overwrite=True) == f"{out}: a link into another folder, to {target}; name that file itself"
    assert target.read_text() == "precious"
    assert names(target.parent) == ["file"]


def test_a_link_within_the_folder_stays_a_link(out, tmp_path):
    (tmp_path / "run-1").write_text("old")
    out.symlink_to("run-1")
    write(Output(str(out), overwrite=True))
    assert out.is_symlink()
    assert (tmp_path / "run-1").read_bytes() == b"new\n"


@pytest.mark.parametrize("length", [252, 300])
def test_a_name_that_is_too_long_is_refused(tmp_path, length):
    # 252 letters leave no room for the ending of the lock.
    assert refused(tmp_path / ("x" * length)).endswith(": File name too long")
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path, out, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    opened = os.open
    monkeypatch.setattr(os, "open", refuse)
    assert refused(out) == f"{out}.lock: Permission denied"
    os.close(opened(out, os.O_CREAT))
    assert "the file exists" in refused(out)
    assert refused(out, overwrite=True) == f"{out}.lock: Permission denied"


def test_a_device_has_no_lock_and_no_part():
    output = Output("/dev/null")
    write(output)
    assert not output.is_file
    assert not os.path.exists("/dev/null.lock")


# Owners --------------------------------------------------------------------------------------------------------------


def test_a_second_one_is_refused_with_pid_host_and_start(out):
    with Output(str(out)) as first:
        message = refused(out, overwrite=True)
        assert message.startswith(f"{out}: another command is writing this file: pid {os.getpid()} on ")
        assert " since 20" in message
        first.open()
        assert "another command" in refused(out)
        first.close(is_complete=True)
    assert "the file exists" in refused(out)


def test_the_lock_of_a_killed_command_is_taken_over(out):
    code = "import sys, os, signal; from batchclient.jobs.output import Output; output = Output(sys.argv[1]); output.open()"
    code += "; os.kill(os.getpid(), signal.SIGKILL)"
    subprocess.run([sys.executable, "-c", code, str(out)], check=False)
    assert names(out.parent) == ["out.jsonl", "out.jsonl.lock"]
    write(Output(str(out), overwrite=True))
    assert names(out.parent) == ["out.jsonl"]


def test_a_lock_that_the_owner_removes_meanwhile_is_made_anew(out, monkeypatch):
    real, removed = owner_module.fcntl.flock, []

    def flock(file, how):
        if not removed:
            removed.append(os.unlink(f"{out}.lock"))
        real(file, how)

    monkeypatch.setattr(owner_module.fcntl, "flock", flock)
    with Output(str(out)):
        assert (out.parent / "out.jsonl.lock").read_bytes().startswith(b"batchclient: pid ")
        assert "another command" in refused(out)


def test_a_file_that_is_no_lock_is_left_alone(out):
    lock = out.parent / "out.jsonl.lock"
    lock.write_text("my notes")
    assert refused(out) == f"{out}: the lock belongs into {lock}, which is a file of another kind; move it away"
    assert lock.read_text() == "my notes"


def test_where_no_locks_are_kept_it_goes_on_and_says_so(out, monkeypatch):
    def flock(file, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(owner_module.fcntl, "flock", flock)
    output = Output(str(out))
    assert output.warning == f"{out}: the file system keeps no locks; let no other command write this file"
    write(output)
    assert names(out.parent) == ["out.jsonl"]
    # Nobody can tell whose the beginning of another one is.
    part = out.parent / "out.jsonl.part"
    part.write_text("somebody's")
    with Output(str(out), overwrite=True) as output, pytest.raises(ConfigError, match="move it away"):
        output.open()
    assert (out.read_text(), part.read_text()) == ("new\n", "somebody's")
