"""Wrong flags of the commands."""

from tests.bad_input.case import Command

CASES = [
    Command("predict --weights model --image nowhere.png", "no such file or folder"),
    Command(
        "predict --weights metrics.csv --image a.png",
        "'metrics.csv' is not a whole checkpoint: it is not a file of torch.save",
        prepare=lambda folder: (folder / "metrics.csv").write_text("epoch,loss\n0,1.5\n"),
    ),
    Command("train --model test_resnet_se --attn cbam", "already says 'se', so 'cbam' is one attention too many"),
    Command("predict --weights model --image a.png --top 0", "--top must be at least 1"),
    Command("predict --weights model --image '\x1b[31m.png'", "visattn: \ufffd[31m.png: no such file"),
    Command("predict --weights model --image a.png --device privateuseone", "device 'privateuseone' cannot be used"),
    Command("predict --model " + "a" * 3000 + " --image a.png", "unknown model 'aaa"),
    Command("predict --model resnet18.a9_in1k --image a.png", "unknown weights 'a9_in1k' of 'resnet18': did you mean"),
    Command("train --model resnet18.a9_in1k", "unknown weights 'a9_in1k' of 'resnet18': did you mean 'a"),
    Command("heatmap --weights model --image a.png --method gradcma", "did you mean 'gradcam'"),
]
