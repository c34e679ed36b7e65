// A daemon in a process of its own, which is not busy with the test's event loop.

import { decision, frame, Played } from "./support.mjs";

const daemon = new Played();
daemon.path = process.argv[2];
daemon.script = (socket, message) => frame(decision(message));
await daemon.listen();
process.send("listens");
