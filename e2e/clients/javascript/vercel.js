// What the tests of all providers of the Vercel AI SDK have in common.
import assert from "node:assert/strict";
import { test } from "node:test";

import { APICallError, generateObject, generateText, Output, stepCountIs, streamText, tool } from "ai";

import {
  ANNA,
  assertCancelled,
  assertStreamed,
  City,
  EXTRACT,
  FEW,
  getWeather,
  MANY,
  MODEL,
  Person,
  SORT,
  UNKNOWN,
  WEATHER,
  WEATHER_ANSWER,
} from "./questions.js";

const tools = {
  get_weather: tool({
    description: "Get the weather of a city",
    inputSchema: City,
    execute: async (city) => getWeather(city),
  }),
};
const stopWhen = stepCountIs(3);

export const assertStreams = async (model) => {
  const pieces = [];
  for await (const piece of streamText({ model, prompt: FEW }).textStream) pieces.push(piece);
  assertStreamed(pieces);
};

export const assertCallsTools = async (model) => {
  const answer = await generateText({ model, prompt: WEATHER, tools, stopWhen });
  assert.equal(answer.text, WEATHER_ANSWER);
  assert.equal(await streamText({ model, prompt: WEATHER, tools, stopWhen }).text, WEATHER_ANSWER);
};

export const assertStructures = async (model) => {
  const answer = await generateObject({ model, schema: Person, prompt: EXTRACT });
  assert.deepEqual(answer.object, ANNA);
  const output = Output.object({ schema: Person });
  const beside = await generateText({ model, output, tools, stopWhen, prompt: EXTRACT });
  assert.deepEqual(beside.output, ANNA);
};

// Tests a provider: a function from a model's name to the model.
export const testProvider = (provider) => {
  test("stream", () => assertStreams(provider(MODEL)));
  test("tools", () => assertCallsTools(provider(MODEL)));
  test("structured_output", () => assertStructures(provider(MODEL)));

  test("errors", async () => {
    const refused = generateText({ model: provider("nope"), prompt: SORT, maxRetries: 0 });
    await assert.rejects(refused, (error) => {
      assert.ok(APICallError.isInstance(error));
      assert.equal(error.message, UNKNOWN);
      return true;
    });
  });

  test("cancel", () =>
    assertCancelled(async () => {
      const left = new AbortController();
      const stream = streamText({
        model: provider(MODEL),
        prompt: MANY,
        abortSignal: left.signal,
      });
      for await (const _ of stream.textStream) left.abort();
    }));
};
