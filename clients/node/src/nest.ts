// Limits a NestJS application, a controller or a route, on Express and on Fastify: a guard.

import { Catch, HttpException, type ArgumentsHost, type CanActivate, type ExceptionFilter, type ExecutionContext } from "@nestjs/common";
import type { IncomingMessage, ServerResponse } from "node:http";
import type { Client } from "./client.js";
import type { Decision } from "./decision.js";
import { anyCase, routeOf } from "./express.js";
import { admit, Guard, type GuardOptions, type Refusal } from "./guard.js";
import { answer } from "./http.js";

export type { GuardOptions, Judged, Refusal } from "./guard.js";

/** Thrown if a request may not start. Nest answers with the usual status, limit headers and JSON. */
export class Refused extends HttpException {
  constructor(readonly decision: Decision, readonly refusal: Required<Refusal>) {
    super(parsed(refusal.body), refusal.status);
  }
}

interface Request {
  raw?: IncomingMessage;
  originalUrl?: string;
  routeOptions?: { url?: string };
}

interface Response {
  raw?: ServerResponse;
  header(name: string, value: string): unknown;
  code(status: number): Response;
  headers(headers: Record<string, string>): Response;
  send(body: string | Uint8Array): unknown;
}

/**
 * `app.useGlobalGuards(new TidegateGuard(client, "api", options))`, or `@UseGuards(…)`. Functions of the options get the
 * framework's request; the decision is `request.tidegate`. Other transports than HTTP pass, with one line in the log.
 */
export class TidegateGuard<R extends object = IncomingMessage> implements CanActivate {
  readonly #guard: Guard<R>;

  constructor(client: Client, domain: string, options: GuardOptions<R> = {}) {
    this.#guard = new Guard(client, domain, options);
  }

  async canActivate(context: ExecutionContext): Promise<boolean> {
    if (context.getType() !== "http") {
      this.#guard.client.log(`requests of the type ${context.getType()} are not limited by TidegateGuard`, true);
      return true;
    }
    const request = context.switchToHttp().getRequest<R & Request>();
    const response = context.switchToHttp().getResponse<ServerResponse & Response>();
    const raw = request.raw ?? (request as unknown as IncomingMessage);
    const route = request.routeOptions?.url ?? routeOf(request);
    const seen = { request: request as R, raw, url: request.originalUrl ?? raw.url ?? "/", route, anyCase: anyCase(request) };
    let refused: Refused | undefined;
    const may = await admit(this.#guard, seen, response.raw ?? response, (refusal, decision) => {
      const { "Content-Type": _, ...headers } = refusal.headers; // Nest's JSON has its own; RefusedFilter sends all
      for (const [name, value] of Object.entries(headers)) response.header(name, value);
      refused = new Refused(decision, refusal);
    });
    if (refused) throw refused;
    return may;
  }
}

/** `app.useGlobalFilters(new RefusedFilter())`: answers Refused with the bytes of every other middleware. */
export class RefusedFilter implements ExceptionFilter<Refused> {
  catch({ refusal }: Refused, host: ArgumentsHost): void {
    const request = host.switchToHttp().getRequest<IncomingMessage>();
    const response = host.switchToHttp().getResponse<ServerResponse & Response>();
    if (response.raw) response.code(refusal.status).headers(refusal.headers).send(refusal.body);
    else answer(request, response, refusal);
  }
}

Catch(Refused)(RefusedFilter);

function parsed(body: string | Uint8Array): string | Record<string, unknown> {
  const text = Buffer.from(body).toString();
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : text;
  } catch {
    return text;
  }
}
