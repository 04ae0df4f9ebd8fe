"""Logging of every part: structlog, as JSON lines or for a console, on stderr.

KVASIR_LOG_LEVEL is debug, info (the default), warning or error. KVASIR_LOG_FORMAT is json or
console; without it a terminal gets console and everything else JSON.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from typing import Any, Literal, cast

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
FORMATS = ("json", "console")

_ERROR_LINE = re.compile(r'"level": ?"(?:error|critical)"|\[(?:\x1b\[[0-9;]*m)*(?:error|critical) ')


class LogSettingError(ValueError):
    """KVASIR_LOG_LEVEL or KVASIR_LOG_FORMAT has a value that is none of its own."""


def configure_logging(
    component: str, *, level: str | None = None, log_format: str | None = None
) -> None:
    """Send this process's log lines, also those of the standard library, to stderr.

    `component` ("engine", "router", ...) is in every line. `level` and `log_format` come before
    the environment. Raises LogSettingError.
    """
    number = LEVELS[_choice("KVASIR_LOG_LEVEL", level, tuple(LEVELS), "info")]
    shape = _choice("KVASIR_LOG_FORMAT", log_format, FORMATS, _default_format())

    def add_component(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        event.setdefault("component", component)
        event.pop("color_message", None)  # uvicorn's copy of the message for its own formatter
        return event

    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        add_component,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(number),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *shared],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(cast(Literal["json", "console"], shape)),
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=number, force=True)
    # It tells of every request, and those to a cluster's API never end.
    if number == logging.INFO:
        logging.getLogger("httpx").setLevel(logging.WARNING)


def get_logger(name: str) -> Any:
    """A structlog logger: `get_logger(__name__).info("ready", port=8080)`."""
    return structlog.stdlib.get_logger(name)


def is_error_line(line: str) -> bool:
    """True for a line that was logged at level error or critical, in either format."""
    return _ERROR_LINE.search(line) is not None


def _renderers(shape: Literal["json", "console"]) -> list[Processor]:
    if shape == "console":
        return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]


def _default_format() -> str:
    return "console" if sys.stderr.isatty() else "json"


def _choice(variable: str, given: str | None, choices: tuple[str, ...], default: str) -> str:
    value = (given or os.environ.get(variable) or default).lower()
    if value not in choices:
        raise LogSettingError(f"{variable} must be one of {', '.join(choices)}, not {value!r}")
    return value
