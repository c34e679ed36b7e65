// The answer to a request, and its form for HTTP callers, as in tests/vectors/answers.json.

import { Fault, type Value } from "./wire.js";

export type Verdict = "allow" | "limit" | "shed" | "wait" | "deny";
/** *ok*: the request succeeded. *error*: it failed. *dropped*: it did not end. */
export type Outcome = "ok" | "error" | "dropped";
/** The cause of a decision without the daemon, of which the last four refuse an invalid or forbidden request. */
export type Reason =
  | "unreachable" | "timeout" | "protocol" | "breaker" | "callback" | "disabled" | "fallback"
  | "invalid" | "quota" | "forbidden" | "not_allowed";

/** Errors of the daemon that refuse; all others are failures of the daemon. */
export const REFUSALS: ReadonlyMap<Value, Reason> = new Map<Value, Reason>([
  [6, "invalid"], [7, "quota"], [9, "forbidden"], [11, "not_allowed"],
]);
const REFUSED: ReadonlySet<string | null> = new Set(REFUSALS.values());
const VERDICTS: readonly Verdict[] = ["allow", "limit", "shed", "wait", "deny"];
const STATUSES = { allow: 200, limit: 429, shed: 503, wait: 200, deny: 403 } as const;
// Elements of `extra` with a value of their type.
const EXTRA = [["help", ""], ["unit", ""], ["rate", ""], ["digest", ""], ["hide", true], ["blocked", true]] as const;
const DIGITS_MAX = 10 ** 15 - 1; // of an integer in a header

export function isRefusal(reason: string | null): boolean {
  return REFUSED.has(reason);
}

/** The connection and request that a decision came from. */
export interface Grant {
  release(lease: bigint, outcome: number): void;
  renew(lease: bigint): Promise<boolean>;
}

/** The answer to a request. Times are in seconds; absent fields are null. */
export class Decision {
  /** Whether the request may start; after `wait`, if that is above 0. */
  readonly allowed: boolean;
  readonly verdict: Verdict;
  readonly status: 200 | 403 | 429 | 503;
  readonly rule: string | null;
  readonly limit: number | null;
  readonly window: number | null;
  readonly remaining: number | null;
  /** Seconds until `remaining` would be larger. */
  readonly resetAfter: number | null;
  /** Seconds until a retry may succeed; null: never. */
  readonly retryAfter: number | null;
  /** Seconds to sleep before the start. */
  readonly wait: number;
  readonly notes: readonly { readonly kind: string; readonly rule: string }[];
  /** The binding rule's help for callers. */
  readonly help: string | null;
  readonly unit: string;
  /** The rate of a rule that refuses, as it is written: `5/min`; null if the daemon sent none. */
  readonly rate: string | null;
  /** Whether an operator or the rule itself blocks the caller for a time. */
  readonly blocked: boolean;
  /** The domain of a refusal by the daemon, else null. */
  readonly domain: string | null;
  /** The caller's key of the rule that refuses, for `tidegate why DOMAIN --digest HEX`; null if the rule is hidden. */
  readonly digest: string | null;
  /** Whether the binding rule may not be named to callers. */
  readonly hidden: boolean;
  /** Whether the daemon could not be asked. */
  readonly degraded: boolean;
  #lease: bigint | null;
  readonly #grant: Grant | null;
  /** The value of a refund's `of`. @internal */
  readonly refundKey: string | Uint8Array | bigint | null;

  /** `elements`: of the reply, from the verdict on. @internal */
  constructor(
    elements: readonly Value[],
    readonly reason: Reason | null = null,
    grant: Grant | null = null,
    idem: string | Uint8Array | null = null,
    domain: string | null = null,
  ) {
    const [verdict, rule = null, limit, window, remaining, reset, retry, lease, notes = null, all = null, extra = null] = elements;
    const known = typeof verdict === "number" ? VERDICTS[verdict] : undefined;
    const isText = rule === null || typeof rule === "string";
    const isMap = extra === null || extra instanceof Map;
    const fits = !isMap || EXTRA.every(([name, kind]) => typeof (extra?.get(name) ?? kind) === typeof kind);
    if (!known || !isText || !isMap || !fits || !isList(notes) || !isList(all)) throw malformed();
    this.verdict = known;
    this.status = STATUSES[known];
    this.allowed = this.status === 200;
    this.rule = rule;
    this.limit = count(limit);
    this.window = seconds(window);
    this.remaining = count(remaining);
    this.resetAfter = seconds(reset);
    this.retryAfter = seconds(retry);
    this.#lease = count(lease) === null ? null : BigInt(lease as number | bigint);
    this.#grant = grant;
    this.refundKey = idem ?? this.#lease;
    this.wait = known === "wait" ? (this.retryAfter ?? 0) : 0;
    this.notes = pairs(notes ?? []);
    this.help = (extra?.get("help") || null)?.toString() ?? null;
    this.unit = (extra?.get("unit") || "requests").toString();
    this.rate = extra?.get("rate")?.toString() ?? null;
    this.blocked = extra?.get("blocked") === true && known === "limit";
    this.domain = this.allowed ? null : domain;
    this.digest = extra?.get("digest")?.toString() ?? null;
    this.hidden = extra?.get("hide") === true;
    this.degraded = reason !== null && !isRefusal(reason);
  }

  /** The number of the lease, up to 2^63 - 1; null without a lease and after `release`. */
  get lease(): bigint | null {
    return this.#lease;
  }

  /** Ends the lease; does nothing without a lease or the second time. Does not wait. */
  release(outcome: Outcome = "ok"): void {
    const lease = this.#lease;
    if (lease === null || this.#grant === null) return;
    this.#lease = null;
    this.#grant.release(lease, outcome === "ok" ? 0 : outcome === "dropped" ? 2 : 1); // others count as error
  }

  /** Restarts the lease's time; false if the lease has expired or the daemon does not answer. */
  async renew(): Promise<boolean> {
    return this.#lease !== null && this.#grant !== null && this.#grant.renew(this.#lease);
  }

  /** RateLimit (ratelimit-headers-11), X-Ratelimit and, of a refusal, Retry-After headers. */
  headers(): Record<string, string> {
    const fields: Record<string, string> = {};
    const { rule, limit, window, remaining } = this;
    const number = (n: number) => BigInt(Math.min(n, DIGITS_MAX)).toString();
    const left = number(remaining ?? 0);
    if (rule !== null && limit !== null && !this.hidden) {
      const unit = window ? this.unit : "concurrent-requests";
      const policy = `${quoted(rule)};q=${number(limit)}${unit === "requests" ? "" : `;qu=${quoted(unit)}`}`;
      fields["RateLimit"] = `${quoted(rule)};r=${left}${window ? `;t=${number(Math.ceil(this.resetAfter ?? 0))}` : ""}`;
      fields["RateLimit-Policy"] = policy + (window ? `;w=${number(Math.ceil(window))}` : "");
      fields["X-Ratelimit-Limit"] = number(limit);
      fields["X-Ratelimit-Remaining"] = left;
    }
    if (!this.allowed && this.retryAfter !== null) {
      fields["Retry-After"] = number(this.#wholeRetry(this.retryAfter));
      if (!this.hidden) fields["X-Ratelimit-Retry-After"] = fields["Retry-After"];
    }
    return fields;
  }

  /** One sentence for people: the rule, its limit, and the time of a retry. */
  get message(): string {
    if (this.allowed) return "Allowed.";
    if (this.verdict === "deny") return "This request is not allowed.";
    let cause = this.reason === null ? "The service is at its capacity." : "The request could not be judged.";
    if (this.verdict === "limit") {
      const { rule, limit } = this;
      cause = rule === null || limit === null || this.hidden ? "Too many requests." : `Over the limit ${rule} of ${this.#quota()}.`;
      if (this.blocked) cause = "This caller is blocked.";
    }
    if (this.retryAfter === null) return `${cause} It asks for more than the limit holds: it can never pass.`;
    return `${cause} Try again in ${this.#wholeRetry(this.retryAfter)} s.`;
  }

  /** The body of a refusal, application/problem+json (RFC 9457); its `retry_after` is exact to the millisecond. */
  problem(): string {
    const [kind, title] = PROBLEMS[this.status];
    const type = this.blocked ? "urn:tidegate:problem:blocked" : kind ? `https://iana.org/assignments/http-problem-types#${kind}` : "about:blank";
    const answer: Record<string, unknown> = { type, title, status: this.status, detail: this.message };
    if (this.verdict === "limit" && this.rule !== null && this.limit !== null && !this.hidden) {
      answer["violated-policies"] = [this.rule];
      answer["limit"] = this.limit;
      answer["window"] = thousandths(this.window ?? 0);
      if (this.digest !== null) Object.assign(answer, { domain: this.domain, digest: this.digest });
    }
    if (!this.allowed && this.retryAfter !== null) answer["retry_after"] = thousandths(this.retryAfter);
    if (this.help !== null) answer["help"] = this.help;
    return JSON.stringify(answer);
  }

  /** All fields; the lease as text, since JSON has no bigint. */
  toJSON(): Record<string, unknown> {
    const { refundKey: _, ...fields } = this;
    return { ...fields, lease: this.#lease?.toString() ?? null };
  }

  /** The quota as the rule writes it, if the daemon sent that, else the limit and its window. */
  #quota(): string {
    const { limit, window, unit } = this;
    const [, number, periods, period] = WRITTEN.exec(this.rate ?? "") ?? [];
    if (number === undefined || period === undefined) {
      return window ? `${limit} ${unit} in ${thousandths(window)} s` : `${limit} at once`;
    }
    const [article, noun] = PERIODS[period as keyof typeof PERIODS];
    const amount = `${number} ${number === "1" && unit === "requests" ? "request" : unit}`;
    return periods === "" || periods === "1" ? `${amount} ${article} ${noun}` : `${amount} in ${periods} ${noun}s`;
  }

  #wholeRetry(seconds: number): number {
    return Math.max(1, Math.ceil(seconds));
  }
}

/** Thrown by `limit` if the work may not start; `decision` has the rule and the retry time. */
export class Denied extends Error {
  override readonly name = "Denied";
  /** The status and headers of the response, as error handlers of Express, Koa and Fastify use them. */
  readonly status: number;
  readonly statusCode: number;
  readonly headers: Record<string, string>;
  /** Tells Koa that the message may be shown. */
  readonly expose = true;

  constructor(readonly decision: Decision) {
    super(decision.message);
    this.status = this.statusCode = decision.status;
    this.headers = decision.headers();
  }
}

const WRITTEN = /^([0-9]{1,10})\/([0-9]{0,10})(ms|s|min|h|day|week|month)$/;

const PERIODS = {
  ms: ["a", "millisecond"],
  s: ["a", "second"],
  min: ["a", "minute"],
  h: ["an", "hour"],
  day: ["a", "day"],
  week: ["a", "week"],
  month: ["a", "month"],
} as const;

const PROBLEMS = {
  200: [null, "OK"],
  403: [null, "Forbidden"],
  429: ["quota-exceeded", "Too Many Requests"],
  503: ["temporary-reduced-capacity", "Service Unavailable"],
} as const;

function malformed(): Fault {
  return new Fault("malformed decision");
}

function isList(value: Value): value is Value[] | null {
  return value === null || Array.isArray(value);
}

function count(n: Value | undefined): number | null {
  if (n === null || n === undefined) return null;
  if ((typeof n !== "number" && typeof n !== "bigint") || n < 0) throw malformed();
  return Number(n);
}

function seconds(us: Value | undefined): number | null {
  const n = count(us);
  return n === null ? null : n / 1e6;
}

function pairs(flat: Value[]): { kind: string; rule: string }[] {
  const notes = [];
  for (let i = 0; i < flat.length; i += 2) {
    const [kind, rule] = flat.slice(i, i + 2);
    if (typeof kind !== "string" || typeof rule !== "string") throw malformed();
    notes.push({ kind, rule });
  }
  return notes;
}

/** A String of RFC 8941. */
function quoted(text: string): string {
  return JSON.stringify(text.replace(/[^\x20-\x7e]/gu, "?"));
}

/** Rounds up to milliseconds. */
function thousandths(seconds: number): number {
  return Math.ceil(Math.round(seconds * 1e6) / 1000) / 1000;
}
