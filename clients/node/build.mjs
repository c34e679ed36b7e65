// Builds dist/esm with its types from a check of all sources and test/types.ts, and dist/cjs from the same sources and
// types.

import { cpSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import ts from "typescript";

process.chdir(fileURLToPath(new URL(".", import.meta.url)));
rmSync("dist", { recursive: true, force: true });

const { options, fileNames } = ts.parseJsonConfigFileContent(ts.readConfigFile("tsconfig.json", ts.sys.readFile).config, ts.sys, ".");
const program = ts.createProgram(fileNames, options);
const faults = [...ts.getPreEmitDiagnostics(program), ...program.emit().diagnostics];
if (faults.length) {
  const host = { getCurrentDirectory: ts.sys.getCurrentDirectory, getCanonicalFileName: (name) => name, getNewLine: () => "\n" };
  console.error(ts.formatDiagnostics(faults, host));
  process.exit(1);
}
renameSync("dist/checked/src", "dist/esm");
rmSync("dist/checked", { recursive: true });

mkdirSync("dist/cjs");
const compilerOptions = { ...options, module: ts.ModuleKind.CommonJS, verbatimModuleSyntax: false };
for (const name of readdirSync("src")) {
  const { outputText } = ts.transpileModule(readFileSync(`src/${name}`, "utf8"), { compilerOptions, fileName: name });
  writeFileSync(`dist/cjs/${name.replace(/ts$/, "js")}`, outputText);
}
cpSync("dist/esm", "dist/cjs", { recursive: true, filter: (path) => !path.endsWith(".js") });
writeFileSync("dist/esm/package.json", '{ "type": "module" }\n');
writeFileSync("dist/cjs/package.json", '{ "type": "commonjs" }\n');
