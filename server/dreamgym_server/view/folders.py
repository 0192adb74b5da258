"""Reads a run folder: its episodes, its training runs and its reports.

The lines of a file of episodes have the form of `dreamgym.replay.grouped`. A file is read again when it has changed. A
line that is not an episode, perhaps because it is still being written, is left out and counted. Nothing outside the
folder is read: symbolic links are not followed.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from dreamgym.errors import UnknownEpisode
from dreamgym.replay.grouped import parted
from dreamgym.replay.keys import transition_id
from dreamgym.replay.listing import EpisodeFilter, EpisodePage, EpisodeSummary, Outcome
from dreamgym.replay.postgres.listing import EpisodeStep, Recorded
from dreamgym.replay.postgres.pairs import TaskPair
from dreamgym.types import Source, Task, Trajectory

METRICS = "metrics.jsonl"
LEFT_OUT = {"checkpoints", "policy", "best", "warm", "untrained", "node_modules", ".git"}
"""Folders without anything to show, such as those of weights. One with a metrics file is a run and is shown."""


@dataclass
class EpisodeFile:
    """The episodes of one JSONL file, without their steps, and where each lies in the file.

    It does not change after it was read, except for `seen` and `last`: of a changed file there is a new one.
    """

    path: Path
    place: str
    stamp: tuple[int, int] = (0, 0)
    """Time of the last change of the file and its size when it was read."""
    episodes: dict[str, EpisodeSummary] = field(default_factory=dict)
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    """First byte and number of bytes of each episode's line."""
    seen: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Episode and step, counted from 1, of each transition; filled by the first search for a transition."""
    by_task: dict[tuple[str, str], list[EpisodeSummary]] = field(default_factory=dict)
    """Episodes by environment and task."""
    broken: int = 0
    """Number of lines that are not episodes."""
    unreadable: int = 0
    """Number of these that look like episodes, perhaps of another version."""
    last: Trajectory | None = None
    """The episode that was read last: a page asks for many of its steps."""

    def now(self) -> EpisodeFile:
        """The file as it is now: this object if it has not changed, else a new one."""
        found = self.path.stat()
        stamp = (found.st_mtime_ns, found.st_size)
        if stamp == self.stamp:
            return self
        changed = EpisodeFile(self.path, self.place, stamp)
        at = datetime.fromtimestamp(found.st_mtime, UTC)
        begins = 0
        with self.path.open("rb") as lines:
            for line in lines:
                if line.strip():
                    changed._take(line, begins, at)
                begins += len(line)
        for one in changed.episodes.values():
            changed.by_task.setdefault((one.task.env, one.task.id), []).append(one)
        return changed

    def text(self, episode: str) -> str:
        """The line of the episode. Raises UnknownEpisode."""
        if episode not in self.spans:
            raise UnknownEpisode(episode)
        begins, length = self.spans[episode]
        with self.path.open("rb") as file:
            file.seek(begins)
            return file.read(length).decode("utf-8", "replace")

    def trajectory(self, episode: str) -> Trajectory:
        """The whole episode. Raises UnknownEpisode."""
        last = self.last
        if last is not None and last.id == episode:
            return last
        try:
            self.last = found = Trajectory.model_validate(parted(self.text(episode))[1])
        except (OSError, ValueError):  # the file was changed since it was read
            raise UnknownEpisode(episode) from None
        return found

    def _take(self, line: bytes, begins: int, at: datetime) -> None:
        try:
            group, body = parted(line)
            summary = _summary(self.place, group, Trajectory.model_validate(body), at)
        except ValueError:
            self.broken += 1
            self.unreadable += b'"transitions"' in line and b'"task"' in line
            return
        self.episodes[summary.id] = summary
        self.spans[summary.id] = (begins, len(line))


def is_own(path: Path) -> bool:
    """True for a file that is there and is no symbolic link, pipe or device."""
    return path.is_file() and not path.is_symlink()


class RunFolder:
    """The contents of one run folder, as the page shows them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[Path, EpisodeFile] = {}
        self._reading = threading.Lock()
        """Requests are answered in several threads; one of them reads the files, and the others wait for it."""

    def files(self, name: str = "") -> list[Path]:
        """Files of this name, or all files if it is empty, in the order of their paths."""
        found = []
        for here, folders, names in os.walk(self.folder):
            inner = {one: Path(here) / one for one in sorted(folders)}
            folders[:] = [
                one
                for one, path in inner.items()
                if not path.is_symlink() and (one not in LEFT_OUT or (path / METRICS).is_file())
            ]
            found += [Path(here) / one for one in sorted(names) if name in {"", one} and not one.startswith(".")]
        return [path for path in found if is_own(path)]

    def place_of(self, path: Path) -> str:
        """Path of a file's folder, relative to the run folder; `.` for the run folder itself."""
        return path.parent.relative_to(self.folder).as_posix()

    def episode_files(self) -> list[EpisodeFile]:
        """The files of episodes, as they are now."""
        found = []
        with self._reading:
            for path in self.files():
                if path.suffix != ".jsonl" or path.name == METRICS:
                    continue
                known = self._files.get(path) or EpisodeFile(path, path.relative_to(self.folder).as_posix())
                try:
                    one = self._files[path] = known.now()
                except OSError:  # it was deleted
                    continue
                if one.episodes or one.unreadable:
                    found.append(one)
        return found

    def page(self, chosen: EpisodeFilter, *, file: str | None = None, first: int = 0, limit: int = 50) -> EpisodePage:
        """Episodes that meet the conditions, the last of each file first; of all files, or of one."""
        found = [one for one in self.episode_files() if file in {None, one.place}]
        if chosen.env and chosen.task:  # fast, because it is asked for each exported episode
            task = (chosen.env, chosen.task)
            everything = [one for file in found for one in reversed(file.by_task.get(task, []))]
        else:
            everything = [one for file in found for one in reversed(file.episodes.values())]
        matching = [one for one in everything if one.passes(chosen)]
        goes_on = first + limit < len(matching)
        return EpisodePage(
            episodes=tuple(matching[first : first + limit]),
            matching=len(matching),
            looked=len(everything),
            next=str(first + limit) if goes_on else None,
        )

    def tasks(self) -> dict[str, Task]:
        """The tasks that were played, by their ids."""
        return {one.task.id: one.task for file in self.episode_files() for one in file.episodes.values()}

    def environments(self) -> list[str]:
        """The environments that were played, those with most episodes first."""
        found = Counter(env for file in self.episode_files() for (env, _), some in file.by_task.items() for _ in some)
        return [env for env, _ in found.most_common()]

    def has(self, place: str) -> bool:
        """True if there is a file of episodes of this name."""
        return any(one.place == place for one in self.episode_files())

    def summary(self, place: str, episode: str) -> EpisodeSummary:
        """One episode without its steps. Raises UnknownEpisode."""
        found = self._file(place, episode).episodes.get(episode)
        if found is None:
            raise UnknownEpisode(episode)
        return found

    def trajectory(self, place: str, episode: str) -> Trajectory:
        """One episode. Raises UnknownEpisode."""
        return self._file(place, episode).trajectory(episode)

    def pairs(self) -> list[TaskPair]:
        """Tasks that were played in a dream and in reality, first those with both episodes in one file."""
        by_task: dict[tuple[str, str], list[EpisodeSummary]] = {}
        for one in self.page(EpisodeFilter(), limit=1_000_000).episodes:
            by_task.setdefault((one.task.env, one.task.id), []).append(one)
        pairs = []
        for (env, task), some in by_task.items():
            dreams = [(one.place, one.id) for one in some if one.source is Source.SYNTHETIC]
            real = [(one.place, one.id) for one in some if one.source is not Source.SYNTHETIC]
            if dreams and real:
                both = {place for place, _ in dreams} & {place for place, _ in real}
                dream, other = (min(these, key=lambda one: one[0] not in both) for these in (dreams, real))
                pairs.append(TaskPair(env=env, task=task, dream=dream, real=other))
        return sorted(pairs, key=lambda pair: pair.dream[0] != pair.real[0])

    def recorded(self, ids: list[str]) -> list[Recorded]:
        """Transitions by their ids, each with an episode of this folder that contains it.

        A recorded episode is preferred to a dreamed one. A transition that is nowhere is left out.
        """
        wanted = set(ids)
        found: dict[str, Recorded] = {}
        for file in self.episode_files():
            if not file.seen:
                file.seen = dict(_transitions_of(file))
            for identity in sorted(wanted & file.seen.keys()):
                episode, step = file.seen[identity]
                try:
                    trajectory = file.trajectory(episode)
                except UnknownEpisode:
                    continue
                if trajectory.source is not Source.SYNTHETIC:
                    wanted.discard(identity)
                elif identity in found:
                    continue
                found[identity] = Recorded(
                    id=identity,
                    place=file.place,
                    episode=episode,
                    step=step,
                    transition=trajectory.transitions[step - 1],
                    instruction=trajectory.task.instruction,
                    source=trajectory.source,
                )
        return list(found.values())

    def _file(self, place: str, episode: str) -> EpisodeFile:
        for one in self.episode_files():
            if one.place == place:
                return one
        raise UnknownEpisode(episode)


def strip(trajectory: Trajectory) -> list[EpisodeStep]:
    """All steps of an episode in short form."""
    return [
        EpisodeStep(tier=step.provenance.tier, is_error=step.result.is_error, reward=step.result.reward)
        for step in trajectory.transitions
    ]


def _transitions_of(file: EpisodeFile) -> Iterator[tuple[str, tuple[str, int]]]:
    # if several episodes contain a transition, a recorded one counts more than a dreamed one, so it comes last
    for one in sorted(file.episodes.values(), key=lambda one: one.source is not Source.SYNTHETIC):
        try:
            steps = file.trajectory(one.id).transitions
        except UnknownEpisode:
            continue
        for number, step in enumerate(steps, start=1):
            yield str(transition_id(step)), (one.id, number)


def _summary(place: str, group: str | None, whole: Trajectory, at: datetime) -> EpisodeSummary:
    results = [step.result for step in whole.transitions]
    origins = [step.provenance for step in whole.transitions]
    return EpisodeSummary(
        place=place,
        id=whole.id,
        task=whole.task,
        source=whole.source,
        stop_reason=whole.stop_reason,
        policy_version=whole.policy_version,
        group=group,
        world=whole.world,
        answer=whole.answer,
        final_reward=whole.final_reward,
        error=whole.error,
        at=at,
        outcome=Outcome(
            steps=len(results),
            tiers=dict(Counter(origin.tier.value for origin in origins)),
            errors=sum(result.is_error for result in results),
            total=sum(result.reward for result in results),
            terminated=any(result.terminated for result in results),
            is_open=any(origin.open_end for origin in origins),
            prompt_tokens=sum(origin.prompt_tokens for origin in origins),
            completion_tokens=sum(origin.completion_tokens for origin in origins),
        ),
    )
