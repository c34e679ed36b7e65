// The adapter of the Node.js client: a command as a line of JSON on standard input, its result on standard output.

import { createInterface } from "node:readline";
import { setImmediate as turn } from "node:timers/promises";
import { Client } from "../../../clients/node/dist/esm/index.js";

const clients = new Map();
let lines = [];
let last = null;

const micros = (seconds) => (seconds === null ? null : Math.round(seconds * 1e6));
const since = (began) => Math.round((performance.now() - began) * 1e3);

/** `{"invalid": true}` is text that is no Unicode: half of a surrogate pair. */
async function ask({ do: op, client, domain, attributes, cost, priority, idem, on_failure: onFailure }) {
  const values = Object.entries(attributes).map(([name, value]) => [name, value?.invalid ? "\ud800" : value?.object ? new (class {})() : value]);
  const options = Object.entries({ cost, priority, idem, onFailure }).filter(([, value]) => value !== undefined);
  const began = performance.now();
  try {
    const call = ["acquire", "peek"].includes(op) ? op : "hit";
    const decision = await clients.get(client)[call](domain, Object.fromEntries(values), Object.fromEntries(options));
    const took = since(began);
    last = decision;
    const { allowed, verdict, status, degraded, reason, rule, limit, remaining } = decision;
    const lease = decision.lease === null ? null : Number(decision.lease);
    const times = { retry_us: micros(decision.retryAfter), wait_us: micros(decision.wait), took_us: took };
    return { allowed, verdict, status, degraded, reason, rule, limit, remaining, lease, ...times };
  } catch (error) {
    return { raised: error.name, took_us: since(began) };
  }
}

function spin(milliseconds) {
  for (const end = performance.now() + milliseconds; performance.now() < end; );
}

/** Asks, and keeps the event loop busy before the request is written, and before the reply is read. */
async function busy(given) {
  const asked = ask(given);
  for (let i = 0; i < 2; i++) {
    spin(given.busy_ms);
    await turn();
  }
  spin(given.busy_ms);
  return asked;
}

/** Runs work under a lease, which throws if `fails`. */
async function work({ client, domain, attributes, fails }) {
  let ran = false;
  try {
    await clients.get(client).limit(domain, attributes, () => {
      ran = true;
      if (fails) throw new EvalError("of the application");
    });
    return { ran };
  } catch (error) {
    return { ran, raised: error.constructor.name };
  }
}

async function answer(given) {
  switch (given.do) {
    case "make": {
      const { client, socket, timeout_ms: timeoutMs, fallback, enabled } = given;
      clients.set(client, new Client({ socket, timeoutMs, fallback, enabled, logger: { warn: (line) => lines.push(line) } }));
      return {};
    }
    case "crowd": return { all: await Promise.all(Array.from({ length: given.callers }, (_, i) => ask({ ...given, attributes: { user: `u${i}` } }))) };
    case "busy": return busy(given);
    case "work": return work(given);
    case "release": return last.release(given.outcome) ?? {};
    case "log": return { lines: lines.splice(0) };
    case "stats": {
      const { missed, refused, connections, breakerOpen } = clients.get(given.client).stats();
      return { missed, refused, connections, breaker_open: breakerOpen };
    }
    default: return ask(given);
  }
}

for await (const line of createInterface({ input: process.stdin }))
  process.stdout.write(`${JSON.stringify(await answer(JSON.parse(line)))}\n`);
