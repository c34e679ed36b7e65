// The middlewares under their real frameworks: responses, leases, headers, waits and faults of the application.

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer, request } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import test from "node:test";
import "reflect-metadata";
import { Controller, Get, Module, Param, Req, Res } from "@nestjs/common";
import { NestFactory } from "@nestjs/core";
import { ExpressAdapter } from "@nestjs/platform-express";
import { FastifyAdapter } from "@nestjs/platform-fastify";
import express from "express";
import fastify from "fastify";
import Koa from "koa";
import { Decision } from "../dist/esm/index.js";
import { limit as limitExpress } from "../dist/esm/express.js";
import { limit as limitFastify } from "../dist/esm/fastify.js";
import { limit as limitHttp } from "../dist/esm/http.js";
import { limit as limitKoa } from "../dist/esm/koa.js";
import { RefusedFilter, TidegateGuard } from "../dist/esm/nest.js";
import { callerOf, isTrusted, queuedMs, trust } from "../dist/esm/forwarded.js";
import { pathOf } from "../dist/esm/guard.js";
import { decode } from "../dist/esm/wire.js";
import { ALLOW, LIMIT, ROOT, decision, frame, makeClient, Played, until } from "./support.mjs";

/** Sends a request; resolves with the status, the names and values of the headers, and the body. */
function send(port, path, { method = "GET", headers = {}, leave = false } = {}) {
  return new Promise((resolve, reject) => {
    const sent = request({ port, path, method, headers, agent: false }, (response) => {
      if (leave) return void sent.destroy(resolve({}));
      const parts = [];
      response.on("data", (part) => parts.push(part));
      response.on("end", () => resolve({ status: response.statusCode, headers: response.headers, raw: response.rawHeaders, body: Buffer.concat(parts).toString() }));
    });
    sent.on("error", (error) => (leave ? resolve({}) : reject(error)));
    sent.end();
  });
}

const listening = (t, server) =>
  new Promise((resolve) => {
    server.listen(0, "127.0.0.1", () => resolve(server.address().port));
    t.after(() => (server.closeAllConnections(), server.close()));
  });

// Each starts an application with the routes /ok/:id, /fail, /moved, /part (never ends) and /boom (throws).
const SERVERS = {
  async http(t, client, options) {
    const handler = (req, res) => {
      if (req.url.startsWith("/fail")) return res.writeHead(404, { "Content-Type": "text/plain" }).end("no");
      if (req.url.startsWith("/moved")) return res.writeHead(302, ["Location", "/ok/1"]).end();
      if (req.url.startsWith("/part")) return res.write("part");
      res.setHeader("Content-Type", "text/plain");
      res.end(`ok ${req.tidegate?.rule}`);
    };
    return listening(t, createServer(limitHttp(client, "api", options, handler)));
  },
  async express(t, client, options) {
    const app = express();
    const router = express.Router();
    app.use("/", router);
    router.get("/ok/:id", limitExpress(client, "api", options), (req, res) => res.type("text").send(`ok ${req.tidegate?.rule}`));
    app.use(limitExpress(client, "api", options));
    app.get("/fail", (req, res) => res.status(404).send("no"));
    app.get("/moved", (req, res) => res.redirect("/ok/1"));
    app.get("/part", (req, res) => res.write("part"));
    app.get("/boom", () => { throw new Error("boom"); });
    app.use((error, req, res, next) => res.status(500).send(error.message));
    return listening(t, createServer(app));
  },
  async koa(t, client, options) {
    const app = new Koa();
    app.silent = true;
    app.use(limitKoa(client, "api", options));
    app.use((ctx) => {
      if (ctx.path === "/fail") [ctx.status, ctx.body] = [404, "no"];
      else if (ctx.path === "/moved") ctx.redirect("/ok/1");
      else if (ctx.path === "/boom") throw new Error("boom");
      else if (ctx.path === "/part") (ctx.respond = false), ctx.res.write("part");
      else ctx.body = `ok ${ctx.state.tidegate?.rule}`;
    });
    return listening(t, createServer(app.callback()));
  },
  async fastify(t, client, options) {
    const app = fastify({ forceCloseConnections: true });
    app.register(limitFastify, { client, domain: "api", ...options });
    app.get("/ok/:id", async (req) => `ok ${req.tidegate?.rule}`);
    app.get("/fail", (req, reply) => reply.code(404).send("no"));
    app.get("/moved", (req, reply) => reply.redirect("/ok/1"));
    app.get("/boom", async () => { throw new Error("boom"); });
    app.get("/part", (req, reply) => (reply.hijack(), reply.raw.write("part")));
    await app.listen({ port: 0, host: "127.0.0.1" });
    t.after(() => app.close());
    return app.server.address().port;
  },
  nest: (t, client, options) => nest(t, client, options, new ExpressAdapter()),
  "nest on fastify": (t, client, options) => nest(t, client, options, new FastifyAdapter({ forceCloseConnections: true })),
};

async function nest(t, client, options, adapter, filters = [new RefusedFilter()]) {
  class Routes {
    ok(id, req, res) { return res.type("text/plain").send(`ok ${req.tidegate?.rule}`); }
    fail(req, res) { return res.status(404).send("no"); }
    moved(req, res) { return res.code ? res.redirect("/ok/1", 302) : res.redirect("/ok/1"); }
    boom() { throw new Error("boom"); }
    part(req, res) { (res.raw ? (res.hijack(), res.raw) : res).write("part"); }
  }
  const routes = { ok: ["/ok/:id", Param("id"), Req(), Res()], fail: ["/fail", Req(), Res()], moved: ["/moved", Req(), Res()], boom: ["/boom"], part: ["/part", Req(), Res()] };
  for (const [name, [path, ...parameters]] of Object.entries(routes)) {
    parameters.forEach((decorate, i) => decorate(Routes.prototype, name, i));
    Get(path)(Routes.prototype, name, Object.getOwnPropertyDescriptor(Routes.prototype, name));
  }
  Controller()(Routes);
  class Main {}
  Module({ controllers: [Routes] })(Main);
  const app = await NestFactory.create(Main, adapter, { logger: false, forceCloseConnections: true });
  app.useGlobalGuards(new TidegateGuard(client, "api", options));
  app.useGlobalFilters(...filters);
  await app.listen(0, "127.0.0.1");
  t.after(() => app.close());
  return app.getHttpServer().address().port;
}

const ROUTED = { express: "/ok/:id", fastify: "/ok/:id", nest: "/ok/:id", "nest on fastify": "/ok/:id" };

for (const [name, start] of Object.entries(SERVERS)) {
  test(`limits ${name}`, async (t) => {
    const daemon = await Played.start(t);
    let verdict = ALLOW;
    daemon.script = (socket, message) => decision(message, verdict, verdict[0] === 0 ? 50 + message[1] : null);
    const client = makeClient(t, daemon.path);
    const port = await start(t, client, { user: async (req) => (req.headers ?? req.req.headers)["x-user"] });
    let ended = 0;
    const outcome = async () => (await daemon.releases(++ended)).at(-1)[1];

    const ok = await send(port, "/ok/1?x=1", { headers: { "x-user": "u1", "User-Agent": "test" } });
    assert.equal(await outcome(), 0);
    assert.deepEqual([ok.status, ok.body], [200, "ok per-user"]);
    assert.deepEqual([ok.headers["ratelimit"], ok.headers["ratelimit-policy"]], ['"per-user";r=39;t=1', '"per-user";q=40;w=2']);
    assert.equal(ok.headers["x-ratelimit-remaining"], "39");
    const pairs = daemon.of(1).at(-1)[3][0];
    const sent = Object.fromEntries(pairs.flatMap((key, i) => (i % 2 ? [] : [[key, pairs[i + 1]]])));
    const route = ROUTED[name] ? { route: ROUTED[name] } : {};
    assert.deepEqual(sent, { method: "GET", path: "/ok/1", ...route, ip: "127.0.0.1", user: "u1", user_agent: "test" });

    assert.equal((await send(port, "/fail")).status, 404);
    assert.equal(await outcome(), 1);
    const moved = await send(port, "/moved");
    assert.deepEqual([moved.status, moved.headers.location, moved.headers["ratelimit"]], [302, "/ok/1", undefined]);
    assert.equal(await outcome(), 0);
    await send(port, "/part", { leave: true });
    assert.equal(await outcome(), 2);
    if (name !== "http") {
      assert.equal((await send(port, "/boom")).status, 500);
      assert.equal(await outcome(), 1);
    }

    verdict = LIMIT;
    const refused = await send(port, "/ok/1");
    assert.equal(refused.status, 429);
    assert.match(refused.headers["content-type"], /^application\/problem\+json/);
    assert.deepEqual([refused.headers["retry-after"], refused.headers["cache-control"], refused.headers["ratelimit"]], ["1", "no-store", '"per-user";r=0;t=1']);
    assert.deepEqual(JSON.parse(refused.body), {
      type: "https://iana.org/assignments/http-problem-types#quota-exceeded", title: "Too Many Requests", status: 429,
      detail: "Over the limit per-user of 40 requests in 2 s. Try again in 1 s.", "violated-policies": ["per-user"], limit: 40, window: 2, retry_after: 0.05,
    });
    assert.equal(refused.headers["content-length"], String(Buffer.byteLength(refused.body)));
    verdict = [4, "banned", null, null, null, null, null];
    assert.equal((await send(port, "/ok/1")).status, 403);
    verdict = [2, "web/workers", null, null, null, null, 2_000_000];
    const shed = await send(port, "/ok/1");
    assert.deepEqual([shed.status, shed.headers["retry-after"], shed.headers["ratelimit"]], [503, "2", undefined]);

    verdict = [3, "queue", 4, 5, 0, 0, 60_000];
    const began = performance.now();
    assert.equal((await send(port, "/ok/1")).status, 200);
    assert.ok(performance.now() - began >= 59);
    daemon.script = (socket, message) => [3, message[1], 10, "internal"];
    const degraded = await send(port, "/ok/1");
    assert.deepEqual([degraded.status, degraded.body, degraded.headers["ratelimit"]], [200, "ok null", undefined]);
    assert.equal(daemon.of(0).length, 1);
  });
}

test("nest answers without the filter, too, and other transports pass", async (t) => {
  const daemon = await Played.start(t);
  daemon.script = (socket, message) => decision(message, LIMIT);
  const client = makeClient(t, daemon.path);
  const { status, headers, body } = await send(await nest(t, client, {}, new ExpressAdapter(), []), "/ok/1");
  assert.deepEqual([status, headers["retry-after"], JSON.parse(body).retry_after], [429, "1", 0.05]);
  assert.equal(await new TidegateGuard(client, "api").canActivate({ getType: () => "rpc" }), true);
  assert.deepEqual(client.lines, ["tidegate: requests of the type rpc are not limited by TidegateGuard"]);
});

test("http callers get the bytes of tests/vectors/answers.json", async (t) => {
  const answers = JSON.parse(readFileSync(join(ROOT, "tests/vectors/answers.json"), "utf8"));
  let current;
  const client = makeClient(t, "/nowhere/s");
  client.acquire = async (domain) => {
    if (current.reason) return new Decision(current.status === 200 ? [0] : [2, null, null, null, null, null, 1_000_000], current.reason);
    const d = decode(Buffer.from(current.decision, "hex").subarray(4)).slice(2);
    return new Decision(d[0] === 3 ? [0, ...d.slice(1)] : d, null, null, null, domain); // without its wait
  };
  const handlers = Object.fromEntries(["both", "draft", "legacy", "none"].map((headers) => [headers, limitHttp(client, "shop", { headers }, (req, res) => {
    res.writeHead(current.status, { "X-Own": "1" });
    res.end(current.status === 304 ? undefined : "its own");
  })]));
  const port = await listening(t, createServer((req, res) => handlers[current.style](req, res)));
  for (current of answers) {
    const { status, raw: names, body } = await send(port, "/");
    const pairs = names.flatMap((name, i) => (i % 2 ? [] : [[name, names[i + 1]]]));
    const common = ["date", "connection", "keep-alive", "transfer-encoding", "x-own"];
    assert.equal(status, current.status, current.name);
    assert.deepEqual(pairs.filter(([name]) => !common.includes(name.toLowerCase())), current.headers, current.name);
    assert.equal(body, current.body ?? (status === 304 ? "" : "its own"), current.name);
  }
  assert.ok(answers.length > 30);
});

test("decodes a path once, without dot segments, repeated slashes and query", () => {
  const paths = { "/a": "/a", "/": "/", "": "/", "/a//b/../c/?x=/y": "/a/c/", "/%61%2e%2e%2F": "/a../", "/%2e%2e/%252e": "/%2e", "http://h:1/a#f": "/a", "/%C3%A9%FF": "/é\ufffd", "/a/.": "/a/", "/a/..": "/", "*": "/*" };
  for (const [url, path] of Object.entries(paths)) assert.equal(pathOf(url), path, url);
});

test("finds the caller behind trusted proxies, and the time in front of them", () => {
  const by = (forwarded, proxies, peer = "::ffff:127.0.0.1") => callerOf(peer, forwarded, trust(proxies));
  assert.equal(by("6.6.6.6", []), "127.0.0.1");
  assert.equal(by("6.6.6.6, 1.1.1.1", "127.0.0.1"), "1.1.1.1");
  assert.equal(by("6.6.6.6, 1.1.1.1:80", 1), "1.1.1.1");
  assert.equal(by("6.6.6.6, 1.1.1.1", 2), "6.6.6.6");
  assert.equal(by("6.6.6.6", 5), "6.6.6.6");
  assert.equal(by("6.6.6.6, garbage, 127.0.0.9", "127.0.0.0/8"), "127.0.0.9");
  assert.equal(by("::ffff:102:304", "127.0.0.0/8"), "1.2.3.4");
  assert.equal(by("[2001:DB8::0:1]:99", ["127.0.0.0/8", "fd00::/8"]), "2001:db8::1");
  assert.equal(by("1.1.1.1", "10.0.0.0/8", ""), "1.1.1.1"); // a Unix socket
  assert.deepEqual([isTrusted("", trust("10.0.0.0/8")), isTrusted("", null), isTrusted("10.1.1.1", trust("10.0.0.0/8")), isTrusted("11.1.1.1", trust("10.0.0.0/8"))], [true, false, true, false]);
  const now = 1_700_000_000_000;
  for (const text of ["t=1699999999.500", "1699999999500", "t=1699999999500000"]) assert.equal(queuedMs(text, now), 500, text);
  for (const text of ["t=1699999939", "1700000001", "yesterday", ""]) assert.equal(queuedMs(text, now), null, text);
});

test("keeps the application's own headers, in each form of writeHead", async (t) => {
  const daemon = await Played.start(t);
  const client = makeClient(t, daemon.path);
  const forms = {
    "/list": (res) => res.writeHead(200, "Fine", ["Set-Cookie", "a", "Set-Cookie", "b", "X-Ratelimit-Limit", "7"]),
    "/object": (res) => res.writeHead(201, { "Set-Cookie": ["a", "b"], "x-ratelimit-limit": "7" }),
    "/set": (res) => (res.setHeader("X-RateLimit-Limit", "7"), res.setHeader("Set-Cookie", ["a", "b"])),
  };
  const port = await listening(t, createServer(limitHttp(client, "api", {}, (req, res) => (forms[req.url](res), res.end("x")))));
  for (const path of Object.keys(forms)) {
    const { headers } = await send(port, path);
    assert.deepEqual([headers["set-cookie"], headers["x-ratelimit-limit"], headers["x-ratelimit-remaining"]], [["a", "b"], "7", "39"], path);
  }
  const head = await send(port, "/set", { method: "HEAD" });
  assert.deepEqual([head.body, head.headers["ratelimit"]], ["", '"per-user";r=39;t=1']);
});

test("checks a request without the function that throws, and logs the place without the message", async (t) => {
  const daemon = await Played.start(t);
  daemon.script = (socket, message) => decision(message, LIMIT);
  const client = makeClient(t, daemon.path);
  const boom = () => { throw new TypeError("personal data"); };
  const names = ["user", "attributes", "descriptors", "cost", "priority", "exempt", "onFailure", "onRefused"];
  for (const options of [...names.map((name) => ({ [name]: boom })), { attributes: { org: boom, plan: () => "free" } }]) {
    const port = await listening(t, createServer(limitHttp(client, "api", options, () => assert.fail())));
    const { status, headers } = await send(port, "/");
    assert.deepEqual([status, headers["content-type"]], [429, "application/problem+json"], Object.keys(options)[0]);
  }
  const [, , , [sent], cost] = daemon.of(1).at(-1);
  assert.deepEqual([sent.slice(-2), sent.includes("org"), cost], [["plan", "free"], false, 1]);
  const reported = daemon.of(1).reduce((sum, message) => sum + (message[6]?.get("missed")?.get("callback") ?? 0), 0);
  assert.deepEqual([client.stats().missed, reported], [{ callback: 9 }, 9]);
  const line = /^tidegate: ([\w.]+) threw TypeError at \S*servers\.test\.mjs:\d+:\d+: such (requests are checked without it|refusals get the usual response)$/;
  assert.deepEqual(client.lines.map((one) => line.exec(one)?.[1]).sort(), [...names, "attributes.org"].sort());
});

// What Node cannot send would otherwise be an unhandled rejection, which ends the process.
test("a response of onRefused that cannot be sent is replaced by the usual one", async (t) => {
  const daemon = await Played.start(t);
  daemon.script = (socket, message) => decision(message, LIMIT);
  const odd = [{ status: 99 }, { status: "429" }, {}, { status: 429, headers: null }, { status: 429, headers: { "X-A": "a\nb" } },
    { status: 429, headers: { "a b": "c" } }, { status: 429, headers: { "X-A": undefined } }, { status: 429, body: 7 }, { status: 429, body: {} }];
  const client = makeClient(t, daemon.path);
  const port = await SERVERS.http(t, client, { onRefused: () => odd[0], instrument: async () => { throw new Error("no"); } });
  for (; odd.length; odd.shift()) {
    const answer = await send(port, "/own");
    assert.deepEqual([answer.status, answer.headers["content-type"]], [429, "application/problem+json"], JSON.stringify(odd[0]));
  }
  assert.ok(client.lines.includes("tidegate: onRefused returned a status that is not from 200 to 999: such refusals get the usual response"));
  assert.ok(client.lines.includes("tidegate: instrument threw Error"));
});

test("in Koa the pattern of a router's route is sent", async (t) => {
  const daemon = await Played.start(t);
  const app = new Koa();
  app.use((ctx, next) => ((ctx._matchedRoute = "/login/:step"), next())); // as @koa/router does before the middlewares of a route
  app.use(limitKoa(makeClient(t, daemon.path), "api"));
  app.use((ctx) => (ctx.body = "ok"));
  await send(await listening(t, createServer(app.callback())), "/LOGIN/1/");
  assert.deepEqual(daemon.of(1)[0][3][0].slice(2, 6), ["path", "/LOGIN/1/", "route", "/login/:step"]);
});

test("sends no attributes of a function that returns no values by name", async (t) => {
  const daemon = await Played.start(t);
  const client = makeClient(t, daemon.path);
  let returned;
  const port = await listening(t, createServer(limitHttp(client, "api", { attributes: async () => returned }, (_, response) => response.end())));
  const sent = [];
  for (returned of ["abc", 7, ["abc"], [["a", "b"]], new Map([["a", "b"]]), null, undefined, {}, { plan: "free" }]) {
    assert.equal((await send(port, "/")).status, 200);
    sent.push(daemon.of(1).at(-1)[3]);
  }
  const bare = sent[5];
  assert.deepEqual(bare[0].filter((_, i) => i % 2 === 0), ["method", "path", "ip"]);
  assert.deepEqual(sent, [...Array(8).fill(bare), [[...bare[0], "plan", "free"]]]);
  const said = (kind) => `tidegate: attributes returned ${kind}, not values by name: such requests are checked without it`;
  assert.deepEqual(client.lines, ["String", "Number", "Array", "Map"].map(said));
  assert.deepEqual(client.stats().missed, { callback: 5 });
});

test("sends no descriptors of a function that returns no array", async (t) => {
  const daemon = await Played.start(t);
  const client = makeClient(t, daemon.path);
  let returned;
  const port = await listening(t, createServer(limitHttp(client, "api", { descriptors: async () => returned }, (_, response) => response.end())));
  const counts = [];
  for (returned of ["abc", 7, { org: "o" }, new Set([{ org: "o" }]), null, undefined, [], [{ org: "o" }]]) {
    assert.equal((await send(port, "/")).status, 200);
    counts.push(daemon.of(1).at(-1)[3].length);
  }
  assert.deepEqual(counts, [1, 1, 1, 1, 1, 1, 1, 2]);
  const said = (kind) => `tidegate: descriptors returned ${kind}, not an array: such requests are checked without it`;
  assert.deepEqual(client.lines, ["String", "Number", "Object", "Set"].map(said));
  assert.deepEqual(client.stats().missed, { callback: 4 });
});

test("leaves onFailure to the daemon's absence, also if a function throws", async (t) => {
  const client = makeClient(t, "/nowhere/s");
  const options = { onFailure: "refuse", attributes: () => { throw new Error("secret"); } };
  const port = await listening(t, createServer(limitHttp(client, "api", options, () => assert.fail())));
  assert.equal((await send(port, "/")).status, 503);
  assert.deepEqual(client.stats().missed, { callback: 1, unreachable: 1 });
});

test("refuses invalid results of functions", async (t) => {
  const daemon = await Played.start(t);
  const client = makeClient(t, daemon.path);
  for (const options of [{ cost: () => -1 }, { cost: () => 0.5 }, { user: () => ({}) }]) {
    const invalid = await listening(t, createServer(limitHttp(client, "api", options, () => assert.fail())));
    assert.equal((await send(invalid, "/")).status, 503);
  }
});

test("honours its options", async (t) => {
  const daemon = await Played.start(t);
  const client = makeClient(t, daemon.path);
  const seen = [];
  const options = {
    attributes: { org: "X-Org", key: () => "k" },
    descriptors: async () => [{ tenant: "t" }],
    cost: () => ({ tokens: 3 }),
    priority: () => "post",
    exempt: (req) => req.url === "/free",
    onRefused: (req, d) => (req.url === "/own" ? { status: 420, headers: { "X-Why": d.rule }, body: "calm" } : undefined),
    onFailure: [["/login", "refuse"], ["/", "allow"]],
    trustedProxies: ["127.0.0.0/8", "10.0.0.0/8"],
    outcome: (status) => (status === 404 ? "ok" : undefined),
    instrument: (d) => seen.push(d.verdict),
  };
  const port = await listening(t, createServer(limitHttp(client, "api", options, (req, res) => res.writeHead(404).end())));
  daemon.script = (socket, message) => decision(message, ALLOW, 5);
  const headers = { "X-Org": "o", "X-Forwarded-For": "6.6.6.6, [2001:DB8:0::1]:80, 10.1.2.3", "X-Request-Start": `t=${Date.now() - 500}` };
  await send(port, "/x", { headers });
  const [, , , [first, second], cost, priority, options6] = daemon.of(1)[0];
  assert.deepEqual(first.slice(first.indexOf("ip")), ["ip", "2001:db8::1", "org", "o", "key", "k"]);
  assert.deepEqual([second, cost, priority], [["tenant", "t"], new Map([["tokens", 3]]), "post"]);
  assert.ok(options6.get("queued_us") >= 500_000 && options6.get("queued_us") < 30_000_000);
  assert.deepEqual(await daemon.releases(), [[5, 0]]);
  await send(port, "/free");
  assert.equal(daemon.of(1).length, 1);
  daemon.script = (socket, message) => decision(message, LIMIT);
  const own = await send(port, "/own");
  assert.deepEqual([own.status, own.body, own.headers["x-why"], own.headers["retry-after"]], [420, "calm", "per-user", "1"]);
  daemon.script = (socket, message) => [3, message[1], 10, "internal"];
  assert.deepEqual([(await send(port, "/login/x")).status, (await send(port, "/y")).status], [503, 404]);
  assert.deepEqual(seen, ["allow", "limit", "shed", "allow"]);
  const bad = [{ onFailure: "deny" }, { headers: "all" }, { attributes: { "a:b": "X" } }, { trustedProxies: "10.0.0.0/33" }, { cost: 1.5 }, { fallback: "x" }];
  for (const one of bad) assert.throws(() => limitExpress(client, "api", one), TypeError);
  assert.throws(() => limitExpress({}, "api"), TypeError);
  assert.throws(() => limitExpress(client, "a/b"), TypeError);
  assert.throws(() => limitExpress(client, "api", { cost: -1 }), RangeError);
});

test("does not start a request whose caller left before the decision, and releases its lease", async (t) => {
  const daemon = await Played.start(t);
  const held = [];
  daemon.script = (socket, message) => void held.push([socket, message]);
  const client = makeClient(t, daemon.path);
  const server = createServer(limitHttp(client, "api", {}, () => assert.fail("started")));
  const closed = new Promise((resolve) => server.once("connection", (connection) => connection.once("close", resolve)));
  const port = await listening(t, server);
  const sent = request({ port, path: "/", agent: false });
  sent.on("error", () => undefined);
  sent.end();
  await until(() => held.length === 1);
  sent.destroy();
  await closed;
  const [socket, message] = held[0];
  socket.write(frame(decision(message, ALLOW, 9)));
  assert.deepEqual(await daemon.releases(), [[9, 2]]);
});

test("logs that requests over a Unix socket have no ip, until a proxy is trusted and names the caller", async (t) => {
  const daemon = await Played.start(t);
  const line = "tidegate: requests over a Unix socket have no `ip`: rules by ip do not judge them; help: set trustedProxies, and let the proxy send X-Forwarded-For";
  const directory = mkdtempSync(join(tmpdir(), "tg-"));
  t.after(() => rmSync(directory, { recursive: true }));
  const cases = [[{}, {}, [line]], [{}, { "X-Forwarded-For": "192.0.2.9" }, [line]], [{ trustedProxies: 1 }, { "X-Forwarded-For": "192.0.2.9" }, []]];
  for (const [i, [options, headers, lines]] of cases.entries()) {
    const client = makeClient(t, daemon.path), socketPath = join(directory, `s${i}`);
    const server = createServer(limitHttp(client, "api", options, (_, response) => response.end())).listen(socketPath);
    t.after(() => (server.closeAllConnections(), server.close()));
    await new Promise((resolve) => server.once("listening", resolve));
    for (let n = 0; n < 2; n++) await new Promise((resolve, reject) => request({ socketPath, headers, agent: false }, (response) => response.resume().on("end", resolve)).on("error", reject).end());
    assert.deepEqual(client.lines, lines);
    assert.equal(daemon.of(1).at(-1)[3][0].includes("192.0.2.9"), lines.length === 0);
  }
});

test("compares prefixes of onFailure as Express compares paths", async (t) => {
  for (const cased of [false, true]) {
    const app = express();
    if (cased) app.enable("case sensitive routing");
    app.use(limitExpress(makeClient(t, "/nowhere/s"), "api", { onFailure: [["/login", "refuse"]] }));
    app.get("/login", (_, response) => response.send("in"));
    const port = await listening(t, createServer(app));
    const statuses = [];
    for (const path of ["/login", "/login/", "/LOGIN"]) statuses.push((await send(port, path)).status);
    assert.deepEqual(statuses, [503, 503, cased ? 404 : 503]);
  }
});

test("answers Denied of a handler with its status and headers", async (t) => {
  const daemon = await Played.start(t);
  daemon.script = (_, message) => decision(message, LIMIT);
  const client = makeClient(t, daemon.path);
  const work = () => client.limit("api", { user: "ann" }, () => "done");
  const app = express();
  app.get("/", (_, response, next) => work().then((text) => response.send(text), next));
  const koa = new Koa();
  koa.silent = true;
  koa.use(async (context) => (context.body = await work()));
  const quick = fastify();
  quick.get("/", work);
  await quick.ready();
  for (const handler of [app, koa.callback(), (request, response) => quick.routing(request, response)]) {
    const { status, headers } = await send(await listening(t, createServer(handler)), "/");
    assert.deepEqual([status, headers["retry-after"]], [429, "1"]);
  }
});
