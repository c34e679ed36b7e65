// One connection to the daemon for all requests of a client, matched by id. Any error closes it for good.

import { constants, readFileSync, statSync, type Stats } from "node:fs";
import { connect, type Socket } from "node:net";
import { userInfo } from "node:os";
import { dirname } from "node:path";
import { Decision, REFUSALS, type Grant } from "./decision.js";
import {
  ACQUIRE, DECISION, DONE, ERROR, FRAME_MAX, GOODBYE, HELLO, WELCOME,
  decode, elementsFrom, Fault, frame, type Elements, type Value,
} from "./wire.js";

const IN_FLIGHT_MAX = 256; // requests written and not answered, which the daemon keeps for one connection
const WAITING_MAX = 8_192; // waiting requests; further ones fail immediately
const UNPROVED_MAX = 512, PATH_BYTES_MAX = 107;
const BUSY = 8, FORBIDDEN = 9, INTERNAL = 10; // errors; BUSY: the daemon accepts no further connection
const ERRORS_KEPT_OPEN: readonly Value[] = [5, 6, 7, 10, 11]; // errors of one request: the rest of the connection is not doubtful

/** Number of a connection, and id of a request on it. */
export type Which = readonly [number, number];
/** The answer to an operation: a decision, the `ok` of a DONE, or a Fault. */
export type Answer = Decision | boolean | Fault;

/** The client of a connection. */
export interface Owner {
  readonly timeoutMs: number;
  grant(connection: Connection, which: Which): Grant;
  reportAbandoned(abandoned: readonly Which[]): void;
  /** Counts a failed connection once for all its waiting requests, of which the oldest began at `since`. */
  fail(fault: Fault, since: number): void;
}

/**
 * A request that waits for its reply. `sent`: the kernel may have it. `deadline`: none in the queue, as the requests in
 * flight have theirs: the queue moves, or the connection ends.
 */
interface Waiting {
  readonly id: number;
  readonly op: number;
  readonly since: number;
  readonly idem: string | Uint8Array | null;
  readonly domain: string | null;
  deadline: number;
  sent: boolean;
  cancelled: boolean;
  finish(answer: Answer): void;
}

interface Frame {
  readonly bytes: Buffer;
  readonly of: Waiting | null;
}

/** An operation with a reply. `deadline`: by `performance.now()`. */
export interface Operation {
  readonly op: number;
  readonly elements: Elements;
  readonly idem?: string | Uint8Array | null;
  readonly domain?: string | null;
  readonly deadline: number;
  readonly signal?: AbortSignal | undefined;
}

export class Connection {
  leaving = false; // after a GOODBYE, or an error after which the daemon closes
  #goodbye = false; // it reads no request after it
  closed = false;
  readonly #socket: Socket;
  readonly #waiting = new Map<number, Waiting>(); // oldest first
  #unsent: Frame[] = [];
  #queued: Frame[] = []; // requests beyond IN_FLIGHT_MAX
  // Released grants with the id of the request before: a reply to a later one proves that the RELEASE arrived.
  readonly #unproved: { after: number; which: Which }[] = [];
  #lastId = 0;
  #rest: Buffer = Buffer.alloc(0);
  #connected = false;
  #welcome = false;
  #flushing = false;
  #writing = false;
  #timer: NodeJS.Timeout | null = null;
  #immediate: NodeJS.Immediate | null = null;

  constructor(readonly owner: Owner, readonly path: string, readonly number: number, info: Map<string, Value>) {
    this.#unsent.push({ bytes: frame(HELLO, 0, elementsFrom([1, info])), of: null });
    const isPath = Buffer.byteLength(path) <= PATH_BYTES_MAX && !path.includes("\0");
    this.#socket = connect({ path: isPath ? path : "/" });
    this.#socket.unref(); // the timer of waiting requests keeps the process alive, nothing else
    this.#socket.on("connect", () => {
      this.#connected = true;
      this.#flush();
    });
    this.#socket.on("data", (chunk: Buffer) => this.#read(chunk));
    this.#socket.on("end", () => this.#hungUp());
    this.#socket.on("close", () => this.#hungUp());
    this.#socket.on("error", (error: NodeJS.ErrnoException) =>
      this.#connected ? this.#hungUp() : this.end(explain(path, isPath ? error : { message: "not a path of 107 bytes at most" })),
    );
  }

  /** Sends an operation and returns its answer. Rejects only with the reason of its AbortSignal. */
  ask({ op, elements, idem = null, domain = null, deadline, signal }: Operation): Promise<Answer> {
    if (this.#waiting.size >= WAITING_MAX) return Promise.resolve(new Fault("too many requests wait", "timeout"));
    return new Promise((resolve, reject) => {
      const id = ++this.#lastId;
      const asked: Waiting = { id, op, since: performance.now(), idem, domain, deadline, sent: false, cancelled: false, finish: resolve };
      if (signal) {
        const abort = () => {
          this.#cancel(asked);
          reject(signal.reason);
        };
        signal.addEventListener("abort", abort, { once: true });
        asked.finish = (answer) => {
          signal.removeEventListener("abort", abort);
          resolve(answer);
        };
      }
      this.#waiting.set(id, asked);
      const whole = { bytes: frame(op, id, elements), of: asked };
      if (this.#waiting.size > IN_FLIGHT_MAX) {
        asked.deadline = Infinity;
        this.#queued.push(whole);
      } else this.#write(whole);
      if (this.#timer) this.#timer.ref();
      else this.#arm(deadline);
    });
  }

  /** Sends a frame without a reply. `released`: the request whose grant it ends. */
  send(op: number, elements: Elements, released: Which | null = null): void {
    if (released) {
      this.#unproved.push({ after: this.#lastId, which: released });
      if (this.#unproved.length > UNPROVED_MAX) this.#unproved.shift();
    }
    this.#write({ bytes: frame(op, null, elements), of: null });
    if (this.#unsent.length > WAITING_MAX) this.end(new Fault("the daemon reads nothing", "timeout"));
  }

  /** Removes an unsent request, or reports a sent one: the daemon ends its grant. */
  #cancel(asked: Waiting): void {
    asked.cancelled = true;
    asked.finish = () => undefined;
    if (!asked.sent) {
      this.#waiting.delete(asked.id);
      this.#unsent = this.#unsent.filter(({ of }) => of !== asked);
      this.#queued = this.#queued.filter(({ of }) => of !== asked);
      this.#relax();
    } else if (asked.op === ACQUIRE) this.owner.reportAbandoned([[this.number, asked.id]]);
  }

  #write(whole: Frame): void {
    this.#unsent.push(whole);
    if (this.#flushing || this.#writing || !this.#connected) return;
    this.#flushing = true; // one write for all frames of this turn of the loop
    process.nextTick(() => this.#flush());
  }

  #flush(): void {
    this.#flushing = false;
    if (this.closed || this.#writing || !this.#connected || !this.#unsent.length) return;
    const frames = this.#unsent;
    this.#writing = true;
    this.#socket.write(Buffer.concat(frames.map(({ bytes }) => bytes)), (error) => {
      this.#writing = false;
      if (error) return; // "error" follows
      this.#flush();
      this.#relax();
    });
    if (this.#socket.errored) return; // at once, so that no byte was written; "error" follows
    this.#unsent = [];
    // Time that a busy loop lost before the write is not the daemon's.
    const deadline = performance.now() + this.owner.timeoutMs;
    for (const { of } of frames) if (of) Object.assign(of, { sent: true, deadline });
  }

  #read(chunk: Buffer): void {
    let data = this.#rest.length ? Buffer.concat([this.#rest, chunk]) : chunk;
    try {
      while (!this.closed && data.length >= 4) {
        const end = 4 + data.readUInt32BE(0);
        if (end > 4 + FRAME_MAX) throw oversized(data);
        if (data.length < end) break;
        this.#reply(decode(data.subarray(4, end)));
        data = data.subarray(end);
      }
    } catch (error) {
      this.end(error instanceof Fault ? error : new Fault(`a reply cannot be read: ${String(error)}`));
    }
    this.#rest = data;
    // No timer runs while a daemon floods. After the other reads of this turn, as they may have the replies.
    const [oldest] = this.#waiting.values();
    if (oldest?.sent && oldest.deadline < performance.now()) this.#expireLater();
    const room = IN_FLIGHT_MAX - this.#waiting.size + this.#queued.length;
    for (const next of this.#queued.splice(0, Math.max(0, room))) {
      if (next.of) next.of.deadline = performance.now() + this.owner.timeoutMs;
      this.#write(next);
    }
    this.#relax();
  }

  #reply(reply: Value[]): void {
    const [kind, about, code] = reply;
    const asked = typeof about === "number" ? this.#waiting.get(about) : undefined;
    const hello = about === 0 && !this.#welcome;
    const answers = asked?.sent && (kind === DECISION || kind === DONE) && (kind === DECISION) === isJudged(asked.op);
    if (asked && answers && kind === DECISION) {
      const grant = this.owner.grant(this, [this.number, asked.id]);
      this.#finish(asked, new Decision(reply.slice(2), null, grant, asked.idem, asked.domain));
    } else if (asked && answers) this.#finish(asked, code === true);
    else if (kind === GOODBYE) this.leaving = this.#goodbye = true;
    else if (kind === WELCOME && hello && code === 1) this.#welcome = true;
    else {
      // An ERROR with the id of no request is doubtful; without an id it is about the connection.
      const concerns = asked?.sent === true || hello || (about === null && (code === FORBIDDEN || !REFUSALS.has(code ?? null)));
      const error = kind === ERROR && concerns ? (code ?? null) : null;
      const kept = asked?.sent === true && ERRORS_KEPT_OPEN.includes(error);
      const said = reply.slice(2).map(String).join(" ").slice(0, 200).replace(/[\x00-\x1f\x7f-\x9f]/g, "?"); // one line of a log
      const text = `the daemon answered ${String(kind)}: ${said}`;
      const fault = new Fault(text, REFUSALS.get(error) ?? "protocol", { kept, full: error === BUSY });
      if (!kept || !asked) throw fault;
      this.leaving ||= error === INTERNAL; // the daemon closes
      this.#finish(asked, fault);
    }
  }

  #finish(asked: Waiting, answer: Answer): void {
    this.#waiting.delete(asked.id);
    while (this.#unproved[0] && this.#unproved[0].after < asked.id) this.#unproved.shift();
    if (asked.cancelled && answer instanceof Decision) answer.release("dropped");
    asked.finish(answer);
  }

  /** Lets the process exit while no request waits, and closes a connection after GOODBYE. */
  #relax(): void {
    if (this.#waiting.size) return;
    this.#timer?.unref();
    if (this.leaving && !this.#writing && !this.#unsent.length) this.end(null);
  }

  #arm(deadline: number): void {
    // Timers of a late loop run before its reads: read once more, so that a reply in the socket counts.
    this.#timer = setTimeout(() => this.#expireLater(), Math.max(1, Math.ceil(deadline - performance.now())));
  }

  #expireLater(): void {
    this.#immediate ??= setImmediate(() => this.#expire());
  }

  /** Ends the connection if the deadline of a request has passed. */
  #expire(): void {
    this.#immediate = null;
    if (this.#timer) clearTimeout(this.#timer);
    this.#timer = null;
    if (this.closed || !this.#waiting.size) return;
    let soonest = Infinity;
    for (const { deadline } of this.#waiting.values()) soonest = Math.min(soonest, deadline);
    if (soonest > performance.now()) this.#arm(soonest);
    else this.end(new Fault("the daemon did not answer in time", "timeout"));
  }

  #hungUp(): void {
    // A daemon that closed before HELLO was written has no room.
    const full = this.#unsent.length > 0 && !this.#welcome && this.#socket.errored !== null;
    this.end(new Fault("the daemon hung up", "unreachable", { full }), true);
  }

  /** Closes once, after unsent frames. */
  close(): void {
    if (this.closed) return;
    this.#flush();
    this.end(null);
  }

  /** Closes once. `fault`: the cause, if requests wait. Requests that the daemon has not read are sent again. */
  end(fault: Fault | null, hungUp = false): void {
    if (this.closed) return;
    this.closed = true;
    if (this.#timer) clearTimeout(this.#timer);
    if (fault) this.#socket.destroy();
    else this.#socket.destroySoon();
    const { message, reason, is } = fault ?? new Fault("the client was closed", "unreachable");
    const abandoned = this.#unproved.map(({ which }) => which);
    const waiting = [...this.#waiting.values()];
    this.#waiting.clear();
    let failed = false;
    for (const asked of waiting) {
      const again = hungUp && this.#welcome && (this.#goodbye || !asked.sent);
      const unread = again || is.full === true;
      failed ||= !unread;
      if (asked.op === ACQUIRE && asked.sent && !unread) abandoned.push([this.number, asked.id]);
      asked.finish(new Fault(message, reason, { ...is, again }));
    }
    if (abandoned.length) this.owner.reportAbandoned(abandoned);
    const since = Math.min(performance.now(), ...waiting.slice(0, 1).map((asked) => asked.since));
    const isIdle = !waiting.length && !hungUp && !is.absent && !is.full; // a doubtful byte without a request
    if (fault && (failed || isIdle)) this.owner.fail(fault, since);
  }
}

function isJudged(op: number): boolean {
  return op === ACQUIRE || op === 3 || op === 4; // HIT, PEEK
}

/** Explains a frame whose length is above the maximum. */
function oversized(data: Buffer): Fault {
  if (data.toString("latin1", 0, 4) === "HTTP")
    return new Fault("the daemon answered in HTTP: that is the admin socket; set TIDEGATE_SOCKET to the one beside it");
  return new Fault(`malformed frame of ${data.readUInt32BE(0)} bytes`);
}

/** Returns the cause of a failed connection and the remedy. */
function explain(path: string, error: { message: string; code?: string | undefined }): Fault {
  if (error.code === "EAGAIN")
    return new Fault(`the daemon at ${path} takes no connections: it is stopped or overloaded`, "unreachable", { full: true });
  if (error.code === "EACCES" || error.code === "EPERM") return new Fault(`permission denied on ${path}: ${denial(path)}`, "unreachable");
  if (error.code === "ECONNREFUSED" && isNoSocket(path))
    return new Fault(`${path} is no socket: set TIDEGATE_SOCKET to that of the daemon`, "unreachable", { absent: true });
  const text = `no daemon at ${path} (${error.message}): start it with \`tidegate serve\`, or set TIDEGATE_SOCKET`;
  return new Fault(text, "unreachable", { absent: error.code === "ENOENT" || error.code === "ECONNREFUSED" });
}

function isNoSocket(path: string): boolean {
  try {
    return !statSync(path).isSocket();
  } catch {
    return false; // it has changed meanwhile
  }
}

/** Returns which directory or socket this process may not use, and why. */
function denial(path: string): string {
  let at = path;
  let found: Stats | undefined;
  while (!found) {
    try {
      found = statSync(at);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "EACCES" || at === dirname(at)) return "the user of this process may not open it";
      at = dirname(at); // up to the directory that this process may not enter
    }
  }
  const user = userName();
  const needed = found.isDirectory() ? constants.S_IXGRP : constants.S_IWGRP;
  const mode = (found.mode & 0o7777).toString(8).padStart(4, "0");
  const cause = found.mode & needed ? `user ${user} is not in group ${groupName(found.gid)}` : `${at} has mode ${mode}, without access for its group`;
  return `${cause}; see \`tidegate doctor --as ${user}\``;
}

function userName(): string {
  try {
    return userInfo().username;
  } catch {
    return String(process.geteuid?.()); // the system does not know it
  }
}

function groupName(gid: number): string {
  try {
    const group = readFileSync("/etc/group", "utf8").split("\n").find((line) => line.split(":")[2] === String(gid));
    return group?.split(":")[0] ?? String(gid);
  } catch {
    return String(gid);
  }
}
