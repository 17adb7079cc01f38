"""Why blocks take more than twice the floor of docs/speed.md."""

REASONS: dict[str, str] = {}
