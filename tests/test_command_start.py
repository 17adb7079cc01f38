"""Ctrl-C while everything is still being imported."""

import os
import signal
import subprocess
import sys

import pytest

from tests.training import ROOT

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
