// MessagePack within the limits of the protocol, and the elements of a request. Uses no socket and no clock.

import { createHash } from "node:crypto";

export const HELLO = 0, ACQUIRE = 1, RELEASE = 2, HIT = 3, PEEK = 4, CHARGE = 5, RENEW = 6, SIGNAL = 7, PING = 8;
export const WELCOME = 0, DECISION = 1, DONE = 2, ERROR = 3, GOODBYE = 4;
export const FRAME_MAX = 16_384;
const VALUE_MAX = 1_024, VALUE_KEPT = 960, NAME_MAX = 64, IDEM_MAX = 64, IDEM_KEPT = 30, DIGESTED = 33;
const PAIRS_MAX = 16, DESCRIPTORS_MAX = 8, DEPTH_MAX = 4, ID_ROOM = 11; // array, op and the longest id
const INT64_MIN = -(1n << 63n), UINT64_MAX = (1n << 64n) - 1n, TOO_LARGE = 1n << 32n; // above every limit

/** A MessagePack value. Integers beyond the safe range are bigints. */
export type Value = null | boolean | number | bigint | string | Uint8Array | Value[] | Map<string, Value>;

/** Attributes by name, as an object, a Map or pairs, or several descriptors as an array of objects. */
export type Attributes =
  | Readonly<Record<string, unknown>>
  | Iterable<readonly [string, unknown]>
  | readonly Readonly<Record<string, unknown>>[];

/** A number of requests, or numbers by unit, such as `{ tokens: 800 }`. */
export type Cost = number | bigint | Readonly<Record<string, number | bigint>>;

/** An unsendable request, a failed exchange or an invalid reply; `reason` is the key under which it is counted. */
export class Fault extends Error {
  constructor(
    message: string,
    readonly reason = "protocol",
    /** `again`: the daemon did not process the request. `full`: it accepts no further connection. `kept`: it stays open. */
    readonly is: { again?: boolean; full?: boolean; kept?: boolean; absent?: boolean } = {},
  ) {
    super(message);
  }
}

const malformed = () => new Fault("malformed frame: not exactly one array of valid values");
const invalid = (text: string) => new Fault(text, "invalid");

/** The heads of a kind of value: sizes below `below` fit into the first byte; longer ones follow `code`. */
interface Form {
  short: number;
  below: number;
  code: number;
  widths: readonly number[];
}

const UINT: Form = { short: 0x00, below: 128, code: 0xcc, widths: [1, 2, 4, 8] };
const INT: Form = { short: 0x100, below: 32, code: 0xd0, widths: [1, 2, 4, 8] };
const STR: Form = { short: 0xa0, below: 32, code: 0xd9, widths: [1, 2, 4] };
const BIN: Form = { short: 0, below: 0, code: 0xc4, widths: [1, 2, 4] };
const ARRAY: Form = { short: 0x90, below: 16, code: 0xdc, widths: [2, 4] };
const MAP: Form = { short: 0x80, below: 16, code: 0xde, widths: [2, 4] };

/** Appends values in their shortest form to a buffer that grows. */
class Writer {
  #data = Buffer.allocUnsafe(FRAME_MAX);
  #at = 0;

  /** Encodes values. An earlier one that could not be encoded left its beginning. */
  encode(values: readonly Value[]): Buffer {
    this.#at = 0;
    for (const value of values) this.value(value);
    return Buffer.from(this.#data.subarray(0, this.#at));
  }

  value(value: Value): void {
    if (value === null || typeof value === "boolean") this.#byte(value === null ? 0xc0 : value ? 0xc3 : 0xc2);
    else if (typeof value === "number" || typeof value === "bigint") this.integer(value);
    else if (typeof value === "string") this.text(value);
    else if (value instanceof Uint8Array) {
      this.#head(BIN, value.length);
      this.#reserve(value.length);
      this.#data.set(value, this.#at);
      this.#at += value.length;
    } else if (Array.isArray(value)) {
      this.#head(ARRAY, value.length);
      for (const one of value) this.value(one);
    } else {
      this.#head(MAP, value.size);
      for (const [name, one] of value) {
        this.text(name);
        this.value(one);
      }
    }
  }

  integer(n: number | bigint): void {
    if (typeof n === "bigint" && !Number.isSafeInteger(Number(n))) {
      if (n < INT64_MIN || n > UINT64_MAX) throw invalid("a number is too large for a frame");
      this.#byte(n < 0 ? 0xd3 : 0xcf);
      this.#reserve(8);
      this.#at = this.#data.writeBigUInt64BE(BigInt.asUintN(64, n), this.#at);
    } else this.#head(n < 0 ? INT : UINT, Number(n));
  }

  text(text: string): void {
    const size = Buffer.byteLength(text);
    this.#head(STR, size);
    this.#reserve(size);
    this.#at += this.#data.write(text, this.#at);
  }

  #head({ short, below, code, widths }: Form, size: number): void {
    const magnitude = size < 0 ? -1 - size : size;
    if (magnitude < below) return this.#byte(short + size);
    const fits = (width: number) => magnitude < 2 ** (8 * width - (size < 0 ? 1 : 0));
    const at = widths.findIndex(fits);
    const width = widths[at] ?? 8;
    this.#byte(code + at);
    this.#reserve(8);
    if (width === 8) this.#data.writeBigInt64BE(BigInt(size), this.#at);
    else if (size < 0) this.#data.writeIntBE(size, this.#at, width);
    else this.#data.writeUIntBE(size, this.#at, width);
    this.#at += width;
  }

  #byte(byte: number): void {
    this.#reserve(1);
    this.#data[this.#at++] = byte;
  }

  #reserve(size: number): void {
    if (this.#at + size <= this.#data.length) return;
    const larger = Buffer.allocUnsafe(2 * (this.#at + size));
    this.#data.copy(larger, 0, 0, this.#at);
    this.#data = larger;
  }
}

const writer = new Writer();

/** Encodes a value as the shortest MessagePack. */
export function encode(value: Value): Buffer {
  return writer.encode([value]);
}

/** Decodes `data`, which is exactly one array. Throws a Fault for anything that the protocol forbids. */
export function decode(data: Buffer): Value[] {
  const reader = new Reader(data);
  const message = reader.value(DEPTH_MAX);
  if (!Array.isArray(message) || reader.at !== data.length) throw malformed();
  return message;
}

const UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

class Reader {
  at = 0;

  constructor(readonly data: Buffer) {}

  /** Reads one value; `depth`: levels left for nesting. */
  value(depth: number): Value {
    const first = this.data[this.at++] ?? 0xc1;
    if (first < 0x80) return first;
    if (first < 0x90) return this.#map(first & 15, depth);
    if (first < 0xa0) return this.#array(first & 15, depth);
    if (first < 0xc0) return this.#text(first & 31);
    if (first >= 0xe0) return first - 0x100;
    switch (first) {
      case 0xc0: return null;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xc4: case 0xc5: case 0xc6: return Buffer.from(this.#bytes(this.#size(1 << (first - 0xc4))));
      case 0xcc: case 0xcd: case 0xce: return this.#size(1 << (first - 0xcc));
      case 0xcf: return narrow(this.#bytes(8).readBigUInt64BE());
      case 0xd0: case 0xd1: case 0xd2: return this.#bytes(1 << (first - 0xd0)).readIntBE(0, 1 << (first - 0xd0));
      case 0xd3: return narrow(this.#bytes(8).readBigInt64BE());
      case 0xd9: case 0xda: case 0xdb: return this.#text(this.#size(1 << (first - 0xd9)));
      case 0xdc: case 0xdd: return this.#array(this.#size(2 << (first - 0xdc)), depth);
      case 0xde: case 0xdf: return this.#map(this.#size(2 << (first - 0xde)), depth);
    }
    throw malformed();
  }

  #bytes(size: number): Buffer {
    const bytes = this.data.subarray(this.at, (this.at += size));
    if (this.at > this.data.length) throw malformed();
    return bytes;
  }

  #size(width: number): number {
    return this.#bytes(width).readUIntBE(0, width);
  }

  #text(size: number): string {
    const bytes = this.#bytes(size);
    if (isAscii(bytes)) return bytes.toString("latin1");
    try {
      return UTF8.decode(bytes);
    } catch {
      throw malformed();
    }
  }

  #enter(count: number, depth: number): void {
    if (!depth || count > this.data.length - this.at) throw malformed(); // an element takes a byte at least
  }

  #array(count: number, depth: number): Value[] {
    this.#enter(count, depth);
    const values: Value[] = [];
    while (values.length < count) values.push(this.value(depth - 1));
    return values;
  }

  #map(count: number, depth: number): Map<string, Value> {
    this.#enter(count, depth);
    const values = new Map<string, Value>();
    for (let i = 0; i < count; i++) {
      const name = this.value(depth - 1);
      if (typeof name !== "string" || values.has(name)) throw malformed();
      values.set(name, this.value(depth - 1));
    }
    return values;
  }
}

function isAscii(bytes: Buffer): boolean {
  for (const byte of bytes) if (byte >= 0x80) return false;
  return true;
}

function narrow(n: bigint): number | bigint {
  return Number.isSafeInteger(Number(n)) ? Number(n) : n;
}

/** A request as it is sent: texts of the attributes per descriptor (name, value, name, …), and the other fields. */
export interface Request {
  op: number;
  domain: string;
  descriptors: string[][];
  cost: Cost;
  priority: string | null;
  options: Map<string, Value>;
}

/** Elements of a request after its id, encoded, without trailing nils. */
export interface Elements {
  count: number;
  bytes: Buffer;
}

/** Encodes a request. Replaces its longest values by digests until it fits into a frame. */
export function elementsOf(request: Request): Elements {
  for (;;) {
    const { op, domain, descriptors, cost, priority, options } = request;
    const values: Value[] = [domain, descriptors, typeof cost === "object" ? new Map(Object.entries(cost)) : cost];
    if (options.size) values.push(...(op === CHARGE ? [options] : [priority, options]));
    else if (priority !== null) values.push(priority);
    const elements = elementsFrom(values);
    if (elements.bytes.length <= FRAME_MAX - ID_ROOM) return elements;
    let longest: string[] = [], at = 0, size = DIGESTED;
    for (const one of descriptors) {
      for (let i = 1; i < one.length; i += 2) {
        const length = Buffer.byteLength(one[i] ?? "");
        if (length > size) [longest, at, size] = [one, i, length];
      }
    }
    if (!longest.length) throw invalid("a request does not fit into a frame");
    longest[at] = digest(longest[at] ?? "", 0);
  }
}

export function elementsFrom(values: Value[]): Elements {
  return { count: values.length, bytes: writer.encode(values) };
}

/** Encodes a whole frame; `id` null: the daemon sends no reply. */
export function frame(op: number, id: number | null, { count, bytes }: Elements): Buffer {
  const head = encode(id);
  const whole = Buffer.allocUnsafe(6 + head.length + bytes.length);
  whole.writeUInt32BE(whole.length - 4, 0);
  whole[4] = 0x92 + count;
  whole[5] = op;
  whole.set(head, 6);
  whole.set(bytes, 6 + head.length);
  return whole;
}

/** Converts attributes to texts. Throws a TypeError for another type, and a Fault for values that cannot be sent. */
export function describe(attributes: Attributes | null | undefined): string[][] {
  const several = Array.isArray(attributes) && attributes.length > 0 && !Array.isArray(attributes[0]);
  const given = several ? (attributes as readonly Attributes[]) : [attributes ?? {}];
  if (given.length > DESCRIPTORS_MAX) throw invalid(`more than ${DESCRIPTORS_MAX} descriptors`);
  return given.map((one) => {
    if (typeof one !== "object" || one === null || one instanceof Uint8Array)
      throw new TypeError(`attributes are an object, not ${one === null ? "null" : `a ${typeof one}`}`);
    const texts: string[] = [];
    for (const pair of isIterable(one) ? one : Object.entries(one)) {
      if (!Array.isArray(pair) || pair.length !== 2) throw new TypeError("attributes are pairs of a name and a value");
      const [name, value] = pair as [unknown, unknown];
      const text = textOf(value, name);
      if (text === "") continue;
      texts.push(checkName(name), Buffer.byteLength(text) > VALUE_MAX ? digest(text, VALUE_KEPT) : text);
      if (texts.length > 2 * PAIRS_MAX) throw invalid(`more than ${PAIRS_MAX} attributes`);
    }
    return texts;
  });
}

function isIterable(value: object): value is Iterable<unknown> {
  return Symbol.iterator in value;
}

const NO_TEXT = "[object "; // the text of an object without one, also within an array

function textOf(value: unknown, name: unknown): string {
  if (typeof value === "string") return value;
  if (value === null || value === undefined) return "";
  if (value instanceof Uint8Array) return Buffer.from(value).toString();
  if (value instanceof Date && !Number.isNaN(value.getTime())) return value.toISOString();
  let text = NO_TEXT;
  try {
    if (typeof value !== "function" && typeof value !== "symbol") text = String(value);
  } catch {
    // has no text
  }
  // Every object without a text of its own would be the same caller.
  if (typeof value === "object" && text.includes(NO_TEXT) || text === NO_TEXT) throw invalid(`the attribute ${String(name)} has no text; help: send its id`);
  return text;
}

/** Returns at most `kept` bytes, up to the end of a character, and the digest of the whole text. */
function digest(text: string, kept: number): string {
  const raw = Buffer.from(text);
  while (kept > 0 && ((raw[kept] ?? 0) & 0xc0) === 0x80) kept--;
  return `${raw.toString("utf8", 0, kept)}~${hash(raw)}`;
}

function hash(raw: Uint8Array): string {
  return createHash("sha256").update(raw).digest("hex").slice(0, 32);
}

/** Returns an idempotency key, shortened by a digest above 64 bytes; null if it is absent or empty. */
export function shortenIdem(idem: unknown): string | Uint8Array | null {
  if (idem instanceof Uint8Array) {
    if (idem.length <= IDEM_MAX) return idem.length ? idem : null;
    return Buffer.concat([idem.subarray(0, IDEM_KEPT), Buffer.from(`~${hash(idem)}`)]);
  }
  const text = textOf(idem, "idem");
  return (Buffer.byteLength(text) > IDEM_MAX ? digest(text, IDEM_KEPT) : text) || null;
}

/** Checks a cost or, if `signed`, an amount. Throws a TypeError or a RangeError: a programmer's error. */
export function checkCost(cost: unknown, signed = false): Cost {
  if (typeof cost !== "object" || cost === null) return checkAmount(cost, signed);
  // The units of an Array would be its indices, and a Map would have none: no rule would check the request.
  if (Symbol.iterator in cost) return checkAmount(cost, signed);
  return Object.fromEntries(Object.entries(cost).map(([unit, n]) => [checkName(unit), checkAmount(n, signed)]));
}

function checkAmount(n: unknown, signed: boolean): number | bigint {
  if (typeof n !== "bigint" && !Number.isInteger(n))
    throw new TypeError(`a cost is an integer, or an object of units and integers, not ${typeof n === "number" ? n : `a ${typeof n}`}`);
  const exact = BigInt(n as number | bigint);
  if (exact < 0 && !signed) throw new RangeError("a cost is 0 or more; help: refund with charge(…, -1, { of: decision })");
  if (exact < INT64_MIN || exact > UINT64_MAX) return exact > 0 ? TOO_LARGE : -TOO_LARGE;
  return narrow(exact);
}

const NAME = /^[^\x00-\x1f\x7f-\x9f:/\p{Surrogate}]{1,64}$/u;

export function isName(name: unknown): name is string {
  return typeof name === "string" && NAME.test(name) && Buffer.byteLength(name) <= NAME_MAX;
}

export function checkName(name: unknown): string {
  if (isName(name)) return name;
  throw invalid("a name is text of 1 to 64 bytes without control characters, ':' and '/'");
}
