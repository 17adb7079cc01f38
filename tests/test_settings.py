"""The command line and the configuration files."""

import inspect
import json
import re
from dataclasses import fields

import pytest
import torch
import yaml
from lightning.pytorch import Trainer

from visattn.cli.flags import MANAGED
from visattn.cli.parser_messages import one_line
from visattn.cli.parsing import parse
from visattn.cli.settings_parser import read_settings
from visattn.cli.trainer_flags import trainer_flags
from visattn.files import configs_folder
from visattn.training.runs import find_run
from visattn.training.settings import Settings
from visattn.training.signals import Signals
from visattn.training.trainer import create_trainer

CONFIGS = sorted(configs_folder().glob("*.yaml"))


def test_without_arguments_the_newcomer_is_served():
    settings = parse([]).settings
    assert settings == Settings()
    assert (settings.model, settings.data) == ("resnet_cbam", "digits")


def test_everyday_flags():
    request = parse(
        [
            "--model", "resnet50", "--attn", "cbam", "--data", "imagenette", "--epochs", "7", "--batch-size", "32",
            "--lr", "0.1", "--devices", "4", "--num-nodes", "2", "--precision", "bf16-mixed", "--seed", "3",
            "--pretrained", "--freeze-backbone", "--compile", "--no-channels-last",
        ]
    )  # fmt: skip
    assert request.settings == Settings(
        model="resnet50", attn="cbam", data="imagenette", epochs=7, batch_size=32, lr=0.1, devices="4", num_nodes=2,
        precision="bf16-mixed", seed=3, pretrained=True, freeze_backbone=True, compile=True,
    )  # fmt: skip
    assert request.trainer == {}


def test_dictionaries_and_lightnings_own_arguments():
    request = parse(
        ["--attn-options", "{rd_ratio: 0.125}", "--trainer.limit_val_batches", "2", "--trainer.callbacks+=Timer"]
    )
    assert request.settings.attn_options == {"rd_ratio": 0.125}
    assert request.trainer["limit_val_batches"] == 2
    assert [type(callback).__name__ for callback in request.trainer["callbacks"]] == ["Timer"]


@pytest.mark.parametrize("name", ["Timer", "StochasticWeightAveraging", "BackboneFinetuning"])
def test_the_configuration_has_what_was_given_to_a_class_and_not_its_defaults(name):
    given = {"swa_lrs": 0.5} if name.startswith("Stoch") else {}
    request = parse([f"--trainer.callbacks+={json.dumps({'class_path': name, 'init_args': given})}"])
    (callback,) = yaml.safe_load(request.to_yaml([]))["trainer"]["callbacks"]
    assert callback["class_path"].endswith(f".{name}")
    assert callback.get("init_args", {}) == given
    assert type(request.trainer["callbacks"][0]).__name__ == name


def test_resume_alone_and_with_a_folder(tmp_path):
    assert parse(["--resume"]).settings.resume == "last"
    (tmp_path / "config.yaml").write_text("model: resnet50\nepochs: 9\n")
    settings = parse(["--resume", str(tmp_path), "--epochs", "12"]).settings
    assert (settings.model, settings.epochs, settings.resume) == ("resnet50", 12, str(tmp_path))


def test_the_flags_of_lightnings_trainer_are_read_without_importing_it():
    flags = dict(trainer_flags())
    assert [*flags] == [name for name in inspect.signature(Trainer).parameters if name not in MANAGED]
    assert flags["max_steps"].startswith("Stop training after this number of steps.")
    assert flags["max_steps"].endswith("(type: int, default: -1)")


@pytest.mark.parametrize(("flag", "reader"), [("--help", read_settings), ("--trainer.help", parse)])
def test_the_help_lists_no_flag_that_is_refused(flag, reader, capsys):
    with pytest.raises(SystemExit):
        reader([flag], "train.py")
    listed = set(re.findall(r"(?<=\s)--[\w.-]+", capsys.readouterr().out.partition("options:")[2]))
    assert {"--model", "--config", "--trainer.max_steps"} <= listed
    assert not {flag for flag in listed if "config" in flag or flag == "--trainer"} - {"--config"}


def test_a_file_first_and_flags_on_top(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("model: resnet50\nlr: 0.5\ntrainer:\n  log_every_n_steps: 3\n")
    request = parse(["--lr", "0.25", "--config", str(file)])  # wherever it stands
    assert request.settings.model == "resnet50"
    assert request.trainer == {"log_every_n_steps": 3}
    assert parse(["--config", str(file), "--lr", "0.25"]).settings.lr == 0.25


def test_what_a_run_writes_down_repeats_it(tmp_path):
    arguments = [
        "--model",
        "resnet_se",
        "--lr",
        "0.3",
        "--trainer.limit_val_batches",
        "2",
        "--attn-options",
        "{rd_ratio: 0.5}",
    ]
    request = parse(arguments)
    file = tmp_path / "config.yaml"
    file.write_text(request.to_yaml(arguments))
    again = parse(["--config", str(file)])
    assert again.settings == request.settings
    assert again.trainer == request.trainer
    assert file.read_text().startswith("# python train.py --model resnet_se --lr 0.3")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--modell", "resnet18"], r"unknown flag '--modell': did you mean '--model'"),
        (["--batchsize", "3"], r"unknown flag '--batchsize': did you mean '--batch-size'"),
        (["--trainer.limit_val_batchs", "3"], r"did you mean '--trainer.limit_val_batches'"),
        (["--epochs", "many"], "epochs: expected int. Got value: many"),
        (["--epochs", "0"], "--epochs must be at least 1, got 0"),
        (["--lr", "-1"], "--lr must be above 0, got -1"),
        (["--batch-size", "3", "--mixup", "0.2"], "--batch-size 3 must be even"),
        (["--workers", "-1"], "--workers must be at least 0, got -1"),
        (["--label-smoothing", "2"], "--label-smoothing must be below 1, got 2"),
        (["--trainer.fast_dev_run", "true"], "cannot be set here: try --epochs 1"),
        (["--ema", "2"], "--ema must be below 1, got 2"),
        (["--difficulty", "hard"], "difficulty"),
        (["--config", "imagenete"], r"unknown configuration 'imagenete': did you mean 'imagenette'"),
    ],
)
def test_mistakes_are_explained_in_one_line(arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        parse(arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modle: resnet18", r"unknown key 'modle' in .*mine.yaml: did you mean 'model'"),
        ("trainer:\n  bechmark: true", r"unknown key 'trainer.bechmark' in .*: did you mean 'trainer.benchmark'"),
        ("- 1\n- 2", "is not a settings file"),
        ("model: [", "is not YAML"),
    ],
)
def test_mistakes_in_a_file_are_explained(tmp_path, text, message):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        parse(["--config", str(file)])


def test_all_recipes_are_there():
    names = {path.stem for path in CONFIGS}
    assert names == {
        "digits", "imagenette", "imagewoof", "imagenet100", "imagenet_8gpu", "imagenet_multinode", "vit_imagenette",
        "hard_digits", "ram_mnist", "ram_fashion",
    }  # fmt: skip


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_recipe_is_complete_and_says_what_to_expect(path):
    values = yaml.safe_load(path.read_text())
    run = {"name", "resume"}
    assert set(values) - {"trainer"} == {field.name for field in fields(Settings)} - run
    request = parse(["--config", path.stem])
    assert request.settings.model == values["model"]
    header = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert header[0].startswith(f"# python train.py --config configs/{path.name}")
    for word in ("Hardware:", "Time:", "Score:"):
        assert any(word in line for line in header), word


@pytest.fixture
def untouched():
    """torch's own switches, put back afterwards."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    yield before
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.benchmark = before[1]


def speed(*arguments):
    """What creating a trainer leaves in torch's switches."""
    request = parse([*arguments, "--trainer.logger", "false", "--name", "speed"])
    create_trainer(request.settings, find_run(request.settings, ""), request.trainer, Signals())
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*GPU available.*", "ignore:.*pynvml.*")
def test_a_gpu_is_used_at_full_speed_unless_told_otherwise(untouched, monkeypatch):
    assert speed() == untouched == speed("--matmul-precision", "medium")  # on the CPU nothing changes
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert speed("--trainer.accelerator", "cpu", "--matmul-precision", "medium") == untouched
    assert speed() == ("high", True)
    assert speed("--matmul-precision", "highest", "--trainer.benchmark", "false") == ("highest", False)
    deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        assert speed("--matmul-precision", "medium", "--trainer.deterministic", "true") == ("medium", False)
    finally:
        torch.use_deterministic_algorithms(deterministic)


class Base:
    def __init__(self, device=None, **others):
        pass

    class Inner(dict):
        pass


class Derived(Base):
    def __init__(self, device=None, **others):
        pass


def function(device=None):
    pass


@pytest.mark.parametrize(
    ("name", "hint"), [("Derived", ": did you mean 'device'?"), ("Base.Inner", ""), ("function", "")]
)
def test_an_argument_that_nothing_takes(name, hint):
    message = f"Problem with given class_path '{__name__}.{name}': Option 'devcie' is not accepted"
    assert one_line(message) == f"{name.rpartition('.')[2]} has no argument 'devcie'{hint}"
