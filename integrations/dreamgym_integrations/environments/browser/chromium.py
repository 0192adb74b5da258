"""Browsers for this process: each is a thread with one Chromium, lent to one environment at a time.

BrowserGym keeps one Playwright for the whole process and starts two Chromiums with every reset, one of them for a chat
window. But Playwright's synchronous interface works only in the thread that started it. So BrowserGym gets a substitute
that uses each thread's own Playwright. Its `launch` lends the thread's one Chromium: a reset takes a fresh context in
it instead of two starts, and every launch, also the chat's, takes the Chromium that is found here.
"""

from __future__ import annotations

import asyncio
import atexit
import queue
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from dreamgym.errors import EnvironmentUnavailable, InvalidInput, MissingPackage

Result = TypeVar("Result")

SYSTEM_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
IDLE = 4
"""Most browsers that wait for the next environment; any more are closed."""
STOP_LIMIT_S = 10.0

_own = threading.local()


class _PerThread:
    """Takes the place of the one Playwright of the process in BrowserGym: each thread has one of its own."""

    @property
    def selectors(self) -> Any:
        return _own.playwright.selectors

    @property
    def chromium(self) -> _Chromium:
        chromium: _Chromium = _own.chromium
        return chromium


class _Lent:
    """A lent browser, which the borrower cannot close."""

    def __init__(self, browser: Any) -> None:
        self.new_context = browser.new_context

    def close(self) -> None:
        """Does nothing: the browser stays open for the next episode."""


class _Chromium:
    def __init__(self, playwright: Any) -> None:
        self._playwright = playwright
        self._browser: Any = None

    def launch(self, **options: object) -> _Lent:
        """The thread's browser, started if there is none or if it died. `options` is ignored; all are set here."""
        if self._browser is None or not self._browser.is_connected():
            self._browser = self._playwright.chromium.launch(
                executable_path=executable(self._playwright.chromium.executable_path),
                args=["--disable-features=OverlayScrollbars,ExtendedOverlayScrollbars"],
                ignore_default_args=["--hide-scrollbars"],
            )
        return _Lent(self._browser)

    def close(self) -> None:
        if self._browser is not None and self._browser.is_connected():
            self._browser.close()


def executable(own: str) -> str:
    """Playwright's own Chromium if it is installed, else the system's. Raises InvalidInput if there is none."""
    found = own if Path(own).exists() else next(filter(None, map(shutil.which, SYSTEM_BROWSERS)), None)
    if found is None:
        raise InvalidInput(
            "a browser environment needs Chromium: run `playwright install chromium`, or install chromium"
        )
    return found


class Browser:
    """A thread with a browser. It runs its calls one after the other."""

    def __init__(self) -> None:
        self.page: Any = None
        """BrowserGym's environment; only the thread touches it."""
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        # a daemon: a page that hangs must not keep the process from ending; Chromium ends with Playwright's pipe
        self._thread = threading.Thread(target=self._run, name="dreamgym-browser", daemon=True)
        self._thread.start()

    async def call(self, work: Callable[[], Result], limit_s: float) -> Result:
        """Run `work` in the thread. Raises EnvironmentUnavailable if that takes too long."""
        future: Future[Result] = Future()
        self._calls.put((future, work))
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), limit_s)
        except TimeoutError:
            raise EnvironmentUnavailable(f"the browser gave no answer within {limit_s:g} s") from None

    def stop(self) -> None:
        """Close the browser after the calls that it was given."""
        self._calls.put(None)

    def join(self) -> None:
        """Wait until the browser is closed, at most STOP_LIMIT_S: it may hang."""
        self._thread.join(STOP_LIMIT_S)

    def _run(self) -> None:
        fault: Exception | None = None
        try:
            _start()
        except Exception as error:  # noqa: BLE001 whatever keeps it from starting is what every call is told
            fault = error
        while (call := self._calls.get()) is not None:
            future, work = call
            if not future.set_running_or_notify_cancel():
                continue
            try:
                if fault is not None:
                    raise fault
                future.set_result(work())
            except Exception as error:  # noqa: BLE001 handed to the caller, in the other thread
                future.set_exception(error)
        if fault is None:
            try:
                _own.chromium.close()
                _own.playwright.stop()
            except Exception as error:  # noqa: BLE001 it died before; there is nobody left to tell
                del error


def _start() -> None:
    try:
        import browsergym.core
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise MissingPackage("a browser environment", "browser") from error
    _own.playwright = sync_playwright().start()
    _own.chromium = _Chromium(_own.playwright)
    browsergym.core._set_global_playwright(_PerThread())


class Browsers:
    """The browsers that are not in use. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Browser] = []

    def take(self) -> Browser:
        """A browser that nobody else uses."""
        with self._lock:
            return self._idle.pop() if self._idle else Browser()

    def give_back(self, browser: Browser) -> None:
        """Keep the browser for the next environment, or close it if enough are idle."""
        with self._lock:
            if len(self._idle) < IDLE:
                self._idle.append(browser)
                return
        browser.stop()

    def stop(self) -> None:
        """Close all idle browsers."""
        with self._lock:
            idle, self._idle = self._idle, []
        for browser in idle:
            browser.stop()
        for browser in idle:
            browser.join()


browsers = Browsers()
atexit.register(browsers.stop)
