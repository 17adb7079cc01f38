"""Measurements with the machine they were made on, as JSON."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from os import PathLike
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

import timm
import torch

from visattn import __version__
from visattn.core.arguments import functions
from visattn.cost.contest import why_left_out
from visattn.files import check_own, write_json
from visattn.tables import Table, as_text

MAKER = "visattn bench"  # as it says
Row = TypeVar("Row")
Job = TypeVar("Job")
Note: TypeAlias = Callable[[str, str], None]
Track: TypeAlias = Callable[[list[Any]], Iterable[Any]]


@dataclass(frozen=True)
class Machine:
    """What a figure depends on besides the code; nothing that says whose machine it is."""

    cpu: str
    cores: int
    threads: int
    gpu: str | None
    system: str
    python: str
    torch: str
    timm: str
    visattn: str
    load: float | None  # processes that wanted to run in the minute before
    date: str


@dataclass(frozen=True)
class Report(Generic[Row]):
    """What was measured.

    Args:
        kind: ``blocks``, ``models``, ``budget`` or ``growth``.
        command: that measures it again.
        machine: that it was measured on.
        rows: one per thing and setting.
        left_out: what could not be measured, and why.
        table: from rows to their table.
    """

    kind: str
    command: str
    machine: Machine
    rows: tuple[Row, ...]
    left_out: tuple[tuple[str, str], ...]
    table: Callable[[Any], Table]

    def content(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "made_by": MAKER,
            "kind": self.kind,
            "command": self.command,
            "machine": asdict(self.machine),
            "rows": [asdict(row) for row in self.rows],  # type: ignore[call-overload]  # rows are dataclasses
            "left_out": [{"what": what, "why": why} for what, why in self.left_out],
        }

    def save(self, path: str | PathLike[str]) -> None:
        """Write a JSON file; one that was not written by this function is not replaced."""
        check_own(Path(path), MAKER)
        write_json(Path(path), self.content())

    def measured_by(self, command: str) -> Report[Row]:
        """The same, measured by another command."""
        return replace(self, command=command)

    def __str__(self) -> str:
        left_out = [f"left out: {what} ({why})" for what, why in self.left_out]
        return "\n".join([as_text(self.table(self.rows)), *left_out])


def measure_all(
    jobs: list[Job],
    measure: Callable[[Job], Iterable[Row]],
    name: Callable[[Job], str],
    note: Note | None,
    track: Track | None,
) -> tuple[list[Row], tuple[tuple[str, str], ...]]:
    """The rows of all jobs, and what could not be measured, with the reason."""
    functions(note=note, track=track)
    rows: list[Row] = []
    left_out: list[tuple[str, str]] = []
    for job in track(jobs) if track is not None else jobs:
        try:
            rows += measure(job)
        except (Exception, SystemExit) as error:  # a block that does not fit, or a plugin's, can raise anything
            left_out.append((name(job), why_left_out(error)))
            if note is not None:
                note(*left_out[-1])
    return rows, tuple(left_out)


def this_machine(device: torch.device) -> Machine:
    """Describe the machine, with the number of threads in use now."""
    return Machine(
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        gpu=torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        system=platform.system(),
        python=platform.python_version(),
        torch=torch.__version__,
        timm=timm.__version__,
        visattn=__version__,
        load=round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        date=datetime.now(timezone.utc).date().isoformat(),
    )


def _cpu() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def as_call(function: str, **arguments: Any) -> str:
    """A call in Python as text.

    >>> as_call("bench_blocks", blocks="se", repeats=5)
    "visattn.cost.bench_blocks(blocks='se', repeats=5)"
    """
    return f"visattn.cost.{function}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"
