// Vercel AI SDK with @ai-sdk/openai: Responses by default, Chat Completions by name.
import assert from "node:assert/strict";
import { test } from "node:test";

import { createOpenAI } from "@ai-sdk/openai";
import { generateText } from "ai";

import { ASK_NAME, MODEL, NAME, NAMED, runExample, SORTED, V1 } from "./questions.js";
import { assertCallsTools, assertStreams, assertStructures, testProvider } from "./vercel.js";

const kvasir = createOpenAI({ baseURL: V1, apiKey: "none" });

test("chat", async () => {
  await assertStreams(kvasir.chat(MODEL));
  await assertCallsTools(kvasir.chat(MODEL));
  await assertStructures(kvasir.chat(MODEL));
});

test("responses", async () => {
  assert.equal(runExample("Vercel AI SDK, with its provider for OpenAI"), SORTED);
  const model = kvasir(MODEL);
  const first = await generateText({ model, prompt: NAME });
  const openai = { previousResponseId: first.providerMetadata.openai.responseId };
  const answer = await generateText({ model, prompt: ASK_NAME, providerOptions: { openai } });
  assert.equal(answer.text, NAMED);
});

testProvider(kvasir);
