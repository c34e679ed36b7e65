// The client against the real daemon.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { chmodSync, cpSync, readFileSync } from "node:fs";
import { join } from "node:path";
import test from "node:test";
import { Denied } from "../dist/esm/index.js";
import { makeClient, realDaemon, until } from "./support.mjs";

const RULES = `
domain: api
concurrency:
  - {name: at-once, match: {job: export}, key: [], max: 40, expires: 1h}
  - {name: one, match: {job: single}, key: [], max: 1, expires: 1h}
limits:
  - {name: per-user, match: {job: message}, key: [user], rate: 1/h, burst: 2}
  - {name: tokens, match: {job: model}, key: [], unit: tokens, rate: 1000/h, max_debt: 1000}
`;

test("limits, charges, refunds and repeats as the rules say", async (t) => {
  const daemon = await realDaemon(t, RULES);
  const client = makeClient(t, daemon.path, { pool: "node", slots: 2 });
  const message = { job: "message", user: 7 };
  const first = await client.hit("api", message, { idem: "order-17" });
  assert.deepEqual([first.allowed, first.degraded, first.rule, first.limit, first.remaining], [true, false, "per-user", 2, 1]);
  assert.equal((await client.hit("api", message, { idem: "order-17" })).remaining, 1);
  assert.equal((await client.hit("api", message)).remaining, 0);
  const refused = await client.hit("api", message);
  assert.ok(refused.status === 429 && refused.retryAfter > 0 && refused.retryAfter <= 3_600);
  assert.equal((await client.hit("api", message, { cost: 3 })).retryAfter, null);
  for (const cost of [2 ** 40, 2n ** 64n]) assert.equal((await client.hit("api", message, { cost })).verdict, "limit");
  assert.equal((await client.hit("api", { ...message, a: "x".repeat(5_000) })).verdict, "limit");
  for (const [of, done] of [["another", false], [first, true], [first, false]]) assert.equal(await client.charge("api", message, -1, { of }), done);
  assert.equal((await client.peek("api", message)).remaining, 1);
  assert.equal(await client.charge("api", message, -1), false);
  assert.equal(client.stats().refused.not_allowed, 1);
  assert.ok(await client.charge("api", { job: "model" }, { tokens: 812 }));
  const left = await client.peek("api", { job: "model" }, { cost: { tokens: 1 } });
  assert.deepEqual([left.remaining, left.unit], [188, "tokens"]);
  client.signal("loop_lag", 0.4);
  assert.ok(await client.check());
  assert.deepEqual(client.stats(), { missed: {}, refused: { not_allowed: 1 }, connections: 1, breakerOpen: false });
});

test("ends every lease: released, failed, cancelled, lost with its connection", async (t) => {
  const daemon = await realDaemon(t, RULES);
  const client = makeClient(t, daemon.path);
  const work = Array.from({ length: 200 }, (_, i) => {
    const stop = new AbortController();
    const run = client.limit("api", { job: "export" }, { signal: stop.signal }, async () => {
      await new Promise(setImmediate);
      if (i % 4 === 0) throw new Error("work");
    });
    if (i % 4 === 1) setImmediate(() => stop.abort(new Error("stop")));
    return run;
  });
  const results = await Promise.allSettled(work);
  const causes = new Set(results.map(({ reason }) => reason && (reason instanceof Denied ? "denied" : reason.message)));
  assert.ok([undefined, "work"].every((cause) => causes.has(cause)) && causes.size <= 4, `${[...causes]}`);
  const free = async () => (await client.peek("api", { job: "export" })).remaining;
  await until(async () => (await free()) === 40);
  const held = await client.acquire("api", { job: "single" });
  assert.ok(held.lease > 0n && (await held.renew()));
  assert.equal((await client.acquire("api", { job: "single" })).verdict, "limit");
  client.close(); // another connection of the session releases the lease
  held.release();
  await until(async () => (await client.peek("api", { job: "single" })).remaining === 1);
  assert.equal(client.stats().missed.timeout, undefined);
});

test("decides without a stopped, killed or restarted daemon, and finds it again", async (t) => {
  const daemon = await realDaemon(t, RULES);
  const client = makeClient(t, daemon.path, { timeoutMs: 200 });
  const reason = async () => (await client.acquire("api", { job: "single" })).reason;
  const judged = () => until(async () => (await reason()) === null);
  await judged();
  daemon.process.kill("SIGSTOP");
  await until(() => / T /.test(readFileSync(`/proc/${daemon.process.pid}/stat`, "utf8")));
  assert.equal(await reason(), "timeout");
  daemon.process.kill("SIGCONT");
  await judged();
  await daemon.stop(); // GOODBYE
  assert.equal(await reason(), "unreachable");
  assert.ok(client.stats().breakerOpen);
  await daemon.start();
  await judged();
  await daemon.stop("SIGKILL");
  await until(() => client.stats().connections === 0);
  assert.equal(await reason(), "unreachable");
  assert.ok(client.lines.length >= 2 && client.lines.every((line) => /not limited|answers again/.test(line)), `${client.lines}`);
});

test("says who may not open the socket", async (t) => {
  const daemon = await realDaemon(t, RULES);
  chmodSync(daemon.path, 0o600);
  chmodSync(daemon.home, 0o755);
  const lib = join(daemon.home, "lib");
  cpSync(new URL("../dist/esm", import.meta.url), lib, { recursive: true });
  const script = `import { Client } from ${JSON.stringify(join(lib, "index.js"))};
    const client = new Client({ socket: ${JSON.stringify(daemon.path)} });
    console.log((await client.hit("api")).reason, client.stats().breakerOpen);`;
  if (process.getuid() !== 0) chmodSync(daemon.path, 0); // root may open every socket
  const another = process.getuid() === 0 ? { uid: 65_534, gid: 65_534 } : {};
  const { stdout, stderr } = spawnSync(process.execPath, ["--input-type=module", "-e", script], { ...another, cwd: daemon.home, encoding: "utf8" });
  assert.equal(stdout, "unreachable false\n");
  assert.match(stderr, /^tidegate: permission denied on .*: \S+ has mode 0[06]00, without access for its group; see `tidegate doctor --as \S+`; requests are not limited$/m);
});
