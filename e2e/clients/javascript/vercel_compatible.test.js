// Vercel AI SDK with @ai-sdk/openai-compatible.
import assert from "node:assert/strict";
import { test } from "node:test";

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";

import { runExample, SORTED, V1 } from "./questions.js";
import { testProvider } from "./vercel.js";

test("chat", () => {
  const heading = "Vercel AI SDK, with its provider for compatible servers";
  assert.equal(runExample(heading), SORTED);
});

testProvider(createOpenAICompatible({ name: "kvasir", baseURL: V1, supportsStructuredOutputs: true }));
