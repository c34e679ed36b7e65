// Limits a Fastify application: a plugin.

import type { FastifyPluginAsync, FastifyRequest } from "fastify";
import type { Client } from "./client.js";
import type { Decision } from "./decision.js";
import { admit, Guard, type GuardOptions } from "./guard.js";

export type { GuardOptions, Judged, Refusal } from "./guard.js";

declare module "fastify" {
  interface FastifyRequest {
    tidegate?: Decision;
  }
}

export interface LimitOptions extends GuardOptions<FastifyRequest> {
  client: Client;
  domain: string;
  /** The hook of the check: *onRequest* by default, *preHandler* for attributes from the body. */
  hook?: "onRequest" | "preParsing" | "preValidation" | "preHandler";
}

/** Checks every request of the scope that registers it. The decision is `request.tidegate`. */
export const limit: FastifyPluginAsync<LimitOptions> = async (fastify, { client, domain, hook = "onRequest", ...options }) => {
  for (const own of ["prefix", "logLevel", "logSerializers"]) Reflect.deleteProperty(options, own); // of Fastify's register
  const guard = new Guard(client, domain, options);
  if (!fastify.hasRequestDecorator("tidegate")) fastify.decorateRequest("tidegate", undefined);
  fastify.addHook(hook as "onRequest", async (request, reply) => {
    const seen = { request, raw: request.raw, url: request.originalUrl, route: request.routeOptions.url };
    const may = await admit(guard, seen, reply.raw, ({ status, headers, body }) => {
      void reply.code(status).headers(headers).send(body);
    });
    if (!may && !reply.sent) reply.hijack(); // its caller has left
    return may ? undefined : reply;
  });
};

// The hook belongs to the scope that registers the plugin, as with the package fastify-plugin.
Object.assign(limit, { [Symbol.for("skip-override")]: true, [Symbol.for("fastify.display-name")]: "tidegate" });
