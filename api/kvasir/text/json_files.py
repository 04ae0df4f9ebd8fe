"""Reading the small JSON files of a model directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class TokenizerError(ValueError):
    """A model directory's tokenizer or chat template cannot be used; the message says why."""


def read_json(path: Path) -> dict[str, Any]:
    """The file's object; {} when there is no such file. Raises TokenizerError when it is broken."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (ValueError, OSError) as error:
        raise TokenizerError(f"{path} is not readable JSON: {error}.") from error
    if not isinstance(content, dict):
        raise TokenizerError(f"{path} must hold a JSON object, not a {type(content).__name__}.")
    return content
