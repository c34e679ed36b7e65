// Limits a server of node:http, or any handler of its requests and responses.

import type { IncomingMessage, ServerResponse } from "node:http";
import type { Client } from "./client.js";
import { admit, Guard, type GuardOptions, type Judged, type Refusal } from "./guard.js";

export type { GuardOptions, Judged, Refusal } from "./guard.js";

/** Returns a handler that checks every request before `handler` runs. The decision is `request.tidegate`. */
export function limit<R extends IncomingMessage = IncomingMessage>(
  client: Client,
  domain: string,
  options: GuardOptions<R>,
  handler: (request: R & Judged, response: ServerResponse) => unknown,
): (request: R, response: ServerResponse) => void {
  const guard = new Guard(client, domain, options);
  return (request, response) => {
    const seen = { request, raw: request, url: request.url ?? "/" };
    // Outside the promise, so that an error of the handler is handled as without the limiter.
    void admit(guard, seen, response, (refusal) => answer(request, response, refusal)).then((may) => {
      if (may) process.nextTick(handler, request, response);
    });
  };
}

/** Writes the response to a refused request. */
export function answer(request: IncomingMessage, response: ServerResponse, { status, headers, body }: Required<Refusal>): void {
  const { "Content-Type": type = "text/plain; charset=utf-8", ...others } = headers;
  response.writeHead(status, { "Content-Type": type, "Content-Length": String(Buffer.byteLength(body)), ...others });
  response.end(request.method === "HEAD" ? undefined : body);
}
