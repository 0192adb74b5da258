"""Writes a copy of the page that needs no server: it opens from a file, and from any host that serves files.

A page that is opened from a file may load scripts, but no modules and no data. So the page's modules become one script,
and the answers to its requests become scripts that put them into one object.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

from pydantic import JsonValue

from dreamgym.errors import InvalidInput, UnknownEpisode
from dreamgym.state import objects
from dreamgym.types import JsonObject
from dreamgym_server.doors.view import files
from dreamgym_server.view.answers import MOST, STEPS, Answers

TWINS = 3
"""Number of episodes of the same task with which each episode is compared."""
POLICY = (
    "default-src 'none'; script-src 'self' file:; style-src 'self' file:; img-src 'self' file:; base-uri 'none'; "
    "form-action 'none'; require-trusted-types-for 'script'; trusted-types dreamgym"
)
DATA = "data"
SITE = "site.js"
UNFINISHED = "data.unfinished"
"""Name of the folder of data while it is written. An export that was interrupted leaves it behind."""
VENDORED = ".min.js"
"""End of the names of other people's scripts, which are not modules."""

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(?P<file>[\w.]+)";\n', re.MULTILINE)


async def export(answers: Answers, folder: Path, say: Callable[[str], None]) -> int:
    """Write the page and all data that it shows to a folder; return the number of episodes.

    Args:
        answers: answers the page's requests.
        folder: created if it is missing; an older export in it is replaced once the new one is complete.
        say: called with the progress.

    Raises:
        InvalidInput: the folder is a file, or it contains something that is not an export.
    """
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"{folder} is a file: name a folder for the exported page")
    data = folder / UNFINISHED
    is_export = (folder / DATA / SITE).is_file() or data.is_dir()
    if folder.exists() and any(folder.iterdir()) and not is_export:
        raise InvalidInput(f"{folder} is not empty and does not contain an exported page: choose another folder")
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    about, pairs = await answers.about({}), await answers.pairs({})
    linked = {_name(each["dream"]): _name(each["real"]) for each in objects(pairs["pairs"])}
    listed: list[JsonObject] = []
    where: JsonObject = {}
    async for one in _episodes(answers, about):
        try:
            of_episode = {key: answer async for key, answer in _of_episode(answers, one, linked.get(_name(one)))}
        except UnknownEpisode:  # it was deleted meanwhile
            continue
        number = len(listed)
        listed.append(one)
        where[f"{one['place']}~{one['id']}"] = f"e{number}"
        text = f"Object.assign(dreamgymExport.answers, {_literal(of_episode)});\n"
        (data / f"e{number}.js").write_text(text, encoding="ascii")
        if (number + 1) % 500 == 0:
            say(f"{number + 1} episodes")
    shared: JsonObject = {"about?": about, "pairs?": pairs}
    for many, one_of_them in (("runs", "run"), ("reports", "report")):
        some = await answers.by_name()[many]({})
        shared[asked(many, {})] = some
        for name in (str(each["name"]) for each in objects(some[many])):
            shared[asked(one_of_them, {"name": name})] = await answers.by_name()[one_of_them]({"name": name})
    async for question, answer in _of_buffer(answers, about, say):
        shared[question] = answer
    behind: JsonObject = {}
    for number, name in enumerate(str(each["name"]) for each in objects((await answers.reports({}))["reports"])):
        behind[name] = f"b{number}"
        text = f"dreamgymExport.steps[{json.dumps(name)}] = {_literal(await answers.all_behind(name))};\n"
        (data / f"b{number}.js").write_text(text, encoding="ascii")
    site = {"answers": shared, "episodes": listed, "files": where, "behind": behind, "steps": {}}
    script = f"globalThis.dreamgymExport = {_literal(site)};\n"
    (data / SITE).write_text(script, encoding="ascii")
    for name, content in page_files().items():
        (folder / name).write_bytes(content)
    shutil.rmtree(folder / DATA, ignore_errors=True)
    data.rename(folder / DATA)
    return len(listed)


def _literal(value: object) -> str:
    """A value in JavaScript. There `"__proto__": x` would not be a field, but `["__proto__"]: x` is one."""
    # a quote behind a backslash is part of a longer name
    return re.sub(r'(?<!\\)"__proto__": ', '["__proto__"]: ', json.dumps(value, ensure_ascii=True))


def page_files() -> dict[str, bytes]:
    """The files of the page as an exported copy has them."""
    own = files()
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
    index = own["index.html"].decode()
    index = index.replace('<meta charset="utf-8">\n', f'<meta charset="utf-8">\n{policy}')
    index = index.replace(
        '<script type="module" src="app.js"></script>',
        f'<script src="{DATA}/{SITE}" defer></script>\n<script src="app.js" defer></script>',
    )
    modules = {name for name in own if name.endswith(".js") and not name.endswith(VENDORED)}
    others = {name: content for name, content in own.items() if name not in modules and name != "index.html"}
    return {**others, "index.html": index.encode(), "app.js": one_script(own).encode()}


def one_script(own: dict[str, bytes]) -> str:
    """The modules of the page as one script, each after those that it imports. No two modules define the same name."""
    ordered: dict[str, str] = {}

    def take(name: str) -> None:
        if name in ordered:
            return
        text = own[name].decode()
        for imported in _IMPORT.finditer(text):
            take(imported["file"])
        ordered[name] = re.sub(r"^export ", "", _IMPORT.sub("", text), flags=re.MULTILINE)

    take("app.js")
    return '"use strict";\n(() => {\n' + "\n".join(ordered.values()) + "})();\n"


async def _of_buffer(
    answers: Answers, about: JsonObject, say: Callable[[str], None]
) -> AsyncIterator[tuple[str, JsonObject]]:
    """The page's requests for the tasks and the coverage of each environment, with the answers."""
    store = about["store"]
    of_store = [str(one["env"]) for one in objects(store["environments"])] if isinstance(store, dict) else []
    folder = about["folder"] if isinstance(about["folder"], dict) else {"environments": [], "curricula": []}
    kinds = answers.by_name()
    for env in of_store:
        yield asked("coverage", {"env": env}), await kinds["coverage"]({"env": env})
        async for each in _tasks(answers, {"env": env}):
            yield each
    for played in folder["environments"] if isinstance(folder["environments"], list) else ():
        which = {"place": "folder", "env": str(played)}
        yield asked("coverage", which), await kinds["coverage"](which)
    for run in folder["curricula"] if isinstance(folder["curricula"], list) else ():
        try:
            async for each in _tasks(answers, {"run": str(run)}):
                yield each
        except InvalidInput as error:  # it is just being written
            say(f"left out: {error}")


async def _tasks(answers: Answers, which: dict[str, str]) -> AsyncIterator[tuple[str, JsonObject]]:
    first, total = 1, 1
    while first <= total:
        given = {**which, "first": str(first)}
        page = await answers.tasks(given)
        yield asked("tasks", given), page
        first, total = first + MOST, int(str(page["total"]))


async def _episodes(answers: Answers, about: JsonObject) -> AsyncIterator[JsonObject]:
    """All episodes of the run folder and of the store, as lines of a list."""
    places = [place for place, there in (("folder", about["folder"]), ("store", about["store"])) if there is not None]
    for place in places:
        after: str | None = ""
        while after is not None:
            page = await answers.episodes({"place": place, "after": after, "limit": str(MOST)})
            for one in objects(page["episodes"]):
                yield one
            after = None if page["next"] is None else str(page["next"])


def _name(summary: JsonValue) -> tuple[str, str]:
    """Place and id of an episode."""
    assert isinstance(summary, dict)
    return str(summary["place"]), str(summary["id"])


async def _of_episode(
    answers: Answers, one: JsonObject, linked: tuple[str, str] | None
) -> AsyncIterator[tuple[str, JsonObject]]:
    """The page's requests for one episode, with the answers; `linked` is the twin that the overview shows beside it."""
    name = {"place": str(one["place"]), "id": str(one["id"])}
    episode = await answers.episode(name)
    twins = sorted(objects(episode["twins"]), key=lambda twin: _name(twin) != linked)
    compared = [twin for twin in twins if twin["state"] != "running"][:TWINS]
    yield asked("episode", name), {**episode, "twins": [*compared], "on_a_server": False}
    for first in range(1, max(1, int(str(one["steps"]))) + 1, STEPS):
        window = {**name, "first": str(first)}
        page = await answers.steps(window)
        yield asked("steps", window), page
        for step in objects(page["steps"]):
            retrieved = step["retrieved"]
            if isinstance(retrieved, list) and retrieved:
                wanted = {"env": str(one["env"]), "ids": ",".join(map(str, retrieved))}
                yield asked("recorded", wanted), await answers.recorded(wanted)
            state = step["state"]
            if _is_cut(step) or (isinstance(state, dict) and state["kind"] == "fields"):  # it links to the whole state
                which = {**name, "step": str(step["step"])}
                yield asked("step", which), await answers.step(which)
    for twin in compared:
        both = {**name, "other_place": str(twin["place"]), "other": str(twin["id"])}
        with suppress(UnknownEpisode):  # one of the two was deleted meanwhile
            answer = await answers.compare(both)
            yield asked("compare", both), answer
            for first in range(1, int(str(answer["total"])) + 1, STEPS):
                part = {**both, "first": str(first)}
                yield asked("compare", part), await answers.compare(part)


def asked(name: str, given: dict[str, str]) -> str:
    """The key by which the exported page looks up the answer to a request."""
    return f"{name}?" + "&".join(f"{key}={given[key]}" for key in sorted(given))


def _is_cut(value: object) -> bool:
    if isinstance(value, dict):
        return "characters" in value or any(map(_is_cut, value.values()))
    return isinstance(value, list) and any(map(_is_cut, value))
