// openai-node
import assert from "node:assert/strict";
import { test } from "node:test";

import OpenAI, { NotFoundError } from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";

import {
  ANNA,
  ASK_NAME,
  assertCancelled,
  assertStreamed,
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
  user,
  V1,
  WEATHER,
  WEATHER_ANSWER,
  WEATHER_TOOL,
} from "./questions.js";

const client = new OpenAI({ baseURL: V1, apiKey: "none", maxRetries: 0 });
const model = MODEL;
const runnable = {
  type: "function",
  function: {
    ...WEATHER_TOOL,
    parameters: PARAMETERS,
    parse: JSON.parse,
    function: (city) => JSON.stringify(getWeather(city)),
  },
};

test("chat", () => assert.equal(runExample("OpenAI (JavaScript)"), SORTED));

test("stream", async () => {
  const pieces = [];
  const stream = await client.chat.completions.create({ model, messages: user(FEW), stream: true });
  for await (const chunk of stream) pieces.push(chunk.choices[0].delta.content ?? "");
  assertStreamed(pieces);
});

test("tools", async () => {
  const run = client.chat.completions.runTools({ model, messages: user(WEATHER), tools: [runnable] });
  assert.equal(await run.finalContent(), WEATHER_ANSWER);
});

test("tools_streamed", async () => {
  const run = client.chat.completions.runTools({
    model,
    messages: user(WEATHER),
    tools: [runnable],
    stream: true,
  });
  assert.equal(await run.finalContent(), WEATHER_ANSWER);
});

test("thinking", async () => {
  const request = { model, messages: user(LETTERS), reasoning_effort: "low" };
  const answer = await client.chat.completions.create(request);
  const { message } = answer.choices[0];
  assert.deepEqual([message.reasoning_content.trim(), message.content], [THOUGHT, NUMBER]);
});

test("structured_output", async () => {
  const answer = await client.chat.completions.parse({
    model,
    messages: user(EXTRACT),
    response_format: zodResponseFormat(Person, "person"),
  });
  assert.deepEqual(answer.choices[0].message.parsed, ANNA);
});

test("responses", async () => {
  const first = await client.responses.create({ model, input: NAME });
  const stream = client.responses.stream({ model, input: ASK_NAME, previous_response_id: first.id });
  assert.equal((await stream.finalResponse()).output_text, NAMED);
  const format = zodTextFormat(Person, "person");
  const parsed = await client.responses.parse({ model, input: EXTRACT, text: { format } });
  assert.deepEqual(parsed.output_parsed, ANNA);
});

test("responses_tools", async () => {
  const tools = [{ type: "function", ...WEATHER_TOOL, parameters: PARAMETERS, strict: true }];
  const asked = await client.responses.create({ model, input: WEATHER, tools });
  const [call] = asked.output;
  const output = JSON.stringify(getWeather(JSON.parse(call.arguments)));
  const answer = await client.responses.create({
    model,
    input: [{ type: "function_call_output", call_id: call.call_id, output }],
    previous_response_id: asked.id,
    tools,
  });
  assert.equal(answer.output_text, WEATHER_ANSWER);
});

test("errors", async () => {
  const refused = client.chat.completions.create({ model: "nope", messages: user(SORT) });
  await assert.rejects(refused, (error) => {
    assert.ok(error instanceof NotFoundError);
    assert.equal(error.error.message, UNKNOWN);
    return true;
  });
});

test("cancel", () =>
  assertCancelled(async () => {
    const body = { model, messages: user(MANY), stream: true };
    for await (const _ of await client.chat.completions.create(body)) break;
  }));
