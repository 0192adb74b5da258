"""`mcp-server-time`: the time in any time zone. It changes nothing; half of its answers depend on the clock."""

from __future__ import annotations

from public_server import Kind, Plan, Server, Session, call

from dreamgym.types import ToolCall


def now(zone: str) -> ToolCall:
    return call("get_current_time", timezone=zone)


def convert(time: str, source: str, target: str) -> ToolCall:
    return call("convert_time", source_timezone=source, time=time, target_timezone=target)


DIFFERENCE = r'"time_difference": ?"([^"]+)"'

PLANS = (
    Plan(
        "now-in-berlin", "What time zone is used in Berlin now?", (now("Europe/Berlin"),), r'"is_dst": (\w+)', "false"
    ),
    Plan(
        "meeting-new-york",
        "Our meeting is at 15:00 in Berlin. When is that in New York?",
        (convert("15:00", "Europe/Berlin", "America/New_York"),),
        DIFFERENCE,
        "-6.0h",
    ),
    Plan(
        "call-mars",
        "What time is it at Olympus on Mars? If nobody knows, say UTC's.",
        (now("Mars/Olympus"), now("UTC")),
        r'"timezone": ?"(\w+)"',
        "UTC",
    ),
    Plan(
        "meeting-tokyo",
        "Our call is at 9 in London. When is it in Tokyo?",
        (convert("9", "Europe/London", "Asia/Tokyo"), convert("09:00", "Europe/London", "Asia/Tokyo")),
        DIFFERENCE,
        "+9.0h",
    ),
    Plan("now-in-london", "Is it summer time in London?", (now("Europe/London"),), r'"is_dst": (\w+)', "false"),
    Plan(
        "delhi",
        "It is 18:30 in Delhi. What time is it in Berlin?",
        (convert("18:30", "Asia/Delhi", "Europe/Berlin"), convert("18:30", "Asia/Kolkata", "Europe/Berlin")),
        DIFFERENCE,
        "-4.5h",
    ),
    Plan(
        "three-offices",
        "What time is it in our offices in Berlin, New York and Tokyo?",
        (now("Europe/Berlin"), now("America/New_York"), convert("12:00", "Europe/Berlin", "Asia/Tokyo")),
        DIFFERENCE,
        "+8.0h",
    ),
    Plan(
        "sydney",
        "The shop in Sydney opens at 08:00. When is that in London?",
        (convert("08:00", "Australia/Sydney", "Europe/London"),),
        DIFFERENCE,
        "-11.0h",
    ),
    Plan(
        "late-call",
        "Somebody wants to call at 25:00 in New York. When is that in Berlin?",
        (convert("25:00", "America/New_York", "Europe/Berlin"), convert("23:00", "America/New_York", "Europe/Berlin")),
        DIFFERENCE,
        "+6.0h",
    ),
    Plan(
        "utc-berlin",
        "What is 06:45 UTC in Berlin?",
        (now("UTC"), convert("06:45", "UTC", "Europe/Berlin")),
        DIFFERENCE,
        "+1.0h",
    ),
)

SESSIONS = (
    Session(
        "same-conversion",
        Kind.REPEATED_READS,
        (
            convert("15:00", "Europe/Berlin", "America/New_York"),
            convert("15:00", "Europe/Berlin", "America/New_York"),
            now("Europe/Berlin"),
            convert("15:00", "Europe/Berlin", "America/New_York"),
        ),
    ),
    Session(
        "same-new-conversion",
        Kind.REPEATED_READS,
        (
            convert("16:20", "Europe/Paris", "Asia/Tokyo"),
            convert("16:20", "Europe/Paris", "Asia/Tokyo"),
            convert("07:05", "UTC", "Asia/Tokyo"),
            convert("16:20", "Europe/Paris", "Asia/Tokyo"),
        ),
    ),
    Session(
        "same-refusal", Kind.REPEATED_READS, (now("Venus/Ishtar"), now("Venus/Ishtar"), now("UTC"), now("Venus/Ishtar"))
    ),
    Session(
        "other-zones",
        Kind.NEW_ARGUMENTS,
        (now("Asia/Tokyo"), now("Europe/Oslo"), now("America/Sao_Paulo"), now("Africa/Nairobi"), now("Asia/Kolkata")),
    ),
    Session(
        "other-times",
        Kind.NEW_ARGUMENTS,
        (
            convert("10:15", "Europe/Berlin", "America/New_York"),
            convert("15:00", "America/New_York", "Europe/Berlin"),
            convert("23:30", "Asia/Tokyo", "Europe/London"),
            convert("00:00", "UTC", "Asia/Kolkata"),
            convert("12:00", "Europe/Oslo", "Africa/Nairobi"),
        ),
    ),
    Session(
        "refused",
        Kind.REFUSALS,
        (
            now("Atlantis"),
            convert("12:00", "Moon/Base", "UTC"),
            convert("12:00", "UTC", "Moon/Base"),
            convert("noon", "UTC", "Europe/Berlin"),
            convert("24:01", "Europe/London", "UTC"),
            call("get_current_time", zone="UTC"),
            call("convert_time", source_timezone="UTC", time="12:00"),
        ),
    ),
)

SERVER = Server(
    name="time",
    package="PyPI mcp-server-time 2026.10.19",
    command=lambda there: (str(there / "python/bin/mcp-server-time"), "--local-timezone", "Europe/Berlin"),
    plans=PLANS,
    sessions=SESSIONS,
    reads=frozenset({"get_current_time", "convert_time"}),
)
