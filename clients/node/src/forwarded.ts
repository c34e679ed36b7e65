// The caller's address behind proxies, and the time that a request waited in front of the application.

import { BlockList, isIP } from "node:net";

const QUEUED_MAX = 60_000; // milliseconds; a longer time means that the proxy's clock differs

/** Trusted networks, the number of proxies in front, or null: none. */
export type Proxies = BlockList | number | null;

/** Converts the option `trustedProxies`. Throws a TypeError for an invalid network. */
export function trust(given: number | string | readonly string[]): Proxies {
  if (typeof given === "number") {
    if (!Number.isSafeInteger(given) || given < 0) throw new RangeError("the number of proxies is 0 or more");
    return given;
  }
  const networks = typeof given === "string" ? [given] : given;
  const list = new BlockList();
  for (const network of networks) {
    const [address = "", bits] = network.split("/");
    const version = isIP(address), longest = version === 4 ? 32 : 128;
    const prefix = bits === undefined ? longest : /^\d{1,3}$/.test(bits) ? Number(bits) : -1;
    if (!version || prefix < 0 || prefix > longest) throw new TypeError(`the proxy ${network} is not a network; help: write it like 10.0.0.0/8`);
    list.addSubnet(address, prefix, version === 4 ? "ipv4" : "ipv6");
  }
  return networks.length ? list : null;
}

/** Returns the caller: the nearest hop that is not a trusted proxy. Hops left of it may be forged. */
export function callerOf(peer: string, forwarded: string, proxies: Proxies): string {
  if (!forwarded || proxies === null) return plain(peer);
  let hops = [...forwarded.split(",").map(withoutPort), peer];
  if (typeof proxies === "number") hops = hops.slice(0, Math.max(1, hops.length - proxies)).slice(-1);
  let nearest = plain(peer);
  for (const [i, hop] of hops.reverse().entries()) {
    if (!isIP(hop)) {
      if (i === 0 && !hop && hops.length > 1) continue; // a Unix socket: the peer is a proxy on this host
      return nearest;
    }
    nearest = plain(hop);
    if (typeof proxies === "number" || !isIn(proxies, nearest)) break;
  }
  return nearest;
}

/** Whether the peer is a trusted proxy; a Unix socket's peer has no address and is trusted if any proxy is. */
export function isTrusted(peer: string, proxies: Proxies): boolean {
  if (proxies === null || typeof proxies === "number") return proxies !== null && proxies > 0;
  return isIP(peer) ? isIn(proxies, plain(peer)) : !peer;
}

/**
 * Returns the milliseconds since an X-Request-Start: Unix time, optionally after "t=", in seconds, milliseconds or
 * microseconds, recognized by their size. Null for times in the future or more than 60 s ago.
 */
export function queuedMs(text: string, now: number): number | null {
  const found = /^(?:t=)?(\d{1,20}(?:\.\d{1,9})?)$/.exec(text.trim());
  if (!found) return null;
  const started = Number(found[1]);
  const waited = now - started / (started >= 1e14 ? 1e3 : started >= 1e11 ? 1 : 1e-3);
  return waited >= 0 && waited <= QUEUED_MAX ? waited : null;
}

function isIn(networks: BlockList, address: string): boolean {
  return networks.check(address, isIP(address) === 4 ? "ipv4" : "ipv6");
}

/** Returns the shortest form of an address; of an IPv4-mapped IPv6 address the IPv4 address. */
function plain(address: string): string {
  if (isIP(address) !== 6 || address.includes("%")) return address;
  const short = new URL(`http://[${address}]`).hostname.slice(1, -1);
  const mapped = /^::ffff:([0-9a-f]{1,4}):([0-9a-f]{1,4})$/.exec(short);
  if (!mapped) return short;
  const [high, low] = [mapped[1], mapped[2]].map((part) => parseInt(part ?? "0", 16)) as [number, number];
  return [high >> 8, high & 255, low >> 8, low & 255].join(".");
}

function withoutPort(hop: string): string {
  const text = hop.trim().replace(/^"+|"+$/g, "");
  if (text.startsWith("[")) return text.slice(1).split("]")[0] ?? "";
  const [address = "", ...rest] = text.split(":");
  return rest.length === 1 ? address : text;
}
