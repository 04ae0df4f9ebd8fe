from __future__ import annotations

import json

import pytest

from kvasir_engine.server.served_model import generation_defaults, load_served_model
from kvasir_engine.server.server_settings import ServerSettings
from kvasir_engine.settings import SettingsError


@pytest.fixture
def model_dir(tmp_path, byte_tokenizer):
    byte_tokenizer.backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "</s>", "chat_template": "{{ messages }}"})
    )
    generation = {"temperature": 0.6, "top_k": 20, "max_new_tokens": 99, "do_sample": True}
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    return tmp_path


def settings(model_dir, **given):
    return ServerSettings(model="org/model", model_dir=model_dir, **given)


def test_a_model_directory_is_read(model_dir):
    model = load_served_model(settings(model_dir))
    assert model.names == ("org/model",)
    assert model.chat_template.source == "{{ messages }}"
    assert model.eos_token_ids == [257]
    assert model.defaults == {"temperature": 0.6, "top_k": 20, "max_tokens": 99}


def test_the_config_says_which_ids_end(model_dir):
    (model_dir / "config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    assert load_served_model(settings(model_dir)).eos_token_ids == [1, 2]


def test_names_and_template_can_be_replaced(model_dir):
    model = load_served_model(
        settings(model_dir, served_model_names=("a", "b"), chat_template="{{ 'x' }}")
    )
    assert (model.name, model.names) == ("a", ("a", "b"))
    assert model.chat_template.render([]) == "x"


def test_defaults_come_from_where_the_flag_says(model_dir, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    (other / "generation_config.json").write_text(json.dumps({"top_p": 0.5}))
    assert generation_defaults("vllm", model_dir) == {}
    assert generation_defaults(str(other), model_dir) == {"top_p": 0.5}
    empty = tmp_path_factory.mktemp("empty")
    assert generation_defaults("auto", empty) == {}
    with pytest.raises(SettingsError, match=r"--generation-config .* no generation_config\.json"):
        generation_defaults(str(empty), model_dir)


def test_the_parsers_are_the_templates_or_those_of_the_flags(model_dir):
    hermes = "{{ tools }} <tool_call> </think>"
    parsing = load_served_model(settings(model_dir, chat_template=hermes)).parsing
    assert (parsing.tools.name, parsing.reasoning.name) == ("hermes", "think")
    flags = {"tool_call_parser": "mistral", "reasoning_parser": "none"}
    parsing = load_served_model(settings(model_dir, chat_template=hermes, **flags)).parsing
    assert (parsing.tools.name, parsing.reasoning) == ("mistral", None)


def test_a_parser_that_is_not_there_is_a_sentence(model_dir):
    with pytest.raises(SettingsError, match=r"--tool-call-parser 'x' is not one of auto, none"):
        load_served_model(settings(model_dir, tool_call_parser="x"))


def test_the_tokens_that_end_gpt_oss_answers_end_them(model_dir, byte_tokenizer):
    template = "{{ tools }} <|channel|> <|message|>"
    model = load_served_model(settings(model_dir, chat_template=template))
    assert model.eos_token_ids == [257]
    byte_tokenizer.backend.add_special_tokens(["<|call|>", "<|return|>"])
    byte_tokenizer.backend.save(str(model_dir / "tokenizer.json"))
    call, back = map(byte_tokenizer.backend.token_to_id, ("<|call|>", "<|return|>"))
    model = load_served_model(settings(model_dir, chat_template=template))
    assert model.eos_token_ids == [257, call, back]
    (model_dir / "config.json").write_text(json.dumps({"eos_token_id": [back]}))
    model = load_served_model(settings(model_dir, chat_template=template))
    assert model.eos_token_ids == [back, call]
