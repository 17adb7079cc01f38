"""The signals that end a run: Ctrl-C, SIGTERM, and any others that are listened for."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from enum import Enum, auto
from types import FrameType, TracebackType
from typing import Any

from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher

from visattn.constants import TOO_EARLY
from visattn.training.ranks import is_first

ECHO = 2.0  # seconds within which a repeated signal counts once: schedulers and timeout(1) send it twice


class Interrupted(BaseException):
    """The run was stopped by a signal.

    It is not an Exception, so that error handlers on the way do not catch it.

    Args:
        number: number of the signal.
        folder: folder of the run, if it can be resumed.
    """

    def __init__(self, number: int, folder: str | os.PathLike[str] | None = None) -> None:
        super().__init__(number, folder)
        self.number, self.folder = number, folder


class On(Enum):
    """What the first signal does."""

    RAISE = auto()  # Interrupted, wherever the program is
    LEAVE = auto()  # end the process: while processes are connecting, Python's own handlers do not run
    NOTE = auto()  # nothing yet: `number` is read when the time is right


class Signals:
    """Listen from the beginning of a run to its end; a second signal ends the process at once.

    Python runs handlers between two lines of the main thread, and so never while it waits for another process. What
    must happen in any case is done by a thread that the interpreter wakes as soon as a signal arrives.
    """

    def __init__(self) -> None:
        self.number = 0  # of the first signal, 0 if there was none
        self.first = On.RAISE
        self.requeue: int | None = None  # the signal after which SLURM should requeue the job
        self.launcher: _SubprocessScriptLauncher | None = None  # of the other processes, if this one started them
        self._before: dict[int, Any] = {}
        self._listens = threading.current_thread() is threading.main_thread()  # Python delivers signals to no other

    def __enter__(self) -> Signals:
        if self._listens:
            wakeups, self._wake = socket.socketpair()
            self._wake.setblocking(False)
            self._wake_before = signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
            threading.Thread(target=self._watch, args=(wakeups,), daemon=True, name="signals").start()
            for number in (signal.SIGINT, signal.SIGTERM):
                self.listen(number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._listens:
            for number, handler in self._before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(self._wake_before)
            self._wake.send(b"\0")
            self._wake.close()

    def listen(self, number: int) -> None:
        """Listen for one more signal."""
        if self._listens and number not in self._before:
            self._before[number] = signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.number == 0:
            self.number = number
            if self.first is On.RAISE:
                raise Interrupted(number)

    def _watch(self, wakeups: socket.socket) -> None:
        began = None
        with wakeups:
            while number := wakeups.recv(1)[0]:
                if number not in self._before:
                    continue  # not ours, such as the end of a child process
                began = began or time.monotonic()
                if self.first is On.LEAVE:
                    if is_first():
                        print(TOO_EARLY, file=sys.stderr, flush=True)
                    self._leave(number)
                if time.monotonic() - began > ECHO:
                    self._leave(number)

    def _leave(self, number: int) -> None:
        if self.launcher is not None:
            self.launcher.kill(signal.SIGKILL)
        os._exit(128 + number)
