"""Creates and drops databases on one server: each run has its own, so that runs do not see each other."""

from __future__ import annotations

import psycopg
from psycopg import conninfo, sql

from dreamgym.errors import InvalidInput


def exists(dsn: str, name: str) -> bool:
    """True if the server at this DSN has a database of this name."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone() is not None


def create(dsn: str, name: str, *, template: str | None = None) -> str:
    """Create a database, empty or as a copy of `template`, and return its DSN.

    Raises:
        InvalidInput: the name is taken, the template is in use, or the user may not create databases.
    """
    copied = sql.SQL(" TEMPLATE {}").format(sql.Identifier(template)) if template else sql.SQL("")
    with psycopg.connect(dsn, autocommit=True) as connection:
        try:
            connection.execute(sql.SQL("CREATE DATABASE {}{}").format(sql.Identifier(name), copied))
        except psycopg.errors.DuplicateDatabase as error:
            raise InvalidInput(f"the database {name!r} exists already: choose another name") from error
        except psycopg.errors.ObjectInUse as error:
            raise InvalidInput(
                f"{template!r} cannot be copied while other connections to it are open: close them first"
            ) from error
        except psycopg.errors.InsufficientPrivilege as error:
            raise InvalidInput(
                "each run needs a database of its own, and this user may not create one: ALTER ROLE ... CREATEDB"
            ) from error
    return dsn_of(dsn, name)


def drop(dsn: str, name: str) -> None:
    """Drop a database if it exists, even if others are connected to it."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def name_of(dsn: str) -> str:
    """Name of the database at this DSN."""
    with psycopg.connect(dsn) as connection:
        return connection.info.dbname


def dsn_of(dsn: str, name: str) -> str:
    """The DSN of another database on the same server."""
    return conninfo.make_conninfo(dsn, dbname=name)
