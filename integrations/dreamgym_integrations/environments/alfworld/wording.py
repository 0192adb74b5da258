"""ALFWorld's fixed words and its way to list names."""

from __future__ import annotations

from collections.abc import Sequence

REFUSAL = "Nothing happens."
HELP = """Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object"""


def listed(names: Sequence[str]) -> str:
    """Names as the game lists them; `nothing` for none."""
    return ", ".join([*names[:-1], f"and {names[-1]}"]) if len(names) > 1 else "".join(names) or "nothing"


def start_text(places: Sequence[str]) -> str:
    """First observation in a room with these places; without places, the answer to `look` before the first move."""
    places_seen = listed([f"a {place}" for place in places])
    return f"You are in the middle of a room. Looking quickly around you, you see {places_seen}."
