// Options that do not exist, or have another type, are errors where they are written.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import test from "node:test";
import fastify from "fastify";
import { Client, Fallback } from "../dist/esm/index.js";
import { limit as limitExpress } from "../dist/esm/express.js";
import { limit as limitFastify } from "../dist/esm/fastify.js";
import { limit as limitHttp } from "../dist/esm/http.js";
import { TidegateGuard } from "../dist/esm/nest.js";
import { makeClient } from "./support.mjs";

const unknown = (name, nearest) => ({ name: "TypeError", message: `unknown option ${name}; did you mean ${nearest}?` });

test("names the nearest option for one that does not exist", async (t) => {
  const client = makeClient(t, "/nowhere/s");
  assert.throws(() => new Client({ timeout: 5 }), unknown("timeout", "timeoutMs"));
  assert.throws(() => new Client({ onDecison: () => undefined }), unknown("onDecison", "onDecision"));
  const users = { users: () => "u1" };
  assert.throws(() => limitExpress(client, "shop", users), unknown("users", "user"));
  assert.throws(() => new TidegateGuard(client, "shop", users), unknown("users", "user"));
  assert.throws(() => limitHttp(client, "shop", { onfailure: "refuse" }, () => undefined), unknown("onfailure", "onFailure"));
  const app = fastify();
  app.register(limitFastify, { client, domain: "shop", ...users });
  await assert.rejects(new Promise((resolve, reject) => app.ready((error) => (error ? reject(error) : resolve()))), unknown("users", "user"));
  await assert.rejects(client.hit("shop", {}, { costs: 2 }), unknown("costs", "cost"));
  await assert.rejects(client.charge("shop", {}, 1, { to: "x" }), unknown("to", "of"));
});

test("names an option and its value that is none of the words", async (t) => {
  const client = makeClient(t, "/nowhere/s");
  const wrong = { name: "TypeError", message: 'onFailure is allow or refuse, not "deny"' };
  const calls = [() => client.hit("shop", {}, { onFailure: "deny" }), () => client.limit("shop", {}, { onFailure: "deny" }, () => 1)];
  for (const call of calls) await assert.rejects(call, wrong);
  for (const onFailure of ["deny", [["/", "deny"]]]) assert.throws(() => limitExpress(client, "shop", { onFailure }), wrong);
  const message = 'headers is both or draft or legacy or none, not "all"';
  assert.throws(() => limitExpress(client, "shop", { headers: "all" }), { name: "TypeError", message });
});

test("names what a call takes before it sends anything", async (t) => {
  const client = makeClient(t, "/nowhere/s");
  const wrong = (message) => ({ name: "TypeError", message });
  for (const fallback of ["20/s", 5, { "*": "20/s" }, { decide: () => null }])
    await assert.rejects(client.acquire("shop", {}, { fallback }), /^TypeError: the fallback of a call is a Fallback; help: make new Fallback/);
  for (const fallback of [new Fallback("20/s"), null, undefined]) assert.equal((await client.hit("shop", {}, { fallback })).allowed, true);
  for (const signal of [5, {}]) await assert.rejects(client.charge("shop", {}, 1, { signal }), wrong("signal is an AbortSignal"));
  await assert.rejects(client.acquire("shop", [null]), wrong("attributes are an object, not null"));
  await assert.rejects(client.acquire("shop", ["ann"]), wrong("attributes are an object, not a string"));
  await assert.rejects(client.acquire("shop", {}, null), wrong("options are an object, not null"));
  await assert.rejects(client.acquire("shop", {}, 5), wrong("options are an object, not a number"));
  assert.throws(() => new Client({ socket: 5 }), wrong("socket is a path, not a number"));
  assert.throws(() => new Client(null), wrong("options are an object, not null"));
});

test("takes functions alone where it calls them", async (t) => {
  const client = makeClient(t, "/nowhere/s");
  for (const name of ["user", "descriptors", "exempt", "outcome", "onRefused", "instrument"]) {
    const message = `${name} is a function, as in { ${name}: (request) => … }, not a string`;
    assert.throws(() => limitExpress(client, "shop", { [name]: "x" }), { name: "TypeError", message });
  }
  for (const options of [{ priority: 1 }, { attributes: "x" }, { attributes: { plan: 7 } }]) assert.throws(() => limitExpress(client, "shop", options), TypeError);
  assert.throws(() => new Client({ onDecision: "x" }), TypeError);
  assert.throws(() => new Client({ logger: "x" }), TypeError);
  await fastify().register(limitFastify, { client, domain: "shop", prefix: "/api", logLevel: "warn", user: undefined });
  assert.ok(createServer(limitHttp(client, "shop", {}, () => undefined)));
});
