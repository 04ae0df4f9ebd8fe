"""`kvasir keys`: make, list and take back API keys."""

import fcntl
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from kvasir.atomic_files import write_atomic
from kvasir.cli.errors import EXIT_USAGE, fail
from kvasir.validation import reason_of
from kvasir_router.admission.keys import (
    EVERY_MODEL,
    ApiKey,
    KeyFile,
    dump_keys,
    hash_key,
    make_key,
    read_keys,
)
from kvasir_router.yaml_file import YamlFileError

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)

KeyPath = Annotated[
    Path,
    typer.Option(
        "--file",
        "-f",
        envvar="KVASIR_KEYS_FILE",
        dir_okay=False,
        help="The key file; `kvasir router --keys-file` reads it, and again when it changes.",
    ),
]


@app.callback()
def keys() -> None:
    """Make, list and take back the API keys of a router.

    The file holds hashes, never a key, so it may be kept with other configuration; a router that
    has it refuses requests without a known key. Without a key file a router is open to all.

    \b
    kvasir keys create -f keys.yaml --tenant team-a --model 'qwen*' --tokens-per-day 5000000
    kvasir router --config fleet.yaml --keys-file keys.yaml
    curl -H "Authorization: Bearer kv-..." http://127.0.0.1:8080/v1/models
    """


@app.command()
def create(
    file: KeyPath,
    tenant: Annotated[
        str, typer.Option(help="Whose key: keys of one tenant share its part of a busy model.")
    ] = "default",
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model it may use, or `name*`; may be repeated. Default: all."),
    ] = None,
    requests_per_minute: Annotated[float | None, typer.Option(help="Default: no limit.")] = None,
    tokens_per_minute: Annotated[
        float | None, typer.Option(help="Prompt and answer. Default: no limit.")
    ] = None,
    tokens_per_day: Annotated[
        float | None, typer.Option(help="Budget from 00:00 to 00:00 UTC. Default: none.")
    ] = None,
    priority: Annotated[
        str,
        typer.Option(
            help="Who waits for whom when a model is busy: system, interactive, default or bulk."
        ),
    ] = "default",
    weight: Annotated[
        float, typer.Option(help="The tenant's share of a busy model, relative to others'.")
    ] = 1.0,
    key_id: Annotated[
        str | None, typer.Option("--id", help="Names the key in logs and metrics. Default: random.")
    ] = None,
) -> None:
    """Make a key and print it, this once; its hash is added to the file (made if missing)."""
    key = make_key()
    try:
        entry = ApiKey.model_validate(
            {
                "id": key_id if key_id is not None else secrets.token_hex(6),
                "hash": hash_key(key.encode()),
                "tenant": tenant,
                "models": tuple(model or (EVERY_MODEL,)),
                "requests_per_minute": requests_per_minute,
                "tokens_per_minute": tokens_per_minute,
                "tokens_per_day": tokens_per_day,
                "priority": priority,
                "weight": weight,
            }
        )
    except ValidationError as error:
        problem = error.errors()[0]
        option = "--" + str(problem["loc"][0]).replace("_", "-").replace("models", "model")
        reason = reason_of(problem)
        if problem["type"] == "value_error":
            fail(f"{option}: {reason}", EXIT_USAGE)
        fail(f"{option} {reason}, not {problem['input']!r}", EXIT_USAGE)
    with _locked(file):
        entries = _read(file) if file.exists() else ()
        if any(each.id == entry.id for each in entries):
            fail(f"there is a key {entry.id!r} in {file} already; give another --id", EXIT_USAGE)
        _write(file, (*entries, entry))
    print(key)
    print(f"Key {entry.id} of tenant {entry.tenant}; it is shown only now.", file=sys.stderr)


@app.command("list")
def list_keys(file: KeyPath) -> None:
    """Show what each key of the file may do."""
    rows: list[tuple[str, ...]] = [
        ("ID", "TENANT", "MODELS", "REQ/MIN", "TOK/MIN", "TOK/DAY", "PRIORITY", "WEIGHT")
    ]
    rows += [
        (
            key.id,
            key.tenant,
            ",".join(key.models),
            *map(_limit, (key.requests_per_minute, key.tokens_per_minute, key.tokens_per_day)),
            key.priority.name.lower(),
            f"{key.weight:g}",
        )
        for key in _read(file)
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print(
            "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        )


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="As `kvasir keys list` shows it.")],
    file: KeyPath,
) -> None:
    """Take a key out of the file: routers refuse it from their next look at the file on."""
    with _locked(file):
        entries = _read(file)
        left = tuple(key for key in entries if key.id != key_id)
        if len(left) == len(entries):
            fail(f"there is no key {key_id!r} in {file}; see kvasir keys list", EXIT_USAGE)
        _write(file, left)


def _limit(value: float | None) -> str:
    return "-" if value is None else f"{value:.15g}"


def _read(file: Path) -> tuple[ApiKey, ...]:
    try:
        return read_keys(file).keys
    except YamlFileError as error:
        fail(error, EXIT_USAGE)


def _write(file: Path, entries: tuple[ApiKey, ...]) -> None:
    try:
        write_atomic(file, dump_keys(KeyFile(keys=entries)))
    except ValidationError as error:
        fail(f"{file}: {error.errors()[0]['msg']}", EXIT_USAGE)
    except OSError as error:
        fail(f"cannot write {file}: {error.strerror}", EXIT_USAGE)


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Lock out other writers. The directory is locked, since the file itself is replaced."""
    try:
        directory = os.open(file.absolute().parent, os.O_RDONLY)
    except OSError as error:
        fail(f"cannot open the directory of {file}: {error.strerror}", EXIT_USAGE)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)
