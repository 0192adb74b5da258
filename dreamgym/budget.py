"""A run's spending on language models: its limit, and what it has spent so far.

One run has one ledger, a file that its processes share. Before a call, the caller reserves the most that the call can
cost; after it, the caller settles with the real cost. So concurrent calls, even of several processes, stay within the
limit. Cached answers do not count as calls. Unknown usage counts as spent: a call that failed midway counts as the most
that it can have cost, and an endpoint that reports no tokens is not asked again if dollars or tokens are limited.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from pydantic import BaseModel

from dreamgym.errors import BudgetSpent, InvalidInput
from dreamgym.files import is_alive
from dreamgym.llm import LLM, Completion, FindsItsName, Message, Pingable, Reachable
from dreamgym.prices import PRICE_VARIABLE, Price, price_of
from dreamgym.types import Frozen, JsonObject, TokenUsage

LEDGER_VARIABLE = "DREAMGYM_LEDGER"
"""Environment variable with the path of the ledger's file, for the processes that a run starts."""
PREFIX = "dreamgym-ledger-"
OLD_S = 86_400
"""Age in seconds at which the ledger of a killed run is removed."""
AGAIN_S = 0.02
MESSAGE_TOKENS = 16
"""Tokens that a server's chat template may put around a message."""
GROWTH_BYTES = 4_096
LONGEST = 40
"""Most characters of a budget."""

logger = logging.getLogger(__name__)

Unit = Literal["dollars", "tokens", "calls"]
_UNITS: dict[str, Unit] = {"": "dollars", "$": "dollars", "usd": "dollars", "dollars": "dollars", "dollar": "dollars"}
_UNITS |= {"tok": "tokens", "tokens": "tokens", "token": "tokens", "calls": "calls", "call": "calls"}
_SCALES = {"": 1, "k": 1_000, "m": 1_000_000}


class Limit(Frozen):
    """The most that a run may spend."""

    amount: float
    unit: Unit

    def __str__(self) -> str:
        return worded(self.amount, self.unit)


class Spent(TokenUsage):
    """The calls, tokens and dollars that were spent so far."""

    calls: int = 0
    """Answered calls, including those that failed midway."""
    untold: int = 0
    """How many of the calls have no known tokens."""
    dollars: float | None = 0.0
    """Cost of the calls whose tokens are known; None if the price of a model is not known."""

    def since(self, before: Spent) -> Spent:
        """What was spent after `before`."""
        used = {
            name: getattr(self, name) - getattr(before, name) for name in (*TokenUsage.model_fields, "calls", "untold")
        }
        unknown = self.dollars is None or before.dollars is None
        return Spent(**used, dollars=None if unknown else (self.dollars or 0.0) - (before.dollars or 0.0))

    def __str__(self) -> str:
        if not self.calls:
            return "no call of a language model"
        cached = f" ({self.cached_tokens:,} cached)" if self.cached_tokens else ""
        thought = f" ({self.thinking_tokens:,} of thinking)" if self.thinking_tokens else ""
        untold = f", not counting {worded(self.untold, 'calls')} with unknown usage" if self.untold else ""
        tokens = f"{self.prompt_tokens:,} prompt tokens{cached}, {self.completion_tokens:,} written{thought}{untold}"
        least = "at least " if self.untold else ""
        money = "" if self.dollars is None else f", {least}{worded(self.dollars, 'dollars')}"
        return f"{worded(self.calls, 'calls')}, {tokens}{money}"


def worded(amount: float, unit: Unit) -> str:
    """An amount with its unit."""
    if unit == "dollars":
        return f"{amount:.2f} dollars" if amount >= 1 or amount == 0 else f"{amount:.4g} dollars"
    return f"{amount:,.0f} {unit if amount != 1 else unit[:-1]}"


def read_limit(text: str) -> Limit:
    """Parse a budget such as `5.00`, `200k tokens` or `300 calls`.

    Raises:
        InvalidInput: the text is not a budget.
    """
    found = re.fullmatch(r"\s?\$?(\d{1,12}(?:\.\d{1,6})?) ?([kKmM]?) ?(\$|[A-Za-z]{0,7})\s?", text[: LONGEST + 1])
    unit = _UNITS.get(found[3].lower()) if found else None
    # `200k` is refused: whoever means tokens would have a budget of 200,000 dollars
    is_bare = found is not None and found[2] and not found[3] and "$" not in text
    if found is None or unit is None or is_bare or (unit != "dollars" and "$" in text):
        raise InvalidInput(
            f"budget {text[:LONGEST]!r}: expected dollars such as 5.00, or '200k tokens', or '300 calls'"
        )
    return Limit(amount=float(found[1]) * _SCALES[found[2].lower()], unit=unit)


class _Book(BaseModel):
    """The content of a ledger's file."""

    limit: Limit | None
    spent: Spent = Spent()
    held: float = 0.0
    """The most that calls with unknown usage can have cost, in the unit of the limit."""
    reserved: dict[int, float] = {}
    """The most that running calls can cost, by process id."""
    refused: str | None = None
    """Why a call was refused; None if no call was refused."""

    @property
    def used(self) -> float:
        if self.limit is None:
            return 0.0
        if self.limit.unit == "tokens":
            return self.held + self.spent.prompt_tokens + self.spent.completion_tokens
        return self.held + (self.spent.calls if self.limit.unit == "calls" else self.spent.dollars or 0.0)


class Ledger:
    """The file in which the processes of a run write what they reserve and spend.

    Args:
        path: path of the file, which `open_ledger` creates.
        is_own: True if this process opened the ledger, not a process that started this one.
    """

    def __init__(self, path: Path, *, is_own: bool = False) -> None:
        self._path = path
        self.is_own = is_own

    @property
    def limit(self) -> Limit | None:
        """The budget; None if nothing is limited."""
        return self._read().limit

    @property
    def spent(self) -> Spent:
        """Total spending of all processes so far."""
        return self._read().spent

    def check(self) -> None:
        """Raises BudgetSpent if a call was refused in any process."""
        if (refused := self._read().refused) is not None:
            raise BudgetSpent(refused)

    def reserve(self, amount: float) -> bool:
        """Reserve the most that a call can cost. False if the caller must wait until running calls have settled.

        Args:
            amount: the most that the call can cost, in the unit of the limit.

        Raises:
            BudgetSpent: the call could exceed the limit.
        """
        with self._open() as book:
            if book.limit is None:
                return True
            for process in [one for one in book.reserved if one != os.getpid() and not is_alive(one)]:
                book.held += book.reserved.pop(process)
            if book.used + amount > book.limit.amount * (1 + 1e-9):
                details = (
                    f": {worded(book.used, book.limit.unit)} in {worded(book.spent.calls, 'calls')}, "
                    f"and the next call may cost {worded(amount, book.limit.unit)}"
                )
                book.refused = (
                    f"the budget of {book.limit} is spent{'' if book.limit.unit == 'calls' else details}. What was "
                    "stored or written to a file is kept; a command that keeps nothing begins anew. Each run starts "
                    "with a new budget"
                )
            elif book.used + sum(book.reserved.values()) + amount > book.limit.amount * (1 + 1e-9):
                return False
            else:
                book.reserved[os.getpid()] = book.reserved.get(os.getpid(), 0.0) + amount
                return True
        raise BudgetSpent(book.refused)

    def settle(self, reserved: float, spent: Spent | None, *, held: float = 0.0) -> None:
        """Release a reservation, and record what was spent instead.

        Args:
            reserved: the reserved amount.
            spent: spending of one call; None if it spent nothing.
            held: the most that the call can have cost, if its real cost is not known.
        """
        with self._open() as book:
            left = book.reserved.get(os.getpid(), 0.0) - reserved
            book.reserved[os.getpid()] = max(0.0, left)
            book.held += held
            if spent is not None:
                before = book.spent
                unknown = before.dollars is None or spent.dollars is None
                book.spent = Spent(
                    **TokenUsage.total([before, spent]).model_dump(),
                    calls=before.calls + spent.calls,
                    untold=before.untold + spent.untold,
                    dollars=None if unknown else (before.dollars or 0.0) + (spent.dollars or 0.0),
                )

    def refuse(self, reason: str) -> BudgetSpent:
        """Record that calls are refused from now on, and return the error to raise."""
        with self._open() as book:
            book.refused = reason
        return BudgetSpent(reason)

    def _read(self) -> _Book:
        with self._open() as book:
            return book

    @contextmanager
    def _open(self) -> Iterator[_Book]:
        """The book, locked against other processes. It is written back if it has changed."""
        with self._path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            content = file.read()
            book = _Book.model_validate_json(content)
            yield book
            if (now := book.model_dump_json().encode()) != content.rstrip():
                # A full disk must not lose what was spent: the file grows by blanks, and is then overwritten in place.
                if (more := len(now) - len(content)) > 0:
                    file.write(b" " * (more + GROWTH_BYTES))
                    file.flush()
                file.seek(0)
                file.write(now.ljust(len(content)))


def check_budget() -> None:
    """Raises BudgetSpent if any process of this run was refused a call: episodes since then are incomplete."""
    if (ledger := current_ledger()) is not None:
        ledger.check()


@contextmanager
def open_ledger(budget: str | None) -> Iterator[Ledger]:
    """Open the ledger of all calls inside the `with` block, in this process and those that it starts.

    A process that another run started uses the ledger of that run, unless it has a budget of its own.

    Args:
        budget: `5.00`, `200k tokens` or `300 calls`; None if nothing is limited.

    Raises:
        InvalidInput: the text is not a budget.
    """
    limit = None if budget is None else read_limit(budget)
    outer = os.environ.get(LEDGER_VARIABLE)
    if limit is None and outer is not None:
        yield Ledger(Path(outer))
        return
    _remove_old()
    with tempfile.TemporaryDirectory(prefix=PREFIX) as folder, _locked(folder, fcntl.LOCK_SH):
        path = Path(folder) / "ledger.json"
        path.write_text(_Book(limit=limit).model_dump_json(), encoding="utf-8")
        os.environ[LEDGER_VARIABLE] = str(path)
        try:
            yield Ledger(path, is_own=True)
        finally:
            if outer is None:
                del os.environ[LEDGER_VARIABLE]
            else:
                os.environ[LEDGER_VARIABLE] = outer


def _remove_old() -> None:
    """Remove the ledgers of killed runs after a day. A run that goes on has its ledger's folder locked."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # it is locked, of another user, or just removed by another run
            if time.time() - folder.stat().st_mtime > OLD_S:
                with _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
                    shutil.rmtree(folder)


@contextmanager
def _locked(folder: str | Path, kind: int) -> Iterator[None]:
    """Lock a folder. Raises OSError if it cannot be opened or, if `kind` says so, if another process has it locked."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, kind)
        yield
    finally:
        os.close(descriptor)


def current_ledger() -> Ledger | None:
    """The ledger of the run that this process belongs to; None if the run has none."""
    path = os.environ.get(LEDGER_VARIABLE)
    return Ledger(Path(path)) if path else None


def metered(llm: LLM, model: str) -> LLM:
    """The model, with its calls counted in the ledger of the run.

    A model that meters itself gets a meter. All others are wrapped. Without a ledger, the model is returned unchanged.

    Args:
        llm: the model.
        model: its name as in `--model`, to look up its price.

    Raises:
        InvalidInput: dollars are limited and the model's price is not known.
    """
    ledger = current_ledger()
    if ledger is None:
        return llm
    price = price_of(model)
    limit = ledger.limit
    if price is None and limit is not None and limit.unit == "dollars":
        raise InvalidInput(
            f"--budget {limit}: the price of model {model!r} is not known: set the environment variable "
            f"{PRICE_VARIABLE} to IN,OUT or IN,OUT,CACHED in dollars per million tokens, or give the budget in tokens "
            "or calls"
        )
    meter = Meter(model, ledger, limit, price)
    if isinstance(llm, MetersItself):
        llm.meter = meter
        return llm
    return MeteredLLM(llm, meter)


@runtime_checkable
class MetersItself(Protocol):
    """A model that sends several requests for one answer, each inside of a `call_through`."""

    meter: Meter | None


@dataclass
class MeteredCall:
    """The usage of one request to an endpoint."""

    used: TokenUsage | None = None
    """Tokens of the request; None if they are not known."""
    is_free: bool = False
    """True if nothing is billed for certain: the request was refused, or never arrived."""

    def answered(self, usage: TokenUsage) -> None:
        """Record the usage of the answer. A usage without any prompt or completion tokens counts as not known."""
        self.used = usage if usage.is_told else None


class Meter:
    """Allows requests to one model as long as the budget of the run covers the most that each can cost.

    Args:
        model: name of the model as in `--model`.
        ledger: ledger of the run.
        limit: limit of the ledger.
        price: price of the model's tokens; None if it is not known, so that only tokens or calls can be limited.
    """

    def __init__(self, model: str, ledger: Ledger, limit: Limit | None, price: Price | None) -> None:
        self._model = model
        self._ledger = ledger
        self._limit = limit
        self._price = price
        self._first = asyncio.Lock()
        self._is_known = limit is None or limit.unit == "calls"
        """True if the model's usage need not be known, or was reported once."""
        self._silence: str | None = None
        """Why the model is not asked again; None unless it reported no usage."""
        self._is_refused = False
        """True if the budget has refused a call, and the log has a warning."""

    @asynccontextmanager
    async def call(self, room: TokenUsage) -> AsyncIterator[MeteredCall]:
        """Meter the request that is made inside of the `with` block, which passes its usage to `MeteredCall.answered`.

        A request that fails inside of the block may have been billed.

        Args:
            room: the most tokens that the request can have.

        Raises:
            BudgetSpent: the request could exceed the limit, or its usage is limited and the endpoint reports none.
        """
        # Until usage was reported once, requests go one at a time: if none is reported, only one has an unknown cost.
        is_first = not self._is_known and await self._first.acquire()
        if is_first and self._is_known:
            self._first.release()
            is_first = False
        try:
            async with self._reserved(room) as call:
                yield call
        finally:
            if is_first:
                self._first.release()

    @asynccontextmanager
    async def _reserved(self, room: TokenUsage) -> AsyncIterator[MeteredCall]:
        reserved, call = await self._reserve(room), MeteredCall()
        try:
            yield call
        finally:
            is_told = call.used is not None
            if call.is_free:
                self._ledger.settle(reserved, None)
            else:
                # an answer without usage, such as an empty one, counts as the most that it can have cost
                held = 0.0 if is_told or self._limit is None or self._limit.unit == "calls" else reserved
                self._ledger.settle(reserved, self._bill(call.used), held=held)
        if not is_told and not call.is_free and not self._is_known:
            self._silence = (
                f"{self._model} reports no token usage, so its cost is unknown and the budget of {self._limit} "
                "cannot be enforced: give the budget in calls, such as '300 calls'"
            )
            raise self._ledger.refuse(self._silence)
        self._is_known = self._is_known or is_told

    async def _reserve(self, room: TokenUsage) -> float:
        """Wait until the budget has room for a request, and return the reserved amount. Raises BudgetSpent."""
        amount = self._amount(room)
        if self._silence is not None:
            raise BudgetSpent(self._silence)
        try:
            while not self._ledger.reserve(amount):  # noqa: ASYNC110  other processes settle too
                await asyncio.sleep(AGAIN_S)
        except BudgetSpent as error:
            logger.log(
                logging.DEBUG if self._is_refused else logging.WARNING, "%s was not asked: %s", self._model, error
            )
            self._is_refused = True
            raise
        return amount

    def _amount(self, usage: TokenUsage) -> float:
        """The usage in the unit of the limit."""
        if self._limit is None:
            return 0.0
        if self._limit.unit == "calls":
            return 1.0
        if self._limit.unit == "tokens":
            return usage.prompt_tokens + usage.completion_tokens
        return self._price.of_call(usage) if self._price is not None else 0.0

    def _bill(self, usage: TokenUsage | None) -> Spent:
        """The spending of one call.

        Args:
            usage: tokens of the call; None if they are not known.
        """
        known = TokenUsage.total([] if usage is None else [usage])
        dollars = None if self._price is None else self._price.of_call(known)
        return Spent(**known.model_dump(), calls=1, untold=usage is None, dollars=dollars)


@asynccontextmanager
async def call_through(meter: Meter | None, room: TokenUsage) -> AsyncIterator[MeteredCall]:
    """Meter a request. Without a meter, the request is not counted. Raises BudgetSpent."""
    if meter is None:
        yield MeteredCall()
        return
    async with meter.call(room) as call:
        yield call


class MeteredLLM:
    """A language model with a meter. Each question is one request to its endpoint.

    Args:
        llm: the model that is asked. It is closed together with this one.
        meter: meter of the model.
    """

    def __init__(self, llm: LLM, meter: Meter) -> None:
        self._llm = llm
        self._meter = meter
        self.form = getattr(llm, "form", "data")
        self.fingerprint = str(getattr(llm, "fingerprint", ""))

    @property
    def name(self) -> str:
        return self._llm.name

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        schema: JsonObject | None = None,
        max_tokens: int = 512,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> Completion:
        """The model's answer.

        Raises:
            BudgetSpent: the call could exceed the limit, or its usage is limited and the endpoint reports none.
            EnvironmentUnavailable: the model cannot be reached, refused or took too long.
        """
        texts = [*(message.content for message in messages), "" if schema is None else json.dumps(schema)]
        async with self._meter.call(room_of(texts, max_tokens)) as call:
            completion = await self._llm.complete(
                messages, schema=schema, max_tokens=max_tokens, temperature=temperature, seed=seed
            )
            call.answered(completion)
        return completion

    async def check_reachable(self) -> None:
        """Call the model's own check, if it has one. Raises EnvironmentUnavailable."""
        if isinstance(self._llm, Reachable):
            await self._llm.check_reachable()

    async def find_name(self) -> None:
        """Call the model's own method, if it has one. Raises EnvironmentUnavailable."""
        if isinstance(self._llm, FindsItsName):
            await self._llm.find_name()

    async def ping(self) -> None:
        """Call the model's own ping, if it has one; it asks no question. Raises EnvironmentUnavailable."""
        if isinstance(self._llm, Pingable):
            await self._llm.ping()

    async def close(self) -> None:
        await self._llm.close()


def room_of(texts: Iterable[str], max_tokens: int) -> TokenUsage:
    """The most tokens that a request can have: no tokenizer makes more tokens of a text than the text has bytes.

    Args:
        texts: all texts that are sent: each message, and the schema.
        max_tokens: the most tokens of the answer, including its thinking.
    """
    sent = sum(len(text.encode()) + MESSAGE_TOKENS for text in texts)
    return TokenUsage(prompt_tokens=sent, completion_tokens=max_tokens)
