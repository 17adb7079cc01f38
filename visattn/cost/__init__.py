"""What attention costs: time and memory of blocks, of whole networks, and how they grow; ``visattn bench``."""

from visattn.cost.blocks import BlockRow, bench_blocks
from visattn.cost.budget import BudgetRow, bench_budget
from visattn.cost.growth import GrowthRow, bench_growth
from visattn.cost.networks import ModelRow, bench_models
from visattn.cost.results import Machine, Report
from visattn.cost.rivals import RIVALS, build_rival

__all__ = [
    "RIVALS",
    "BlockRow",
    "BudgetRow",
    "GrowthRow",
    "Machine",
    "ModelRow",
    "Report",
    "bench_blocks",
    "bench_budget",
    "bench_growth",
    "bench_models",
    "build_rival",
]
