// Limits an Express application, a router or single routes; also Connect and other (request, response, next) servers.

import type { IncomingMessage, ServerResponse } from "node:http";
import type { Client } from "./client.js";
import { admit, Guard, type GuardOptions } from "./guard.js";
import { answer } from "./http.js";

export type { GuardOptions, Judged, Refusal } from "./guard.js";

interface Routed {
  originalUrl?: string;
  baseUrl?: string;
  route?: { path?: unknown };
  app?: { get?: (setting: string) => unknown };
}

/** Returns a middleware. The decision is `request.tidegate`; on a route its pattern is sent as `route`. */
export function limit<R extends IncomingMessage = IncomingMessage>(
  client: Client,
  domain: string,
  options: GuardOptions<R> = {},
): (request: R, response: ServerResponse, next: (error?: unknown) => void) => void {
  const guard = new Guard(client, domain, options);
  return (request, response, next) => {
    const routed = request as Routed;
    const seen = { request, raw: request, url: routed.originalUrl ?? request.url ?? "/", route: routeOf(routed), anyCase: anyCase(routed) };
    void admit(guard, seen, response, (refusal) => answer(request, response, refusal)).then((may) => {
      if (may) process.nextTick(next);
    });
  };
}

/** The pattern of the route that handles a request, if it is known. */
export function routeOf({ route, baseUrl = "" }: Routed): string | undefined {
  return typeof route?.path === "string" ? baseUrl + route.path : undefined;
}

/** Whether the application routes without regard to letter case, as Express does unless told otherwise. */
export function anyCase({ app }: Routed): boolean {
  return typeof app?.get === "function" && !app.get("case sensitive routing");
}
