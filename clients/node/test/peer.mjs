// A daemon in a process of its own, which is not busy with the test's event loop: PATH, milliseconds before each reply.

import { setTimeout as sleep } from "node:timers/promises";
import { decision, frame, Played } from "./support.mjs";

const daemon = new Played();
daemon.path = process.argv[2];
daemon.script = (socket, message) => void sleep(Number(process.argv[3])).then(() => socket.write(frame(decision(message))));
await daemon.listen();
process.send("listens");
