// Checks the dashboard's files without a browser: node check.mjs
//
// Every module parses, every import and every reference to a file resolves, nothing can turn text into markup or code,
// and everything together stays small enough to be embedded.

import { execFileSync } from "node:child_process";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const COMPRESSED_BYTES_MAX = 150 * 1024;
const ROOT = join(dirname(fileURLToPath(import.meta.url)), "..");
// No request leaves the gateway; the Content-Security-Policy says the same to the browser.
const OUTSIDE = /(?:fetch\(|EventSource\(|import\(|url\(|src=|href=)["'`= ]*(?:https?:)?\/\//;
const FORBIDDEN = [
  /innerHTML/,
  /outerHTML/,
  /insertAdjacentHTML/,
  /document\.write/,
  /\beval\b/,
  /new Function/,
  /style=/,
  /cssText/,
  /setTimeout\(\s*["'`]/,
  /createContextualFragment/,
  /DOMParser/,
  /srcdoc/,
  OUTSIDE,
];
const IMPORT = /^\s*(?:import|\}).*\bfrom\s+["']([^"']+)["']|\bimport\(\s*["'`]([^"'`]+)["'`]/gm;

const files = readdirSync(ROOT, { recursive: true, withFileTypes: true })
  .filter((entry) => entry.isFile() || entry.isSymbolicLink())
  .map((entry) => relative(ROOT, join(entry.parentPath ?? entry.path, entry.name)));
const embedded = files.filter((name) => !name.startsWith("dev/"));
const problems = [];
let compressed = 0;
const reached = new Set(["index.html"]);

for (const name of files.filter((one) => /\.m?js$/.test(one))) {
  try {
    // A module's syntax, whatever its extension says.
    execFileSync(process.execPath, ["--input-type=module", "--check", "-"], {
      input: readFileSync(join(ROOT, name)),
      stdio: ["pipe", "pipe", "pipe"],
    });
  } catch (error) {
    problems.push(
      `${name}: ${
        String(error.stderr)
          .split("\n")
          .find((line) => line.includes("Error")) ?? "does not parse"
      }`,
    );
  }
}
for (const name of embedded) {
  const bytes = readFileSync(join(ROOT, name));
  compressed += gzipSync(bytes, { level: 9 }).length;
  const text = bytes.toString();
  text.split("\n").forEach((line, i) => {
    for (const pattern of FORBIDDEN)
      if (pattern.test(line)) problems.push(`${name}:${i + 1}: ${pattern.source} must not be here`);
  });
  if (name.endsWith(".js")) {
    if (!text.startsWith("//")) problems.push(`${name}: begin with what it is for`);
    for (const [, fixed, computed] of text.matchAll(IMPORT)) {
      const target = fixed ?? computed;
      // Pages are imported by name: each name of the table in app.js is a file.
      const targets = target.includes("${")
        ? [...text.matchAll(/^\s*\[\/\^.*\/, "(\w+)"\],$/gm)].map(([, page]) => target.replace(/\$\{[^}]*\}/, page))
        : [target];
      for (const one of targets) {
        const path = join(dirname(name), one);
        reached.add(path);
        if (!existsSync(join(ROOT, path))) problems.push(`${name}: import of ${one}, which is not there`);
      }
    }
    for (const [, given, from] of text.matchAll(/import\s*\{([^}]+)\}\s*from\s*"([^"]+)"/g)) {
      const source = readFileSync(join(ROOT, dirname(name), from), "utf8");
      for (const symbol of given
        .split(",")
        .map((one) => one.trim().split(" as ")[0])
        .filter(Boolean)) {
        if (!new RegExp(`export (?:async )?(?:const|let|function|class) ${symbol}\\b`).test(source))
          problems.push(`${name}: ${from} exports no ${symbol}`);
        if (text.split(new RegExp(`\\b${symbol}\\b`)).length < 3)
          problems.push(`${name}: ${symbol} is imported and not used`);
      }
    }
  }
  for (const [, target] of text.matchAll(/(?:href|src)="\.\/([^"]+)"/g)) {
    reached.add(target);
    if (!existsSync(join(ROOT, target))) problems.push(`${name}: ${target} is not there`);
  }
}
for (const name of embedded) if (!reached.has(name)) problems.push(`${name}: nothing leads to it`);
if (compressed > COMPRESSED_BYTES_MAX) problems.push(`${compressed} bytes compressed; at most ${COMPRESSED_BYTES_MAX}`);

console.log(`${embedded.length} files, ${(compressed / 1024).toFixed(1)} KiB compressed`);
for (const problem of problems) console.error(problem);
process.exit(problems.length ? 1 : 0);
