"""Model as an API process knows it: its names, tokenizer, template and defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvasir.text.chat_template import ChatTemplate
from kvasir.text.json_files import read_json
from kvasir.text.tokenizer import Tokenizer, eos_token_ids
from kvasir_engine.inputs import RequestMaker, choose_parsing, load_text
from kvasir_engine.messages import CoreInfo
from kvasir_engine.server.server_settings import ServerSettings
from kvasir_engine.settings import SettingsError
from kvasir_engine.text.parsing.message_parser import Parsing

_GENERATION_FIELDS = ("repetition_penalty", "temperature", "top_k", "top_p", "min_p")


@dataclass(slots=True)
class ServedModel:
    """Model as requests see it."""

    names: tuple[str, ...]
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    eos_token_ids: list[int]
    defaults: dict[str, Any] = field(default_factory=dict)
    """Sampling parameters for what a request leaves out."""
    root: str = ""
    """Model argument that the user gave: a directory or an id."""
    parsing: Parsing | None = None
    """Formats by which its answers are taken apart; None = not at all."""

    @property
    def name(self) -> str:
        """The name in answers and in metrics."""
        return self.names[0]

    def request_maker(self, info: CoreInfo, max_logprobs: int) -> RequestMaker:
        """Make the core's requests, once the core has said how large everything is."""
        return RequestMaker(
            tokenizer=self.tokenizer,
            chat_template=self.chat_template,
            eos_ids=tuple(self.eos_token_ids),
            vocab_size=info.vocab_size,
            block_size=info.block_size,
            max_logprobs=max_logprobs,
            prefix_seed=info.prefix_seed,
            parsing=self.parsing,
        )


def load_served_model(settings: ServerSettings) -> ServedModel:
    """Read the tokenizer, the template and the defaults of a model directory.

    Raises TokenizerError (a ValueError) with one sentence for what cannot be read, SettingsError
    for parsers that are not there.
    """
    directory = settings.tokenizer_dir or settings.model_dir
    tokenizer, template = load_text(
        directory,
        skip=settings.skip_tokenizer_init,
        trust_remote_code=settings.trust_remote_code,
        chat_template=settings.chat_template,
    )
    eos = eos_token_ids(settings.model_dir, settings.hf_overrides)
    own = tokenizer.special_id("eos_token")
    if not eos and own is not None:
        eos = [own]
    parsing = choose_parsing(
        tokenizer,
        template,
        tools=settings.tool_call_parser,
        reasoning=settings.reasoning_parser,
    )
    eos += [each for each in parsing.stop_ids(tokenizer) if each not in eos]
    return ServedModel(
        names=settings.names,
        tokenizer=tokenizer,
        chat_template=template,
        eos_token_ids=eos,
        defaults=generation_defaults(settings.generation_config, settings.model_dir),
        root=settings.model,
        parsing=parsing,
    )


def generation_defaults(choice: str, model_dir: Path) -> dict[str, Any]:
    """Sampling parameters that a model's generation_config.json sets, under our names.

    `choice` is the flag --generation-config: "auto" (the model's), "vllm" (none), a directory.
    Raises SettingsError for a directory without that file.
    """
    if choice == "vllm":
        return {}
    directory = model_dir if choice == "auto" else Path(choice)
    file = directory / "generation_config.json"
    if choice != "auto" and not file.is_file():
        raise SettingsError(
            f"--generation-config {choice} has no {file.name}; name a directory that has, or auto "
            "or vllm."
        )
    config = read_json(file)
    defaults = {name: config[name] for name in _GENERATION_FIELDS if config.get(name) is not None}
    if config.get("max_new_tokens") is not None:
        defaults["max_tokens"] = config["max_new_tokens"]
    return defaults
