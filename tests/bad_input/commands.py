"""Wrong flags of the commands."""

from tests.bad_input.case import Command

CASES = [
    Command("predict --weights model --image nowhere.png", "there is no such file or folder"),
    Command("predict --weights model --image a.png --top 0", "--top must be at least 1"),
    Command("heatmap --weights model --image a.png --method gradcma", "did you mean 'gradcam'"),
]
