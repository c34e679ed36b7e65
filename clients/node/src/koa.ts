// Limits a Koa application.

import type { IncomingMessage, ServerResponse } from "node:http";
import type { Client } from "./client.js";
import type { Decision } from "./decision.js";
import { admit, Guard, type GuardOptions, type Judged } from "./guard.js";

export type { GuardOptions, Judged, Refusal } from "./guard.js";

/** The part of Koa's context that the middleware uses. */
export interface Context {
  readonly req: IncomingMessage;
  readonly res: ServerResponse;
  readonly originalUrl: string;
  status: number;
  body: unknown;
  state: { tidegate?: Decision };
  /** The pattern of @koa/router, on its routes. */
  readonly _matchedRoute?: unknown;
  set(name: string, value: string): void;
}

/** Returns a middleware. Functions of the options get the context; the decision is `ctx.state.tidegate`. */
export function limit<C extends Context = Context>(
  client: Client,
  domain: string,
  options: GuardOptions<C> = {},
): (context: C, next: () => Promise<unknown>) => Promise<unknown> {
  const guard = new Guard(client, domain, options);
  return async (context, next) => {
    const route = typeof context._matchedRoute === "string" ? context._matchedRoute : undefined;
    const seen = { request: context, raw: context.req, url: context.originalUrl, route };
    const may = await admit(guard, seen, context.res, ({ status, headers, body }) => {
      context.status = status;
      context.body = typeof body === "string" ? body : Buffer.from(body);
      for (const [name, value] of Object.entries(headers)) context.set(name, value);
    });
    const { tidegate } = context as Judged;
    if (tidegate) context.state.tidegate = tidegate;
    return may ? next() : undefined;
  };
}
