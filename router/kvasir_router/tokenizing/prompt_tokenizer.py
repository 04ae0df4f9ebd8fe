"""Tokens and report of a prompt from its request's body, as vLLM makes a prompt of it."""

from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec

from kvasir.model_uri import parse_model_uri
from kvasir.models.local_config import find_config
from kvasir.text.chat_messages import normalise_messages
from kvasir.text.chat_template import ChatTemplate, load_chat_template
from kvasir.text.tokenizer import Tokenizer
from kvasir.wire.block_hash import chain_hashes, root_hash
from kvasir.wire.prompt_report.prompt_map import Messages
from kvasir.wire.prompt_report.report import PromptReport, TokenisedPrompt, make_report
from kvasir.wire.prompt_report.token_cuts import CutRules
from kvasir.wire.text_chain import chain_hashes as text_hashes
from kvasir.wire.text_chain import chat_pieces, completion_pieces
from kvasir_router.tokenizing.job_messages import Job
from kvasir_router.tokenizing.token_cache import TokenCache

_FILES = ["*.json", "*.jinja", "*.model", "*.txt"]
"""Files taken of a repository on the Hub: everything but its weights."""


class PromptError(ValueError):
    """The body has no prompt that can be tokenised here."""


class PromptTokenizer:
    """Tokenizer and chat template of one model. Raises TokenizerError when they cannot be read."""

    def __init__(self, directory: Path) -> None:
        self._tokenizer = Tokenizer.load(directory)
        self._template = load_chat_template(directory, self._tokenizer.special_tokens)
        self._cache = TokenCache(self._tokenizer)

    @cached_property
    def _rules(self) -> CutRules:
        return CutRules(self._tokenizer)

    def report(self, job: Job) -> PromptReport:
        """Return what the prompt's text determines. Raises ValueError (PromptError, TemplateError,
        MessageError, msgspec's) for a body without a prompt that can be tokenised."""
        body = msgspec.json.decode(job.body)
        prompt = self._chat(body, job) if job.chat else self._completion(body, job)
        hashes = text_hashes(prompt.pieces)
        made = make_report(
            prompt,
            hashes,
            self._tokenizer,
            self._rules,
            job.block_size,
            known=job.known,
            claimed=job.claimed,
        )
        if made is None:
            raise PromptError("the tokenizer does not say where its tokens end")
        return made

    def _chat(self, body: Mapping[str, Any], job: Job) -> TokenisedPrompt:
        messages = body.get("messages")
        if self._template is None or body.get("chat_template") or not isinstance(messages, list):
            raise PromptError("there is no chat template for it")
        render = partial(_render, self._template, body)
        text = render(messages)
        pieces = chat_pieces(body, lora=job.lora)
        special = bool(body.get("add_special_tokens"))
        return self._tokenised(pieces, messages, text, body, job, special, render)

    def _completion(self, body: Mapping[str, Any], job: Job) -> TokenisedPrompt:
        prompt = body.get("prompt")
        if not isinstance(prompt, str):
            raise PromptError("its prompt is no text")
        pieces = completion_pieces(body, prompt, lora=job.lora)
        special = body.get("add_special_tokens") is not False
        return self._tokenised(pieces, (), prompt, body, job, special, None)

    def _tokenised(
        self,
        pieces: list[bytes],
        messages: Messages,
        text: str,
        body: Mapping[str, Any],
        job: Job,
        special: bool,
        render: "partial[str] | None",
    ) -> TokenisedPrompt:
        tokens = self._cache.tokens(text, add_special_tokens=special)
        if tokens is None:
            raise PromptError("the tokenizer does not say where its tokens end")
        root = root_hash(job.seed, cache_salt=body.get("cache_salt") or "", lora=job.lora)
        hashes = chain_hashes(tokens.ids, job.block_size, root=root)
        return TokenisedPrompt(
            pieces, messages, text, tokens.ids, hashes, special, render, tokens.ends
        )


def tokenizer_directory(name: str) -> Path:
    """Return the directory of the tokenizer that a discovery file names; one on the Hub is
    downloaded.

    Raises ModelURIError, ConfigError, or what huggingface_hub raises.
    """
    uri = parse_model_uri(name)
    uri.require_local()
    if uri.scheme != "hf":
        return find_config(uri)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(uri.name, revision=uri.revision, allow_patterns=_FILES))


def _render(template: ChatTemplate, body: Mapping[str, Any], messages: Messages) -> str:
    continued = bool(body.get("continue_final_message"))
    prompt = body.get("add_generation_prompt")
    arguments = dict(body.get("chat_template_kwargs") or {})
    if body.get("reasoning_effort") is not None:
        arguments.setdefault("reasoning_effort", body["reasoning_effort"])
    return template.render(
        normalise_messages(messages, template.content_format),
        add_generation_prompt=not continued if prompt is None else bool(prompt),
        continue_final_message=continued,
        tools=[_tool(tool) for tool in body.get("tools") or ()] or None,
        documents=body.get("documents"),
        template_kwargs=arguments,
    )


def _tool(tool: Any) -> Any:
    """A tool with what it leaves out as null: templates get vLLM's own model of it."""
    if not isinstance(tool, Mapping) or not isinstance(tool.get("function"), Mapping):
        raise PromptError("a tool is no function")
    function = {"name": None, "description": None, "parameters": None, **tool["function"]}
    return {"type": "function", **tool, "function": function}
