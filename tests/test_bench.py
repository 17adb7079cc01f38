"""What things cost: ``visattn bench`` and ``visattn.cost``. Nothing here asserts on time."""

import itertools
import json
import math
import os
import re
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn

import visattn
from benchmarks import speed
from benchmarks.speed_page import UNEXPLAINED, speed_page
from visattn.blocks import create_block
from visattn.cli import main
from visattn.cost import RIVALS, bench_blocks, bench_budget, bench_growth, bench_models, build_rival
from visattn.cost.contest import Contestant, contest
from visattn.cost.memory import foreseen_bytes, free_bytes, kept_bytes, peak_bytes
from visattn.cost.settings import Setting
from visattn.cost.timing import Spread, interleaved
from visattn.counting import count_macs, count_parameters

CPU = torch.device("cpu")
TRAIN = Setting("train", "fp32", "off", "nchw")
SPREAD = {"median", "low", "high"}


def run(capsys, line):
    """Exit code, stdout and stderr of a command."""
    code = main(["bench", *line.split()])
    said = capsys.readouterr()
    return code, said.out, said.err


# --- memory ---------------------------------------------------------------------------------------------------------


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16, 1, 1))

    def forward(self, x):
        return x * torch.sigmoid(x) * self.weight


def test_kept_bytes_are_exact():
    x = torch.randn(2, 16, 8, 8, requires_grad=True)
    assert kept_bytes(lambda: x * torch.sigmoid(x), nn.Identity()) == 2 * x.nbytes  # x and its sigmoid
    gated = Gated()
    # x, its sigmoid and their product; the weight is not the step's
    assert kept_bytes(lambda: gated(x), gated) == 3 * x.nbytes


def test_a_storage_is_kept_once():
    x = torch.randn(4, 100, requires_grad=True)
    assert kept_bytes(lambda: (x[:2] * x[2:], x.exp()), nn.Identity()) == 2 * x.nbytes


def test_nothing_is_kept_without_gradients():
    x = torch.randn(4, 100)
    assert kept_bytes(lambda: x * torch.sigmoid(x), nn.Identity()) == 0


def test_peak_bytes_are_exact():
    x = torch.randn(1000)
    assert peak_bytes(lambda: x.exp(), CPU) == x.nbytes
    assert peak_bytes(lambda: x.exp().exp().exp(), CPU) == 2 * x.nbytes  # one is gone before the third is made
    y = torch.randn(1000, requires_grad=True)
    # Its result, which is kept, and the gradient of y; the one that is fed was there before.
    assert peak_bytes(lambda: y.exp().backward(x), CPU) == 2 * x.nbytes


def test_the_peak_includes_what_an_operator_holds_inside():
    """A counter of tensors would not see the copy of a map that is not contiguous."""
    x = torch.randn(1, 8, 32, 32)
    weight = torch.randn(8, 8, 3, 3)
    assert peak_bytes(lambda: torch.nn.functional.conv2d(x, weight, padding=1), CPU) >= x.nbytes


@pytest.mark.parametrize("name", ["se", "cbam", "nonlocal_concat", "simam", "hard", "sk"])
def test_the_forecast_is_close(name):
    block, shape = visattn.create_block(name, 32), (2, 32, 20, 20)
    x, gradient = torch.randn(shape, requires_grad=True), torch.randn(shape)
    before = {key: value.clone() for key, value in block.state_dict().items()}
    foreseen = foreseen_bytes(block, shape, torch.float32, train=True)
    assert all(torch.equal(value, before[key]) for key, value in block.state_dict().items())
    assert all(parameter.grad is None for parameter in block.parameters())
    own = sum(tensor.nbytes for tensor in block.state_dict().values())
    needed = peak_bytes(lambda: block(x).backward(gradient), CPU) + own + 2 * x.nbytes
    assert 0.7 < foreseen / needed < 1.6  # of the plain formula: the primitives need less
    assert foreseen_bytes(block, shape, torch.bfloat16, train=True) == foreseen // 2


def test_free_memory():
    free = free_bytes(CPU)
    assert free is None or 0 < free < 2**50
    assert free_bytes(torch.device("meta")) is None


# --- time -----------------------------------------------------------------------------------------------------------


def test_a_step_without_memory_for_it_is_refused_before_the_block_is_built(monkeypatch):
    built = []

    def create(*arguments, **options):
        built.append(options.get("device"))
        return create_block(*arguments, **options)

    monkeypatch.setattr("visattn.cost.blocks.create_block", create)
    monkeypatch.setattr("visattn.cost.contest.free_bytes", lambda device: 6_000_000)  # the weights have 0.5 MB
    (left_out,) = bench_blocks("se", "1x1024x32x32", mode="train", repeats=1).left_out
    assert "GB of memory" in left_out[1]
    assert built == ["meta"]


def test_steps_take_turns_and_none_always_follows_the_same_other():
    ran = []
    steps = [lambda: ran.append("a"), lambda: ran.append("b"), lambda: ran.append("c"), lambda: ran.append("d")]
    seconds = interleaved(steps, 20, CPU)
    assert [len(each) for each in seconds] == [20] * 4
    assert ran[-160::2] == ran[-159::2]  # each is run twice, and the second time is taken
    measured = "".join(ran[-160::2])
    rounds = [measured[start : start + 4] for start in range(0, 80, 4)]
    assert all(sorted(each) == list("abcd") for each in rounds)
    for step in "abcd":  # what was run before decides about caches and memory
        before = Counter(one for one, two in itertools.pairwise(measured) if two == step)
        assert min(before[other] for other in "abcd" if other != step) >= 3


def test_rounds_end_after_a_while_unless_their_number_is_given(monkeypatch):
    def rounds(repeats):
        (seconds,) = interleaved([lambda: None], repeats, CPU)
        return len(seconds)

    assert rounds(None) == 20
    monkeypatch.setattr("visattn.cost.timing.ENOUGH", 0)
    assert rounds(None) == 3
    assert rounds(5) == 5


def test_ratios_are_those_within_a_round():
    (measured,) = contest([Contestant(nn.Conv2d(4, 4, 1), TRAIN, torch.randn(2, 4, 3, 3, requires_grad=True))], 3)
    ratio = measured.over(measured)
    assert ratio.forward == ratio.forward_backward == ratio.step == Spread(1.0, 1.0, 1.0)


def test_gradients_flow_to_the_input_and_the_parameters():
    x = torch.randn(2, 32, 5, 5, requires_grad=True)
    contestant = Contestant(visattn.create_block("se", 32), TRAIN, x)
    contestant.forward_backward()
    assert contestant.gradient.unique().numel() > 1, "the gradient of a sum is one number, expanded"
    first = x.grad.clone()
    assert all(parameter.grad.any() for parameter in contestant.own.parameters())
    contestant.forward_backward()
    assert torch.equal(x.grad, first), "gradients do not add up"
    assert contestant.peak() > 0
    assert x.grad is None


# --- rivals ---------------------------------------------------------------------------------------------------------


def ordered(*names):
    """Our parameters, module by module in timm's order."""
    return lambda own: [own[each] for each in sorted(own, key=lambda each: names.index(each.split(".")[0]))]


def padded(table):
    """A position table with the rows that timm has and does not read."""
    return nn.functional.pad(table, (0, 0, 6, 0))


def halo_parameters(own):
    """Keys and values head by head, and longer tables."""
    query, *key_value = (each.reshape(8, 4, -1) for each in own["qkv.weight"].chunk(3))
    return [query, torch.cat(key_value, dim=1), padded(own["rel_h"]), padded(own["rel_w"])]


# Where timm's parameters are not simply ours in the same order: what they are, made of ours.
THEIRS = {
    "nonlocal": ordered("theta", "phi", "g", "out", "bn"),
    "mhsa": ordered("qkv", "rel_h", "rel_w"),
    "halo": halo_parameters,
    "lambda": lambda own: [
        torch.cat([own["query.weight"], own["key.weight"], own["value.weight"]]),
        *(own[f"bn_{each}.{kind}"] for each in ("query", "value") for kind in ("weight", "bias")),
        own["embedding.weight"],
        torch.zeros(16),
    ],
}
MORE = {"halo": lambda channels: 2 * 6 * channels // 8, "lambda": lambda channels: 16}  # parameters that only timm has
SIDE = {"halo": 16}  # of the maps; 14 for all others


@pytest.mark.parametrize("name", RIVALS)
@pytest.mark.parametrize("channels", [64, 256])
def test_rivals_have_our_parameters(name, channels):
    side = SIDE.get(name, 14)
    ours, theirs = visattn.create_block(name, channels), build_rival(name, channels, side, side)
    assert type(theirs).__name__ == RIVALS[name][0]
    assert count_parameters(theirs) == count_parameters(ours) + MORE.get(name, lambda _: 0)(channels)
    x = torch.randn(2, channels, side, side)
    assert theirs(x).shape == x.shape


@pytest.mark.parametrize("name", RIVALS)
def test_rivals_compute_what_ours_do(name):
    torch.manual_seed(0)
    side = SIDE.get(name, 14)
    ours, theirs = visattn.create_block(name, 32).double(), build_rival(name, 32, side, side).double()
    for parameter in ours.parameters():
        nn.init.normal_(parameter, std=0.1)
    own = dict(ours.named_parameters())
    with torch.no_grad():
        values = THEIRS[name](own) if name in THEIRS else list(own.values())
        for parameter, value in zip(theirs.parameters(), values, strict=True):
            swapped = name in ("cbam", "spatial") and parameter.shape[1:] == (2, 7, 7)  # [mean, max], not [max, mean]
            parameter.copy_(value.flip(1) if swapped else value.reshape(parameter.shape))
    if name == "nonlocal":
        theirs.scale = 16**-0.5  # the difference that is documented
    x = torch.randn(2, 32, side, side, dtype=torch.float64)
    tolerance = 1e-4 if name == "gc" else 1e-10
    assert torch.allclose(ours.eval()(x), theirs.eval()(x), rtol=0, atol=tolerance)


def test_rivals_are_named_where_they_differ():
    different = {name for name, (_, difference) in RIVALS.items() if difference}
    assert different == {"eca", "gc", "nonlocal", "mhsa", "halo", "lambda"}


def test_there_is_no_rival_for_maps_that_it_does_not_take():
    assert build_rival("halo", 32, 14, 16) is None  # no whole blocks
    (row,) = bench_blocks("halo", "2x32x7x7", mode="eval", against="timm", repeats=1).rows
    assert row.to_rival is None


# --- rows -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_block_gets_a_row():
    found = bench_blocks("all", "2x32x8x8", repeats=1, threads=1)
    assert not found.left_out
    assert [(row.setting.mode, row.block) for row in found.rows] == [
        (mode, name) for mode in ("train", "eval") for name in visattn.list_blocks()
    ]
    for row in found.rows:
        block = visattn.create_block(row.block, 32)
        assert (row.cost.parameters, row.cost.macs) == (count_parameters(block), count_macs(block, 1, 32, 8, 8))
        assert row.cost.forward.low <= row.cost.forward.median <= row.cost.forward.high
        assert row.cost.peak_bytes >= 2 * 32 * 8 * 8 * 4 or row.block == "fca"
        assert (row.cost.forward_backward is None) == (row.cost.kept_bytes is None) == (row.setting.mode == "eval")
        assert row.to_rival is None


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.slow
def test_against_timm(layout, dtype):
    found = bench_blocks(list(RIVALS), "2x32x8x8", layout=layout, dtype=dtype, against="timm", repeats=1)
    assert not found.left_out
    for row in found.rows:
        assert row.rival.parameters == pytest.approx(row.cost.parameters, rel=0.3)  # tables of positions, a bias
        assert row.multiply.parameters == 2 * 32
        assert row.to_rival.step.median > 0
        if row.setting.mode == "train":
            assert row.multiply.kept_bytes == 2 * 32 * 8 * 8 * (4 if dtype == "fp32" else 2)  # x; g is a parameter


def test_what_does_not_fit_is_left_out_with_its_reason(capsys):
    code, out, said = run(capsys, "--blocks se,psa --shape 2x6x4x4 --mode eval --repeats 1")
    assert code == 1
    assert "│ se " in out
    assert "psa at 2 x 6 x 4 x 4, eval, fp32, nchw: psa divides its output into four" in said


def test_what_needs_too_much_memory_is_left_out(capsys):
    code, out, said = run(capsys, "--blocks se --shape 99999x999x999x999 --mode eval --repeats 1")
    assert (code, out) == (2, "")
    assert re.search(r"needs about [\d.]+ GB of memory, [\d.]+ GB are free", said)


def test_a_plugin_s_block_may_raise_anything(monkeypatch):
    monkeypatch.setattr("visattn.cost.blocks.create_block", lambda *_, **__: 1 / 0)
    found = bench_blocks("se", "2x8x4x4", mode="eval", repeats=1)
    assert found.left_out == (("se at 2 x 8 x 4 x 4, eval, fp32, nchw", "ZeroDivisionError division by zero"),)
    assert "left out: se" in str(found)


@pytest.mark.slow
def test_networks():
    found = bench_models("test_resnet,test_resnet_cbam", batch_size=2, image_size=32, mode="train,eval", repeats=2)
    assert [(row.model, row.setting.mode) for row in found.rows] == [
        (model, mode) for mode in ("train", "eval") for model in ("test_resnet", "test_resnet_cbam")
    ]
    plain, attached = found.rows[:2]
    assert plain.step_to_first == plain.latency_to_first == Spread(1.0, 1.0, 1.0)
    assert attached.parameters > plain.parameters
    assert attached.kept_bytes > plain.kept_bytes > 0
    assert plain.image == (3, 32, 32)
    assert plain.throughput.median > 0


def test_a_network_that_does_not_fit_does_not_stop_the_others():
    found = bench_models("test_resnet,test_vit", batch_size=2, image_size=40, repeats=1)
    assert [row.model for row in found.rows] == ["test_resnet"]
    ((what, why),) = found.left_out
    assert what == "test_vit, eval, fp32, nchw"
    assert why


def test_a_transformer_is_built_for_the_size():
    found = bench_models("test_vit", batch_size=2, image_size=32, repeats=1)
    assert found.rows[0].image == (3, 32, 32)


def test_a_budget_is_sorted_with_a_line(capsys):
    found = bench_budget("test_resnet", 1.2, "se,cbam,lka,mhsa,ge", image_size=64, repeats=2)
    ratios = [row.ratio.median for row in found.rows]
    assert ratios == sorted(ratios)
    assert [row.fits for row in found.rows] == [ratio <= 1.2 for ratio in ratios]
    assert found.table(found.rows).line_after == sum(row.fits for row in found.rows)
    added = {row.block: row for row in found.rows}
    plain = visattn.create_model("test_resnet")
    with_se = visattn.create_model("test_resnet_se")
    assert added["se"].parameters == count_parameters(with_se) - count_parameters(plain)
    assert added["se"].macs == count_macs(with_se, 1, 3, 64, 64) - count_macs(plain, 1, 3, 64, 64)
    assert added["ge"].parameters == 0
    code, out, _ = run(capsys, "--budget 1000 --model test_resnet --blocks se --image-size 32 --repeats 1")
    assert code == 0
    assert "at most 1000 times the latency of test_resnet" in out


class AllPairs(visattn.blocks.NonLocal):
    """A non-local block that holds its weights."""

    def _context(self, query, key, value):
        return self._weights(query, key) @ value


@pytest.mark.usefixtures("_scratch_names")
def test_growth_finds_the_exponents():
    visattn.register_block("all_pairs", family="self", paper="2018")(AllPairs)
    found = bench_growth("all_pairs,nonlocal_dot", (8, 16, 32, 48), channels=16, repeats=1)
    memory = {row.block: row.memory_exponent for row in found.rows}
    assert memory["all_pairs"] == pytest.approx(2, abs=0.15)
    assert memory["nonlocal_dot"] == pytest.approx(1, abs=0.15)
    assert all(math.isfinite(row.time_exponent) for row in found.rows)


# --- files ----------------------------------------------------------------------------------------------------------


def check_content(content, kind):
    assert set(content) == {"made_by", "kind", "command", "machine", "rows", "left_out"}
    assert (content["made_by"], content["kind"]) == ("visattn bench", kind)
    assert {"cpu", "cores", "threads", "gpu", "torch", "timm", "date"} <= set(content["machine"])
    text = json.dumps(content)
    assert os.uname().nodename not in text or len(os.uname().nodename) < 4
    assert str(Path.home()) not in text
    assert str(speed.ROOT) not in text


def test_json_to_stdout(capsys):
    code, out, said = run(capsys, "--json --blocks se --shape 2x16x4x4 --against timm --repeats 1")
    assert (code, said) == (0, "")
    content = json.loads(out)
    check_content(content, "blocks")
    assert content["command"] == (
        "visattn bench --blocks se --shape 2x16x4x4 --dtype fp32 --compile off --layout nchw --against timm --repeats 1"
    )
    train, evaluation = content["rows"]
    assert (train["block"], train["family"], train["shape"]) == ("se", "channel", [2, 16, 4, 4])
    assert train["setting"] == {"mode": "train", "dtype": "fp32", "compile": "off", "layout": "nchw"}
    for key in ("cost", "multiply", "rival"):
        keys = {"parameters", "macs", "forward", "forward_backward", "peak_bytes", "kept_bytes"}
        assert set(train[key]) == keys
        assert set(train[key]["forward_backward"]) == SPREAD
    assert set(train["to_multiply"]["forward"]) == set(train["to_rival"]["forward_backward"]) == SPREAD
    assert evaluation["cost"]["kept_bytes"] is evaluation["cost"]["forward_backward"] is None


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("--model test_resnet,test_resnet_se --batch-size 2 --image-size 32 --repeats 1", "models"),
        ("--budget 1.5 --model test_resnet --blocks se --image-size 32 --repeats 1", "budget"),
    ],
)
def test_json_to_a_file(line, kind, tmp_path, capsys):
    code, out, _ = run(capsys, f"{line} --json {tmp_path}/found.json")
    assert code == 0
    assert "test_resnet" in out, "the table is printed as well"
    content = json.loads((tmp_path / "found.json").read_text())
    check_content(content, kind)
    assert "found.json" not in content["command"]


def test_a_report_prints_as_a_table(tmp_path):
    found = bench_blocks("se,eca", "2x16x4x4", mode="eval", repeats=1)
    header, first, second, caption = str(found).splitlines()
    assert header.split()[:3] == ["block", "shape", "setting"]
    assert (first.split()[0], second.split()[0]) == ("se", "eca")
    assert "median [quartiles]" in caption
    assert found.command.startswith("visattn.cost.bench_blocks(blocks='se,eca'")
    found.save(tmp_path / "found.json")
    found.save(tmp_path / "found.json")  # its own file may be replaced
    check_content(json.loads((tmp_path / "found.json").read_text()), "blocks")


def test_a_report_replaces_no_file_of_others(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"notes.txt' was not written by visattn bench: name another file"):
        bench_blocks("se", "2x16x4x4", mode="eval", repeats=1).save(tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_threads_and_random_numbers_are_left_alone():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    before = torch.get_num_threads()
    found = bench_blocks("se", "2x16x4x4", mode="eval", repeats=1, threads=2)
    assert found.machine.threads == 2
    assert torch.get_num_threads() == before
    assert torch.equal(torch.rand(3), expected)


def test_progress_is_tracked():
    seen = []
    bench_blocks("se,eca", "2x16x4x4", mode="eval", repeats=1, track=lambda jobs: (seen.extend(jobs), jobs)[1])
    assert [job[0] for job in seen] == ["se", "eca"]


@pytest.mark.slow(minutes=1)
def test_compiled():
    found = bench_blocks("se", "2x16x4x4", compile="on", against="timm", repeats=1)
    assert not found.left_out
    assert [row.setting.compile for row in found.rows] == ["on", "on"]


# --- the page -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_benchmark_writes_the_page(tmp_path, capsys):
    """The smoke mode: nothing but that all of it runs, and that the page shows what was measured."""
    speed.main(["--smoke", "--out", str(tmp_path)])
    results, page = tmp_path / "benchmarks" / "results", tmp_path / "docs" / "speed.md"
    contents = {part: json.loads((results / f"{part}.json").read_text()) for part in speed.PARTS}
    for part, content in contents.items():
        assert content["command"] == f"python -m benchmarks.speed {part} --smoke"
        assert not content["left_out"]
        assert content["rows"]
    text = page.read_text()
    assert text == speed_page(results)
    for words in (
        "## Beside timm",
        "### Evaluation, nhwc",
        "## Under torch.compile",
        "## Whole",
        "## All blocks",
        "## Grow",
    ):
        assert words in text
    assert (tmp_path / "docs" / "growth.png").stat().st_size > 1000

    def step(row, beside):
        return (row[beside]["forward_backward"] or row[beside]["forward"])["median"]

    rows = [row for row in contents["blocks"]["rows"] if row["block"] == "simam"]
    assert len(rows) == 2
    mean = math.exp(sum(math.log(step(row, "to_multiply")) for row in rows) / 2)
    floors = []
    for row in rows:
        (convolution,) = (each["cost"] for each in contents["blocks"]["convolutions"] if each["shape"] == row["shape"])
        seconds = row["cost"]["macs"] * convolution["forward_backward"]["median"] / convolution["macs"]
        floors.append(step(row, "cost") / (step(row, "multiply") + seconds))
    floor = math.exp(sum(map(math.log, floors)) / 2)
    assert f"| `simam` | {mean:.2f} | {floor:.2f} |" in text
    rows = [row for row in contents["timm"]["rows"] if row["block"] == "cbam" and row["setting"]["mode"] == "train"]
    ratios = [row["to_rival"]["forward_backward"]["median"] for row in rows]
    largest = f"{math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f} ({max(ratios):.2f})"
    summary = next(line for line in text.splitlines() if line.startswith("| `cbam`"))
    assert summary.split(" | ")[2] == largest
    page.unlink()
    speed.main(["--table", "--out", str(tmp_path)])
    assert page.read_text() == text

    speed.main(["blocks", "--blocks", "simam", "--smoke", "--out", str(tmp_path)])
    again = json.loads((results / "blocks.json").read_text())
    changed = [new["block"] for new, old in zip(again["rows"], contents["blocks"]["rows"], strict=True) if new != old]
    assert changed == ["simam", "simam"]
    assert set(again["again"]) == {"simam"}
    assert "whose ratios can be compared, but not their milliseconds: `simam`" in page.read_text()
    assert again["convolutions"] == contents["blocks"]["convolutions"]
    capsys.readouterr()


def test_the_page_in_the_repository_is_that_of_its_results():
    results = speed.ROOT / "benchmarks" / "results"
    measured = {part: results / f"{part}.json" for part in speed.PARTS if (results / f"{part}.json").is_file()}
    assert measured
    for part, path in measured.items():
        assert json.loads(path.read_text())["command"] == f"python -m benchmarks.speed {part}"
    text = (speed.ROOT / "docs" / "speed.md").read_text()
    assert text == speed_page(results), "run python -m benchmarks.speed --table"
    assert UNEXPLAINED not in text


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--smoke"], "--smoke needs --out: its figures mean nothing"),
        (["tim"], "unknown part 'tim'"),
        (["timm", "--blocks", "sq"], "--blocks: 'sq' is no block"),
        (["timm", "growth", "--blocks", "se"], "--blocks se: the rows of growth are not of single blocks"),
    ],
)
def test_the_benchmark_refuses_what_cannot_be_meant(flags, said, capsys):
    with pytest.raises(SystemExit, match="2"):
        speed.main(flags)
    assert said in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_half_precision_leaves_nothing_out(dtype):
    found = bench_blocks("se,cbam,coord,mhsa", "2x32x8x8", mode="eval", dtype=dtype, repeats=1)
    assert not found.left_out
