// Common part of the middlewares: attributes of a request, options of the check, response to a refusal.

import { validateHeaderName, validateHeaderValue } from "node:http";
import type { IncomingMessage, OutgoingHttpHeaders, OutgoingHttpHeader, ServerResponse } from "node:http";
import { delay, nameOf, type CallOptions, type Client } from "./client.js";
import type { Decision, Outcome } from "./decision.js";
import { asFallback, type Fallback, type Rates } from "./fallback.js";
import { callerOf, isTrusted, queuedMs, trust, type Proxies } from "./forwarded.js";
import { ACTIONS, checkOptions, checkWord, type Options } from "./options.js";
import { checkCost, Fault, isName, type Attributes, type Cost } from "./wire.js";

const ALWAYS = ["method", "path", "route", "ip", "user", "user_agent"]; // attributes of every request
const PAIRS_MAX = 16;
// Prefixes of the headers that a style omits. Every refusal has Retry-After.
const LEFT_OUT = { both: [], draft: ["X-"], legacy: ["RateLimit"], none: ["X-", "RateLimit"] } as const;

const NO_ADDRESS =
  "requests over a Unix socket have no `ip`: rules by ip do not judge them; help: set trustedProxies, and let the proxy send X-Forwarded-For";
const UNTRUSTED = "X-Forwarded-For is present but trustedProxies is not set: callers are counted by their proxy";

type Attribute = string | number | bigint | boolean | null | undefined;
type Awaitable<T> = T | Promise<T>;

/** Another response to a refusal; limit headers are added. */
export interface Refusal {
  status: number;
  headers?: Record<string, string>;
  body?: string | Uint8Array;
}

/** The options of a middleware, with the same names in every middleware and language. Functions may be asynchronous. */
export interface GuardOptions<R> {
  /** The caller's name, from your server's knowledge, such as the session. */
  user?: (request: R) => Awaitable<Attribute>;
  /** Further attributes: a function, or names with header names or functions. */
  attributes?: ((request: R) => Awaitable<Readonly<Record<string, Attribute>> | null | undefined>) | Readonly<Record<string, string | ((request: R) => Awaitable<Attribute>)>>;
  /** Further descriptors. */
  descriptors?: (request: R) => Awaitable<readonly Readonly<Record<string, Attribute>>[] | null | undefined>;
  cost?: Cost | ((request: R) => Awaitable<Cost>);
  /** Never from an end user's header. */
  priority?: string | ((request: R) => Awaitable<string | null | undefined>);
  /** True: no check. */
  exempt?: (request: R) => Awaitable<boolean>;
  /** The outcome of a status; undefined: *ok* below 400, else *error*. */
  outcome?: (status: number) => Outcome | undefined;
  /** Another response to a refusal; undefined: application/problem+json. */
  onRefused?: (request: R, decision: Decision) => Awaitable<Refusal | undefined>;
  /** The decision if the daemon does not answer: one for all, a function, or pairs of path prefix and decision. */
  onFailure?: "allow" | "refuse" | ((request: R) => "allow" | "refuse") | readonly (readonly [string, "allow" | "refuse"])[];
  /** Networks of proxies whose X-Forwarded-For and X-Request-Start count, or the number of proxies in front. */
  trustedProxies?: number | string | readonly string[];
  /** The limit headers. */
  headers?: keyof typeof LEFT_OUT;
  /** Called after each decision. */
  instrument?: (decision: Decision, milliseconds: number) => void;
  /** Replaces the client's fallback. */
  fallback?: Fallback | Rates;
}

// The options, and whether an option takes a function alone.
const GUARD: Options<GuardOptions<unknown>> = {
  user: true, attributes: false, descriptors: true, cost: false, priority: false, exempt: true, outcome: true, onRefused: true,
  onFailure: false, trustedProxies: false, headers: false, instrument: true, fallback: false,
};

/** A request as a middleware sees it; `request` is passed to the application's functions. */
export interface Seen<R> {
  request: R;
  raw: IncomingMessage;
  /** With the query, as the caller sent it. */
  url: string;
  route?: string | undefined;
  /** Whether the framework takes the path for one in other letter case. */
  anyCase?: boolean | undefined;
}

export class Guard<R> {
  readonly #proxies: Proxies;
  readonly #fallback: Fallback | null;

  constructor(readonly client: Client, readonly domain: string, readonly options: GuardOptions<R>) {
    checkOptions<GuardOptions<R>>(options, GUARD);
    const { onFailure = "allow", headers = "both", attributes, cost, priority, trustedProxies = [] } = options;
    if (!["undefined", "string", "function"].includes(typeof priority)) throw new TypeError("priority is a name or a function of the request");
    const sources = typeof attributes === "object" && attributes ? Object.values(attributes) : [];
    if (!["undefined", "object", "function"].includes(typeof attributes) || sources.some((one) => !["string", "function"].includes(typeof one)))
      throw new TypeError("attributes are a function of the request, or names with header names or functions");
    if (typeof client?.acquire !== "function") throw new TypeError("a middleware takes a Client");
    const actions = typeof onFailure === "string" ? [onFailure] : typeof onFailure === "function" ? [] : onFailure.map(([, one]) => one);
    for (const one of actions) checkWord("onFailure", one, ACTIONS);
    checkWord("headers", headers, Object.keys(LEFT_OUT));
    const names = typeof attributes === "object" ? Object.keys(attributes) : [];
    for (const name of [domain, ...names]) if (!isName(name)) throw new TypeError(`${String(name)} is not a name of a domain or attribute`);
    if (new Set([...names, ...ALWAYS]).size > PAIRS_MAX)
      throw new RangeError(`more than ${PAIRS_MAX} attributes, of which ${ALWAYS.length} are always sent`);
    if (cost !== undefined && typeof cost !== "function") checkCost(cost);
    this.#proxies = trust(trustedProxies);
    this.#fallback = asFallback(options.fallback);
  }

  /** Returns the decision; null if the request is exempt. */
  async judge(seen: Seen<R>): Promise<Decision | null> {
    const began = performance.now();
    const decision = await this.#decide(seen);
    if (decision) this.client.observe("instrument", () => this.options.instrument?.(decision, performance.now() - began));
    return decision;
  }

  /** Returns the response to a refusal, with limit headers. */
  async refusal(request: R, decision: Decision): Promise<Required<Refusal>> {
    const { onRefused } = this.options;
    const own = await this.#value("onRefused", async () => checkRefusal(await onRefused?.(request, decision)), undefined, "refusals get the usual response");
    const { status, headers = {}, body = "" } = own ?? {
      status: decision.status,
      headers: { "Content-Type": "application/problem+json", "Cache-Control": "no-store" },
      body: decision.problem(),
    };
    return { status, headers: { ...headers, ...Object.fromEntries(this.fields(decision, status, Object.keys(headers))) }, body };
  }

  /** Returns the limit headers to add to a response with headers named `there`. */
  fields(decision: Decision, status: number, there: readonly string[]): [string, string][] {
    if (status >= 300 && status < 400) return []; // clients would delay following a redirect
    const names = new Set(there.map((name) => name.toLowerCase()));
    const omitted = LEFT_OUT[this.options.headers ?? "both"];
    const isAdded = (name: string) => !omitted.some((prefix) => name.startsWith(prefix)) && !names.has(name.toLowerCase());
    return Object.entries(decision.headers()).filter(([name]) => isAdded(name));
  }

  outcome(status: number): Outcome {
    const usual = status < 400 ? "ok" : "error";
    try {
      return this.options.outcome?.(status) ?? usual;
    } catch (error) {
      this.client.log(`outcome threw ${nameOf(error)}: the status decides`, true);
      return usual;
    }
  }

  /**
   * Returns the value of a callback; `otherwise` if it throws, which is counted and logged with its place, but without its
   * message, which may contain personal data.
   */
  async #value<T>(name: string, callback: () => Awaitable<T>, otherwise: T, then = "requests are checked without it"): Promise<T> {
    try {
      return await callback();
    } catch (error) {
      const place = error instanceof Error ? /^ +at .*?([^ (]+:\d+:\d+)\)?$/m.exec(error.stack ?? "")?.[1] : undefined;
      const failed = error instanceof WrongResult ? `returned ${error.message}` : `threw ${nameOf(error)}${place ? ` at ${place}` : ""}`;
      this.client.log(`${name} ${failed}: such ${then}`, true);
      this.client.degrade("callback"); // counts it; the next request reports it
      return otherwise;
    }
  }

  async #decide(seen: Seen<R>): Promise<Decision | null> {
    const { request, raw } = seen;
    const { exempt, user, descriptors, cost, priority, onFailure } = this.options;
    const path = pathOf(seen.url);
    if (await this.#value("exempt", () => exempt?.(request), false)) return null;
    const caller = await this.#value("user", () => user?.(request), null);
    const added = await this.#attributes(seen);
    const further = (await this.#value("descriptors", async () => checkList(await descriptors?.(request)), null)) ?? [];
    const amount = await this.#value("cost", () => (typeof cost === "function" ? cost(request) : (cost ?? 1)), 1);
    const importance = await this.#value("priority", () => (typeof priority === "function" ? priority(request) : priority), null);
    const action = typeof onFailure === "function" ? await this.#value("onFailure", () => onFailure(request), "allow") : this.#actionOf(path, seen.anyCase);
    const peer = raw.socket.remoteAddress ?? "";
    const ip = this.#address(peer, raw);
    const first = { method: raw.method, path, route: seen.route, ip, user: caller, user_agent: raw.headers["user-agent"], ...added };
    const all: Attributes = further.length ? [first, ...further] : first;
    const options: CallOptions = { cost: amount, priority: importance, onFailure: action, queuedMs: this.#queued(peer, raw) };
    if (this.#fallback) options.fallback = this.#fallback;
    return this.#acquire(all, options);
  }

  async #acquire(attributes: Attributes, options: CallOptions): Promise<Decision> {
    try {
      return await this.client.acquire(this.domain, attributes, options);
    } catch (error) { // a function returned something invalid
      const known = error instanceof TypeError || error instanceof RangeError;
      return this.client.refuse(new Fault(known ? error.message : `reading a request threw ${nameOf(error)}`, "invalid"));
    }
  }

  async #attributes({ request, raw }: Seen<R>): Promise<Readonly<Record<string, unknown>> | null | undefined> {
    const { attributes } = this.options;
    if (typeof attributes === "function") return this.#value("attributes", async () => checkMapping(await attributes(request)), null);
    const found: Record<string, unknown> = {};
    for (const [name, source] of Object.entries(attributes ?? {}))
      found[name] = typeof source === "function" ? await this.#value(`attributes.${name}`, () => source(request), null) : header(raw, source);
    return found;
  }

  #actionOf(path: string, anyCase = false): "allow" | "refuse" {
    const { onFailure = "allow" } = this.options;
    const cased = (text: string) => (anyCase ? text.toLowerCase() : text);
    if (typeof onFailure === "string") return onFailure;
    return typeof onFailure === "function" ? "allow" : (onFailure.find(([start]) => cased(path).startsWith(cased(start)))?.[1] ?? "allow");
  }

  #address(peer: string, raw: IncomingMessage): string {
    const forwarded = header(raw, "x-forwarded-for");
    const address = callerOf(peer, forwarded ?? "", this.#proxies);
    if (!address && !raw.socket.destroyed) this.client.log(NO_ADDRESS, true); // a closed socket has none either
    else if (forwarded && this.#proxies === null) this.client.log(UNTRUSTED, true);
    return address;
  }

  #queued(peer: string, raw: IncomingMessage): number | null {
    const start = header(raw, "x-request-start");
    return start && isTrusted(peer, this.#proxies) ? queuedMs(start, Date.now()) : null;
  }
}

/** The decision on a request, which middlewares put there. */
export interface Judged {
  tidegate?: Decision;
}

/**
 * Judges a request. Resolves with true if it may go on: then its response gets limit headers, and its lease ends with the
 * response. Otherwise `refuse` has been called, or the connection has been closed.
 */
export async function admit<R>(
  guard: Guard<R>,
  seen: Seen<R>,
  response: ServerResponse,
  refuse: (refusal: Required<Refusal>, decision: Decision) => void,
): Promise<boolean> {
  let decision: Decision | null = null;
  let closed = response.destroyed || response.closed;
  const close = () => {
    closed = true;
    decision?.release(response.writableFinished ? guard.outcome(response.statusCode) : "dropped");
  };
  response.once("close", close);
  decision = await guard.judge(seen);
  if (decision === null) return true;
  if (!decision.allowed) {
    const refusal = await guard.refusal(seen.request, decision);
    (seen.request as Judged).tidegate = decision;
    if (!closed) refuse(refusal, decision);
    return false;
  }
  (seen.request as Judged).tidegate = decision;
  addFields(response, (status, there) => (decision ? guard.fields(decision, status, there) : []));
  if (decision.wait && !closed) await delay(decision.wait * 1_000);
  if (closed) decision.release("dropped"); // its caller has left: do not start
  return !closed;
}

/** Adds headers to a response when it starts. */
function addFields(response: ServerResponse, fields: (status: number, there: string[]) => [string, string][]): void {
  const writeHead = response.writeHead;
  const start = (status: number, ...rest: unknown[]): ServerResponse => {
    response.writeHead = writeHead;
    const own = response.getHeaderNames();
    const given = rest.findIndex((one) => typeof one === "object" && one !== null);
    const headers = rest[given] as OutgoingHttpHeaders | OutgoingHttpHeader[] | undefined;
    const names = Array.isArray(headers) ? headers.flat().map(String) : Object.keys(headers ?? {});
    const added = response.headersSent ? [] : fields(status, [...own, ...names]);
    // Node merges a list with headers set before, which loses repeated names: extend the list.
    if (Array.isArray(headers) && !own.length) rest[given] = [...headers, ...(Array.isArray(headers[0]) ? added : added.flat())];
    else for (const [name, value] of added) response.setHeader(name, value);
    return Reflect.apply(writeHead, response, [status, ...rest]) as ServerResponse;
  };
  response.writeHead = start as ServerResponse["writeHead"];
}

/** Returns what a function returned as a response: one that Node can send; null: none. */
function checkRefusal(given: Refusal | null | undefined): Refusal | undefined {
  if (given == null) return undefined;
  const { status, headers = {}, body = "" } = given;
  if (!Number.isInteger(status) || status < 200 || status > 999) throw new WrongResult("a status that is not from 200 to 999");
  if (typeof body !== "string" && !(body instanceof Uint8Array)) throw new WrongResult(`a body that is ${kindOf(body)}`);
  if (typeof headers !== "object" || headers === null) throw new WrongResult(`headers that are ${kindOf(headers)}`);
  for (const [name, value] of Object.entries(headers)) {
    validateHeaderName(name);
    validateHeaderValue(name, value);
  }
  return given;
}

/** Returns what a function returned as attributes: an object, but none that is iterable; null: none. */
function checkMapping<T>(given: T): T {
  if (given == null || (typeof given === "object" && !(Symbol.iterator in given))) return given;
  throw new WrongResult(`${kindOf(given)}, not values by name`);
}

/** Returns what a function returned as further descriptors: an array; null: none. */
function checkList<T>(given: T): T {
  if (given == null || Array.isArray(given)) return given;
  throw new WrongResult(`${kindOf(given)}, not an array`);
}

/** Of a function's result; the message is its type and the wanted one, never a value. */
class WrongResult extends TypeError {}

function kindOf(given: unknown): string {
  return Object.prototype.toString.call(given).slice("[object ".length, -1);
}

function header(raw: IncomingMessage, name: string): string | undefined {
  const value = raw.headers[name.toLowerCase()];
  return Array.isArray(value) ? value.join(", ") : value;
}

/** Returns the path of a URL: decoded once, without query, dot segments and repeated slashes. */
export function pathOf(url: string): string {
  const raw = url.replace(/^[a-z][a-z0-9+.-]*:\/\/[^/?#]*/i, "").replace(/[?#].*$/s, "");
  const bytes = raw.replace(/(?:%[0-9a-f]{2})+/gi, (part) => Buffer.from(part.replaceAll("%", ""), "hex").toString());
  const kept: string[] = [];
  for (const segment of bytes.split("/")) {
    if (segment === "..") kept.pop();
    else if (segment !== "" && segment !== ".") kept.push(segment);
  }
  return `/${kept.join("/")}${kept.length && /\/\.{0,2}$/.test(bytes) ? "/" : ""}`;
}

