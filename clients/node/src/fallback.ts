// The limit while the daemon is unreachable: token buckets in this process.

import { createHash } from "node:crypto";
import { Decision } from "./decision.js";
import { PEEK, type Request } from "./wire.js";

const BUCKETS_MAX = 10_000; // the least recently used one is evicted
const BOUND_MAX = 256; // pairs of domain and attribute names with a remembered rule
const KEY_MAX = 64; // longer keys are replaced by their digests
const ERROR_MAX = 1e-6; // tokens lost to rounding
const NUMBER_MAX = 2 ** 32 - 1, PERIOD_MAX = 366 * 86_400; // seconds
const UNITS: Record<string, number> = { ms: 0.001, s: 1, min: 60, h: 3_600, day: 86_400, week: 604_800, month: 2_592_000 };
const RATE = /^(\d{1,10})\/(\d{0,10})(ms|s|min|h|day|week|month)(?: burst (\d{1,10}))?$/;

/** A rate such as "20/s", "5/15min" or "100/h burst 200", or rates by rule name; "*" is for all other requests. */
export type Rates = string | Readonly<Record<string, string>>;

interface Quota {
  /** Tokens per second. */
  rate: number;
  burst: number;
}

/** Local limits, one token bucket for each domain and set of attributes. */
export class Fallback {
  readonly #quotas: Map<string, Quota>;
  readonly #byRule: boolean;
  readonly #bound = new Map<string, string>();
  readonly #buckets = new Map<string, { tokens: number; at: number }>();

  constructor(rates: Rates) {
    const entries = Object.entries(typeof rates === "string" ? { "*": rates } : rates);
    if (!entries.length) throw new TypeError('a fallback names no rule; help: write { "*": "20/s" }');
    this.#quotas = new Map(entries.map(([name, text]) => [name, parseRate(text)]));
    this.#byRule = this.#quotas.size > 1 || !this.#quotas.has("*");
  }

  /** Remembers the binding rule, if entries are by rule. */
  remember(request: Request, decision: Decision): void {
    if (!this.#byRule || decision.limit === null || decision.rule === null) return;
    put(this.#bound, namesOf(request), decision.rule, BOUND_MAX);
  }

  /** Charges the request's bucket; null if no entry applies. */
  decide(request: Request, now = performance.now()): Decision | null {
    const entry = this.#entry(request);
    const quota = this.#quotas.get(entry);
    if (!quota) return null;
    const { rate, burst } = quota;
    const cost = typeof request.cost === "object" ? Number(request.cost["requests"] ?? 1) : Number(request.cost);
    const key = keyOf(entry, request);
    const before = this.#buckets.get(key) ?? { tokens: burst, at: now };
    let tokens = Math.min(burst, before.tokens + ((now - before.at) / 1_000) * rate);
    const allowed = cost <= tokens + ERROR_MAX;
    if (request.op !== PEEK) {
      if (allowed) tokens = Math.max(tokens - cost, 0);
      put(this.#buckets, key, { tokens, at: now }, BUCKETS_MAX);
    }
    const retry = cost > burst ? null : allowed ? 0 : micros((cost - tokens) / rate);
    const reset = tokens >= burst ? 0 : micros((Math.floor(tokens) + 1 - tokens) / rate);
    return new Decision([allowed ? 0 : 1, null, burst, micros(burst / rate), Math.floor(tokens), reset, retry], "fallback");
  }

  #entry(request: Request): string {
    const rule = this.#byRule ? this.#bound.get(namesOf(request)) : undefined;
    if (rule === undefined) return "*";
    return [`${request.domain}/${rule}`, rule].find((name) => this.#quotas.has(name)) ?? "*";
  }
}

/** Converts the option `fallback`, which is a Fallback or its rates. */
export function asFallback(given: Fallback | Rates | null | undefined): Fallback | null {
  if (given === null || given === undefined) return null;
  return isFallback(given) ? given : new Fallback(given as Rates);
}

/** Returns the option `fallback` of a call. Rates are none: their buckets would be full again at each call. */
export function checkFallback(given: Fallback | null): Fallback | null {
  if (given === null || isFallback(given)) return given;
  throw new TypeError('the fallback of a call is a Fallback; help: make new Fallback("20/s") once, and pass it to each call');
}

function isFallback(given: unknown): given is Fallback {
  const { decide, remember } = Object(given) as Partial<Fallback>;
  return typeof decide === "function" && typeof remember === "function";
}

function parseRate(text: unknown): Quota {
  const found = typeof text === "string" ? RATE.exec(text) : null;
  const number = Number(found?.[1] ?? 0), burst = Number(found?.[4] ?? number);
  const period = Number(found?.[2] || 1) * (UNITS[found?.[3] ?? ""] ?? 0);
  const fits = (n: number, most: number) => n > 0 && n <= most;
  if (!fits(number, NUMBER_MAX) || !fits(burst, NUMBER_MAX) || !fits(period, PERIOD_MAX))
    throw new TypeError(`the fallback ${String(text)} is not a rate; help: write it like 20/s, 5/15min or 100/h burst 200`);
  return { rate: number / period, burst };
}

/** Sets an entry as the most recently used, and evicts the least recently used one. */
function put<V>(map: Map<string, V>, key: string, value: V, most: number): void {
  map.delete(key);
  map.set(key, value);
  const [oldest] = map.keys();
  if (map.size > most && oldest !== undefined) map.delete(oldest);
}

/** The domain, and the names of all attributes that are sent. */
function namesOf({ domain, descriptors }: Request): string {
  const names = new Set(descriptors.flatMap((one) => one.filter((_, i) => i % 2 === 0)));
  return JSON.stringify([domain, ...[...names].sort()]);
}

/** The key of a bucket: entry, domain, and each descriptor as a set of attributes. */
function keyOf(entry: string, { domain, descriptors }: Request): string {
  const sets = descriptors.map((one) => one.flatMap((name, i) => (i % 2 ? [] : [JSON.stringify([name, one[i + 1]])])).sort());
  const key = JSON.stringify([entry, domain, sets.map(String).sort()]);
  return key.length <= KEY_MAX ? key : createHash("sha256").update(key).digest("base64");
}

/** Rounds up to microseconds, but ignores rounding errors below 1 ns. */
function micros(seconds: number): number {
  return Math.ceil(seconds * 1e6 - 1e-3);
}
