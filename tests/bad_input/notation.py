"""Numbers, words and names that could be read in two ways."""

import sys

from tests.bad_input.case import Command
from tests.bad_input.configs import config
from tests.bad_input.plugins import plugin

HUGE = "9" * 5000

CASES = [
    config("epochs: 1\nepochs: 2\n", "odd.yaml is not YAML: 'epochs' is given twice (line 2)"),
    config("trainer: {max_steps: 1, max_steps: 2}\n", "'max_steps' is given twice (line 1)"),
    config("model_options: {drop_rate: 0, drop_rate: 1}\n", "'drop_rate' is given twice"),
    config("<<: {epochs: 3}\n", "unknown key '<<'"),
    config("lr: 1:30\n", "lr: expected float. Got value: 1:30"),
    config("trainer: {max_steps: 1:30}\n", "trainer.max_steps: expected int. Got value: 1:30"),
    config(f"seed: {HUGE}\n", "odd.yaml is not YAML: a number of 5,000 digits (line 1)"),
    config("compile: 0\n", "'compile' in odd.yaml is 0, not true or false"),
    config("pretrained: off\n", "'pretrained' in odd.yaml is 'off', not true or false"),
    config("trainer.max_steps: 1\n", "'trainer.max_steps' in odd.yaml: write 'max_steps' below 'trainer:'"),
    config("? [a]\n: 1\n", "odd.yaml is not YAML: a key is a word (line 1)"),
    config('name: "a\\ud800"\n', "is not UTF-8, and cannot be written to config.yaml"),
    config('name: "a\\x1b[31m"\n', "has letters in it that cannot be printed"),
    config('out: "two\\nlines"\n', "has letters in it that cannot be printed"),
    Command("train --seed 1:30", "seed: expected int. Got value: 1:30"),
    Command("train --lr=1:30.5", "lr: expected float. Got value: 1:30.5"),
    Command("train --model-options '{a: 1, a: 2}'", "model_options: expected dict"),
    Command("train --name '#1' --data folder --root '#photos'", "there is no folder '#photos'"),
    Command("train --data folder --root '~/nowhere-at-all'", "nowhere-at-all'"),
    Command("train --resume '~/nowhere-at-all'", "/nowhere-at-all'"),
    Command("predict --weights '~/nowhere-at-all' --image a.png", "/nowhere-at-all'"),
    Command(f"heatmap --weights model --image a.png --target {HUGE}", "unknown class '9999"),
    Command(f"heatmap --weights model --image a.png --heads {HUGE}", "--heads must be numbers or all, got '9999"),
    *(Command(f"heatmap --weights model --image a.png {flag}=--", f"{flag} is empty")
      for flag in ("--layers", "--heads", "--method", "--target", "--out", "--device") if sys.version_info < (3, 13)),
    Command(f"predict --weights model --image a.png --batch-size {10**20}", "--batch-size must be at most 65536"),
    Command("predict --image a.png --\x1b[31m", "unrecognized arguments: --\ufffd[31m"),
    Command("train \x1b[31m", "unrecognized arguments: \ufffd[31m"),
    Command("blocks ''", "pattern is empty"),
    plugin("odd_14.py", "raise BaseException('x')", "--plugin odd_14.py: line 1: BaseException: x"),
    plugin("odd_15.py", "raise GeneratorExit", "--plugin odd_15.py: line 1: GeneratorExit", line="train"),
]  # fmt: skip
