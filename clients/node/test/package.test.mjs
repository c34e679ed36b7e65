// The package: its tarball installs into an empty project, and works by import and by require.

import assert from "node:assert/strict";
import { execFile, execFileSync } from "node:child_process";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import test from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { folder, Played } from "./support.mjs";

const HERE = fileURLToPath(new URL("..", import.meta.url));
const read = (...path) => readFileSync(join(...path), "utf8");

test("installs from npm pack and works by import and by require", async (t) => {
  const daemon = await Played.start(t);
  const project = folder(t);
  const npm = (cwd, ...command) => execFileSync("npm", command, { cwd, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
  const [{ filename }] = JSON.parse(npm(HERE, "pack", "--ignore-scripts", "--json", "--pack-destination", project)); // `run` built it
  writeFileSync(join(project, "package.json"), '{ "name": "empty", "version": "1.0.0" }');
  npm(project, "install", "--offline", "--no-audit", "--no-fund", join(project, filename));
  assert.deepEqual(readdirSync(join(project, "node_modules")).filter((name) => !name.startsWith(".")), ["tidegate"]);

  const home = join(project, "node_modules", "tidegate");
  const { exports, dependencies, version, typesVersions } = JSON.parse(read(home, "package.json"));
  assert.equal(dependencies, undefined);
  const files = (entry) => (typeof entry === "string" ? [entry] : Object.values(entry).flatMap(files));
  for (const file of files(exports)) assert.ok(read(home, file), file);
  for (const [file] of Object.values(typesVersions["*"])) assert.ok(read(home, file), file);
  for (const name of readdirSync(join(home, "dist/esm")).filter((one) => one.endsWith(".d.ts"))) {
    assert.doesNotMatch(read(home, "dist/esm", name).replace(/\/\*[^]*?\*\//g, ""), /\bany\b/, name);
  }
  for (const name of ["LICENSE", "README.md", "CHANGELOG.md"]) assert.ok(read(home, name), name);

  const body = `const client = new Client({ socket: process.argv[2], timeoutMs: 20000 });
    client.hit("api", { user: "u1" }).then((d) => console.log(d.rule, d.reason, [express, fastify, http, koa].map((one) => typeof one.limit).join(" ")));`;
  const names = ["express", "fastify", "http", "koa"];
  writeFileSync(join(project, "a.mjs"), `import { Client } from "tidegate";\n${names.map((name) => `import * as ${name} from "tidegate/${name}";`).join("\n")}\n${body}`);
  writeFileSync(join(project, "b.cjs"), `const { Client } = require("tidegate");\n${names.map((name) => `const ${name} = require("tidegate/${name}");`).join("\n")}\n${body}`);
  for (const file of ["a.mjs", "b.cjs"]) {
    const { stdout } = await promisify(execFile)(process.execPath, [file, daemon.path], { cwd: project });
    assert.equal(stdout, "per-user null function function function function\n", file);
  }
  assert.deepEqual(daemon.of(0).map((hello) => hello[3].get("client")), [`node/${version}`, `node/${version}`]);
});

test("the guard of NestJS works by require, too", () => {
  const script = `const { Refused, TidegateGuard } = require("./dist/cjs/nest.js"); console.log(typeof TidegateGuard, Refused.name)`;
  assert.equal(execFileSync(process.execPath, ["-e", script], { cwd: HERE, encoding: "utf8" }), "function Refused\n");
});

test("the lock file names no host but the public registry", () => {
  const { packages } = JSON.parse(read(HERE, "package-lock.json"));
  const resolved = Object.values(packages).map((one) => one.resolved).filter(Boolean);
  assert.ok(Object.keys(packages).length > 100);
  for (const url of resolved) assert.match(url, /^https:\/\/registry\.npmjs\.org\//);
});
