"""A store behind PgBouncer, which gives each transaction another connection."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo

from dreamgym.embedding import TrigramEncoder
from dreamgym.replay.postgres import open_store
from dreamgym.testing.replay import ENV, sample_retrieval, sample_trajectory, sample_transition

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(shutil.which("pgbouncer") is None, reason="needs pgbouncer on the path"),
]

START_S = 10.0


@pytest.fixture
def pooled_dsn(empty_dsn: str, tmp_path: Path) -> Iterator[str]:
    """Address of a pooler in transaction mode with four connections."""
    server = conninfo.conninfo_to_dict(empty_dsn)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    owner = Path(str(server["host"])).owner()
    settings = tmp_path / "pgbouncer.ini"
    settings.write_text(
        f"[databases]\n* = host={server['host']} user={server['user']}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        "pool_mode = transaction\ndefault_pool_size = 4\n"
    )
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    process = subprocess.Popen(
        ["pgbouncer", *(["-u", owner] if os.geteuid() == 0 else []), str(settings)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    dsn = conninfo.make_conninfo(host="127.0.0.1", port=port, user="anybody", dbname=str(server["dbname"]))
    try:
        deadline = time.monotonic() + START_S
        while True:
            try:
                psycopg.connect(dsn).close()
                break
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, "pgbouncer does not start"
        yield dsn
    finally:
        process.terminate()
        process.wait()


async def test_a_store_behind_a_pooler_answers_every_call(pooled_dsn: str) -> None:
    first, second = [await open_store(pooled_dsn, TrigramEncoder()) for _ in range(2)]
    for number in range(20):  # a statement that is prepared on one connection would be unknown on the next
        store = (first, second)[number % 2]
        walk = sample_trajectory(f"walk {number}", sample_transition(f"hall {number}", "north", "a yard"))
        assert await store.buffer.add([walk]) == 1
        for command in ("north", "south"):
            assert await store.buffer.nearest(sample_retrieval(f"hall {number}", command))
    assert (await first.buffer.counts(ENV)).trajectories == 20
    await first.close()
    await second.close()
