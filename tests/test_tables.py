"""The commands that write the tables in ``docs/`` say in one line what they cannot do."""

import pytest

from tests import attention_families, families, survival, versions, zoo

WRONG = [
    (families, ["resnett"], "unknown family 'resnett': did you mean 'resnet'"),
    (families, ["visattn"], "unknown family 'visattn'"),
    (families, ["--all"], "unrecognized arguments: --all"),
    (attention_families, ["resnet", "swin_transformr"], "unknown family 'swin_transformr'"),
    (survival, ["resnet"], "unrecognized arguments: resnet"),
    (zoo, ["se"], "unrecognized arguments: se"),
    (versions, [], "the following arguments are required: version"),
    (versions, ["tests/test_capture.py"], "the following arguments are required: version"),
    (versions, ["new"], "'new' is neither a version of torch, such as 2.8, nor a file of tests"),
    (versions, ["2.6", "tests/nowhere.py"], "'tests/nowhere.py' is neither"),
]


@pytest.mark.parametrize(("command", "given", "said"), WRONG)
def test_one_line(command, given, said, capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(given)
    assert said in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("command", [families, attention_families, survival, versions, zoo])
def test_help(command, capsys):
    with pytest.raises(SystemExit, match="0"):
        command.main(["--help"])
    assert command.__doc__.splitlines()[0] in capsys.readouterr().out
