"""Conversion of what a user gives (text, token ids, messages) to what the core takes."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from kvasir.text.chat_template import ChatTemplate, TemplateError, load_chat_template
from kvasir.text.tokenizer import Tokenizer, eos_token_ids
from kvasir.wire.block_hash import chain_hashes, root_hash
from kvasir_engine.grammar.constraint import parse_constraint
from kvasir_engine.grammar.constraint_error import ConstraintError
from kvasir_engine.grammar.thinking import Thinking
from kvasir_engine.request import EngineRequest, Resume
from kvasir_engine.sampling_params import ParameterError, SamplingParams, UnknownTokenError
from kvasir_engine.settings import EngineSettings, SettingsError
from kvasir_engine.text.no_tokenizer import NoTokenizer, needs_text
from kvasir_engine.text.parsing.message_parser import Parsing
from kvasir_engine.text.parsing.reasoning import PromptEnd
from kvasir_engine.text.thinking_budget import limited_thinking

Prompt: TypeAlias = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or vLLM's {"prompt": ...} / {"prompt_token_ids": ...}, with a cache_salt if it
is to share no cached blocks with prompts of another one."""
Message: TypeAlias = Mapping[str, Any]
MAX_SALT_CHARS = 1024


@dataclass(frozen=True, slots=True)
class RequestMaker:
    """Make requests of one model: tokenise, check parameters, hash prompt blocks."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    eos_ids: tuple[int, ...]
    vocab_size: int
    block_size: int
    max_logprobs: int
    prefix_seed: bytes = b""
    """Key of the block hashes, the core's."""
    parsing: Parsing | None = None
    """Forms of the model's answers, for budgets of reasoning."""
    lora: str = ""
    """LoRA adapter that its requests are for; "" = the model itself."""

    @classmethod
    def load(
        cls,
        model_dir: Path,
        settings: EngineSettings,
        *,
        chat_template: str | None = None,
        reasoning_parser: str = "auto",
        vocab_size: int,
        prefix_seed: bytes = b"",
    ) -> RequestMaker:
        """Read tokenizer, template and EOS ids; `reasoning_parser` is a flag of `kvasir serve`.
        Raises TokenizerError, TemplateError or SettingsError."""
        source = Path(settings.tokenizer or model_dir)
        tokenizer, template = load_text(
            source,
            skip=settings.skip_tokenizer_init,
            trust_remote_code=settings.trust_remote_code,
            chat_template=chat_template,
        )
        return cls(
            tokenizer=tokenizer,
            chat_template=template,
            eos_ids=tuple(eos_token_ids(model_dir, settings.hf_overrides)),
            vocab_size=vocab_size,
            block_size=settings.cache.block_size,
            max_logprobs=settings.max_logprobs,
            prefix_seed=prefix_seed,
            parsing=choose_parsing(tokenizer, template, tools="auto", reasoning=reasoning_parser),
        )

    def check_text(self, param: str) -> None:
        """Raise ParameterError if there is no tokenizer for `param`, which is text."""
        if not self.tokenizer.knows_text:
            raise needs_text(param)

    def tokenise(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        """The prompt's text, if it was given, and its token ids. Raises ParameterError for a
        dictionary's key that has no meaning here."""
        if isinstance(prompt, Mapping):
            _check_keys(prompt)
            if "prompt_token_ids" in prompt:
                return prompt.get("prompt"), list(prompt["prompt_token_ids"])
            return self.tokenise(prompt["prompt"])
        if isinstance(prompt, str):
            return prompt, self.tokenizer.encode(prompt)
        return None, list(prompt)

    def request(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str = "",
        resume: Resume | None = None,
    ) -> EngineRequest:
        """A checked request; its handle is for the client to set. Raises ParameterError."""
        if len(cache_salt) > MAX_SALT_CHARS:
            raise ParameterError(
                "cache_salt",
                f"cache_salt takes at most {MAX_SALT_CHARS} characters, got {len(cache_salt)}.",
            )
        for name in ("stop", "bad_words"):
            if getattr(params, name):
                self.check_text(name)
        params.verify_lists()  # before each of their entries is looked at
        self._check_spaces(params)
        params = params.clone(bad_words_token_ids=self.bad_word_ids(params.bad_words))
        made = EngineRequest(
            request_id=request_id,
            handle=0,
            prompt_token_ids=prompt_token_ids,
            params=params,
            # One that the model cannot produce ends nothing.
            eos_token_ids=[token for token in self.eos_ids if token < self.vocab_size],
            cache_salt=cache_salt,
            lora=self.lora,
            priority=priority,
            resume=resume,
        )
        self._verify(made)
        made.constraint = self._constraint(params)
        if params.thinking_token_budget is not None:
            self.check_text("thinking_token_budget")
            made.thinking = self.limited_thinking(params, prompt_token_ids)
        root = root_hash(self.prefix_seed, cache_salt=cache_salt, lora=self.lora)
        made.prompt_token_ids = array("i", prompt_token_ids)
        made.block_hashes = chain_hashes(made.prompt_token_ids, self.block_size, root=root)
        return made

    def limited_thinking(
        self, params: SamplingParams, prompt: PromptEnd | Sequence[int]
    ) -> Thinking | None:
        """Return the reasoning behind a prompt that `params` limit, if any. Raises
        ParameterError."""
        return limited_thinking(
            params, self.parsing, self.tokenizer, prompt, vocab_size=self.vocab_size
        )

    def _constraint(self, params: SamplingParams) -> str:
        if params.structured_outputs is None:
            return ""
        self.check_text("structured_outputs")
        try:
            return parse_constraint(params.structured_outputs).key
        except ConstraintError as error:
            sentence = f"structured_outputs cannot be enforced: {error}."
            raise ParameterError("structured_outputs", sentence) from error

    def _verify(self, made: EngineRequest) -> None:
        """Raise ParameterError; for a token that the model lacks with the text that gave it."""
        try:
            made.params.verify(vocab_size=self.vocab_size, max_logprobs=self.max_logprobs)
            made.verify_vocabulary(self.vocab_size)
        except UnknownTokenError as error:
            text = self.tokenizer.token(error.token)
            raise UnknownTokenError(error.param, error.token, self.vocab_size, text) from None

    def _check_spaces(self, params: SamplingParams) -> None:
        """Refuse what would change the text: byte-level tokenizers put no spaces between tokens,
        and special tokens that are left out have none."""
        if params.spaces_between_special_tokens or params.skip_special_tokens:
            return
        if not self.tokenizer.byte_level:
            raise ParameterError(
                "spaces_between_special_tokens",
                "spaces_between_special_tokens false is not supported with this model's tokenizer; "
                "leave it out, or set skip_special_tokens true.",
            )

    def bad_word_ids(self, words: Iterable[str]) -> list[list[int]]:
        """Token ids of each word, at the start of a text and after a space, as in vLLM."""
        found: list[list[int]] = []
        for word in words:
            for text in (word, f" {word.lstrip()}"):
                ids = self.tokenizer.encode(text, add_special_tokens=False)
                if ids and ids not in found:
                    found.append(ids)
        return found


def cache_salt(prompt: Prompt) -> str:
    """Return the cache_salt that a prompt brings; empty if it has none."""
    return prompt.get("cache_salt") or "" if isinstance(prompt, Mapping) else ""


def _check_keys(prompt: Mapping[str, Any]) -> None:
    known = ("prompt", "prompt_token_ids", "cache_salt")
    for key, value in prompt.items():
        if key not in known and value is not None:
            raise ParameterError(
                key, f"a prompt's {key} is not supported; it has {', '.join(known)}."
            )
    if "prompt" not in prompt and "prompt_token_ids" not in prompt:
        raise ParameterError("prompt", "a prompt needs prompt or prompt_token_ids.")


def load_text(
    directory: Path, *, skip: bool, trust_remote_code: bool, chat_template: str | None
) -> tuple[Tokenizer, ChatTemplate | None]:
    """Return a model's tokenizer and chat template; with `skip` a stand-in and none.

    Raises TokenizerError or TemplateError, or SettingsError for a template without a tokenizer.
    """
    if skip and chat_template is not None:
        raise SettingsError(
            "--chat-template needs the tokenizer that --skip-tokenizer-init leaves out; give one "
            "of the two."
        )
    if skip:
        return NoTokenizer(), None
    tokenizer = Tokenizer.load(directory, trust_remote_code=trust_remote_code)
    template = load_chat_template(directory, tokenizer.special_tokens, override=chat_template)
    return tokenizer, template


def choose_parsing(
    tokenizer: Tokenizer, template: ChatTemplate | None, *, tools: str, reasoning: str
) -> Parsing:
    """Return the forms of a model's answers, by the flags of `kvasir serve`. Raises
    SettingsError."""
    sources = None if template is None else template.all_sources
    try:
        parsing = Parsing.choose(tokenizer, sources, tools=tools, reasoning=reasoning)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    return parsing if template is None else replace(parsing, prompt_opens=_opens(template, parsing))


def _opens(template: ChatTemplate, parsing: Parsing) -> bool:
    """Return whether the template's prompts open the reasoning that is asked for."""
    messages = [{"role": "user", "content": "Hi"}]
    asked = {"enable_thinking": True, "thinking": True}
    try:
        return parsing.opened_by(
            PromptEnd.of_chat(
                template.render(messages, template_kwargs=asked), messages, continued=False
            )
        )
    except TemplateError:
        return False
