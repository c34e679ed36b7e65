// A daemon in a process of its own, which is not busy with the test's event loop: PATH, milliseconds before each reply,
// or `flood`: it sends GOODBYEs without end.

import { setTimeout as sleep } from "node:timers/promises";
import { decision, frame, Played } from "./support.mjs";

const daemon = new Played();
daemon.path = process.argv[2];
daemon.script = (socket, message) => void sleep(Number(process.argv[3])).then(() => socket.write(frame(decision(message))));
if (process.argv[3] === "flood") {
  const bytes = Buffer.concat(Array(10_000).fill(frame([4, null, "draining"])));
  daemon.script = (socket) => void (function more() { socket.write(bytes, (error) => error || more()); })();
}
await daemon.listen();
process.send("listens");
