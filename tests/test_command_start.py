"""How a command starts: Ctrl-C while everything is still being imported, a folder that is gone, closed streams."""

import io
import os
import signal
import subprocess
import sys

import pytest
import timm
from PIL import Image

import visattn
from tests.tiers import mostly_slow
from tests.training import ROOT
from visattn.cli import main

SLOW = "import sys, time\nprint('importing', flush=True)\nwhile True: time.sleep(0.05)\n"


@pytest.mark.parametrize(
    ("script", "arguments", "said"),
    [
        ("train.py", [], "stopped before training began: nothing to save\n"),
        ("visattn_command.py", ["predict", "--image", "a.png"], ""),
        ("visattn_command.py", ["train"], "stopped before training began: nothing to save\n"),
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


@pytest.mark.parametrize("script", ["train.py", "visattn_command.py"])
@pytest.mark.parametrize(
    ("variable", "code", "said"),
    [("MPLBACKEND", 2, "nonsense"), ("LOCAL_RANK", 1, "LOCAL_RANK is no number: 'foo'")],
)
def test_an_environment_that_makes_no_sense(tmp_path, script, variable, code, said):
    run = f"import os, sys, runpy; sys.path.insert(0, {str(ROOT)!r}); sys.argv = ['visattn', 'train', '--nonsense']; "
    run += f"runpy.run_path({str(ROOT / script)!r}, run_name='__main__')"
    ended = subprocess.run(
        [sys.executable, "-c", run],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
        env={**os.environ, variable: "foo"},
    )
    assert ended.returncode == code
    assert "Traceback" not in ended.stderr
    assert said in ended.stderr


@pytest.mark.parametrize(
    ("said", "markersize"),
    [({"MATPLOTLIBRC": "mine"}, 9.0), ({"MATPLOTLIBRC": "", "MPLCONFIGDIR": ""}, 6.0)],
    ids=["set", "empty"],  # by the user
)
@pytest.mark.parametrize("content", [b"lines.linewidth: 7\n", b"\xff\xfe", b"lines.linewidth 7\nnonsense"])
def test_settings_of_matplotlib_in_the_current_folder_are_left_alone(tmp_path, content, said, markersize):
    (tmp_path / "matplotlibrc").write_bytes(content)
    (tmp_path / "mine").write_text("lines.markersize: 9\n")
    run = f"import os, sys; sys.path.insert(0, {str(ROOT)!r}); from visattn_command import begin; begin('train.py')"
    run += "; import matplotlib; print(matplotlib.rcParams['lines.linewidth'], matplotlib.rcParams['lines.markersize'])"
    ended = subprocess.run(
        [sys.executable, "-c", f"{run}; print(os.getcwd())"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
        env={**os.environ, **said},
    )
    assert ended.stderr == ""
    assert ended.stdout == f"1.5 {markersize}\n{tmp_path}\n"


@pytest.mark.parametrize("command", [["--help"], ["train", "--help"]])
def test_help_has_no_colours(monkeypatch, capsys, command):
    """Python's own, which could not be told from those that a name hides."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    with pytest.raises(SystemExit):
        main(command)
    said = capsys.readouterr().out
    assert said.startswith("usage: ")
    assert "\ufffd" not in said


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


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
@pytest.mark.parametrize("buffered", mostly_slow(["", "1"], ""))
@pytest.mark.parametrize("command", mostly_slow(["--help", "--version", "blocks", "train --help"], "blocks"))
@pytest.mark.slow
def test_a_full_disk_behind_stdout(command, buffered):
    arguments = command.split()
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, ROOT / "visattn_command.py", *arguments],
            env={**os.environ, "PYTHONUNBUFFERED": buffered, "PYTHONPATH": str(ROOT)},
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=300, check=False,
        )  # fmt: skip
    name = "visattn train" if arguments[0] == "train" else "visattn"
    assert (ended.returncode, ended.stderr) == (1, f"{name}: No space left on device\n")


def test_a_detour_to_a_new_folder_creates_nothing_on_the_way(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--out", "new/../there", "--model", "nothing"]) == 2
    assert main(["heatmap", "--out", "new/../there", "--image", "nothing", "--model", "test_vit"]) == 2
    assert main(["evaluate", "--out", "new/../there", "--model", "nothing"]) == 2
    assert not (tmp_path / "new").exists(), capsys.readouterr().err
    assert not (tmp_path / "there").exists()  # nothing was written


def test_a_file_that_becomes_too_large(tmp_path, monkeypatch, capsys):
    resource = pytest.importorskip("resource")
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (60, 40)).save("a.png")
    visattn.save_model(timm.create_model("test_resnet", num_classes=2), "model")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (15_000, before[1]))  # pictures are smaller, heatmaps are larger
    try:
        code = main(["heatmap", "--weights", "model", "--image", "a.png", "--method", "edge", "--out", "out"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "a_edge.npy' (File too large)" in capsys.readouterr().err
    assert code == 1
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.slow
def test_nothing_is_imported_from_the_current_folder(tmp_path):
    for name in ("rich", "yaml", "jsonargparse", "timm", "cv2"):
        (tmp_path / f"{name}.py").write_text("open('executed', 'w')")
    ended = subprocess.run(
        [sys.executable, "-m", "visattn", "blocks", "se"], cwd=tmp_path, capture_output=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert ended.returncode == 0
    assert not (tmp_path / "executed").exists()
