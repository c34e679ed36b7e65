// The golden frames, the reference of the protocol, and the responses to HTTP callers.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import test from "node:test";
import { Decision } from "../dist/esm/index.js";
import { checkCost, decode, describe, elementsFrom, elementsOf, encode, Fault, frame } from "../dist/esm/wire.js";
import { ROOT } from "./support.mjs";

const OPS = ["hello", "acquire", "release", "hit", "peek", "charge", "renew", "signal", "ping"];
const KINDS = ["welcome", "decision", "done", "error", "goodbye"];
const VERDICTS = ["allow", "limit", "shed", "wait", "deny"];
const OUTCOMES = ["ok", "error", "dropped"];
const CODES = ["", "malformed", "too_large", "version", "hello_required", "unknown_op", "invalid", "quota", "busy", "forbidden", "internal", "not_allowed"];

/** Reads a file of vectors; integers beyond the safe range become bigints. */
function vectors(name) {
  const text = readFileSync(join(ROOT, "tests/vectors", name), "utf8");
  const exact = text.replace(/(?<=[:[,] )(-?\d{16,})(?=[,\]}])/g, '"#$1"');
  const big = (_, value) => (typeof value === "string" && /^#-?\d+$/.test(value) ? BigInt(value.slice(1)) : value);
  return JSON.parse(exact, big);
}

const GOOD = vectors("good.json");
const bytes = ({ hex }) => Buffer.from(hex, "hex");

/** Converts the form of the JSON to values of the codec. */
function real(value) {
  if (Array.isArray(value)) return value.map(real);
  if (typeof value !== "object" || value === null) return value;
  if (typeof value.bin === "string" && Object.keys(value).length === 1) return Buffer.from(value.bin, "hex");
  return new Map(Object.entries(value).map(([name, one]) => [name, real(one)]));
}

/** The array of a meaning: a request without trailing nils, a reply in full. */
function messageOf(m) {
  if ("kind" in m) {
    const kind = KINDS.indexOf(m.kind);
    if (kind === 0) return [kind, m.id, m.version, m.info];
    if (kind === 1) {
      const numbers = ["rule", "limit", "window_us", "remaining", "reset_us", "retry_us", "lease"].map((name) => m[name]);
      return [kind, m.id, VERDICTS.indexOf(m.verdict), ...numbers, m.notes?.flat() ?? null, m.all, m.extra];
    }
    if (kind === 2) return [kind, m.id, m.ok];
    return kind === 3 ? [kind, m.id, CODES.indexOf(m.code), m.message] : [kind, m.id, m.reason];
  }
  const some = (map) => (Object.keys(map).length ? map : null);
  const rest = {
    hello: () => [m.version, some(m.info)],
    release: () => [m.lease, OUTCOMES.indexOf(m.outcome)],
    renew: () => [m.lease],
    signal: () => [m.pool, m.name, m.permille],
    ping: () => [],
    charge: () => [m.domain, m.descriptors, m.amount, some(m.options)],
  }[m.op] ?? (() => [m.domain, m.descriptors, m.cost, m.priority, some(m.options)]);
  const message = [OPS.indexOf(m.op), m.id, ...rest()];
  while (message.at(-1) === null && message.length > 2) message.pop();
  return message;
}

test("reads every good frame and writes every canonical one", () => {
  let written = 0;
  for (const vector of GOOD) {
    const payload = bytes(vector).subarray(4);
    assert.equal(bytes(vector).readUInt32BE(), payload.length, vector.name);
    const read = decode(payload);
    if (!vector.canonical) continue;
    written++;
    const message = real(messageOf(vector.meaning));
    assert.deepEqual(read, message, vector.name);
    assert.equal(encode(message).toString("hex"), payload.toString("hex"), vector.name);
  }
  assert.ok(written > 100, `${written}`);
});

test("encodes requests from what an application gives", () => {
  let written = 0;
  for (const { name, meaning: m, canonical, ...vector } of GOOD) {
    if (!canonical || !["acquire", "hit", "peek", "charge", "release", "renew", "signal", "ping"].includes(m.op)) continue;
    if (name === "hit_frame_largest") continue; // has a short id; the client keeps room for the longest
    const op = OPS.indexOf(m.op);
    let elements;
    if (m.domain === undefined) elements = elementsFrom(real(messageOf(m).slice(2)));
    else {
      const given = m.descriptors.map((one) => one.flatMap((key, i) => (i % 2 ? [] : [[key, one[i + 1]]])));
      if (!given.length || given.flat().some(([, value]) => value === "")) continue; // empty values are not sent
      const descriptors = describe(given.length === 1 ? given[0] : given.map((pairs) => Object.fromEntries(pairs)));
      const cost = checkCost(m.cost ?? m.amount, op === 5);
      elements = elementsOf({ op, domain: m.domain, descriptors, cost, priority: m.priority ?? null, options: real(m.options) });
    }
    written++;
    const id = typeof m.id === "bigint" ? 7 : m.id; // the client's own ids are small
    const want = typeof m.id === "bigint" ? frameOf(real({ ...m, id: 7 })) : bytes(vector);
    assert.equal(frame(op, id, elements).toString("hex"), want.toString("hex"), name);
  }
  assert.ok(written > 50, `${written}`);

  function frameOf(m) {
    const plain = Object.fromEntries(m);
    for (const name of ["options", "cost", "amount"]) if (plain[name] instanceof Map) plain[name] = Object.fromEntries(plain[name]);
    const payload = encode(real(messageOf(plain)));
    return Buffer.concat([Buffer.from([0, 0, payload.length >> 8, payload.length & 255]), payload]);
  }
});

test("reads the fields of every decision, and leases up to 2^63 - 1 exactly", () => {
  let largest = 0n;
  for (const { meaning: m, ...vector } of GOOD) {
    if (m.kind !== "decision") continue;
    const d = new Decision(decode(bytes(vector).subarray(4)).slice(2));
    const number = (value) => (value === null ? null : Number(value));
    assert.deepEqual([d.verdict, d.rule, d.limit, d.remaining], [m.verdict, m.rule, number(m.limit), number(m.remaining)], vector.name);
    assert.deepEqual([d.window, d.resetAfter, d.retryAfter], [m.window_us, m.reset_us, m.retry_us].map((us) => (us === null ? null : Number(us) / 1e6)));
    assert.equal(d.lease, m.lease === null ? null : BigInt(m.lease), vector.name);
    assert.deepEqual(d.notes.map(({ kind, rule }) => [kind, rule]), m.notes ?? []);
    assert.equal(d.help, m.extra?.help ?? null);
    if (d.lease > largest) largest = d.lease;
    assert.equal(JSON.parse(JSON.stringify(d)).lease, d.lease === null ? null : String(d.lease));
  }
  assert.equal(largest, 2n ** 63n - 1n);
});

test("refuses malformed frames", () => {
  let refused = 0;
  for (const vector of vectors("bad.json")) {
    if (vector.code !== "malformed" || bytes(vector).length < 5) continue;
    const size = bytes(vector).readUInt32BE();
    let message;
    try {
      message = decode(bytes(vector).subarray(4, 4 + size));
    } catch (error) {
      assert.ok(error instanceof Fault, `${vector.name}: ${error}`);
      refused++;
      continue;
    }
    // Only a reader of requests detects the rest: op or id is no unsigned integer, or too large.
    const small = (n) => (typeof n === "number" || typeof n === "bigint") && n >= 0 && n < 2n ** 63n;
    assert.ok(!small(message[0]) || !small(message[1]), vector.name);
  }
  assert.ok(refused > 25, `${refused}`);
});

test("gives HTTP callers the same message, headers and body as every client", () => {
  for (const answer of JSON.parse(readFileSync(join(ROOT, "tests/vectors/answers.json"), "utf8"))) {
    const d = decided(answer);
    assert.equal(d.message, answer.message, answer.name);
    if (answer.body !== null) assert.equal(d.problem(), answer.body, answer.name);
    if (answer.style === "both" && answer.status < 300) assert.deepEqual(Object.entries(d.headers()), answer.headers, answer.name);
  }
});

export function decided({ domain, decision, reason, status }) {
  if (reason) return new Decision(status === 200 ? [0] : [2, null, null, null, null, null, 1_000_000], reason);
  return new Decision(decode(Buffer.from(decision, "hex").subarray(4)).slice(2), null, null, null, domain);
}
