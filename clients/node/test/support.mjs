// A scripted daemon, and the real one, on a socket in a temporary folder.

import { spawn } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, rmSync, statSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { Client } from "../dist/esm/index.js";
import { decode, encode } from "../dist/esm/wire.js";

for (const name of ["TIDEGATE_SOCKET", "TIDEGATE_TIMEOUT_MS", "TIDEGATE_DISABLE", "XDG_RUNTIME_DIR"]) delete process.env[name];

export const ROOT = fileURLToPath(new URL("../../..", import.meta.url));
export const PATIENT = 30_000; // for tests that are not about the deadline, on a busy machine
export const ALLOW = [0, "per-user", 40, 2_000_000, 39, 50_000, 0];
export const LIMIT = [1, "per-user", 40, 2_000_000, 0, 50_000, 50_000];

export function frame(message) {
  const payload = message instanceof Uint8Array ? message : encode(message);
  const head = Buffer.alloc(4);
  head.writeUInt32BE(payload.length);
  return Buffer.concat([head, payload]);
}

/** A decision on a request in full, as the real daemon sends it. */
export function decision(message, verdict = ALLOW, lease = null) {
  const reply = [1, message[1], ...verdict, lease];
  return [...reply, ...Array(13 - reply.length).fill(null)];
}

/** A folder that is removed with the test; its path is short enough for a socket. */
export function folder(t) {
  const path = mkdtempSync(join(tmpdir(), "tg-"));
  t.after(() => rmSync(path, { recursive: true, force: true }));
  return path;
}

export function makeClient(t, path, options = {}) {
  const lines = [];
  const client = new Client({ socket: path, timeoutMs: PATIENT, logger: { warn: (line) => lines.push(line) }, ...options });
  t.after(() => client.close());
  return Object.assign(client, { lines });
}

export async function until(condition, ms = PATIENT) {
  for (const end = performance.now() + ms; !(await condition()); await sleep(1)) if (performance.now() > end) throw new Error(`not in time: ${condition}`);
}

/** `script(socket, message)` gets every request but HELLO; arrays that it returns are framed, and sent as bytes are. */
export class Played {
  seen = []; // every message, HELLO too
  sockets = new Set();
  accepted = 0;
  silent = false; // sends no reply, not even to HELLO and PING
  script = (socket, message) => decision(message);

  static async start(t, path = join(folder(t), "s")) {
    const daemon = new Played();
    daemon.path = path;
    await daemon.listen();
    t.after(() => daemon.stop());
    return daemon;
  }

  listen() {
    this.server = createServer((socket) => this.#serve(socket));
    return new Promise((resolve) => this.server.listen(this.path, resolve));
  }

  #serve(socket) {
    this.accepted++;
    this.sockets.add(socket);
    let data = Buffer.alloc(0);
    socket.on("error", () => undefined);
    socket.on("close", () => this.sockets.delete(socket));
    socket.on("data", (chunk) => {
      data = Buffer.concat([data, chunk]);
      while (data.length >= 4 && data.length >= 4 + data.readUInt32BE()) {
        const end = 4 + data.readUInt32BE();
        const message = decode(data.subarray(4, end));
        data = data.subarray(end);
        this.seen.push(message);
        const answer = this.silent ? null : this.#answer(socket, message);
        if (answer && !socket.destroyed) socket.write(answer instanceof Uint8Array ? answer : frame(answer));
      }
    });
  }

  #answer(socket, message) {
    if (message[0] === 0) return [0, message[1], 1, new Map([["server", "played/1"]])];
    if (message[0] === 8) return [2, message[1], true];
    const answer = this.script(socket, message);
    return message[1] === null && !(answer instanceof Uint8Array) ? null : answer;
  }

  of(op) {
    return this.seen.filter((message) => message[0] === op);
  }

  /** Waits for RELEASEs, and returns their leases and outcomes. */
  async releases(count = 1) {
    await until(() => this.of(2).length >= count);
    return this.of(2).map(([, , lease, outcome]) => [Number(lease), outcome]);
  }

  hangUp() {
    for (const socket of this.sockets) socket.destroy();
  }

  stop() {
    this.hangUp();
    return new Promise((resolve) => this.server.close(resolve));
  }
}

const PLACES = process.env.TIDEGATE_BIN ? [process.env.TIDEGATE_BIN] : ["release", "debug"].map((kind) => join(ROOT, "target", kind, "tidegate"));

/** Starts the real daemon with these rules; `daemon.path` is its socket. */
export async function realDaemon(t, rules) {
  const binary = PLACES.filter(existsSync).sort((a, b) => statSync(b).mtimeMs - statSync(a).mtimeMs)[0];
  if (!binary) throw new Error("no tidegate to test with: cargo build, or set TIDEGATE_BIN");
  const home = folder(t);
  const daemon = { path: join(home, "s"), binary, home };
  mkdirSync(join(home, "rules"));
  writeFileSync(join(home, "rules", "rules.yaml"), rules);
  daemon.start = async () => {
    daemon.process = spawn(binary, ["serve", "--socket", daemon.path, "--rules", join(home, "rules")], { stdio: "ignore" });
    const probe = new Client({ socket: daemon.path, timeoutMs: 1_000, logger: { warn: () => undefined } });
    await until(() => probe.check());
    probe.close();
  };
  daemon.stop = (signal = "SIGTERM") => {
    const { process: child } = daemon;
    if (child.exitCode !== null || child.signalCode !== null) return Promise.resolve();
    return new Promise((resolve) => {
      child.once("exit", resolve);
      child.kill(signal);
      if (signal === "SIGKILL") child.kill("SIGCONT");
    });
  };
  await daemon.start();
  t.after(() => daemon.stop("SIGKILL"));
  return daemon;
}
