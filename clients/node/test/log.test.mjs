// The lines that a client logs: causes, consequences, and help; never a value of an attribute.

import assert from "node:assert/strict";
import { mkdirSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import test from "node:test";
import { folder, makeClient, Played, until } from "./support.mjs";

test("logs once for each domain that no rule matches", async (t) => {
  const daemon = await Played.start(t);
  daemon.script = (socket, message) => [1, message[1], 0, ...Array(5).fill(null), 0, null, ["unmatched", "rule"], null, null];
  const client = makeClient(t, daemon.path);
  for (const [domain, attributes] of [["shop", [{ user: "u1" }, { user: "u2", plan: "free" }]], ["shop", { ip: "::1" }], ["login", {}]])
    assert.ok((await client.hit(domain, attributes)).allowed);
  const why = (domain) => `it is not limited; \`tidegate why ${domain} …\` says why`;
  assert.deepEqual(client.lines, [
    `tidegate: no rule of the domain "shop" matches a request with the attributes user, plan: ${why("shop")}`,
    `tidegate: no rule of the domain "login" matches a request without attributes: ${why("login")}`,
  ]);
});

test("names a path that is no socket", async (t) => {
  const home = folder(t);
  writeFileSync(join(home, "file"), "");
  mkdirSync(join(home, "folder"));
  for (const name of ["file", "folder"]) {
    const client = makeClient(t, join(home, name));
    await client.hit("api");
    assert.deepEqual(client.lines, [`tidegate: ${join(home, name)} is no socket: set TIDEGATE_SOCKET to that of the daemon; requests are not limited`]);
  }
});

test("recognizes the admin socket", async (t) => {
  const path = join(folder(t), "s");
  const admin = createServer((socket) => socket.once("data", () => socket.end("HTTP/1.1 400 Bad Request\r\n\r\n")));
  await new Promise((resolve) => admin.listen(path, resolve));
  t.after(() => admin.close());
  const client = makeClient(t, path);
  await client.hit("api");
  assert.match(client.lines[0], /that is the admin socket/);
});

test("says what onFailure does, and counts with the right number of nouns", async (t) => {
  const path = join(folder(t), "s");
  const client = makeClient(t, path);
  assert.equal((await client.hit("api", {}, { onFailure: "refuse" })).status, 503);
  assert.match(client.lines[0], /; requests with onFailure refuse get status 503, others are not limited$/);
  await Played.start(t, path);
  await until(async () => client.stats().breakerOpen && (await client.check()));
  await client.hit("api");
  assert.deepEqual(client.lines.slice(1), ["tidegate: the daemon answers again; 1 request so far decided without it"]);
});
