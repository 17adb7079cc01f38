"""Several real processes need a file that one of them fetches: it succeeds, fails, stalls or is killed."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.training import environment, train
from visattn.data import once
from visattn.data.once import fetched

# Says that it has begun, asks for the thing, and says how that went. Fetching takes until it is told how to end.
PROCESS = """
import sys, time
from pathlib import Path
from once import fetched

me, thing = sys.argv[1], Path("thing")

def find():
    Path(f"looked-{me}").touch()
    return thing.read_text() if thing.exists() else None

def fetch():
    Path(f"fetching-{me}").touch()
    while not Path("end").exists():
        time.sleep(0.05)
    if Path("end").read_text() == "fail":
        raise RuntimeError("no such host")
    thing.write_text("here")

try:
    print(fetched(find, fetch, Path("thing.lock")))
except Exception as error:
    print(f"{type(error).__name__}: {error}")
"""


def until(condition):
    """Wait for something that comes."""
    for _ in range(2000):
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen")


class Processes:
    """Three of them, of which one fetches and the others wait for it."""

    def __init__(self, folder):
        self.folder = folder
        environ = {**environment(), "PYTHONPATH": str(Path(once.__file__).parent)}  # no need to import torch
        self.all = [
            subprocess.Popen(
                [sys.executable, "-c", PROCESS, str(me)], cwd=folder, env=environ, stdout=subprocess.PIPE, text=True
            )
            for me in range(3)
        ]
        until(lambda: len(list(folder.glob("looked-*"))) == 3 and self.fetching())
        until(lambda: self._waiting() == 2)

    def fetching(self):
        return sorted(int(path.name.removeprefix("fetching-")) for path in self.folder.glob("fetching-*"))

    def _waiting(self):
        """How many have the lock open but not the thing."""
        lock = self.folder / "thing.lock"
        mine = [each for each in self.all if each.pid != self.all[self.fetching()[0]].pid]
        return sum(any(_target(fd) == lock for fd in Path(f"/proc/{each.pid}/fd").iterdir()) for each in mine)

    def end(self, how):
        (self.folder / "end").write_text(how)

    def said(self):
        return [each.communicate(timeout=100)[0].strip() for each in self.all]


def _target(descriptor):
    try:
        return Path(os.readlink(descriptor))
    except FileNotFoundError:
        return None


pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="looks at open files in /proc")


def test_one_fetches_for_all(tmp_path):
    processes = Processes(tmp_path)
    processes.end("succeed")
    assert processes.said() == ["here"] * 3
    assert len(processes.fetching()) == 1
    assert not (tmp_path / "thing.lock").exists()


def test_a_failure_is_heard_by_those_who_wait(tmp_path):
    processes = Processes(tmp_path)
    processes.end("fail")
    assert sorted(processes.said()) == ["RuntimeError: no such host", *["ValueError: no such host"] * 2]
    assert len(processes.fetching()) == 1
    assert not (tmp_path / "thing.lock").exists()
    with pytest.raises(OSError, match="still not"):  # whoever comes later tries again
        fetched(lambda: None, _fail, tmp_path / "thing.lock")


def _fail():
    raise OSError("still not there")


def test_another_one_fetches_when_the_first_is_killed(tmp_path):
    processes = Processes(tmp_path)
    (first,) = processes.fetching()
    processes.all[first].send_signal(signal.SIGKILL)
    until(lambda: len(processes.fetching()) == 2)
    processes.end("succeed")
    said = processes.said()
    assert said.pop(first) == ""
    assert said == ["here"] * 2
    assert not (tmp_path / "thing.lock").exists()


def test_a_word_that_a_killed_process_left_does_not_count(tmp_path):
    lock, thing = tmp_path / "folder" / "lock", tmp_path / "thing"
    lock.parent.mkdir()
    lock.write_text("some old failure")
    assert fetched(lambda: thing.exists() or None, thing.touch, lock) is True
    assert list(lock.parent.iterdir()) == []


def test_a_link_in_the_place_of_the_lock_leads_nowhere(tmp_path):
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    (tmp_path / "thing.lock").symlink_to(precious)
    with pytest.raises(OSError, match=r"thing\.lock"):
        fetched(lambda: None, lambda: None, tmp_path / "thing.lock")
    assert precious.read_text() == "mine"


def test_nothing_is_locked_or_fetched_if_it_is_there(tmp_path):
    assert fetched(lambda: "here", _fail, tmp_path / "lock") == "here"
    assert list(tmp_path.iterdir()) == []


def test_a_connection_that_does_not_move_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(once, "STALLED", 0.2)
    from torchvision.datasets.utils import download_url

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/file"
        with pytest.raises(OSError, match="timed out"):
            fetched(lambda: None, lambda: download_url(url, tmp_path / "out", "file"), tmp_path / "lock")
    assert socket.getdefaulttimeout() is None


@pytest.mark.slow
@pytest.mark.parametrize("rank", ["0", "1"])
def test_every_process_of_a_run_ends_when_there_is_no_network(tmp_path, monkeypatch, rank):
    """Also where nobody ends the others, as with SLURM: each by itself."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # where nobody listens
    for name, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    result = train("--data", "mnist", "--model", "ram", cwd=tmp_path, check=False, timeout=100)
    assert result.returncode == 2
    assert "could not download MNIST" in result.stderr
    assert list((tmp_path / "data").iterdir()) == []
