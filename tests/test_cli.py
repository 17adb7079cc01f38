import runpy
import sys

import pytest
import timm
from PIL import Image

import visattn
from visattn.blocks import block_info
from visattn.cli import main
from visattn.counting import count_macs, count_parameters


def test_blocks_prints_every_block_with_its_figures(capsys):
    assert main(["blocks"]) == 0
    rows = {line.split("│")[1].strip(): line for line in capsys.readouterr().out.splitlines() if line.startswith("│")}
    assert sorted(rows) == visattn.list_blocks()
    for name, row in rows.items():
        block = visattn.create_block(name, 256)
        _, _, family, parameters, macs, paper, _ = (cell.strip() for cell in row.split("│"))
        assert family == block_info(name).family
        assert parameters == f"{count_parameters(block):,}"
        assert macs == f"{count_macs(block, 1, 256, 14, 14):,}"
        assert paper == block_info(name).paper


def test_blocks_can_be_filtered(capsys):
    assert main(["blocks", "nonlocal*", "--family", "self"]) == 0
    output = capsys.readouterr().out
    assert "nonlocal_concat" in output
    assert "cbam" not in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--family", "chanel"], "did you mean 'channel'"),
        (["xyz*"], "no block matches 'xyz*'"),
        (["cbm"], "did you mean 'cbam'"),
    ],
)
def test_mistakes_are_one_line(arguments, message, capsys):
    assert main(["blocks", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [(["--version"], 0, f"visattn {visattn.__version__}\n"), (["blocks", "--famly"], 2, ""), ([], 2, "")],
)
def test_the_module_is_the_command(arguments, code, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["visattn", *arguments])
    with pytest.raises(SystemExit) as end:
        runpy.run_module("visattn", run_name="__main__")
    assert (end.value.code, capsys.readouterr().out) == (code, said)


@pytest.mark.parametrize(
    "arguments",
    [
        ["heatmap", "--weights", "\x1b[31mmodel", "--image", "\x1b[31ma.png", "--method", "gradcam"],
        [
            "evaluate",
            "--weights",
            "\x1b[31mmodel",
            "--data",
            "\x1b[31ma.png",
            "--methods",
            "gradcam",
            "--metrics",
            "srg",
        ],
    ],
    ids=["heatmap", "evaluate"],
)
def test_a_terminal_is_told_nothing_by_the_names_of_files(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    visattn.save_model(timm.create_model("test_resnet", num_classes=2), "\x1b[31mmodel")
    Image.new("RGB", (64, 64), "red").save("\x1b[31ma.png")
    assert main([*arguments, "--out", "\x1b[31mout"]) == 0
    printed, said = capsys.readouterr()
    assert "\ufffd[31mout/index.html" in printed
    assert "\x1b" not in printed + said
