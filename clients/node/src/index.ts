// Client of tidegate, the rate limiter and load shedder of this host. Importing it does no I/O.

export { Client } from "./client.js";
export type { CallOptions, ChargeOptions, ClientOptions, Logger, Stats } from "./client.js";
export { Decision, Denied } from "./decision.js";
export type { Outcome, Reason, Verdict } from "./decision.js";
export { Fallback } from "./fallback.js";
export type { Rates } from "./fallback.js";
export type { Attributes, Cost } from "./wire.js";
