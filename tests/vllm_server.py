"""A vLLM server on CPUs, from the virtual environment that `make vllm` makes."""

import os
import re
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTHON = Path(os.environ.get("DREAMGYM_VLLM_PYTHON") or ROOT / ".venv-vllm" / "bin" / "python")
NEEDS_VLLM = pytest.mark.skipif(
    not PYTHON.is_file(), reason="vLLM is not installed: make vllm, or name its Python with DREAMGYM_VLLM_PYTHON"
)


@contextmanager
def vllm_server(folder: Path, scratch: Path, *options: str) -> Iterator[str]:
    """Serve a checkpoint; yield the server's address, without `/v1`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    # eager: compiling takes most of the start, minutes on busy cores
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager", *options]
    known = {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ}
    settings = {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CACHE_ROOT": str(scratch / "cache"),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    log = scratch / "vllm.log"
    with log.open("w") as said:
        server = subprocess.Popen(command, env=known | settings, cwd=scratch, stdout=said, stderr=said)
        try:
            while True:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                    break
                except OSError:
                    assert server.poll() is None, log.read_text()[-3000:]
                    with pytest.raises(subprocess.TimeoutExpired):
                        server.wait(timeout=1)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(timeout=60)


def counted(url: str, name: str) -> float:
    """A counter of the server, such as `prefix_cache_hits`: in tokens, since it started."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    found = re.search(rf"^vllm:{name}_total\{{.*\}} (\S+)$", text, flags=re.M)
    assert found, text
    return float(found[1])
