"""Settings of the embedded PostgreSQL, computed from the memory of this machine or container."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

MEBIBYTE = 2**20


def server_settings() -> dict[str, str]:
    """PostgreSQL settings by name; `fsync` stays on.

    They are computed at each start, so that a changed memory limit takes effect.
    """
    memory = memory_limit()
    maintenance = min(memory // 8, 4096 * MEBIBYTE)
    return {
        "listen_addresses": "",
        "unix_socket_permissions": "0700",
        "max_connections": "200",
        "shared_buffers": _megabytes(min(memory // 4, 8192 * MEBIBYTE)),
        "maintenance_work_mem": _megabytes(maintenance),
        "max_wal_size": "4GB",
        "jit": "off",
        "random_page_cost": "1.1",
        "dynamic_shared_memory_type": "mmap" if _shared_memory() < maintenance else "posix",
    }


def memory_limit() -> int:
    """Bytes of memory that this process may use: the machine's memory, or its control group's limit if that is less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _limit_files():
        try:
            limits.append(int(path.read_text()))
        except (OSError, ValueError):  # no such group, or the word "max"
            continue
    return min(limits)


def _limit_files() -> list[Path]:
    root = Path("/sys/fs/cgroup")
    files = [root / "memory.max", root / "memory" / "memory.limit_in_bytes"]
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return files
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            files.append(root / group.lstrip("/") / "memory.max")
        elif "memory" in controllers.split(","):
            files.append(root / "memory" / group.lstrip("/") / "memory.limit_in_bytes")
    return files


def _shared_memory() -> int:
    try:
        return shutil.disk_usage("/dev/shm").total  # noqa: S108
    except OSError:
        return 0


def _megabytes(size: int) -> str:
    return f"{max(size // MEBIBYTE, 16)}MB"
