"""How a command starts: Ctrl-C while everything is still being imported, a folder that is gone, closed streams."""

import io
import os
import signal
import subprocess
import sys

import pytest

from tests.training import ROOT
from visattn.cli import main

SLOW = "import sys, time\nprint('importing', flush=True)\nwhile True: time.sleep(0.05)\n"


@pytest.mark.parametrize(
    ("script", "arguments", "said"),
    [
        ("train.py", [], "stopped before training began: nothing to save\n"),
        ("visattn_command.py", ["predict", "--image", "a.png"], ""),
        ("visattn_command.py", ["train"], ""),
        ("-m", ["predict", "--image", "a.png"], ""),
    ],
)
def test_ctrl_c_while_torch_is_imported(tmp_path, script, arguments, said):
    (tmp_path / "torch.py").write_text(SLOW)  # in the place of the real one
    code = f"import sys, runpy; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; " + (
        f"sys.argv = ['visattn', *{arguments!r}]; runpy.run_path({str(ROOT / script)!r}, run_name='__main__')"
    )
    command, path = [sys.executable, "-c", code], f"{tmp_path}{os.pathsep}{ROOT}"
    if script == "-m":
        command = [sys.executable, "-m", "visattn", *arguments]
    process = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, said)


@pytest.mark.parametrize("script", ["train.py", "visattn_command.py"])
def test_a_folder_that_was_deleted(tmp_path, script):
    code = f"import os, runpy, sys; sys.path.insert(0, {str(ROOT)!r}); os.chdir({str(tmp_path)!r}); " + (
        f"os.rmdir({str(tmp_path)!r}); runpy.run_path({str(ROOT / script)!r}, run_name='__main__')"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert ended.stderr.endswith("the current folder is not there any more: change to another one\n")
    assert ended.stderr.count("\n") == 1


def test_a_closed_stdout(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["blocks", "se"]) == 0
    sys.stdout.close()  # the one that took its place


def test_letters_that_the_encoding_lacks(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    with pytest.raises(SystemExit) as end:
        main(["train", "--help"])
    sys.stdout.flush()
    assert end.value.code == 0
    assert b"hfds/?" in written.getvalue()
