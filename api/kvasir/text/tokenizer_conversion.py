"""Old tokenizers (sentencepiece, vocab.json + merges.txt) become a tokenizer.json once.

transformers does it in a subprocess, so that no process of ours imports it, and the result is
cached under the hash of the source files.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from kvasir.text.json_files import TokenizerError

CONVERT_TIMEOUT_SECONDS = 300
_SOURCES = (
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tekken.json",
)
_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json")
_SCRIPT = """
import sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=sys.argv[3] == "yes")
if not tokenizer.is_fast:
    sys.exit("transformers has no fast tokenizer for it")
tokenizer.backend_tokenizer.save(sys.argv[2])
"""


def cache_directory() -> Path:
    """KVASIR_CACHE, or ~/.cache/kvasir."""
    return Path(os.environ.get("KVASIR_CACHE") or Path.home() / ".cache" / "kvasir")


def converted_tokenizer_file(directory: Path, *, trust_remote_code: bool) -> Path:
    """The tokenizer.json made from the old files in `directory`, from the cache when it is there.

    Raises TokenizerError when there is nothing to convert or the conversion fails.
    """
    if not any((directory / name).is_file() for name in _SOURCES):
        raise TokenizerError(
            f"{directory} holds no tokenizer: tokenizer.json or one of {', '.join(_SOURCES)} "
            "is needed; --tokenizer names another directory."
        )
    target = cache_directory() / "tokenizers" / f"{_fingerprint(directory)}.json"
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        _convert(directory, target, trust_remote_code=trust_remote_code)
    return target


def _fingerprint(directory: Path) -> str:
    digest = hashlib.sha256()
    for name in (*_SOURCES, *_SETTINGS):
        path = directory / name
        if path.is_file():
            content = path.read_bytes()
            digest.update(f"{name}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()[:32]


def _convert(directory: Path, target: Path, *, trust_remote_code: bool) -> None:
    """Write `target` by a rename, so that a reader never sees half of it."""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / "tokenizer.json"
        command = [sys.executable, "-c", _SCRIPT, str(directory), str(made)]
        command.append("yes" if trust_remote_code else "no")
        try:
            result = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=CONVERT_TIMEOUT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise TokenizerError(
                f"converting the tokenizer of {directory} took over {CONVERT_TIMEOUT_SECONDS} s."
            ) from error
        if result.returncode != 0 or not made.is_file():
            reason = (result.stderr.strip().splitlines() or ["no output"])[-1]
            raise TokenizerError(
                f"the tokenizer of {directory} has no tokenizer.json and could not be converted "
                f"to one by transformers: {reason}"
            )
        made.replace(target)
