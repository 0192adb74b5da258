"""The helpdesk: its start worlds and the work of its tools, without any protocol around them.

Nothing depends on chance while it is used, and the hour is a number that only `pass_hours` changes. A tool makes all of
its changes or, with a Refusal, none. Some tools answer with an object, others with a sentence.
"""

from __future__ import annotations

import copy
import random
from typing import Any

World = dict[str, Any]
"""Single values (`now`, `queue`) and entities by kind and id."""

PRIORITIES = ("low", "normal", "high", "urgent")
HOURS = (72, 24, 8, 2)
WORKED_ON = ("new", "open", "waiting")
AGENTS = (  # e-mail, name, skills
    ("mira@desk.example", "Mira Sol", ["network", "vpn"]),
    ("jonas@desk.example", "Jonas Ek", ["mail"]),
    ("tove@desk.example", "Tove Lund", ["printer", "hardware"]),
    ("ravi@desk.example", "Ravi Nair", ["accounts", "mail"]),
)
ARTICLES = (  # slug, title, text, views
    ("vpn-setup", "Setting up the VPN", "Install the client, then sign in with your office account.", 41),
    ("reset-password", "A new password", "Use the link on the sign-in page; it is good for one hour.", 130),
    ("printer-jam", "When the printer jams", "Open the rear door and pull the sheet straight out.", 17),
)
TICKETS = (  # id, subject, requester, status, priority, assignee, tags, opened
    ("T101", "VPN drops every hour", "ana@office.example", "open", "high", "mira@desk.example", ["vpn"], 30),
    ("T102", "Mailbox is full", "bo@office.example", "open", "normal", "jonas@desk.example", ["mail"], 22),
    ("T103", "Printer on floor 2 jams", "cy@office.example", "new", "low", None, ["printer"], 12),
    ("T104", "Locked out of my account", "dee@office.example", "new", "urgent", None, ["accounts"], 39),
    ("T105", "No network in room 9", "ana@office.example", "waiting", "normal", "mira@desk.example", ["network"], 18),
    ("T106", "New laptop wanted", "eli@office.example", "closed", "low", "tove@desk.example", ["hardware"], 2),
    ("T107", "Mail to partners bounces", "flo@office.example", "new", "normal", None, ["mail", "network"], 36),
    ("T108", "Screen flickers", "cy@office.example", "open", "low", "tove@desk.example", ["hardware"], 25),
    ("T109", "Shared calendar is gone", "bo@office.example", "new", "high", None, ["calendar"], 37),
)


def start(number: int = 0) -> World:
    """One start world: 0 is the one written in this file; other numbers have other priorities, hours and requesters."""
    draw = random.Random(number)
    requesters = [row[2] for row in TICKETS]
    world: World = {
        "now": 40,
        "queue": [],
        "tickets": {},
        "agents": {e: {"email": e, "name": name, "skills": list(skills)} for e, name, skills in AGENTS},
        "policies": {p: {"priority": p, "hours": hours} for p, hours in zip(PRIORITIES, HOURS, strict=True)},
        "articles": {s: {"slug": s, "title": title, "text": text, "views": n} for s, title, text, n in ARTICLES},
    }
    for i, subject, asker, status, priority, assignee, tags, opened in TICKETS:
        drawn = (draw.choice(requesters), draw.choice(PRIORITIES), draw.randint(1, 39))
        requester, urgency, hour = drawn if number else (asker, priority, opened)
        world["tickets"][i] = _ticket(i, subject, requester, urgency, tags, hour)
        world["tickets"][i].update(status=status, assignee=assignee)
        if status == "closed":
            world["tickets"][i]["resolution"] = "ordered"
    for ticket in world["tickets"].values():
        ticket["due_hour"] = ticket["opened_hour"] + world["policies"][ticket["priority"]]["hours"]
        ticket["overdue"] = ticket["status"] in WORKED_ON and ticket["due_hour"] < world["now"]
    for email, agent in world["agents"].items():
        own = [one["status"] for one in world["tickets"].values() if one["assignee"] == email]
        agent["open_tickets"] = sum(status in WORKED_ON for status in own)
        agent["closed_tickets"] = own.count("closed")
    world["queue"] = queued(world)
    return world


def queued(world: World) -> list[str]:
    """Ids of the unassigned tickets, the earliest due first."""
    free = [one for one in world["tickets"].values() if one["status"] in WORKED_ON and one["assignee"] is None]
    return [one["id"] for one in sorted(free, key=lambda one: (one["due_hour"], one["id"]))]


def _ticket(i: str, subject: str, requester: str, priority: str, tags: list[str], opened: int) -> World:
    return {
        "id": i,
        "subject": subject,
        "requester": requester,
        "status": "new",
        "priority": priority,
        "assignee": None,
        "tags": sorted(tags),
        "comments": [],
        "opened_hour": opened,
        "due_hour": opened,
        "overdue": False,
        "resolution": None,
        "merged_into": None,
    }


class Refusal(Exception):
    """The desk does not do what it was asked; nothing was changed."""


class Desk:
    """The helpdesk. All tools are methods; each returns an object or a sentence."""

    def __init__(self, world: int = 0) -> None:
        self._world = start(world)

    def state(self) -> World:
        """A copy of the whole world."""
        return copy.deepcopy(self._world)

    def act(self, tool: str, arguments: dict[str, Any]) -> World | str:
        """Call a tool, as a whole or not at all."""
        before = self.state()
        try:
            answer: World | str = getattr(self, tool)(**arguments)
        except Refusal:
            self._world = before
            raise
        self._world["queue"] = queued(self._world)
        return copy.deepcopy(answer)

    # Reading

    def show_ticket(self, ticket: str) -> World:
        """Read a ticket."""
        return self._ticket(ticket)

    def find_tickets(self, tag: str | None = None, status: str | None = None) -> World:
        """Find tickets by tag, by status, or by both."""
        if tag is None and status is None:
            raise Refusal("Give a tag or a status to look for")
        found = [
            {name: one[name] for name in ("id", "subject", "status", "priority")}
            for one in self._world["tickets"].values()
            if (tag is None or tag in one["tags"]) and status in (None, one["status"])
        ]
        return {"count": len(found), "tickets": found}

    def show_queue(self) -> str:
        """The queue in words, the most pressing ticket first."""
        waiting = [self._world["tickets"][i] for i in queued(self._world)]
        if not waiting:
            return "The queue is empty."
        named = ", ".join(f"{one['id']} ({one['priority']}, due at hour {one['due_hour']})" for one in waiting)
        return f"It is hour {self._world['now']}. {len(waiting)} in the queue: {named}."

    def agent_workload(self, agent: str) -> str:
        """The workload of an agent in words."""
        who = self._agent(agent)
        own = [i for i, one in self._world["tickets"].items() if one["assignee"] == agent and one["status"] != "closed"]
        listed = f" ({', '.join(own)})" if own else ""
        done = f"{who['closed_tickets']} closed so far"
        return f"{who['name']} has {_counted(who['open_tickets'], 'open ticket')}{listed}, {done}."

    def read_article(self, slug: str) -> str:
        """Read an article, and count the view."""
        article = self._world["articles"].get(slug)
        if article is None:
            raise Refusal(f"There is no article called {slug}")
        article["views"] += 1
        return f"{article['title']}\n\n{article['text']}\n\nRead {article['views']} times."

    # One ticket

    def add_comment(self, ticket: str, author: str, text: str) -> str:
        """Add a comment; a comment of the requester opens a waiting ticket again."""
        one = self._worked_on(ticket)
        if author != one["requester"] and author not in self._world["agents"]:
            raise Refusal(f"{author} is neither an agent nor the requester of {ticket}")
        one["comments"].append({"author": author, "hour": self._world["now"], "text": text})
        if author == one["requester"] and one["status"] == "waiting":
            one["status"] = "open"
            return f"Comment {len(one['comments'])} added, {ticket} is open again."
        return f"Comment {len(one['comments'])} added to {ticket}."

    def tag_ticket(self, ticket: str, add: list[str], remove: list[str] | None = None) -> str:
        """Add and remove tags, which are kept in alphabetical order."""
        one = self._worked_on(ticket)
        tags = sorted({*one["tags"], *add} - set(remove or []))
        if tags == one["tags"]:
            raise Refusal(f"Nothing to change: {ticket} is tagged {', '.join(tags) or 'with nothing'} already")
        one["tags"] = tags
        return f"{ticket} is now tagged {', '.join(tags) or 'with nothing'}."

    def escalate(self, ticket: str) -> str:
        """Raise the priority by one; the policy sets the due hour, counted from the hour of opening."""
        one = self._worked_on(ticket)
        if one["priority"] == PRIORITIES[-1]:
            raise Refusal(f"{ticket} is urgent already, there is nothing above")
        self._prioritize(one, PRIORITIES[PRIORITIES.index(one["priority"]) + 1])
        late = " and overdue" if one["overdue"] else ""
        return f"{ticket} is now {one['priority']}, due at hour {one['due_hour']}{late}."

    def put_on_hold(self, ticket: str) -> str:
        """Let an open ticket wait for its requester."""
        one = self._worked_on(ticket)
        if one["status"] != "open":
            raise Refusal(f"Only an open ticket can wait, {ticket} is {one['status']}")
        one["status"] = "waiting"
        return f"{ticket} waits for {one['requester']}."

    def assign(self, ticket: str, agent: str | None = None) -> World:
        """Assign a ticket to an agent; by default to the able one with the fewest open tickets."""
        one = self._worked_on(ticket)
        chosen = self._agent(agent) if agent is not None else self._least_busy(one)
        if one["assignee"] == chosen["email"]:
            raise Refusal(f"{ticket} is with {chosen['name']} already")
        if one["assignee"] is not None:
            self._agent(one["assignee"])["open_tickets"] -= 1
        chosen["open_tickets"] += 1
        one["assignee"] = chosen["email"]
        one["status"] = "open" if one["status"] == "new" else one["status"]
        return {"ticket": ticket, "assignee": chosen["email"], "open_tickets": chosen["open_tickets"]}

    def open_ticket(self, requester: str, subject: str, priority: str, tags: list[str]) -> World:
        """Open a ticket with the next number."""
        if "@" not in requester:
            raise Refusal(f"{requester} is no e-mail address")
        i = f"T{max(int(one[1:]) for one in self._world['tickets']) + 1}"
        one = self._world["tickets"][i] = _ticket(i, subject, requester, priority, tags, self._world["now"])
        self._prioritize(one, priority)
        return one

    def close_ticket(self, ticket: str, resolution: str) -> str:
        """Close a ticket; it must be assigned, and the resolution must not be empty."""
        if not resolution.strip():
            raise Refusal("A resolution is needed to close a ticket")
        one = self._worked_on(ticket)
        if one["assignee"] is None:
            raise Refusal(f"{ticket} is assigned to nobody; assign it first")
        self._close(one, resolution)
        took = self._world["now"] - one["opened_hour"]
        return f"{ticket} closed after {_counted(took, 'hour')}: {resolution}."

    # Several

    def merge_tickets(self, source: str, target: str) -> str:
        """Merge a ticket into a target, which gets its comments and tags and the higher priority of both."""
        if source == target:
            raise Refusal("A ticket cannot be merged into itself")
        gone, kept = self._worked_on(source), self._worked_on(target)
        moved = gone["comments"]
        kept["comments"], gone["comments"] = sorted(kept["comments"] + moved, key=lambda c: c["hour"]), []
        kept["tags"] = sorted({*kept["tags"], *gone["tags"]})
        if PRIORITIES.index(gone["priority"]) > PRIORITIES.index(kept["priority"]):
            self._prioritize(kept, gone["priority"])
        if gone["assignee"] is not None:
            self._agent(gone["assignee"])["open_tickets"] -= 1
        gone.update(status="merged", merged_into=target, assignee=None, overdue=False)
        return f"{source} is merged into {target}; {_counted(len(moved), 'comment')} moved."

    def close_by_tag(self, tag: str, resolution: str) -> World:
        """Close all assigned tickets with a tag; unassigned ones stay."""
        found = [one for one in self._world["tickets"].values() if tag in one["tags"] and one["status"] in WORKED_ON]
        closed = [one["id"] for one in found if one["assignee"] is not None]
        if not closed:
            raise Refusal(f"No ticket tagged {tag} is being worked on")
        for one in found:
            if one["id"] in closed:
                self._close(one, resolution)
        return {"closed": closed, "left": len(found) - len(closed)}

    def pass_hours(self, hours: int) -> str:
        """Let time pass; tickets may become overdue."""
        if not 1 <= hours <= 48:
            raise Refusal(f"Between 1 and 48 hours can pass at a time, not {hours}")
        self._world["now"] += hours
        late = []
        for one in self._world["tickets"].values():
            if one["status"] in WORKED_ON and not one["overdue"] and one["due_hour"] < self._world["now"]:
                one["overdue"] = True
                late.append(one["id"])
        return f"It is hour {self._world['now']}. Overdue since: {', '.join(late) or 'none'}."

    # What several tools do

    def _ticket(self, i: str) -> World:
        if i not in self._world["tickets"]:
            raise Refusal(f"No ticket {i}")
        ticket: World = self._world["tickets"][i]
        return ticket

    def _worked_on(self, i: str) -> World:
        one = self._ticket(i)
        if one["status"] == "merged":
            raise Refusal(f"{i} was merged into {one['merged_into']}, look there")
        if one["status"] == "closed":
            raise Refusal(f"{i} is closed: {one['resolution']}")
        return one

    def _agent(self, email: str) -> World:
        if email not in self._world["agents"]:
            raise Refusal(f"Nobody with the address {email} works here")
        agent: World = self._world["agents"][email]
        return agent

    def _least_busy(self, ticket: World) -> World:
        everybody = list(self._world["agents"].values())
        able = [one for one in everybody if set(one["skills"]) & set(ticket["tags"])]
        return min(able or everybody, key=lambda one: (one["open_tickets"], one["email"]))

    def _prioritize(self, ticket: World, priority: str) -> None:
        due = ticket["opened_hour"] + self._world["policies"][priority]["hours"]
        ticket.update(priority=priority, due_hour=due, overdue=due < self._world["now"])

    def _close(self, ticket: World, resolution: str) -> None:
        agent = self._agent(ticket["assignee"])
        agent["open_tickets"] -= 1
        agent["closed_tickets"] += 1
        ticket.update(status="closed", resolution=resolution, overdue=False)


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
