// @anthropic-ai/sdk
import assert from "node:assert/strict";
import { test } from "node:test";

import Anthropic, { NotFoundError } from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";

import {
  ANNA,
  ASK_NAME,
  assertCancelled,
  assertStreamed,
  City,
  EXTRACT,
  FEW,
  getWeather,
  LETTERS,
  MANY,
  MODEL,
  NAME,
  NAMED,
  NUMBER,
  PARAMETERS,
  Person,
  runExample,
  SORT,
  SORTED,
  THOUGHT,
  UNKNOWN,
  URL,
  user,
  WEATHER,
  WEATHER_ANSWER,
  WEATHER_TOOL,
} from "./questions.js";

const client = new Anthropic({ baseURL: URL, apiKey: "none", maxRetries: 0 });
const longest = { model: MODEL, max_tokens: 1000 };

test("chat", () => assert.equal(runExample("Anthropic (JavaScript)"), SORTED));

test("messages", async () => {
  const said = await client.messages.create({ ...longest, messages: user(NAME) });
  const turn = { role: "assistant", content: said.content };
  const messages = [...user(NAME), turn, ...user(ASK_NAME)];
  const answer = await client.messages.create({ ...longest, messages });
  assert.equal(answer.content[0].text, NAMED);
});

test("stream", async () => {
  const pieces = [];
  const stream = client.messages.stream({ ...longest, messages: user(FEW) });
  stream.on("text", (piece) => pieces.push(piece));
  await stream.done();
  assertStreamed(pieces);
});

test("tools", async () => {
  const tools = [{ ...WEATHER_TOOL, input_schema: PARAMETERS }];
  const asked = await client.messages
    .stream({ ...longest, messages: user(WEATHER), tools })
    .finalMessage();
  assert.equal(asked.stop_reason, "tool_use");
  const [call] = asked.content;
  const content = JSON.stringify(getWeather(call.input));
  const result = { type: "tool_result", tool_use_id: call.id, content };
  const messages = [
    ...user(WEATHER),
    { role: "assistant", content: asked.content },
    { role: "user", content: [result] },
  ];
  const answer = await client.messages.create({ ...longest, messages, tools });
  assert.equal(answer.content[0].text, WEATHER_ANSWER);
});

test("tools_runner", async () => {
  const run = (city) => JSON.stringify(getWeather(city));
  const tools = [betaZodTool({ ...WEATHER_TOOL, inputSchema: City, run })];
  const answer = await client.beta.messages.toolRunner({
    ...longest,
    messages: user(WEATHER),
    tools,
  });
  assert.equal(answer.content[0].text, WEATHER_ANSWER);
});

test("thinking", async () => {
  const thinking = { type: "enabled", budget_tokens: 1024 };
  const request = { model: MODEL, max_tokens: 1500, messages: user(LETTERS), thinking };
  const [thought, text] = (await client.messages.stream(request).finalMessage()).content;
  assert.deepEqual([thought.type, thought.thinking.trim()], ["thinking", THOUGHT]);
  assert.equal(text.text, NUMBER);
});

test("structured_output", async () => {
  const answer = await client.messages.parse({
    ...longest,
    messages: user(EXTRACT),
    output_config: { format: zodOutputFormat(Person) },
  });
  assert.deepEqual(answer.parsed_output, ANNA);
});

test("token_count", async () => {
  const counted = await client.messages.countTokens({ model: MODEL, messages: user(SORT) });
  assert.equal(counted.input_tokens, 14);
});

test("errors", async () => {
  const refused = client.messages.create({ ...longest, model: "nope", messages: user(SORT) });
  await assert.rejects(refused, (error) => {
    assert.ok(error instanceof NotFoundError);
    assert.deepEqual(error.error.error, { type: "not_found_error", message: UNKNOWN });
    return true;
  });
});

test("cancel", () =>
  assertCancelled(async () => {
    const body = { ...longest, messages: user(MANY), stream: true };
    for await (const event of await client.messages.create(body)) {
      if (event.type === "content_block_delta") break;
    }
  }));
