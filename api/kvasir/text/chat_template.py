"""Chat templates, rendered exactly as Hugging Face transformers renders them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError

from kvasir.text.chat_messages import (
    ContentFormat,
    Message,
    detect_content_format,
    reads_name,
    with_reasoning,
)
from kvasir.text.harmony_messages import harmony_messages, writes_harmony
from kvasir.text.jinja_environment import environment
from kvasir.text.json_files import TokenizerError, read_json

MAX_RENDERED_CHARS = 64 * 1024 * 1024
MAX_RENDER_SECONDS = 20.0
_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


class TemplateError(ValueError):
    """The template refused the messages, or failed on them; carries the template's own words."""


class ChatTemplate:
    """One compiled template. `special_tokens` are the names it may use (bos_token, ...); `tool_use`
    is the template that a model has for requests with tools."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        *,
        tool_use: str | None = None,
    ) -> None:
        self.source = source
        self.all_sources = source + (tool_use or "")
        """The text of both templates."""
        self._special_tokens = dict(special_tokens or {})
        try:
            self._template = environment().from_string(source)
            self._tool_use = None if tool_use is None else environment().from_string(tool_use)
            self.content_format: ContentFormat = detect_content_format(source)
            self.shows_tools: bool = reads_name(tool_use or source, "tools")
            """The prompt says which tools there are."""
        except jinja2.TemplateSyntaxError as error:
            raise TokenizerError(
                f"the chat template does not parse: {error.message} (line {error.lineno})."
            ) from error
        self.knows_tool_messages = self.shows_tools or "tool_calls" in source
        """The prompt holds the calls and results of a conversation."""
        self.writes_harmony = writes_harmony(source)
        """The prompt is in gpt-oss's format."""

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text.

        `continue_final_message` leaves the last message open, so that the model goes on with it.
        Raises TemplateError when the template fails, or makes more than MAX_RENDERED_CHARS.
        """
        chat = [with_reasoning(message) for message in messages]
        if self.writes_harmony:
            chat = harmony_messages(chat)
        final = _mark_final_message(chat) if continue_final_message else ""
        variables = {
            **self._special_tokens,
            **(template_kwargs or {}),
            "messages": chat,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        template = self._tool_use if tools and self._tool_use is not None else self._template
        text = self._generate(template, variables)
        return _cut_at_mark(text, final) if continue_final_message else text

    def _generate(self, template: jinja2.Template, variables: Mapping[str, Any]) -> str:
        pieces: list[str] = []
        chars = 0
        deadline = time.monotonic() + MAX_RENDER_SECONDS
        try:
            for piece in template.generate(variables):
                pieces.append(piece)
                chars += len(piece)
                if chars > MAX_RENDERED_CHARS or time.monotonic() > deadline:
                    raise TemplateError(
                        f"the chat template made {chars} characters without an end; the limits are "
                        f"{MAX_RENDERED_CHARS} characters and {MAX_RENDER_SECONDS:g} s."
                    )
        except TemplateError:
            raise
        except SecurityError as error:
            raise TemplateError(f"the chat template did what is not allowed: {error}") from error
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template refused the messages: {error}") from error
        except Exception as error:  # a template can raise anything: it is code from the model
            raise TemplateError(
                f"the chat template failed on the messages: {type(error).__name__}: {error}"
            ) from error
        return "".join(pieces)


def _mark_final_message(chat: list[dict[str, Any]]) -> str:
    """Append the tag to the last message's text and return that text."""
    if not chat or chat[-1].get("content") is None:
        raise TemplateError(
            "continue_final_message needs a last message with content to continue; there is none."
        )
    last = dict(chat[-1])
    content = last["content"]
    if isinstance(content, str):
        last["content"] = content + _CONTINUE_TAG
        chat[-1] = last
        return content
    parts = [dict(part) for part in content]
    for part in reversed(parts):
        if "text" in part:
            text = str(part["text"])
            part["text"] = text + _CONTINUE_TAG
            last["content"] = parts
            chat[-1] = last
            return text
    raise TemplateError("continue_final_message found no text in the last message to continue.")


def _cut_at_mark(text: str, final: str) -> str:
    tag = _CONTINUE_TAG.strip()
    if final.strip() not in text or tag not in text:
        raise TemplateError(
            "continue_final_message is set, but this chat template changes or drops the last "
            "message, so that it cannot be continued."
        )
    at = text.rindex(tag)
    if text[at : at + len(_CONTINUE_TAG)] == _CONTINUE_TAG:
        return text[:at]
    return text[:at].rstrip()


def load_chat_template(
    directory: Path | str,
    special_tokens: Mapping[str, str],
    *,
    override: str | None = None,
) -> ChatTemplate | None:
    """A model's chat template, None when it has none.

    `override` (the flag --chat-template) is a file's path or the template itself. Otherwise
    chat_template.jinja wins over tokenizer_config.json's `chat_template`, a string or a list of
    named templates of which "default" is taken, and "tool_use" for requests with tools.
    """
    if override:
        return ChatTemplate(_read_override(override), special_tokens)
    source, tool_use = _read_model_templates(Path(directory))
    return None if source is None else ChatTemplate(source, special_tokens, tool_use=tool_use)


def _read_override(override: str) -> str:
    if "{" in override or "\n" in override:
        # A literal template may be longer than the shell's: newlines come escaped.
        return override.replace("\\n", "\n") if "\n" not in override else override
    try:
        return Path(override).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(
            f"--chat-template {override!r} is neither a template (no '{{') nor a readable file: "
            f"{error}."
        ) from error


def _read_model_templates(directory: Path) -> tuple[str | None, str | None]:
    """The model's template, and the one that it has for requests with tools."""
    jinja_file = directory / "chat_template.jinja"
    if jinja_file.is_file():
        return jinja_file.read_text(encoding="utf-8"), None
    template = read_json(directory / "tokenizer_config.json").get("chat_template")
    if template is None:
        template = read_json(directory / "chat_template.json").get("chat_template")
    if isinstance(template, list):
        named = _named_templates(template, directory)
        return named["default"], named.get("tool_use")
    if template is not None and not isinstance(template, str):
        raise TokenizerError(
            f"{directory}/tokenizer_config.json: chat_template must be a string or a list of "
            f"named templates, not {json.dumps(template)[:80]}."
        )
    return template, None


def _named_templates(templates: list[Any], directory: Path) -> dict[str, str]:
    named = {
        str(entry.get("name")): str(entry.get("template"))
        for entry in templates
        if isinstance(entry, dict)
    }
    if "default" not in named:
        raise TokenizerError(
            f"{directory}/tokenizer_config.json names the chat templates {sorted(named)}, but no "
            '"default"; choose one with --chat-template.'
        )
    return named
