"""Plans of the scripted chat model: ten tasks for each of three servers, with slips, detours and refusals.

A plan fixes the calls. The final answer is extracted from the tools' answers, so it shows whether these were right:
`finds` is a pattern, and its group is the answer. The task is accomplished if the answer is `right`.
This file is longer than our others, because thirty plans are data.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dreamgym_integrations.models.chat_server import Reply
from fresh import ROOT
from pydantic import JsonValue

from dreamgym.types import JsonObject, ToolCall

NOT_FOUND = "I could not find it."


@dataclass(frozen=True)
class Plan:
    """One task and how it is played."""

    id: str
    instruction: str
    calls: tuple[ToolCall, ...]
    finds: str
    right: str

    def reply(self, said: Sequence[str]) -> Reply:
        """The next call, or the answer after the last call."""
        if len(said) < len(self.calls):
            return Reply(tool_calls=(self.calls[len(said)],))
        found = [match for text in said for match in re.findall(self.finds, text)]
        return Reply(found[-1] if found else NOT_FOUND)


def call(tool: str, **arguments: JsonValue) -> ToolCall:
    """One call; an argument whose name is a Python keyword is given with an underscore at the end."""
    return ToolCall(name=tool, arguments={name.removesuffix("_"): value for name, value in arguments.items()})


def at(path: str = "") -> str:
    """A path in the folder that the filesystem server may use."""
    return str(ROOT / path)


def observed(name: str, *contents: str) -> ToolCall:
    """Note something about an entity."""
    return call("add_observations", observations=[{"entityName": name, "contents": list(contents)}])


def entity(name: str, kind: str, *observations: str) -> ToolCall:
    """Make an entity."""
    made: JsonObject = {"name": name, "entityType": kind, "observations": list(observations)}
    return call("create_entities", entities=[made])


def related(tool: str, source: str, kind: str, target: str) -> ToolCall:
    """Make or delete a relation."""
    return call(tool, relations=[{"from": source, "to": target, "relationType": kind}])


def opened(*names: str) -> ToolCall:
    """Look at entities."""
    return call("open_nodes", names=list(names))


FILESYSTEM = (
    Plan(
        "price-of-lamp",
        "What does a lamp cost? There is a price list somewhere in the project.",
        (
            call("list_allowed_directories"),
            call("list_directory", path=at()),
            call("list_directory", path=at("data")),
            call("read_text_file", path=at("data/prices.csv")),
        ),
        r"lamp,(\d+)",
        "80",
    ),
    Plan(
        "price-of-buoy",
        "How much is a buoy?",
        (
            call("read_text_file", path=at("prices.csv")),
            call("search_files", path=at(), pattern="**/prices*"),
            call("read_text_file", path=at("data/prices.csv")),
        ),
        r"buoy,(\d+)",
        "45",
    ),
    Plan(
        "stock-of-rope",
        "How much rope is in stock?",
        (
            call("list_directory", path=at()),
            call("list_directory", path=at("data")),
            call("read_text_file", path=at("data/stock.json")),
        ),
        r'\\?"rope\\?": (\d+)',
        "40",
    ),
    Plan(
        "shipping-date",
        "When did the meeting decide to ship?",
        (
            call("list_directory", path=at("notes")),
            call("read_text_file", path=at("notes/meeting.md")),
            call("read_text_file", path=at("notes/meeting-march.md")),
        ),
        r"ship on (\d+ \w+)",
        "14 March",
    ),
    Plan(
        "lamp-is-fixed",
        "The pier lamp is fixed. Tick it off in the to-do list and tell me how the line reads now.",
        (
            call("read_text_file", path=at("notes/todo.txt")),
            call(
                "edit_file",
                path=at("notes/todo.txt"),
                edits=[{"oldText": "[ ] fix pier lamp", "newText": "[x] fix pier lamp"}],
            ),
            call("read_text_file", path=at("notes/todo.txt")),
        ),
        r"(\[.\] fix pier lamp)",
        "[x] fix pier lamp",
    ),
    Plan(
        "buoy-is-painted",
        "Buoy 7 is painted. Tick it off in the to-do list and tell me how the line reads now.",
        (
            call("search_files", path=at(), pattern="**/todo*"),
            call("read_text_file", path=at("notes/todo.txt")),
            call(
                "edit_file",
                path=at("notes/todo.txt"),
                edits=[{"oldText": "[ ] paint buoy seven", "newText": "[x] paint buoy 7"}],
            ),
            call(
                "edit_file",
                path=at("notes/todo.txt"),
                edits=[{"oldText": "[ ] paint buoy 7", "newText": "[x] paint buoy 7"}],
            ),
            call("read_text_file", path=at("notes/todo.txt")),
        ),
        r"(\[.\] paint buoy 7)",
        "[x] paint buoy 7",
    ),
    Plan(
        "archive-todo",
        "Move the to-do list into an archive folder. What is left in notes?",
        (
            call("move_file", source=at("notes/todo.txt"), destination=at("archive/todo.txt")),
            call("create_directory", path=at("archive")),
            call("move_file", source=at("notes/todo.txt"), destination=at("archive/todo.txt")),
            call("list_directory", path=at("notes")),
        ),
        r"^\[FILE\] (\S+)$",
        "meeting-march.md",
    ),
    Plan(
        "write-summary",
        "Write a one-line summary of the meeting into archive/summary.txt and read it back to me.",
        (
            call("read_text_file", path=at("notes/meeting-march.md")),
            call("create_directory", path=at("archive")),
            call("write_file", path=at("archive/summary.txt"), content="We ship on 14 March.\n"),
            call("read_text_file", path=at("archive/summary.txt")),
        ),
        r"(We ship on 14 March\.)",
        "We ship on 14 March.",
    ),
    Plan(
        "who-owns-it",
        "Who owns this project?",
        (
            call("read_text_file", path="/etc/hostname"),
            call("list_allowed_directories"),
            call("read_text_file", path=at("README.md")),
        ),
        r"Owner: ([\w ]+)",
        "the pier committee",
    ),
    Plan(
        "last-error",
        "What is the last error in the log?",
        (
            call("search_files", path=at(), pattern="**/*.log"),
            call("get_file_info", path=at("logs/app.log")),
            call("read_text_file", path=at("logs/app.log"), head=3),  # a slip: the last lines were asked for
        ),
        r"ERROR ([\w ]+)",
        "no route to gauge 5",
    ),
)

MEMORY = (
    Plan(
        "who-leads",
        "Who leads the Analytical Engine?",
        (call("search_nodes", query="Analytical"), opened("Analytical Engine", "Charles")),
        r'"from": "(\w+)",\s+"to": "Analytical Engine",\s+"relationType": "leads"',
        "Charles",
    ),
    Plan(
        "where-charles-lives",
        "Where does Charles live?",
        (call("search_nodes", query="Charles"), opened("Charles", "London")),
        r'"to": "(\w+)",\s+"relationType": "lives in"',
        "London",
    ),
    Plan(
        "remember-birthday",
        "Remember that Ada was born in 1815.",
        (opened("Ada"), observed("Ada", "born in 1815"), opened("Ada")),
        r'"(born in 1815)"',
        "born in 1815",
    ),
    Plan(
        "remember-mary",
        "Remember that Mary is an astronomer.",
        (
            observed("Mary", "astronomer"),
            call("search_nodes", query="Mary"),
            entity("Mary", "person"),
            observed("Mary", "astronomer"),
            opened("Mary"),
        ),
        r'"(astronomer)"',
        "astronomer",
    ),
    Plan(
        "remember-george",
        "Note that George, a person, is an algebraist, and that he lives in London.",
        (
            observed("George", "algebraist"),
            entity("George", "person", "algebraist"),
            related("create_relations", "George", "lives in", "London"),
            opened("George", "London"),
        ),
        r'"from": "(\w+)",\s+"to": "London",\s+"relationType": "lives in"',
        "George",
    ),
    Plan(
        "ada-moves",
        "Ada lives in London now. Note it, and note that she works on nothing any more.",
        (
            related("create_relations", "Ada", "lives in", "London"),
            related("delete_relations", "Ada", "works on", "Analytical Engine"),
            opened("Ada", "London"),
        ),
        r'"from": "(\w+)",\s+"to": "London"',
        "Ada",
    ),
    Plan(
        "forget-difference-engine",
        "Forget the Difference Engine. Which engine is left?",
        (
            call("search_nodes", query="Engine"),
            call("delete_entities", entityNames=["Difference Engine"]),
            call("search_nodes", query="Engine"),
        ),
        r'"name": "(\w+ Engine)"',
        "Analytical Engine",
    ),
    Plan(
        "correct-ada",
        "Ada is not a mathematician but a programmer. Correct it.",
        (
            opened("Ada"),
            call("delete_observations", deletions=[{"entityName": "Ada", "observations": ["mathematician"]}]),
            observed("Ada", "programmer"),
            opened("Ada"),
        ),
        r'"(programmer)"',
        "programmer",
    ),
    Plan(
        "already-known",
        "Make an entity for London, a city, if there is none. What is known of it?",
        (entity("London", "city"), opened("London")),
        r'"(on the \w+)"',
        "on the Thames",
    ),
    Plan(
        "who-is-napoleon",
        "What do we know of Napoleon?",
        (call("search_nodes", query="Napoleon"), opened("Napoleon"), call("read_graph")),
        r'"name": "Napoleon",\s+"entityType": "(\w+)"',
        NOT_FOUND,
    ),
)

EVERYTHING = (
    Plan(
        "weather-in-chicago",
        "What is the weather in Chicago?",
        (
            call("get-structured-content", location="Chicago"),
            call("get-structured-content", location="chicago"),
            call("echo", message="36 degrees in Chicago"),
        ),
        r'"conditions": ?"([^"]+)"',
        "Light rain / drizzle",
    ),
    Plan(
        "weather-in-paris",
        "What is the weather in Paris? If you cannot tell, say New York's.",
        (
            call("get-structured-content", location="Paris"),
            call("get-structured-content", location="New York"),
            call("echo", message="33 degrees in New York"),
        ),
        r'"conditions": ?"([^"]+)"',
        "Cloudy",
    ),
    Plan(
        "warmest-city",
        "Which temperatures are there in Los Angeles, New York and Chicago? Tell me the last you read.",
        (
            call("get-structured-content", location="Los Angeles"),
            call("get-structured-content", location="New York"),
            call("get-structured-content", location="Chicago"),
        ),
        r'"temperature": ?(\d+)',
        "36",
    ),
    Plan(
        "add-two",
        "What is 17 plus 25?",
        (call("get-sum", a="17", b="25"), call("get-sum", a=17, b=25), call("echo", message="17 plus 25 is 42")),
        r"is (\d+)\.",
        "42",
    ),
    Plan(
        "add-three",
        "What is 3 plus 4 plus 5?",
        (call("get-sum", a=3, b=4), call("get-sum", a=7, b="five"), call("get-sum", a=7, b=5)),
        r"is (\d+)\.",
        "12",
    ),
    Plan(
        "say-hello",
        "Say hello through the server.",
        (call("echo", text="hello"), call("echo", message="good day"), call("echo", message="hello")),
        r"Echo: (\w+)",
        "hello",
    ),
    Plan(
        "show-a-picture",
        "Show me a picture, with a success message.",
        (
            call("get-tiny-image"),
            call("get-annotated-message", messageType="success", includeImage=True),
            call("get-annotated-message", messageType="success"),
        ),
        r"(Operation completed successfully)",
        "Operation completed successfully",
    ),
    Plan(
        "what-went-wrong",
        "Fetch the error message and the debug message.",
        (
            call("get-annotated-message", messageType="warning"),
            call("get-annotated-message", messageType="error"),
            call("get-annotated-message", messageType="debug"),
        ),
        r"(Operation failed)",
        "Operation failed",
    ),
    Plan(
        "fetch-resources",
        "Fetch the text resources 2 and 1. What is the address of the last?",
        (
            call("get-resource-reference", resourceType="Text", resourceId=2),
            call("get-resource-reference", resourceType="Text", resourceId=0),
            call("get-resource-reference", resourceType="Text", resourceId=1),
        ),
        r"(demo://resource/dynamic/text/\d+)",
        "demo://resource/dynamic/text/1",
    ),
    Plan(
        "wait-a-little",
        "Run the long operation in two steps of half a second and tell me when it is done.",
        (
            call("trigger-long-running-operation", duration=1, steps=2),
            call("toggle-simulated-logging"),
            call("toggle-simulated-logging"),
        ),
        r"(Long running operation completed)",
        "Long running operation completed",
    ),
)

PLANS: Mapping[str, tuple[Plan, ...]] = {"filesystem": FILESYSTEM, "memory": MEMORY, "everything": EVERYTHING}


def chat_model(messages: list[JsonObject], tools: list[JsonObject]) -> Reply:
    """The scripted model behind the agent's chat endpoint."""
    user = next(_text(message["content"]) for message in messages if message["role"] == "user")
    said = [_text(message["content"]) for message in messages if message["role"] == "tool"]
    plan = next(plan for plans in PLANS.values() for plan in plans if plan.instruction in user)
    return plan.reply(said)


def _text(content: JsonValue) -> str:
    """A message's text, which some frameworks send in parts."""
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content)
