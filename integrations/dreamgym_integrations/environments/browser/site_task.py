"""One task of WebArena as BrowserGym plays it: log in to the sites, open the page, judge.

A task that asks for an answer is judged when the agent sends its message; any other ends as soon as its checks hold,
as in BrowserGym, or with a message. Leaving the sites ends it without success.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlparse

from browsergym.core.task import AbstractBrowserTask

from dreamgym.errors import EnvironmentUnavailable
from dreamgym.types import JsonObject
from dreamgym_integrations.environments.browser.checks import CheckResult, Checks, Helper
from dreamgym_integrations.environments.browser.sites import SiteTask

ACCOUNTS: Mapping[str, tuple[str, str]] = {
    "shopping": ("emma.lopez@gmail.com", "Password.123"),
    "shopping_admin": ("admin", "admin1234"),
    "reddit": ("MarvelsGrantMan136", "test1234"),
    "gitlab": ("byteblaze", "hello1234"),
}
"""The accounts that the published images of the sites come with."""
_LOGIN: Mapping[str, tuple[str, str, str]] = {
    "shopping": ("/customer/account/login/", "Email", "Sign In"),
    "shopping_admin": ("", "Username", "Sign in"),
    "reddit": ("/login", "Username", "Log in"),
    "gitlab": ("/users/sign_in", "Username or email", "Sign in"),
}
"""The login form of each site: its path, the label of its first field, the name of its button."""
OPEN_LIMIT_MS = 30_000


class PlayedTask(AbstractBrowserTask):  # type: ignore[misc]
    """The task of one row, with the addresses of the user's sites."""

    def __init__(self, seed: int, row: SiteTask, addresses: Mapping[str, str]) -> None:
        super().__init__(seed)
        self.timeout = 10_000
        self._row = row
        self._addresses = addresses
        self._checks = Checks.of(row.eval)
        self._asks = "string_match" in str(row.eval["eval_types"])

    def setup(self, page: Any) -> tuple[str, JsonObject]:
        """Log in and open the first page. Raises EnvironmentUnavailable if a site answers with a failure."""
        if self._row.require_login:
            for site in self._row.sites:
                if site in _LOGIN:
                    self._log_in(site, page)
        for number, url in enumerate(self._row.start_url.split(" |AND| ")):
            self._open(page if number == 0 else page.context.new_page(), url)
        return self._row.intent, {}

    def teardown(self) -> None:
        """Does nothing: what the agent changed on a site stays changed."""

    def validate(self, page: Any, chat_messages: Sequence[Mapping[str, str]]) -> tuple[float, bool, str, JsonObject]:
        """BrowserGym's (reward, done, message, info)."""
        hosts = {urlparse(address).netloc for address in self._addresses.values()}
        for tab in page.context.pages:
            place = urlparse(tab.url)
            if place.scheme in {"http", "https"} and place.netloc not in hosts:
                return 0.0, True, "", {"left_for": place.netloc}
        said = bool(chat_messages) and chat_messages[-1]["role"] == "assistant" and len(chat_messages) > 1
        if self._asks and not said:
            return 0.0, False, "", {}
        answer = chat_messages[-1]["message"] if said else ""
        verdict: CheckResult = self._checks.verdict(answer, page, self._helpers())
        info: JsonObject = {"unjudged": True} if verdict.unjudged else {}
        return float(verdict.succeeded), said or verdict.succeeded, "", info

    def _open(self, page: Any, url: str) -> None:
        answer = page.goto(url, timeout=OPEN_LIMIT_MS)
        if answer is not None and answer.status >= 500:
            raise EnvironmentUnavailable(f"the site answers HTTP {answer.status} at {url}: check that it is running")

    def _log_in(self, site: str, page: Any) -> None:
        place, first_field, button = _LOGIN[site]
        name, password = ACCOUNTS[site]
        tab = page.context.new_page()
        self._open(tab, self._addresses[site] + place)
        tab.get_by_label(first_field, exact=True).fill(name)
        tab.get_by_label("Password", exact=True).fill(password)
        tab.get_by_role("button", name=button).click()
        tab.wait_for_load_state()
        tab.close()

    def _helpers(self) -> Mapping[str, Helper]:
        return {
            "shopping_get_latest_order_url": self._latest_order,
            "shopping_get_sku_latest_review_author": self._review_author,
            "shopping_get_sku_latest_review_rating": self._review_rating,
            "reddit_get_post_url": _post,
            "gitlab_get_project_memeber_role": _role,
        }

    def _latest_order(self, page: Any) -> str:
        field = "searchCriteria[sortOrders][0]"
        query = {f"{field}[field]": "created_at", f"{field}[direction]": "DESC", "searchCriteria[pageSize]": "1"}
        orders = self._ask_shop(page, "/rest/V1/orders", query)["items"]
        return f"{self._addresses['shopping']}/sales/order/view/order_id/{int(orders[0]['increment_id'])}/"

    def _review_author(self, page: Any, product: str) -> str:
        reviews = self._ask_shop(page, f"/rest/V1/products/{product}/reviews", {})
        return str(reviews[-1]["nickname"]) if reviews else ""

    def _review_rating(self, page: Any, product: str) -> str:
        reviews = self._ask_shop(page, f"/rest/V1/products/{product}/reviews", {})
        return str(reviews[-1]["ratings"][0]["percent"]) if reviews else ""

    def _ask_shop(self, page: Any, path: str, query: Mapping[str, str]) -> Any:
        shop, (name, password) = self._addresses["shopping"], ACCOUNTS["shopping_admin"]
        requests = page.context.request
        token = requests.post(
            f"{shop}/rest/default/V1/integration/admin/token", data={"username": name, "password": password}
        ).json()
        answer = requests.get(f"{shop}{path}", params=dict(query), headers={"Authorization": f"Bearer {token}"})
        if not answer.ok:
            raise EnvironmentUnavailable(f"the shop answers HTTP {answer.status} at {path}")
        return answer.json()


def _post(page: Any, url: str) -> str:
    """The address of the post, from the address of one of its comments; any other address unchanged."""
    match = re.match(r"(https?://[^/]+/f/[^/]+/[^/]+)(?:/|$)", url)
    return f"{match[1]}/" if match else url


def _role(page: Any, account: str) -> str:
    """A member's role in the table of a project's members on GitLab; empty if there is none."""
    row = page.locator("tr", has=page.get_by_text(f"@{account}", exact=True)).first
    role = row.locator("td.col-max-role span").first
    return str(role.inner_text()) if role.count() else ""
