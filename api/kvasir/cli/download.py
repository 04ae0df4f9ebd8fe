"""`kvasir download`."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvasir.cli.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, fail

if TYPE_CHECKING:
    from kvasir.model_uri import ModelURI
    from kvasir.models.download.model_download import DownloadOptions
    from kvasir.models.download.progress import Progress
    from kvasir.models.download.tracker import Tracker

TERMINATION_LOG = Path("/dev/termination-log")

_EPILOG = """\b
Examples:
  kvasir download hf://Qwen/Qwen3-8B --revision main --to /models
  kvasir download s3://bucket/models/qwen3-8b --to /models --keep 2
  kvasir download oci://ghcr.io/org/qwen3-8b:v1 --to /models --evict
  kvasir download https://host/qwen3-8b.tar.gz#sha256=HEX --to /models
  kvasir download hf://org/qwen3-8b-sql-lora --to /models --adapter

\b
hf     Safetensors, config, tokenizer and template files of a repository at one commit.
s3     The same of the objects directly under a prefix, or an archive.
oci    Files and layers of an artifact or image; of a file system, the folder with config.json.
https  An archive (.tar, .tar.gz, .tgz, .zip), or a list of files: the kvasir-model.json of a
       directory that another cache made and a web server offers.
pvc    Nothing is downloaded: the directory in --to is checked.

\b
The model appears as a directory in --to when all of it is there and its sizes and hashes are right;
its path is printed. A download that was killed goes on where it was, two of one model do one.
Exit status: 1 another attempt may succeed, 2 something must be changed first.
Environment: HF_TOKEN, HF_ENDPOINT; AWS_*; REGISTRY_AUTH_FILE, DOCKER_CONFIG,
KVASIR_HTTP_REGISTRIES (HOST:PORT,... without TLS); KVASIR_HTTP_TOKEN;
HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE"""

app = typer.Typer(rich_markup_mode=None)


@app.command(epilog=_EPILOG)
def download(
    uri: Annotated[str, typer.Argument(metavar="URI", help="The model.")],
    to: Annotated[Path, typer.Option(metavar="DIR", help="The cache volume's directory.")],
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit of an hf:// model.")
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN", help="Further files, as '*.py' or '*.bin' (pickles may run code)."
        ),
    ] = None,
    adapter: Annotated[
        bool, typer.Option("--adapter", help="It is a LoRA adapter, with adapter_config.json.")
    ] = False,
    parallel: Annotated[int, typer.Option(min=1, max=64, help="Files at once.")] = 8,
    max_size: Annotated[
        str, typer.Option(metavar="SIZE", help="Refuse a model that is larger.")
    ] = "4TiB",
    keep: Annotated[
        int | None,
        typer.Option(min=1, help="Revisions of this model that stay; older ones are removed."),
    ] = None,
    evict: Annotated[
        bool, typer.Option("--evict", help="Remove unused models when there is no room.")
    ] = False,
    in_use: Annotated[
        list[str] | None,
        typer.Option(metavar="URI", help="A model that is not removed; may be given often."),
    ] = None,
    progress_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve GET /progress on this port.")
    ] = None,
    progress_host: Annotated[
        str, typer.Option(help="Address for it; the default is every address.")
    ] = "::",
) -> None:
    """Download a model into a directory that engines share."""
    from kvasir.cli.download_display import showing
    from kvasir.models.download.progress_server import serving
    from kvasir.models.download.tracker import Tracker

    signal.signal(signal.SIGTERM, _interrupt)
    selection = tuple(include or ()), adapter
    parsed, options = _options(uri, revision, selection, parallel, max_size, keep, evict, in_use)
    tracker = Tracker()
    try:
        with ExitStack() as meanwhile:
            if progress_port is not None:
                meanwhile.enter_context(serving(tracker, progress_host, progress_port))
            meanwhile.enter_context(showing(tracker, str(parsed), bar=sys.stderr.isatty()))
            directory, progress = _run(parsed, revision, to, tracker, options)
    except KeyboardInterrupt:
        # Threads may wait for the network for a minute yet; what they wrote is not lost.
        os._exit(EXIT_INTERRUPTED)
    except OSError as error:
        fail(f"--progress-port {progress_port} cannot be used: {error.strerror}", EXIT_USAGE)
    _leave_message(progress)
    if directory is None:
        fail(progress.error, EXIT_USAGE if progress.permanent else EXIT_FAILED)
    print(directory)


def _options(
    uri: str,
    revision: str | None,
    selection: tuple[tuple[str, ...], bool],
    parallel: int,
    max_size: str,
    keep: int | None,
    evict: bool,
    in_use: list[str] | None,
) -> tuple[ModelURI, DownloadOptions]:
    """Return the URI and the options asked for. Ends the command, and leaves a message, when they
    make no sense."""
    from kvasir.model_uri import parse_model_uri
    from kvasir.models.cache.layout import model_directory
    from kvasir.models.download.archive import ArchiveLimits
    from kvasir.models.download.model_download import DownloadOptions
    from kvasir.models.sources.source import Selection
    from kvasir.quantity import parse_bytes

    try:
        parsed = parse_model_uri(uri)
        model_directory(parsed, revision)
        if revision is not None and parsed.scheme != "hf":
            raise ValueError(f"--revision has a meaning only with hf://, not with {uri!r}")
        return parsed, DownloadOptions(
            Selection(*selection),
            ArchiveLimits(bytes=parse_bytes(max_size)),
            parallel,
            keep,
            evict,
            tuple(parse_model_uri(other) for other in in_use or ()),
        )
    except ValueError as error:
        _leave_message(_failure(str(error), permanent=True))
        fail(error, EXIT_USAGE)


def _run(
    uri: ModelURI, revision: str | None, to: Path, tracker: Tracker, options: DownloadOptions
) -> tuple[Path | None, Progress]:
    from kvasir.models.download.model_download import Download
    from kvasir.models.download_errors import DownloadError

    try:
        return Download(uri, revision, to, tracker, options).run(), tracker.read()
    except DownloadError as error:
        tracker.end(_failure(str(error), error.permanent))
        return None, tracker.read()


def _failure(message: str, permanent: bool) -> Progress:
    from kvasir.models.download.progress import DownloadPhase, Progress

    return Progress(DownloadPhase.FAILED, error=message, permanent=permanent)


def _leave_message(progress: Progress) -> None:
    """Write the termination message that Kubernetes keeps of a container that ended."""
    with suppress(OSError):
        if TERMINATION_LOG.is_file():
            TERMINATION_LOG.write_text(progress.termination_message())


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
