"""Databases of their own on one server, so that runs do not see each other."""

from __future__ import annotations

import psycopg
from psycopg import conninfo, sql

from dreamgym.errors import InvalidInput


def exists(dsn: str, name: str) -> bool:
    """The server at this DSN has a database of this name."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone() is not None


def create(dsn: str, name: str, *, template: str | None = None) -> str:
    """Make a database, a copy of the template where one is named, and return its DSN.

    Raises:
        InvalidInput: there is one of this name, the template is in use, or the user may not make one.
    """
    copied = sql.SQL(" TEMPLATE {}").format(sql.Identifier(template)) if template else sql.SQL("")
    with psycopg.connect(dsn, autocommit=True) as connection:
        try:
            connection.execute(sql.SQL("CREATE DATABASE {}{}").format(sql.Identifier(name), copied))
        except psycopg.errors.DuplicateDatabase as error:
            raise InvalidInput(f"there is a database {name!r} already") from error
        except psycopg.errors.ObjectInUse as error:
            raise InvalidInput(
                f"{template!r} cannot be copied while others are connected to it: end them first"
            ) from error
        except psycopg.errors.InsufficientPrivilege as error:
            raise InvalidInput(
                "each run needs a database of its own, and this user may make none: ALTER ROLE ... CREATEDB"
            ) from error
    return dsn_of(dsn, name)


def drop(dsn: str, name: str) -> None:
    """Remove a database, whoever is connected to it."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def name_of(dsn: str) -> str:
    """Of the database at this DSN."""
    with psycopg.connect(dsn) as connection:
        return connection.info.dbname


def dsn_of(dsn: str, name: str) -> str:
    """The same server, another database."""
    return conninfo.make_conninfo(dsn, dbname=name)
