// The client against a scripted daemon: requests, replies, deadlines, and decisions without the daemon.

import assert from "node:assert/strict";
import { execFile, fork, spawn } from "node:child_process";
import { once } from "node:events";
import { writeFileSync } from "node:fs";
import { connect } from "node:net";
import { join } from "node:path";
import test from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";
import { Client, Denied } from "../dist/esm/index.js";
import { breaker } from "../dist/esm/client.js";
import { ALLOW, LIMIT, decision, folder, frame, makeClient, Played, until } from "./support.mjs";

const LIB = new URL("../dist/esm/index.js", import.meta.url).href;
const grant = (socket, message) => (message[0] === 1 ? decision(message, ALLOW, 76 + message[1]) : [2, message[1], true]);
const hits = async (client, count = 1) => {
  const reasons = [];
  while (reasons.length < count) reasons.push((await client.hit("api", { user: "u1" })).reason);
  return reasons;
};

/** Busies the event loop. */
function busy(ms) {
  for (const end = performance.now() + ms; performance.now() < end; );
}

test("sends requests as the protocol has them, over one connection", async (t) => {
  const daemon = await Played.start(t);
  daemon.script = (socket, message) => (message[0] === 5 ? [2, message[1], true] : decision(message));
  const client = makeClient(t, daemon.path, { pool: "web", slots: 8 });
  const d = await client.acquire("api", { user: "u1", none: null, empty: "", absent: undefined, n: 7, on: true });
  assert.deepEqual([d.rule, d.remaining, d.window, d.resetAfter, d.degraded, d.allowed], ["per-user", 39, 2, 0.05, false, true]);
  await client.peek("api", [{ user: "u1" }, { org: "o1" }], { cost: 3, priority: "post", queuedMs: 500, maxWaitMs: 0.07 });
  assert.ok((await client.charge("api", [["user", "u1"]], { tokens: -5 }, { of: 7n, idem: "k" })) && (await client.check()));
  client.signal("lag", 0.5);
  await client.hit("api");
  const [[, , , info], ...requests] = daemon.seen;
  assert.deepEqual([...info.keys()], ["client", "pool", "slots", "session", "pid", "connection"]);
  assert.equal(info.get("session").length, 16);
  assert.deepEqual([info.get("pool"), info.get("slots"), info.get("pid"), info.get("connection")], ["web", 8, process.pid, 1]);
  assert.deepEqual(requests, [
    [1, 1, "api", [["user", "u1", "n", "7", "on", "true"]], 1],
    [4, 2, "api", [["user", "u1"], ["org", "o1"]], 3, "post", new Map([["queued_us", 500_000], ["max_wait_us", 70]])],
    [5, 3, "api", [["user", "u1"]], new Map([["tokens", -5]]), new Map([["idem", "k"], ["of", 7]])],
    [8, 4],
    [7, null, "web", "lag", 500],
    [3, 5, "api", [[]], 1],
  ]);
});

test("matches replies in any order by id", async (t) => {
  const daemon = await Played.start(t);
  const held = [];
  daemon.script = (socket, message) => {
    held.push(frame(decision(message, [0, message[3][0][1], 40, 2, message[4], 0, 0])));
    return held.length < 20 ? null : Buffer.concat(held.splice(0).reverse());
  };
  const client = makeClient(t, daemon.path);
  const got = await Promise.all(Array.from({ length: 200 }, (_, i) => client.hit("api", { user: `u${i}` }, { cost: i })));
  assert.deepEqual(got.map((d) => [d.rule, d.remaining]), got.map((_, i) => [`u${i}`, i]));
  assert.equal(daemon.of(0).length, 1);
});

test("keeps at most 256 requests in flight", async (t) => {
  const daemon = await Played.start(t);
  const held = [];
  daemon.script = (socket, message) => void held.push([socket, message]);
  const client = makeClient(t, daemon.path);
  const asked = Array.from({ length: 300 }, () => client.hit("api"));
  await until(() => held.length === 256);
  await sleep(10);
  assert.equal(held.length, 256);
  daemon.script = (socket, message) => decision(message);
  for (const [socket, message] of held) socket.write(frame(decision(message)));
  assert.ok((await Promise.all(asked)).every((d) => d.reason === null));
});

test("queued requests wait for their turn", async (t) => {
  const daemon = await Played.start(t);
  daemon.script = (socket, message) => void sleep(400).then(() => socket.write(frame(decision(message))));
  const client = makeClient(t, daemon.path, { timeoutMs: 1_000 });
  const got = await Promise.all(Array.from({ length: 900 }, () => client.hit("api")));
  assert.deepEqual(new Set(got.map(({ reason }) => reason)), new Set([null]));
});

test("replies in the socket of a late loop count", async (t) => {
  const daemon = await Played.start(t);
  const held = [];
  daemon.script = (socket, message) => void held.push([socket, message]);
  const client = makeClient(t, daemon.path, { timeoutMs: 1_000 });
  const asked = Array.from({ length: 100 }, () => client.hit("api"));
  await until(() => held.length === 100);
  const help = new Map([["help", "https://example.com/" + "x".repeat(1_000)]]); // in all more than one read
  const replies = held.map(([, message]) => frame([...decision(message).slice(0, 12), help]));
  held[0][0].write(Buffer.concat(replies));
  const end = performance.now() + 1_100;
  while (performance.now() < end); // the loop is busy
  assert.deepEqual(new Set((await Promise.all(asked)).map(({ reason }) => reason)), new Set([null]));
});

test("reads replies byte by byte", async (t) => {
  const daemon = await Played.start(t);
  daemon.script = (socket, message) => {
    for (const byte of frame(decision(message, [0, "Grüße-→", 40, 2, 3, 4, 0]))) socket.write(Uint8Array.of(byte));
  };
  assert.equal((await makeClient(t, daemon.path).hit("api")).rule, "Grüße-→");
});

test("runs work under a lease and releases it with its outcome", async (t) => {
  const daemon = await Played.start(t);
  daemon.script = grant;
  const client = makeClient(t, daemon.path);
  assert.equal(await client.limit("api", { job: "a" }, (d) => d.rule), "per-user");
  await assert.rejects(client.limit("api", { job: "b" }, { cost: 2 }, async () => { throw new Error("work"); }), /work/);
  const d = await client.acquire("api");
  assert.equal(d.lease, 79n);
  assert.ok(await d.renew());
  d.release("error");
  d.release();
  assert.equal(d.lease, null);
  assert.equal(await d.renew(), false);
  assert.deepEqual(await daemon.releases(3), [[77, 0], [78, 2], [79, 1]]);
  daemon.script = (socket, message) => decision(message, LIMIT);
  await assert.rejects(client.limit("api", {}, () => assert.fail()), (error) => error instanceof Denied && error.decision.status === 429 && /per-user/.test(error.message));
  daemon.script = (socket, message) => decision(message, [3, "queue", 4, 5, 0, 0, 30_000], 90);
  const began = performance.now();
  assert.ok((await client.limit("api", {}, () => performance.now())) - began >= 29);
  await daemon.releases(4);
  const stop = AbortSignal.timeout(5);
  const timers = () => process.getActiveResourcesInfo().filter((kind) => kind === "Timeout").length;
  const before = timers();
  daemon.script = (socket, message) => decision(message, [3, "queue", 4, 5, 0, 0, 30_000_000], 91);
  await assert.rejects(client.limit("api", {}, { signal: stop }, () => assert.fail()), { name: "TimeoutError" });
  assert.equal(timers(), before); // none keeps the process alive
  assert.deepEqual((await daemon.releases(5)).at(-1), [91, 2]);
});

test("keeps leases of 63 bits", async (t) => {
  const daemon = await Played.start(t);
  const lease = 2n ** 63n - 1n;
  daemon.script = (socket, message) => decision(message, ALLOW, lease);
  const d = await makeClient(t, daemon.path).acquire("api");
  assert.equal(d.lease, lease);
  d.release();
  await until(() => daemon.of(2).length);
  assert.deepEqual(daemon.of(2), [[2, null, lease, 0]]);
});

test("throws for a programmer's error and refuses other invalid input without I/O", async (t) => {
  const client = makeClient(t, join(folder(t), "s"));
  for (const cost of [1.5, "3", NaN, Infinity, true, { tokens: 0.5 }, { tokens: "1" }]) await assert.rejects(client.hit("api", {}, { cost }), TypeError);
  for (const cost of [-1, -1n, { tokens: -1 }]) await assert.rejects(client.hit("api", {}, { cost }), RangeError);
  await assert.rejects(client.hit("api", "user"), TypeError);
  await assert.rejects(client.hit("api", {}, { onFailure: "deny" }), TypeError);
  await assert.rejects(client.hit("api", {}, { queuedMs: "3" }), TypeError);
  await assert.rejects(client.charge("api", {}, 1.5), TypeError);
  await assert.rejects(client.limit("api", {}), TypeError);
  assert.throws(() => client.signal("lag", NaN), TypeError);
  for (const options of [{ timeoutMs: 0 }, { timeoutMs: "20" }, { slots: -1 }, { slots: 2 ** 32 }]) assert.throws(() => new Client(options), RangeError);
  for (const options of [{ pool: "a/b" }, { fallback: "20" }, { fallback: {} }]) assert.throws(() => new Client(options), TypeError);
  const many = Object.fromEntries(Array.from({ length: 17 }, (_, i) => [`a${i}`, 1]));
  const invalid = [["a/b"], [undefined], ["api", many], ["api", { "a:b": 1 }], ["api", { user: {} }], ["api", { user: [{}] }], ["api", { user: () => "ann" }], ["api", { user: Promise.resolve("ann") }], ["api", Array(9).fill({ a: 1 })], ["api", {}, { cost: { "a/b": 1 } }]];
  for (const call of invalid) {
    const d = await client.hit(...call);
    assert.deepEqual([d.allowed, d.verdict, d.status, d.reason, d.degraded, d.retryAfter], [false, "shed", 503, "invalid", false, 1]);
  }
  assert.deepEqual(client.stats(), { missed: {}, refused: { invalid: invalid.length }, connections: 0, breakerOpen: false });
  assert.equal(await client.charge("api", {}, -1, { of: await client.hit("a/b") }), false);
  assert.equal(client.lines.filter((line) => /attribute user has no text; help/.test(line)).length, 1);
});

test("digests long values and keys, and sends no invalid priority", async (t) => {
  const daemon = await Played.start(t);
  const client = makeClient(t, daemon.path);
  await client.hit("api", { a: "é".repeat(600) }, { idem: "k".repeat(65), priority: "a/b", cost: 2 ** 70 });
  const [, , , [[, value]], cost, priority, options] = daemon.of(3)[0];
  assert.match(value, /^é{480}~[0-9a-f]{32}$/);
  assert.match(options.get("idem"), /^k{30}~[0-9a-f]{32}$/);
  assert.deepEqual([cost, priority], [2 ** 32, null]);
  const wide = Array.from({ length: 8 }, () => Object.fromEntries(Array.from({ length: 4 }, (_, i) => [`a${i}`, "v".repeat(1_000)])));
  assert.equal((await client.hit("api", wide)).reason, null);
  assert.ok(daemon.of(3)[1][3].flat().some((text) => /^~[0-9a-f]{32}$/.test(text)));
});

test("refuses when the daemon refuses the client", async (t) => {
  const daemon = await Played.start(t);
  const client = makeClient(t, daemon.path, { fallback: "1/s" });
  for (const [code, reason] of [[6, "invalid"], [7, "quota"], [11, "not_allowed"], [9, "forbidden"]]) {
    daemon.script = (socket, message) => [3, message[1], code, "no"];
    for (let i = 0; i < 2; i++) {
      const d = await client.acquire("api");
      assert.deepEqual([d.reason, d.allowed, d.status, d.degraded], [reason, false, 503, false]);
    }
    assert.equal(client.stats().refused[reason], 2);
  }
  assert.equal(client.lines.length, 4);
  assert.equal(client.stats().breakerOpen, false);
});

/** A client of a daemon that must not be as busy as this process, and that answers after a delay. */
async function besideBusyLoop(t, delay) {
  const path = join(folder(t), "s");
  const child = fork(new URL("peer.mjs", import.meta.url), [path, delay]);
  t.after(() => child.kill());
  await new Promise((resolve) => child.once("message", resolve));
  return [makeClient(t, path, { timeoutMs: 500 }), makeClient(t, path, { timeoutMs: 500 })];
}

test("counts a reply that arrived while the event loop overslept", async (t) => {
  const [client] = await besideBusyLoop(t, 0);
  assert.deepEqual(await hits(client), [null]);
  const late = client.hit("api");
  setImmediate(() => busy(600)); // after the write
  assert.equal((await late).reason, null);
});

test("gives the daemon the whole timeout after the event loop overslept", async (t) => {
  const [client, fresh] = await besideBusyLoop(t, 200);
  assert.deepEqual(await hits(client), [null]);
  const unsent = [client.hit("api"), fresh.hit("api")]; // written after the deadline; `fresh` is not even connected
  busy(600);
  assert.deepEqual((await Promise.all(unsent)).map((d) => d.reason), [null, null]);
});

test("ends a call in time while the daemon floods", async (t) => {
  const [client] = await besideBusyLoop(t, "flood");
  const began = performance.now();
  assert.deepEqual(await hits(client), ["timeout"]);
  assert.ok(performance.now() - began < 1_500);
});

test("opens the breaker after three failures that do not overlap, and probes once per pause", async (t) => {
  const daemon = await Played.start(t);
  daemon.silent = true;
  const client = makeClient(t, daemon.path, { timeoutMs: 10 });
  const many = await Promise.all(Array.from({ length: 50 }, () => client.hit("api")));
  assert.ok(many.every((d) => d.reason === "timeout") && !client.stats().breakerOpen);
  await hits(client, 2);
  assert.ok(client.stats().breakerOpen);
  const pauses = [];
  for (let began = performance.now(); pauses.length < 3; ) {
    const probes = daemon.of(8).length;
    const answers = await Promise.all([client.hit("api"), client.hit("api"), client.hit("api")]);
    if (answers.every((d) => d.reason === "breaker")) await sleep(1);
    else {
      // The pause may end between two of them.
      assert.deepEqual(answers.map((d) => d.reason).sort(), ["breaker", "breaker", "timeout"]);
      await until(() => daemon.of(8).length === probes + 1);
      pauses.push(performance.now() - began);
      began = performance.now();
    }
  }
  for (const [i, pause] of pauses.entries()) assert.ok(pause >= 50 * 2 ** i - 5, `${pauses}`);
  daemon.silent = false;
  await until(async () => (await client.hit("api")).reason === null);
  assert.equal(client.stats().breakerOpen, false);
  assert.match(client.lines[0], /did not answer in time; requests are not limited/);
  assert.match(client.lines.at(-1), /answers again; \d+ requests so far/);
  assert.equal(client.lines.length, 2);
});

test("does no I/O while the breaker is open", async (t) => {
  const daemon = await Played.start(t);
  daemon.silent = true;
  const { pauseMin, pauseMax } = breaker;
  Object.assign(breaker, { pauseMin: 60_000, pauseMax: 60_000 });
  t.after(() => Object.assign(breaker, { pauseMin, pauseMax }));
  const client = makeClient(t, daemon.path, { timeoutMs: 10 });
  assert.deepEqual(await hits(client, 100), [...Array(3).fill("timeout"), ...Array(97).fill("breaker")]);
  assert.equal(await client.check(), false);
  client.signal("lag", 0.5);
  await until(() => daemon.sockets.size === 0);
  assert.equal(daemon.accepted, 3);
});

test("stops at once when nothing listens, and logs the first failure with its remedy", async (t) => {
  const client = makeClient(t, join(folder(t), "s"), { fallback: { "*": "2/h" } });
  assert.deepEqual(await hits(client), ["fallback"]);
  assert.ok(client.stats().breakerOpen);
  const [second, third] = [await client.hit("api", { user: "u1" }), await client.hit("api", { user: "u1" })];
  assert.deepEqual([second.allowed, third.allowed, third.status, third.degraded, third.limit], [true, false, 429, true, 2]);
  assert.ok(third.retryAfter > 1_700 && third.retryAfter <= 1_800);
  assert.equal((await client.hit("api", { user: "u2" })).allowed, true);
  assert.equal((await client.hit("api", { user: "u2" }, { cost: 3 })).retryAfter, null);
  assert.equal(client.stats().missed.unreachable, 1);
  assert.equal(client.lines.length, 1);
  assert.match(client.lines[0], /no daemon at .*ENOENT.*: start it with `tidegate serve`, or set TIDEGATE_SOCKET; requests are limited by the fallback/);
  const long = makeClient(t, `/${"x".repeat(120)}`);
  assert.deepEqual(await hits(long), ["unreachable"]);
});

test("applies a fallback by the rule that bound before", async (t) => {
  const daemon = await Played.start(t);
  const client = makeClient(t, daemon.path, { fallback: { "per-user": "1/h", "*": "100/s" } });
  await hits(client);
  await daemon.stop();
  await until(() => client.stats().connections === 0);
  const of = async (attributes) => (await client.hit("api", attributes)).limit;
  assert.deepEqual([await of({ user: "u2" }), await of({ org: "o" })], [1, 100]);
});

test("sends abandoned releases and missed counts with the next request", async (t) => {
  const daemon = await Played.start(t);
  daemon.script = grant;
  const client = makeClient(t, daemon.path);
  const d = await client.acquire("api");
  daemon.hangUp();
  await until(() => client.stats().connections === 0);
  await daemon.stop();
  assert.deepEqual(await hits(client), ["unreachable"]);
  d.release(); // while the breaker is open
  await daemon.listen();
  await until(async () => (await client.acquire("api")).reason === null);
  const [, , , , , , options] = daemon.of(1).at(-1);
  assert.deepEqual(options.get("abandoned"), [[1, 1]]);
  assert.ok(options.get("missed").get("unreachable") >= 1);
  await client.acquire("api");
  assert.equal(daemon.of(1).at(-1).length, 5); // reported once
  const session = (hello) => hello[3].get("session").toString("hex");
  assert.equal(new Set(daemon.of(0).map(session)).size, 1);
});

test("reports a release that the daemon may not have read", async (t) => {
  const daemon = await Played.start(t);
  daemon.script = grant;
  const client = makeClient(t, daemon.path);
  const [a, b] = [await client.acquire("api"), await client.acquire("api")];
  a.release();
  await client.check(); // proves that the first release arrived
  b.release();
  await daemon.releases(2);
  daemon.hangUp();
  await until(() => client.stats().connections === 0);
  await client.acquire("api");
  assert.deepEqual(daemon.of(1).at(-1)[6].get("abandoned"), [[1, 2]]);
});

test("sends requests that the daemon did not read once more", async (t) => {
  const daemon = await Played.start(t);
  const client = makeClient(t, daemon.path);
  await hits(client);
  // The daemon closes an idle connection; the next write finds it closed before the event of its end.
  const gone = new Promise((resolve) => [...daemon.sockets][0].destroy().once("close", resolve));
  await gone;
  assert.deepEqual(await hits(client), [null]);
  let refused = 0;
  daemon.script = (socket, message) => {
    if (refused++) return decision(message);
    socket.end(frame([4, null, "draining"]));
    return null;
  };
  assert.deepEqual(await hits(client, 2), [null, null]);
  assert.deepEqual(client.stats().missed, {});
  assert.equal(daemon.of(0).at(-1)[3].get("connection"), daemon.of(0).length);
});

test("waits for room in a full daemon until the deadline", async (t) => {
  const daemon = await Played.start(t);
  const room = (socket, message) => (daemon.accepted < 4 ? (socket.end(frame([3, null, 8, "busy"])), null) : decision(message));
  daemon.script = room;
  const client = makeClient(t, daemon.path);
  assert.deepEqual(await hits(client, 2), [null, null]);
  daemon.script = (socket) => (socket.end(frame([3, null, 8, "busy"])), null);
  const late = makeClient(t, daemon.path, { timeoutMs: 30 });
  assert.deepEqual(await hits(late), ["protocol"]);
  assert.equal(daemon.of(3).at(-1).length, 5);
});

test("tries a full backlog until the deadline", async (t) => {
  const path = join(folder(t), "s");
  const script = `require("net").createServer().listen({ path: process.argv[1], backlog: 1 }, () => {
    require("fs").writeSync(1, "listens");
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0); // accepts nothing
  });`;
  const child = spawn(process.execPath, ["-e", script, path], { stdio: ["ignore", "pipe", "inherit"] });
  t.after(() => child.kill("SIGKILL"));
  await once(child.stdout, "data");
  const fill = () => new Promise((resolve) => {
    const socket = connect(path, () => resolve(true)).on("error", () => resolve(false));
    t.after(() => socket.destroy());
  });
  while (await fill());
  const client = makeClient(t, path, { timeoutMs: 40 });
  const began = performance.now();
  const answers = await Promise.all(Array.from({ length: 5 }, () => client.hit("api")));
  assert.ok(performance.now() - began >= 39);
  assert.deepEqual(answers.map((d) => d.reason), Array(5).fill("unreachable"));
  assert.equal(client.stats().breakerOpen, false); // waits that overlap are one failure
  assert.match(client.lines[0], /takes no connections: it is stopped or overloaded/);
});

test("rejects a cancelled call with the signal's reason and releases a late grant", async (t) => {
  const daemon = await Played.start(t);
  const client = makeClient(t, daemon.path);
  await hits(client);
  const early = new AbortController();
  early.abort(new Error("before"));
  await assert.rejects(client.hit("api", {}, { signal: early.signal }), /before/);
  const unsent = new AbortController();
  const call = client.hit("api", { user: "unsent" }, { signal: unsent.signal });
  unsent.abort(new Error("unsent"));
  await assert.rejects(call, /unsent/);
  const held = [];
  daemon.script = (socket, message) => void held.push([socket, message]);
  const sent = new AbortController();
  const work = client.acquire("api", {}, { signal: sent.signal });
  await until(() => held.length === 1);
  sent.abort(new Error("sent"));
  await assert.rejects(work, /sent/);
  daemon.script = (socket, message) => decision(message);
  held[0][0].write(frame(decision(held[0][1], ALLOW, 55)));
  assert.deepEqual(await daemon.releases(), [[55, 2]]);
  await hits(client);
  const requests = daemon.of(3);
  assert.deepEqual(requests.at(-1)[6].get("abandoned"), [[1, held[0][1][1]]]);
  assert.ok(!requests.some((message) => message[3][0].includes("unsent")));
  assert.deepEqual(client.stats().missed, {});
});

test("calls onDecision, whose errors and those of the logger change nothing", async (t) => {
  const daemon = await Played.start(t);
  const seen = [];
  const onDecision = (d, ms) => {
    seen.push([d.rule, ms >= 0]);
    throw new Error("secret");
  };
  const client = makeClient(t, daemon.path, { onDecision });
  assert.deepEqual(await hits(client, 2), [null, null]);
  assert.deepEqual(seen, [["per-user", true], ["per-user", true]]);
  assert.deepEqual(client.lines, ["tidegate: onDecision threw Error"]);
  const broken = makeClient(t, "/nowhere/s", { logger: { warn() { throw new Error("logger"); } } });
  assert.deepEqual(await hits(broken), ["unreachable"]);
});

test("many calls share a signal without a warning of Node", async (t) => {
  const daemon = await Played.start(t);
  const warnings = [];
  const warned = (warning) => warnings.push(warning.name);
  process.on("warning", warned);
  t.after(() => process.off("warning", warned));
  const { signal } = new AbortController();
  const client = makeClient(t, daemon.path);
  const decisions = await Promise.all(Array.from({ length: 50 }, () => client.hit("api", {}, { signal })));
  await new Promise(setImmediate);
  assert.deepEqual([decisions.length, warnings], [50, []]);
});

// A value that cannot be encoded left its beginning, so that the next request was malformed, and passed.
test("a request after one that cannot be encoded, and an odd outcome, reach the daemon", async (t) => {
  const daemon = await Played.start(t);
  daemon.script = (socket, message) => decision(message, ALLOW, 77);
  const client = makeClient(t, daemon.path);
  assert.equal(await client.charge("api", {}, -1, { of: 2n ** 64n }), false);
  for (const outcome of ["toString", "__proto__", Symbol("x"), Object.create(null), null]) {
    const granted = await client.acquire("api", {});
    assert.equal(granted.reason, null);
    granted.release(outcome);
  }
  assert.deepEqual((await daemon.releases(5)).map(([, outcome]) => outcome), [1, 1, 1, 1, 1]);
});

// An unhandled rejection would end the process.
test("rejections of an asynchronous onDecision and logger change nothing", async (t) => {
  const daemon = await Played.start(t);
  const client = makeClient(t, daemon.path, { onDecision: async () => { throw new RangeError("secret"); } });
  assert.deepEqual(await hits(client, 2), [null, null]);
  await until(() => client.lines.length);
  assert.deepEqual(client.lines, ["tidegate: onDecision threw RangeError"]);
  const broken = makeClient(t, "/nowhere/s", { logger: { warn: async () => { throw new Error("logger"); } } });
  assert.deepEqual(await hits(broken), ["unreachable"]);
  await new Promise(setImmediate);
});

test("gives a refusal domain, rule and digest", async (t) => {
  const daemon = await Played.start(t);
  const digest = "5f0c0f6ae0b54c1d9a2f6be0c1d4e7a3";
  daemon.script = (socket, message) => [1, message[1], ...LIMIT, null, null, null, new Map([["rate", "20/s"], ["digest", digest]])];
  const client = makeClient(t, daemon.path);
  const d = await client.hit("shop");
  for (const { domain, rule, digest: known } of [d, d.toJSON()]) assert.deepEqual([domain, rule, known], ["shop", "per-user", digest]);
  const { domain, digest: shown } = JSON.parse(d.problem());
  assert.deepEqual([domain, shown], ["shop", digest]);
  daemon.script = (socket, message) => decision(message);
  assert.equal((await client.hit("shop")).domain, null);
});

test("logs once that a domain does not exist", async (t) => {
  const daemon = await Played.start(t);
  daemon.script = (socket, message) => [1, message[1], 0, ...Array(5).fill(null), 0, null, ["unmatched", "domain"], null, null];
  const client = makeClient(t, daemon.path);
  for (const domain of ["ap", "ap", "log-in"]) assert.ok((await client.hit(domain, { user: "u1" })).allowed);
  const said = (domain) => `tidegate: the rules have no domain "${domain}"; its requests are not limited`;
  assert.deepEqual(client.lines, [said("ap"), said("log-in")]);
});

test("does no I/O when it is imported, made or disabled", async (t) => {
  const daemon = await Played.start(t);
  const client = makeClient(t, daemon.path, { enabled: false });
  assert.deepEqual(await hits(client), ["disabled"]);
  client.signal("lag", 1);
  assert.deepEqual([await client.check(), await client.charge("api", {}), client.stats().missed], [false, false, {}]);
  makeClient(t, daemon.path);
  process.env.TIDEGATE_DISABLE = "1";
  const off = makeClient(t, daemon.path);
  assert.deepEqual([await hits(off), await hits(off), off.lines], [["disabled"], ["disabled"], ['tidegate: TIDEGATE_DISABLE is "1": nothing is limited']]);
  delete process.env.TIDEGATE_DISABLE;
  assert.deepEqual(client.lines, []);
  assert.equal(daemon.accepted, 0);
  process.env.TIDEGATE_TIMEOUT_MS = "2.5";
  assert.deepEqual([new Client().timeoutMs, new Client({ timeoutMs: 7 }).timeoutMs], [2.5, 7]);
  delete process.env.TIDEGATE_TIMEOUT_MS;
  assert.equal(new Client().timeoutMs, 20);
  for (const wrong of ["0", "-5", "abc", "1e3", "10001", "Infinity"]) {
    process.env.TIDEGATE_TIMEOUT_MS = wrong;
    const client = makeClient(t, daemon.path, { timeoutMs: undefined });
    assert.deepEqual([client.timeoutMs, client.lines], [20, [`tidegate: TIDEGATE_TIMEOUT_MS is "${wrong}", not above 0 and up to 10000: the timeout is 20 ms`]]);
  }
  delete process.env.TIDEGATE_TIMEOUT_MS;
  process.env.TIDEGATE_SOCKET = daemon.path;
  assert.deepEqual(await hits(makeClient(t, undefined)), [null]);
  delete process.env.TIDEGATE_SOCKET;
});

test("lets the process exit while a connection is open, but not while a call waits", async (t) => {
  const daemon = await Played.start(t);
  daemon.script = (socket, message) => decision(message, ALLOW, 5);
  const script = `import { Client } from ${JSON.stringify(LIB)};
    const d = await new Client({ socket: process.argv[1], timeoutMs: 20000 }).acquire("api");
    d.release("error");
    console.log(d.rule, process.pid);`;
  const run = () => promisify(execFile)(process.execPath, ["--input-type=module", "-e", script, daemon.path], { timeout: 15_000 });
  const [one, two] = await Promise.all([run(), run()]);
  assert.match(one.stdout, /^per-user/);
  assert.deepEqual(await daemon.releases(2), [[5, 1], [5, 1]]);
  const hellos = daemon.of(0).map((message) => message[3]); // child processes have own sessions
  assert.equal(new Set(hellos.map((info) => info.get("session").toString("hex"))).size, 2);
  assert.deepEqual(hellos.map((info) => info.get("pid")).sort(), [one, two].map(({ stdout }) => Number(stdout.split(" ")[1])).sort());
});

test("gives each cluster worker its own session", async (t) => {
  const daemon = await Played.start(t);
  const script = `import cluster from "node:cluster";
    import { Client } from ${JSON.stringify(LIB)};
    const client = new Client({ socket: process.env.S, timeoutMs: 20000 });
    await client.hit("api");
    if (cluster.isPrimary) { cluster.fork(); cluster.fork(); } else cluster.worker.disconnect();`;
  const file = join(folder(t), "cluster.mjs");
  writeFileSync(file, script);
  await promisify(execFile)(process.execPath, [file], { env: { ...process.env, S: daemon.path }, timeout: 20_000 });
  const hellos = daemon.of(0).map((message) => message[3]);
  assert.equal(hellos.length, 3);
  for (const name of ["session", "pid"]) assert.equal(new Set(hellos.map((info) => String(info.get(name)))).size, 3);
});

test("can be used again after close", async (t) => {
  const daemon = await Played.start(t);
  daemon.script = grant;
  const client = makeClient(t, daemon.path);
  const d = await client.acquire("api");
  d.release();
  client.close();
  assert.deepEqual(await daemon.releases(), [[77, 0]]); // written before the end
  assert.equal(client.stats().connections, 0);
  assert.equal((await client.acquire("api")).reason, null);
  assert.equal(breaker.failuresMax, 3);
});
