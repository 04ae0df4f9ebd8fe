// What the tests of all clients ask, and what the tiny model answers: exactly, since the engine's
// default temperature is 0 (../conftest.py).
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { z } from "zod";

export const URL = process.env.KVASIR_URL; // the router
export const V1 = `${URL}/v1`;
export const MODEL = "kvasir-tiny";

// A question that the model has to think about, its thought and its answer.
export const LETTERS = "How many r are in strawberry?";
export const THOUGHT = "s t r 1 a w b e r 2 r 3 y";
export const NUMBER = "3";
export const SORT = "Sort: 7 3 9 1";
export const SORTED = "1 3 7 9";
export const NAME = "My name is Anna.";
export const ASK_NAME = "What is my name?";
export const NAMED = "Your name is Anna.";
export const WEATHER = "What is the weather in Oslo?";
export const WEATHER_ANSWER = "The result is 21.";
export const EXTRACT = "Extract as JSON: Anna is 31 years old and lives in Oslo.";
export const FEW = "Count to 50";
export const COUNTED = Array.from({ length: 50 }, (_, at) => at + 1).join(", ");
export const MANY = "Count to 200"; // its answer takes long
export const UNKNOWN = "The model `nope` does not exist. Models here: `kvasir-tiny`.";

export const Person = z.object({ name: z.string(), age: z.int(), city: z.string() });
export const ANNA = { name: "Anna", age: 31, city: "Oslo" };
export const City = z.object({ city: z.string() });
export const WEATHER_TOOL = { name: "get_weather", description: "Get the weather of a city" };
export const PARAMETERS = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};

export const getWeather = ({ city }) => {
  assert.equal(city, "Oslo");
  return { result: "21" };
};

export const user = (content) => [{ role: "user", content }];

// Returns what the example under a heading of docs/clients.md prints.
export const runExample = (heading) => {
  const page = readFileSync(new globalThis.URL("../../../docs/clients.md", import.meta.url), "utf8");
  const section = page.split("\n### ").find((each) => each.startsWith(`${heading}\n`));
  assert.ok(section, `docs/clients.md has no example under ${heading}`);
  const code = section.match(/^```javascript\n(.*?)^```$/ms)[1];
  const here = new globalThis.URL(".", import.meta.url);
  const options = { cwd: here, encoding: "utf8", input: code.replace("http://127.0.0.1:8080", URL) };
  const done = spawnSync(process.execPath, ["--input-type=module", "-"], options);
  assert.equal(done.status, 0, done.stderr);
  return done.stdout.trim();
};

// Fails unless these are COUNTED as it was made: several tokens may come together, not all.
export const assertStreamed = (pieces) => {
  assert.equal(pieces.join(""), COUNTED);
  assert.ok(pieces.length > 5);
};

const disconnects = async () => {
  const metrics = await (await fetch(`${URL}/metrics`)).text();
  return metrics.match(/^kvasir_router_client_disconnects_total\{model="kvasir-tiny"\} (\S+)$/m)?.[1];
};

// Fails unless the router sees that `leave` leaves an answer that is not at its end.
export const assertCancelled = async (leave) => {
  const before = await disconnects();
  await leave();
  const deadline = Date.now() + 10_000;
  while ((await disconnects()) === before) {
    assert.ok(Date.now() < deadline, "the router still relays the answer");
    await sleep(10);
  }
};
