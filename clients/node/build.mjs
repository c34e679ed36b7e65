// Builds dist/esm with its types, and dist/cjs: the same sources without a second check, and the same types.

import { execFileSync } from "node:child_process";
import { cpSync, rmSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

process.chdir(fileURLToPath(new URL(".", import.meta.url)));
const tsc = (...args) => execFileSync(process.execPath, ["node_modules/typescript/bin/tsc", ...args], { stdio: "inherit" });

rmSync("dist", { recursive: true, force: true });
tsc("-p", "tsconfig.json");
tsc("-p", "tsconfig.cjs.json");
cpSync("dist/esm", "dist/cjs", { recursive: true, filter: (path) => !path.endsWith(".js") });
writeFileSync("dist/esm/package.json", '{ "type": "module" }\n');
writeFileSync("dist/cjs/package.json", '{ "type": "commonjs" }\n');
