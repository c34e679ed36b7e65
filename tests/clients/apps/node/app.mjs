// The Express application that is driven while the daemon fails. It listens at PORT of 127.0.0.1. TIDEGATE_SOCKET is the
// daemon's socket; WITHOUT_LIMITER=1 is the application alone, for comparison. X-Judged-Us is the time of the middleware
// before the application is entered.

import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

const require = createRequire(new URL("../../../../clients/node/package.json", import.meta.url));
const express = require("express");
const { Client } = require("tidegate");
const { limit } = require("tidegate/express");

const app = express();
app.use((request, _, next) => {
  request.began = performance.now();
  next();
});
if (process.env.WITHOUT_LIMITER !== "1") app.use(limit(new Client(), "api", { user: (request) => request.get("x-user") }));
app.use((request, response, next) => {
  response.set("X-Judged-Us", String(Math.round(1_000 * (performance.now() - request.began))));
  next();
});
app.get("/boom", () => {
  throw new Error("boom");
});
app.get("/stream", async (request, response) => {
  response.type("text/plain");
  for (let i = 0; i < 3; i++) {
    response.write(`chunk ${i}\n`);
    await sleep(Number(request.query.ms ?? 0));
  }
  response.end();
});
app.use(async (request, response) => {
  if (request.path === "/slow") await sleep(Number(request.query.ms));
  response.type("text/plain").send(`path ${request.path}\n`);
});
app.use((error, request, response, next) => response.status(500).type("text/plain").send(`${error.message}\n`));

const server = app.listen(Number(process.env.PORT), "127.0.0.1");
server.keepAliveTimeout = 60_000;
