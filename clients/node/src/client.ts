// The client: judges requests over one connection of this process, and decides without the daemon if it must.

import { randomBytes } from "node:crypto";
import { existsSync } from "node:fs";
import { isAbsolute, join } from "node:path";
import { Connection, type Answer, type Operation, type Owner, type Which } from "./connection.js";
import { Decision, Denied, isRefusal, type Grant, type Reason } from "./decision.js";
import { asFallback, checkFallback, type Fallback, type Rates } from "./fallback.js";
import { ACTIONS, checkOptions, checkWord, type Options } from "./options.js";
import {
  ACQUIRE, CHARGE, FRAME_MAX, HIT, PEEK, PING, RELEASE, RENEW, SIGNAL,
  checkCost, checkName, describe, elementsFrom, elementsOf, Fault, isName, shortenIdem,
  type Attributes, type Cost, type Elements, type Request, type Value,
} from "./wire.js";

const VERSION = "0.1.0";
const TIMEOUT_MS_MAX = 10_000; // of the environment
const ABANDONED_MAX = 512, LOGGED_MAX = 100;
const REPORTED_MAX = FRAME_MAX / 2; // bytes of a request that a report may join; with more, a value might become its digest
const MICROS_MAX = 2n ** 63n - 1n;
const SLOTS_MAX = 2 ** 32 - 1;
const NONE: CallOptions = {};
const STOPPED = new Fault("the daemon did not answer before", "breaker");

/** Failures until the breaker opens; its pauses in milliseconds, of which jitter takes up to a half. For tests. */
export const breaker = { failuresMax: 3, pauseMin: 100, pauseMax: 2_000 };

export interface Logger {
  warn(message: string): void;
}

export interface ClientOptions {
  /** Path of the daemon's socket; else TIDEGATE_SOCKET, else the default paths. */
  socket?: string | undefined;
  /** Deadline of a whole call, 20 by default; else TIDEGATE_TIMEOUT_MS. */
  timeoutMs?: number | undefined;
  /** Name of the application. */
  pool?: string | undefined;
  /** Requests that this process works on concurrently; 0: unknown. */
  slots?: number | undefined;
  /** False: every request is allowed without any I/O, as with TIDEGATE_DISABLE=1. */
  enabled?: boolean | undefined;
  /** `console` by default. */
  logger?: Logger | undefined;
  /** The limit for each domain and set of attributes while the daemon is unreachable. */
  fallback?: Rates | undefined;
  /** Called after each decision with its time. */
  onDecision?: ((decision: Decision, milliseconds: number) => void) | undefined;
}

export interface CallOptions {
  cost?: Cost | undefined;
  /** Importance of the request, a word of the rules. Never from an end user's header. */
  priority?: string | null | undefined;
  /** Idempotency key: a repeat within 60 s of the grant gets the same grant. Never from an end user's header alone. */
  idem?: string | Uint8Array | null | undefined;
  /** How long the request already waited for the application. */
  queuedMs?: number | null | undefined;
  /** Longest wait to accept; 0: never wait. */
  maxWaitMs?: number | null | undefined;
  /** The decision if the daemon does not answer. */
  onFailure?: "allow" | "refuse" | undefined;
  /** Replaces the client's fallback. */
  fallback?: Fallback | null | undefined;
  /** Rejects the call with its reason. A late grant is released. */
  signal?: AbortSignal | undefined;
}

export interface ChargeOptions {
  idem?: string | Uint8Array | null | undefined;
  /** Of a negative amount: the grant that it refunds, as a decision, its lease or its `idem`. */
  of?: Decision | bigint | string | Uint8Array | null | undefined;
  signal?: AbortSignal | undefined;
}

// Of each interface its options, and whether an option takes a function alone.
const CLIENT: Options<ClientOptions> = {
  socket: false, timeoutMs: false, pool: false, slots: false, enabled: false, logger: false, fallback: false, onDecision: true,
};
const CALL: Options<CallOptions> = {
  cost: false, priority: false, idem: false, queuedMs: false, maxWaitMs: false, onFailure: false, fallback: false, signal: false,
};
const CHARGED: Options<ChargeOptions> = { idem: false, of: false, signal: false };

export interface Stats {
  /** Decisions without the daemon, by reason. */
  missed: Record<string, number>;
  /** Refusals of invalid and forbidden requests, by reason. */
  refused: Record<string, number>;
  connections: number;
  breakerOpen: boolean;
}

/** Sends requests to the daemon of this host. Make one per process and keep it; the first request connects. */
export class Client implements Owner {
  readonly timeoutMs: number;
  readonly #options: ClientOptions;
  readonly #enabled: boolean;
  readonly #off: string | null; // TIDEGATE_DISABLE, if it is set
  readonly #fallback: Fallback | null;
  readonly #info: Map<string, Value>;
  #connection: Connection | null = null;
  #connections = 0; // of this session, in total
  readonly #missed = new Map<string, number>();
  readonly #refused = new Map<string, number>();
  #report = { missed: new Map<string, number>(), abandoned: [] as Which[] };
  readonly #logged = new Set<string>();
  // The breaker: failures, end of the last counted one, end (0: closed) and length of the pause, last logged state.
  #failures = 0;
  #failedAt = 0;
  #until = 0;
  #pause = 0;
  #state: "" | "well" | "failing" = "";
  #refuses = false; // whether a request had onFailure: "refuse"

  constructor(options: ClientOptions = {}) {
    checkOptions(options, CLIENT);
    const { pool = "default", slots = 0, enabled = true, fallback, logger } = options;
    if (logger && typeof logger.warn !== "function") throw new TypeError("logger has a function warn, as console has");
    this.#options = options;
    this.timeoutMs = options.timeoutMs ?? this.#timeoutOf(process.env["TIDEGATE_TIMEOUT_MS"] ?? "");
    if (typeof this.timeoutMs !== "number" || !(this.timeoutMs > 0 && this.timeoutMs < 2 ** 31)) throw new RangeError("timeoutMs is above 0");
    if (!Number.isInteger(slots) || slots < 0 || slots > SLOTS_MAX) throw new RangeError(`slots are 0 to ${SLOTS_MAX}`);
    if (options.socket != null && typeof options.socket !== "string") throw new TypeError(`socket is a path, not a ${typeof options.socket}`);
    if (!isName(pool)) throw new TypeError(`the pool ${String(pool)} is not a name`);
    const off = process.env["TIDEGATE_DISABLE"] ?? "";
    this.#enabled = enabled && ["", "0"].includes(off);
    this.#off = ["", "0"].includes(off) ? null : off;
    this.#fallback = asFallback(fallback);
    this.#info = new Map<string, Value>([["client", `node/${VERSION}`], ["pool", pool], ["slots", slots]]);
  }

  /** Asks whether work may start that ends with `decision.release()`. */
  acquire(domain: string, attributes?: Attributes | null, options: CallOptions = NONE): Promise<Decision> {
    return this.#judge(ACQUIRE, domain, attributes, options);
  }

  /** As `acquire`, without a lease: for a message, a login attempt. */
  hit(domain: string, attributes?: Attributes | null, options: CallOptions = NONE): Promise<Decision> {
    return this.#judge(HIT, domain, attributes, options);
  }

  /** Returns the decision that `acquire` would get; charges nothing. */
  peek(domain: string, attributes?: Attributes | null, options: CallOptions = NONE): Promise<Decision> {
    return this.#judge(PEEK, domain, attributes, options);
  }

  /** Runs `work` under a lease, after the wait if any. Rejects with Denied if it may not start. */
  limit<T>(domain: string, attributes: Attributes | null | undefined, work: (decision: Decision) => T | Promise<T>): Promise<T>;
  limit<T>(
    domain: string,
    attributes: Attributes | null | undefined,
    options: CallOptions,
    work: (decision: Decision) => T | Promise<T>,
  ): Promise<T>;
  async limit<T>(
    domain: string,
    attributes: Attributes | null | undefined,
    given: CallOptions | ((decision: Decision) => T | Promise<T>),
    last?: (decision: Decision) => T | Promise<T>,
  ): Promise<T> {
    const work = typeof given === "function" ? given : last;
    if (!work) throw new TypeError("limit runs a function; help: limit(domain, attributes, async (decision) => …)");
    const options = typeof given === "function" ? NONE : given;
    const decision = await this.acquire(domain, attributes, options);
    if (!decision.allowed) throw new Denied(decision);
    let outcome: "ok" | "dropped" = "dropped";
    try {
      if (decision.wait) await delay(decision.wait * 1_000, options.signal);
      const result = await work(decision);
      outcome = "ok";
      return result;
    } finally {
      decision.release(outcome);
    }
  }

  /** Charges all matching rates after the fact, into debt; a negative amount refunds part of `of`. False: none was. */
  async charge(domain: string, attributes: Attributes | null | undefined, amount: Cost = 1, given: ChargeOptions = {}): Promise<boolean> {
    checkOptions(given, CHARGED);
    const cost = this.#checked(() => checkCost(amount, true));
    return this.#done(CHARGE, given.signal, () => {
      if (cost instanceof Fault) throw cost;
      const of = given.of instanceof Decision ? given.of.refundKey : (given.of ?? null);
      if (given.of instanceof Decision && of === null)
        throw new Fault("a refund needs a decision with a lease or an idem; this one has none", "invalid");
      const options = new Map<string, Value>();
      const idem = shortenIdem(given.idem);
      if (idem !== null) options.set("idem", idem);
      const key = typeof of === "bigint" ? of : shortenIdem(of);
      if (key !== null) options.set("of", key);
      return elementsOf({ op: CHARGE, domain: checkName(domain), descriptors: describe(attributes), cost, priority: null, options });
    });
  }

  /** Reports a utilization of this process, from 0 to 1; the daemon drops it after 3 s. Does not wait. */
  signal(name: string, value: number): void {
    if (typeof value !== "number" || Number.isNaN(value)) throw new TypeError("a signal's value is a number from 0 to 1");
    if (!isName(name)) throw new TypeError(`the signal ${String(name)} is not a name`);
    const permille = Math.round(1_000 * Math.min(Math.max(value, 0), 1));
    this.#send(SIGNAL, elementsFrom([this.#info.get("pool") ?? null, name, permille]), null);
  }

  /** Pings the daemon; false if it does not answer, the breaker is open or the client disabled. */
  check(): Promise<boolean> {
    return this.#done(PING, undefined, () => elementsFrom([]));
  }

  stats(): Stats {
    return {
      missed: Object.fromEntries(this.#missed),
      refused: Object.fromEntries(this.#refused),
      connections: this.#connection?.closed === false ? 1 : 0,
      breakerOpen: this.#until > 0,
    };
  }

  /** Closes the connection; leases end 5 s later. The client may be used again. */
  close(): void {
    this.#connection?.close();
  }

  /** Logs a text, `once` only the first time; also by another key than the text. @internal */
  log(text: string, once: boolean | string = false): void {
    const key = once === true ? text : once;
    if (key !== false && (this.#logged.has(key) || this.#logged.size >= LOGGED_MAX)) return;
    if (key !== false) this.#logged.add(key);
    // An application's logger must not fail its requests.
    attempt(() => (this.#options.logger ?? console).warn(`tidegate: ${text}`), () => undefined);
  }

  /** Calls a function that observes decisions; what it throws, also later, is only logged. @internal */
  observe(name: string, call: () => unknown): void {
    attempt(call, (error) => this.log(`${name} threw ${nameOf(error)}`, true));
  }

  /** Counts and returns a decision without the daemon. @internal */
  degrade(reason: Reason, onFailure: "allow" | "refuse" = "allow"): Decision {
    add(this.#missed, reason);
    add(this.#report.missed, reason);
    return new Decision(onFailure === "refuse" ? [2, null, null, null, null, null, 1_000_000] : [0], reason);
  }

  /** Refuses an invalid or forbidden request: independent of the daemon's state, never *allow*. @internal */
  refuse(fault: Fault): Decision {
    add(this.#refused, fault.reason);
    this.log(`${fault.message}; such requests are refused (${fault.reason})`, true);
    return new Decision([2, null, null, null, null, null, 1_000_000], fault.reason as Reason);
  }

  /** @internal */
  grant(connection: Connection, which: Which): Grant {
    return {
      release: (lease, outcome) => {
        const elements = elementsFrom([lease, outcome]);
        if (connection.closed) {
          if (!this.#send(RELEASE, elements, which)) this.reportAbandoned([which]); // with the next request
        } else connection.send(RELEASE, elements, which);
      },
      renew: (lease) => this.#done(RENEW, undefined, () => elementsFrom([lease])),
    };
  }

  /** @internal */
  reportAbandoned(abandoned: readonly Which[]): void {
    this.#report.abandoned = [...abandoned, ...this.#report.abandoned].slice(0, ABANDONED_MAX);
  }

  /** @internal */
  fail(fault: Fault, since: number): void {
    if (!isRefusal(fault.reason)) this.#settle(fault, since);
  }

  async #judge(op: number, domain: string, attributes: Attributes | null | undefined, options: CallOptions): Promise<Decision> {
    const began = performance.now();
    const decision = await this.#decide(op, domain, attributes, options, began);
    this.observe("onDecision", () => this.#options.onDecision?.(decision, performance.now() - began));
    return decision;
  }

  async #decide(
    op: number,
    domain: string,
    attributes: Attributes | null | undefined,
    given: CallOptions,
    began: number,
  ): Promise<Decision> {
    if (given !== NONE) checkOptions(given, CALL);
    const { onFailure = "allow", signal } = given;
    const fallback = given.fallback === undefined ? this.#fallback : checkFallback(given.fallback);
    checkWord("onFailure", onFailure, ACTIONS);
    this.#refuses ||= onFailure === "refuse";
    const request = this.#checked(() => requestOf(op, domain, attributes, given));
    throwIfAborted(signal);
    if (this.#off !== null) this.log(`TIDEGATE_DISABLE is "${this.#off.slice(0, 40)}": nothing is limited`, true);
    if (!this.#enabled) return new Decision([0], "disabled");
    if (request instanceof Fault) return this.refuse(request);
    let elements = this.#checked(() => elementsOf(request));
    if (elements instanceof Fault) return this.refuse(elements);
    const report = this.#report;
    const reports = elements.bytes.length < REPORTED_MAX && report.missed.size + report.abandoned.length > 0;
    if (reports) {
      this.#report = { missed: new Map(), abandoned: [] };
      const options = new Map(request.options).set("missed", report.missed);
      options.set("abandoned", report.abandoned.map((which) => [...which]));
      elements = elementsOf({ ...request, options });
    }
    const idem = (request.options.get("idem") ?? null) as string | Uint8Array | null;
    let answer: Answer | null = null;
    try {
      answer = await this.#ask({ op, elements, idem, domain, deadline: began + this.timeoutMs, signal });
    } finally {
      if (reports && !(answer instanceof Decision)) this.#reportAgain(report); // it may not have reached the daemon
    }
    if (answer instanceof Decision) {
      this.#logUnmatched(request, answer);
      fallback?.remember(request, answer);
      return answer;
    }
    if (!(answer instanceof Fault)) return this.degrade("protocol", onFailure);
    if (isRefusal(answer.reason)) return this.refuse(answer);
    const missed = this.degrade(answer.reason as Reason, onFailure);
    return fallback?.decide(request) ?? missed;
  }

  /** Logs, once for each domain, that it does not exist or that none of its rules matched; no value of an attribute. */
  #logUnmatched({ domain, descriptors }: Request, { notes }: Decision): void {
    const reason = notes.find(({ kind }) => kind === "unmatched")?.rule;
    if (reason === "domain") this.log(`the rules have no domain "${domain}"; its requests are not limited`, true);
    if (reason !== "rule") return;
    const names = [...new Set(descriptors.flatMap((one) => one.filter((_, i) => i % 2 === 0)))].join(", ");
    const about = names ? `a request with the attributes ${names}` : "a request without attributes";
    const why = `it is not limited; \`tidegate why ${domain} …\` says why`;
    this.log(`no rule of the domain "${domain}" matches ${about}: ${why}`, `no rule of ${domain}`);
  }

  #timeoutOf(text: string): number {
    if (/^[0-9]{1,5}([.][0-9]{1,6})?$/.test(text) && Number(text) > 0 && Number(text) <= TIMEOUT_MS_MAX) return Number(text);
    if (text) this.log(`TIDEGATE_TIMEOUT_MS is "${text.slice(0, 40)}", not above 0 and up to ${TIMEOUT_MS_MAX}: the timeout is 20 ms`);
    return 20;
  }

  /** What happens to requests while the daemon does not answer. */
  #consequence(): string {
    if (this.#fallback) return "are limited by the fallback";
    return this.#refuses ? "with onFailure refuse get status 503, others are not limited" : "are not limited";
  }

  /** Returns the Fault that `make` throws; other errors are the programmer's and pass. */
  #checked<T>(make: () => T): T | Fault {
    try {
      return make();
    } catch (error) {
      if (error instanceof Fault) return error;
      throw error;
    }
  }

  #reportAgain({ missed, abandoned }: { missed: Map<string, number>; abandoned: Which[] }): void {
    for (const [reason, n] of missed) add(this.#report.missed, reason, n);
    this.reportAbandoned(abandoned);
  }

  /** Sends an operation; true if the daemon replies DONE with true. */
  async #done(op: number, signal: AbortSignal | undefined, make: () => Elements): Promise<boolean> {
    const began = performance.now();
    throwIfAborted(signal);
    if (!this.#enabled) return false;
    const elements = this.#checked(make);
    const asked = elements instanceof Fault ? elements : { op, elements, deadline: began + this.timeoutMs, signal };
    const answer = asked instanceof Fault ? asked : await this.#ask(asked);
    if (answer instanceof Fault && isRefusal(answer.reason)) this.refuse(answer);
    return answer === true;
  }

  /** Writes a frame without a reply; false if the daemon cannot be reached. */
  #send(op: number, elements: Elements, released: Which | null): boolean {
    if (!this.#enabled || (this.#until && this.#connection?.closed !== false)) return false;
    this.#open().send(op, elements, released);
    return true;
  }

  /** Returns the reply or a Fault; sends nothing while the breaker is open, except one probe after its pause. */
  async #ask(operation: Operation): Promise<Answer> {
    if (this.#until) {
      const now = performance.now();
      if (now < this.#until) return STOPPED;
      this.#until = now + breaker.pauseMax; // one probe at a time
      const { deadline } = operation; // the caller of the probe may cancel, the probe goes on
      const probe = this.#exchange({ op: PING, elements: elementsFrom([]), deadline }).then((answer) => {
        if (answer instanceof Fault) return answer;
        this.#until = 0;
        this.#failures = breaker.failuresMax - 1; // one failure opens it again before the next decision
        return null;
      });
      const failed = await abortable(probe, operation.signal);
      if (failed) return failed;
    }
    return this.#exchange(operation);
  }

  async #exchange(operation: Operation): Promise<Answer> {
    const began = performance.now();
    for (let repeated = false; ; ) {
      operation.signal?.throwIfAborted();
      const answer = await this.#open().ask(operation);
      if (!(answer instanceof Fault) || answer.is.kept) {
        if (answer instanceof Fault && !isRefusal(answer.reason))
          this.log(`${answer.message}; such requests ${this.#consequence()}`, true);
        if (operation.op !== PING && this.#failures) this.#settle(null, began);
        return answer;
      }
      const inTime = performance.now() < operation.deadline;
      if (answer.is.full && inTime) await delay(1, operation.signal); // until the daemon has room
      else if (answer.is.again && !repeated && inTime) repeated = true;
      else {
        if (answer.is.full) this.#settle(answer, began);
        return answer;
      }
    }
  }

  #open(): Connection {
    if (this.#connection && !this.#connection.closed && !this.#connection.leaving) return this.#connection;
    if (!this.#info.has("session")) this.#info.set("session", randomBytes(16)).set("pid", process.pid);
    this.#info.set("connection", ++this.#connections);
    return (this.#connection = new Connection(this, this.#path(), this.#connections, this.#info));
  }

  #path(): string {
    const given = this.#options.socket || process.env["TIDEGATE_SOCKET"];
    const own = join(process.env["XDG_RUNTIME_DIR"] ?? "", "tidegate/tidegate.sock");
    return given || (isAbsolute(own) && existsSync(own) ? own : "/run/tidegate/tidegate.sock");
  }

  /** Counts a failure of the daemon, or resets the count. Failures whose waits overlap count once. */
  #settle(fault: Fault | null, began: number): void {
    const probed = this.#until > 0;
    if (!fault) this.#failures = this.#pause = this.#until = 0;
    else if (began >= this.#failedAt) {
      this.#failures++;
      this.#failedAt = performance.now();
      if (fault.is.absent || probed || this.#failures >= breaker.failuresMax) {
        this.#failures = Math.max(this.#failures, breaker.failuresMax);
        this.#pause = Math.min(2 * this.#pause, breaker.pauseMax) || breaker.pauseMin;
        this.#until = this.#failedAt + this.#pause * (0.5 + Math.random() / 2);
      }
    }
    // A failure before any success is logged immediately, later ones when the breaker opens.
    const failing = fault !== null && (this.#state !== "well" || this.#failures >= breaker.failuresMax);
    const changes = failing !== (this.#state === "failing");
    this.#state = failing ? "failing" : "well";
    if (!changes) return;
    const missed = [...this.#missed].reduce((sum, [reason, n]) => (reason === "callback" ? sum : sum + n), 0);
    if (fault) this.log(`${fault.message}; requests ${this.#consequence()}`);
    else this.log(`the daemon answers again; ${missed} request${missed === 1 ? "" : "s"} so far decided without it`);
  }
}

/** Calls a function of the application. `failed` gets its error, also that of a promise, which would end the process. */
function attempt(call: () => unknown, failed: (error: unknown) => void): void {
  try {
    const result = call();
    if (result instanceof Promise) result.catch(failed);
  } catch (error) {
    failed(error);
  }
}

/** Resolves after a time. Rejects with the reason of the signal if that comes first. */
export function delay(milliseconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer); // it would keep the process alive
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, Math.min(milliseconds, 2 ** 31 - 1));
    if (signal?.aborted) stop();
    else signal?.addEventListener("abort", stop, { once: true });
  });
}

function throwIfAborted(signal: AbortSignal | undefined): void {
  if (signal != null && typeof signal.throwIfAborted !== "function") throw new TypeError("signal is an AbortSignal");
  signal?.throwIfAborted();
}

/** The name of an error, without its message, which may contain personal data. */
export function nameOf(error: unknown): string {
  return error instanceof Error ? error.name : typeof error;
}

function abortable<T>(promise: Promise<T>, signal?: AbortSignal): Promise<T> {
  if (!signal) return promise;
  return new Promise((resolve, reject) => {
    const abort = () => reject(signal.reason);
    if (signal.aborted) abort();
    signal.addEventListener("abort", abort, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", abort));
  });
}

function requestOf(op: number, domain: string, attributes: Attributes | null | undefined, given: CallOptions): Request {
  const cost = checkCost(given.cost ?? 1);
  const options = new Map<string, Value>();
  const idem = shortenIdem(given.idem);
  if (idem !== null) options.set("idem", idem);
  const times = { queued_us: given.queuedMs, max_wait_us: given.maxWaitMs };
  for (const [name, ms] of Object.entries(times)) if (ms !== null && ms !== undefined) options.set(name, micros(ms));
  const priority = isName(given.priority) ? given.priority : null; // an invalid priority counts as none
  return { op, domain: checkName(domain), descriptors: describe(attributes), cost, priority, options };
}

function micros(milliseconds: unknown): number | bigint {
  if (typeof milliseconds !== "number" || !Number.isFinite(milliseconds))
    throw new TypeError("queuedMs and maxWaitMs are numbers of milliseconds");
  const us = Math.max(0, Math.ceil(Math.round(milliseconds * 1e6) / 1e3)); // 0.07 * 1e3 is above 70
  return us < Number(MICROS_MAX) ? us : MICROS_MAX;
}

function add(counts: Map<string, number>, name: string, n = 1): void {
  counts.set(name, (counts.get(name) ?? 0) + n);
}
