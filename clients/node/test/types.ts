// Compiled with the sources, never run: the types that applications and frameworks see.

import { createServer } from "node:http";
import type { CanActivate } from "@nestjs/common";
import express from "express";
import fastify from "fastify";
import Koa from "koa";
import { Client, Decision, Denied, Fallback } from "../src/index.js";
import { limit as limitExpress } from "../src/express.js";
import { limit as limitFastify } from "../src/fastify.js";
import { limit as limitHttp } from "../src/http.js";
import { limit as limitKoa } from "../src/koa.js";
import { TidegateGuard } from "../src/nest.js";

const client = new Client({ timeoutMs: 20, pool: "web", slots: 8, logger: console, fallback: { "*": "20/s" } });

export async function calls(signal: AbortSignal): Promise<number> {
  const decision: Decision = await client.acquire("api", { user: 7, org: undefined }, { cost: { tokens: 3 }, signal });
  const lease: bigint | null = decision.lease;
  await client.hit("api", new Map([["user", "u"]]), { fallback: new Fallback("1/s"), idem: Buffer.from("k") });
  await client.peek("api", [{ user: "u" }, { org: "o" }]);
  await client.charge("api", { user: "u" }, -1, { of: lease ?? decision });
  // @ts-expect-error a cost is an integer
  await client.hit("api", {}, { cost: "3" });
  // @ts-expect-error refusing is "refuse"
  await client.hit("api", {}, { onFailure: "deny" });
  // @ts-expect-error fields are read-only
  decision.allowed = true;
  try {
    return await client.limit("api", { job: "export" }, { maxWaitMs: 0 }, async ({ wait }) => wait);
  } catch (error) {
    if (error instanceof Denied) return error.decision.retryAfter ?? Infinity;
    throw error;
  }
}

const app = express();
app.use(limitExpress<express.Request>(client, "api", { user: (request) => request.get("x-user"), attributes: { org: "X-Org" } }));
app.get("/item/:id", limitExpress(client, "api"), (_, response) => void response.send("ok"));

new Koa().use(limitKoa<Koa.Context>(client, "api", { user: (context) => context.get("x-user") }));
new Koa().use(limitKoa(client, "api"));

const server = fastify();
void server.register(limitFastify, { client, domain: "api", user: async (request) => request.headers["x-user"]?.toString() });
server.get("/", (request) => request.tidegate?.remaining ?? null);
// @ts-expect-error the client is missing
void server.register(limitFastify, { domain: "api" });

createServer(limitHttp(client, "api", { exempt: ({ url }) => url === "/healthy" }, (request, response) => response.end(request.tidegate?.rule)));

export const guard: CanActivate = new TidegateGuard<express.Request>(client, "api", { user: (request) => request.get("x-user") });
