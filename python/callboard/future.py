"""What a submitted call gives: its result once it is there, for threads and for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from callboard import _checked, _native
from callboard.errors import DeadlineExceeded, from_fields

if TYPE_CHECKING:
    from callboard._native import NativeFuture, NativeProgram

__all__ = ["TensorFuture"]


# How often this process was forked off: a child has copies of its parent's futures, but not of the calls.
_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class TensorFuture:
    """The outcome of one call, exactly once: a result or an exception. Any thread may use it.

    Keep it until the call has ended: the end of the last reference to an unfinished future cancels the call, as
    cancel() does, since nobody can ask for its result any more. Otherwise such calls would go on, keep their devices
    busy and count as in flight, until later ones find no room (limits.requests_per_client in the cluster file).
    So a call that is made only for what it changes in the program's buffers has its future kept, or waited for, too.
    A result that was fetched stays valid without the future.
    """

    __slots__ = ("__weakref__", "_cache", "_finish", "_forks", "_hub", "_native")

    def __init__(self, native: NativeFuture, finish: Callable[[list[Any]], Any], hub: CompletionHub) -> None:
        self._native = native
        self._finish = finish
        self._hub = hub
        self._forks = _forks
        self._cache: dict[str, Any] = {}

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Only posts a message to the client's thread. At the interpreter's end the client's own end does the same; in a
        # forked child the thread is missing and its locks may be held for ever.
        with contextlib.suppress(Exception):
            if "result" not in self._cache and self._forks == _forks and not _is_finalizing():
                self._native.cancel()

    def get(self, timeout: float | None = None) -> Any:
        """The result in the module's own structure; raises what the call failed with. Waits, by default as long as the
        call's own deadline lets it. After `timeout` seconds DeadlineExceeded; the call itself goes on.
        """
        seconds = None if timeout is None else _checked.wait(timeout, "timeout", "None waits as long as it takes")
        if "result" not in self._cache:
            if seconds is not None and not self._native.wait(seconds):
                raise DeadlineExceeded(
                    f"no result within {seconds:g} s; the call goes on", hint="get() again, or cancel() it"
                )
            # Two threads may both finish it; the first result is kept, so that every get() gives the same object.
            return self._cache.setdefault("result", self._finish(self._results()))
        return self._cache["result"]

    def _results(self) -> list[Any]:
        try:
            return self._native.result()
        except _native.NativeError as failure:
            raise from_fields(failure.error) from None

    def wait(self) -> None:
        """Until the outcome is there, whatever it is."""
        self._native.wait(None)

    def wait_for(self, seconds: float) -> bool:
        """True if the outcome is there within `seconds`."""
        return self._native.wait(_checked.wait(seconds, "seconds", "wait() waits as long as it takes"))

    def is_ready(self) -> bool:
        """Is the outcome there?"""
        return self._native.is_ready()

    def cancel(self) -> None:
        """Asks the cluster to stop the call. It then ends with Cancelled, or with its result if that came first."""
        self._native.cancel()

    @property
    def state_version(self) -> int:
        """How many calls have changed the program's buffers, this one included; 0 if it has none or is not ready."""
        return self._native.state_version

    def __await__(self) -> Generator[Any, None, Any]:
        """Cancelling the task that awaits cancels the call."""
        if not self._native.is_ready():
            try:
                yield from self._hub.waiter(self._native).__await__()
            except asyncio.CancelledError:
                self._native.cancel()
                raise
        return self.get()

    def __repr__(self) -> str:
        return f"<TensorFuture {self._native.id}, {'ready' if self.is_ready() else 'running'}>"


class CompletionHub:
    """Wakes asyncio tasks when calls of one client end. The native client has one eventfd; every event loop with tasks
    that wait watches it, and whichever wakes first tells the others' tasks, too.
    """

    def __init__(self, client: _native.Client, on_event: Callable[[], None]) -> None:
        self._client = client
        self._descriptor = client.completion_fd()
        self._closed = False
        self._on_event = on_event  # the same descriptor reports actor events
        self._lock = threading.Lock()
        self._waiting: dict[int, list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]]] = {}
        self._watching: dict[asyncio.AbstractEventLoop, int] = {}
        self._batched: weakref.WeakSet[NativeProgram] = weakref.WeakSet()

    def close_with_client(self, batched: NativeProgram) -> None:
        """Its calls that wait for a batch are no calls of the client yet, whose end therefore does not end them."""
        with self._lock:
            self._batched.add(batched)

    def waiter(self, future: NativeFuture) -> asyncio.Future[None]:
        """Done soon after `future` is; belongs to the running loop."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if self._closed:
                loop.call_soon(_wake, waiter)  # the outcome is there
                return waiter
            self._waiting.setdefault(future.id, []).append((loop, waiter))
            self._watching[loop] = self._watching.get(loop, 0) + 1
            if self._watching[loop] == 1:
                loop.add_reader(self._descriptor, self._drain)
        waiter.add_done_callback(lambda _: self._forget(loop, future.id, waiter))
        future.notify()
        if future.is_ready():
            # Another task's notification may be consumed already.
            loop.call_soon(_wake, waiter)
        return waiter

    def _drain(self) -> None:
        completed = self._client.drain_completed()
        self._on_event()
        self._wake_all(completed)

    def close(self) -> None:
        """After the client was closed: every call has its outcome now, or gets it here."""
        with self._lock:
            batched = list(self._batched)
        for program in batched:
            program.close()
        with self._lock:
            self._closed = True
            for loop in [each for each in self._watching if each.is_closed()]:
                del self._watching[loop]
            waiting = list(self._waiting)
            self._release_if_unwatched()
        self._wake_all(waiting)

    def _release_if_unwatched(self) -> None:
        """Under the lock. The descriptor goes back once the client is closed and no event loop watches it any more: its
        number may be somebody else's at once.
        """
        if self._closed and not self._watching:
            self._client.close_completion_fd()

    def _wake_all(self, numbers: list[int]) -> None:
        with self._lock:
            woken = [entry for number in numbers for entry in self._waiting.pop(number, ())]
        for loop, waiter in woken:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_wake, waiter)

    def _forget(self, loop: asyncio.AbstractEventLoop, number: int, waiter: asyncio.Future[None]) -> None:
        with self._lock:
            entries = self._waiting.get(number, [])
            entries[:] = [entry for entry in entries if entry[1] is not waiter]
            if not entries:
                self._waiting.pop(number, None)
            self._watching[loop] -= 1
            if self._watching[loop] == 0:
                del self._watching[loop]
                loop.remove_reader(self._descriptor)
                self._release_if_unwatched()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
