"""Every row of the tables in ``tests/bad_input``: one clear line, the right exit code, no traceback, no code run."""

import importlib
import pkgutil
import shlex
import shutil
import sys

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import tests.bad_input
import visattn
from tests.bad_input.case import Call, Command
from visattn.cli import main

NAMES = [found.name for found in pkgutil.iter_modules(tests.bad_input.__path__)]
TABLES = [importlib.import_module(f"tests.bad_input.{name}") for name in NAMES]
CASES = [case for table in TABLES for case in getattr(table, "CASES", [])]
COMMANDS = [case for case in CASES if isinstance(case, Command)]
CALLS = [case for case in CASES if isinstance(case, Call)]
LONGEST = 400  # letters of a message that a person still reads
FORBIDDEN = "forbidden.pth"  # a file that nothing may open, though files name it

watching: list[list[str]] = []  # where to note what a command reaches out for


@sys.addaudithook
def note(event, arguments):
    if watching and event in ("socket.connect", "socket.getaddrinfo", "os.system", "open"):
        named = str(arguments[0])
        address = event == "socket.connect" and isinstance(arguments[1], tuple)
        if address or event in ("socket.getaddrinfo", "os.system") or named.endswith(FORBIDDEN):
            watching[-1].append(f"{event} {arguments}")


@pytest.fixture(scope="session")
def good(tmp_path_factory):
    """A folder in which nothing is wrong."""
    folder = tmp_path_factory.mktemp("good")
    random = np.random.default_rng(0)
    for name in ("a", "b", *(f"photos/{kind}/{number}" for kind in ("cat", "dog") for number in range(4))):
        path = folder / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (40, 60, 3), np.uint8)).save(path)
    torch.manual_seed(0)
    visattn.save_model(timm.create_model("test_resnet", num_classes=2), folder / "model", classes=["cat", "dog"])
    return folder


@pytest.mark.usefixtures("_scratch_names")
@pytest.mark.parametrize("case", COMMANDS, ids=lambda case: case.line)
def test_command(case, good, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "here"
    shutil.copytree(good, folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)  # as python -m visattn has it
    (folder / FORBIDDEN).write_bytes(b"")
    if case.prepare is not None:
        case.prepare(folder)
    reached: list[str] = []
    watching.append(reached)
    try:
        code = main(shlex.split(case.line))
    except SystemExit as end:  # argparse
        code = end.code
    finally:
        watching.pop()
    printed, said = capsys.readouterr()
    assert "\x1b" not in printed + said, "a name told the terminal what to do"
    said = said.strip().splitlines()
    assert said, "nothing was said"
    assert case.says in said[-1]
    assert len(said[-1]) <= LONGEST
    assert not any("Traceback" in line for line in said)
    assert code == case.code
    assert not list(folder.rglob("executed")), "code of a stranger's was run"
    assert not reached, "a file made a command reach out"


@pytest.mark.parametrize("case", CALLS, ids=lambda case: case.name)
def test_call(case):
    with pytest.raises(case.raises) as error:
        case.do()
    assert case.says in str(error.value)
    assert len(str(error.value)) <= LONGEST
