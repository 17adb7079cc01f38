"""How the text of a setting is read."""

from pathlib import Path

import pytest
import yaml

from visattn.cli import notation
from visattn.cli.parsing import CommandLine, parse
from visattn.files import configs_folder
from visattn.training.settings import Settings


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("010", 10),
        ("0o17", 15),
        ("0x10", 16),
        ("-3", -3),
        ("1e-3", 1e-3),
        (".5", 0.5),
        ("1:30", "1:30"),
        ("on", "on"),
        ("no", "no"),
        ("true", True),
        ("null", None),
        ("#1", "#1"),
        ("2026-01-02", "2026-01-02"),
        ("{a: 010, b: [on, ~]}", {"a": 10, "b": ["on", None]}),
    ],
)
def test_words(text, value):
    assert notation.load(text) == value
    assert type(notation.load(text)) is type(value)


@pytest.mark.parametrize("file", sorted(configs_folder().glob("*.yaml")), ids=lambda file: file.stem)
def test_configs_mean_what_they_meant(file):
    read, before = notation.load(file.read_text()), yaml.safe_load(file.read_text())
    assert {key: float(value) if key == "lr" else value for key, value in read.items()} == {
        key: float(value) if key == "lr" else value for key, value in before.items()
    }


@pytest.mark.parametrize("name", ["1e3", "0o17", "0x10", ".5", "-3", "on", "no", "1:30", "2026-01-02", "'", "a: #b"])
def test_a_run_is_read_again_with_its_name(tmp_path, name):
    config = tmp_path / "config.yaml"
    config.write_text(CommandLine(Settings(name=name, model_options={"a": [name]}), {}, {}).to_yaml([]))
    again = parse(["--config", str(config)]).settings
    assert (again.name, again.model_options) == (name, {"a": [name]})


def test_where_weights_come_from_stays_on_the_command_line(tmp_path):
    options = "{drop_rate: 0.5, pretrained_cfg_overlay: {file: mine.pth}}"
    command = parse(["--pretrained", "--model-options", options])
    assert command.settings.model_options["pretrained_cfg_overlay"] == {"file": "mine.pth"}
    config = tmp_path / "config.yaml"
    config.write_text(command.to_yaml(["--pretrained", "--model-options", options]))
    assert "mine.pth" in config.read_text().splitlines()[0]
    assert parse(["--config", str(config)]).settings.model_options == {"drop_rate": 0.5}


def test_flags():
    settings = parse(["--seed", "010", "--name", "#1", "--out", "~/runs", "--model-options", "{a: off}"]).settings
    assert (settings.seed, settings.name, settings.out) == (10, "#1", str(Path("~/runs").expanduser()))
    assert settings.model_options == {"a": "off"}
