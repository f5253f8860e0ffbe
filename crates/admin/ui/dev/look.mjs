// Opens pages of the dashboard in headless Chromium, over the debugging pipe, and takes pictures of them.
//
//   node look.mjs --base http://127.0.0.1:9280 --out DIR [--theme light|dark] [--width 1280] [--height 900] [--full] [--run FILE] PAGE…
//
// PAGE is a hash such as /routes. Errors of the console are printed: a page must have none. `--run` is a module whose
// default function gets `{go, evaluate, key, shot, wait}` after signing in.

import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";

const args = process.argv.slice(2);
const option = (name, fallback) => {
  const at = args.indexOf(`--${name}`);
  return at < 0 ? fallback : args.splice(at, 2)[1];
};
const flag = (name) => args.includes(`--${name}`) && Boolean(args.splice(args.indexOf(`--${name}`), 1));
const base = option("base", "http://127.0.0.1:9280");
const out = option("out", ".");
const theme = option("theme", "light");
const width = Number(option("width", 1280));
const height = Number(option("height", 900));
const run = option("run", null);
const key = option("key", "admin");
const full = flag("full");

const profile = mkdtempSync(join(tmpdir(), "look-"));
const browser = spawn(
  "chromium",
  [
    "--headless=new",
    "--no-sandbox",
    "--remote-debugging-pipe",
    `--user-data-dir=${profile}`,
    "--hide-scrollbars",
    "--disable-gpu",
    "about:blank",
  ],
  { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] },
);
const pending = new Map();
let last_id = 0;
let buffer = "";
let session;
const problems = [];
browser.stdio[4].on("data", (chunk) => {
  buffer += chunk;
  for (let end = buffer.indexOf("\0"); end >= 0; end = buffer.indexOf("\0")) {
    const message = JSON.parse(buffer.slice(0, end));
    buffer = buffer.slice(end + 1);
    if (message.id) pending.get(message.id)?.(message);
    else if (message.method === "Runtime.exceptionThrown")
      problems.push(message.params.exceptionDetails.exception?.description ?? message.params.exceptionDetails.text);
    else if (message.method === "Log.entryAdded" && message.params.entry.level === "error")
      problems.push(`${message.params.entry.text} ${message.params.entry.url ?? ""}`);
    else if (message.method === "Runtime.consoleAPICalled" && message.params.type === "error")
      problems.push(message.params.args.map((one) => one.description ?? one.value).join(" "));
    else if (message.method === "Page.javascriptDialogOpening") {
      if (message.params.type !== "beforeunload") problems.push(`a dialog opened: ${message.params.message}`);
      send("Page.handleJavaScriptDialog", { accept: true });
    }
  }
});
const send = (method, params = {}, on = session) =>
  new Promise((done, fail) => {
    const id = ++last_id;
    pending.set(
      id,
      (message) => (
        pending.delete(id),
        message.error ? fail(new Error(`${method}: ${message.error.message}`)) : done(message.result)
      ),
    );
    browser.stdio[3].write(`${JSON.stringify({ id, method, params, ...(on ? { sessionId: on } : {}) })}\0`);
  });
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
async function evaluate(expression) {
  const { result, exceptionDetails } = await send("Runtime.evaluate", {
    expression,
    awaitPromise: true,
    returnByValue: true,
  });
  if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
  return result.value;
}
async function until(expression, ms = 5000) {
  for (const end = Date.now() + ms; Date.now() < end; await wait(30)) if (await evaluate(expression)) return true;
  throw new Error(`never true: ${expression}`);
}
async function press(name, modifiers = 0) {
  const codes = { Tab: 9, Enter: 13, Escape: 27, ArrowLeft: 37, ArrowRight: 39, ArrowDown: 40 };
  const common = {
    key: name,
    code: name.length === 1 ? `Key${name.toUpperCase()}` : name,
    modifiers,
    windowsVirtualKeyCode: codes[name] ?? name.toUpperCase().charCodeAt(0),
    ...(name.length === 1 && !modifiers ? { text: name } : {}),
    ...(name === "Enter" ? { text: "\r" } : {}),
  };
  await send("Input.dispatchKeyEvent", { type: "keyDown", ...common });
  await send("Input.dispatchKeyEvent", { type: "keyUp", ...common });
}
async function shot(name) {
  if (full) {
    const tall = Math.min(6000, await evaluate("document.documentElement.scrollHeight"));
    await send("Emulation.setDeviceMetricsOverride", {
      width,
      height: Math.max(height, tall),
      deviceScaleFactor: 1,
      mobile: width < 500,
    });
    await wait(150);
  }
  const { data } = await send("Page.captureScreenshot", { format: "png" });
  if (full)
    await send("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: width < 500 });
  mkdirSync(out, { recursive: true });
  const file = join(out, `${name}.png`);
  writeFileSync(file, Buffer.from(data, "base64"));
  return file;
}
async function go(hash) {
  await evaluate(`location.hash = ${JSON.stringify(`#${hash}`)}`);
  await wait(250);
  await until(`document.querySelector("main h1") && !document.querySelector("main .loading")`).catch((error) =>
    problems.push(`${hash}: ${error.message}`),
  );
  await wait(250);
}

try {
  const { targetInfos } = await send("Target.getTargets", {}, null);
  const { sessionId } = await send(
    "Target.attachToTarget",
    { targetId: targetInfos.find(({ type }) => type === "page").targetId, flatten: true },
    null,
  );
  session = sessionId;
  await Promise.all(["Page", "Runtime", "Log"].map((domain) => send(`${domain}.enable`)));
  await send("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: width < 500 });
  await send("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: theme }] });
  await send("Page.navigate", { url: `${base}/ui/` });
  // Where loopback may look without a key, signing in is a button.
  await until(`document.querySelector("#key, .top-user button")`);
  await evaluate(`document.querySelector("#key") ?? document.querySelector(".top-user button").click()`);
  await until(`document.querySelector("#key")`);
  if (args.includes("sign_in")) (await wait(200), await shot("sign_in"));
  problems.length = 0;
  await evaluate(
    `document.querySelector("#key").value = ${JSON.stringify(key)}; document.querySelector(".sign-in form").requestSubmit()`,
  );
  await until(`document.querySelector(".side a")`);
  await wait(400);
  for (const page of args.filter((one) => one.startsWith("/"))) {
    await go(page);
    const scrolls = await evaluate("document.documentElement.scrollWidth - innerWidth");
    if (scrolls > 0) problems.push(`${page}: ${scrolls} px wider than the window`);
    await shot(`${theme}-${width}${page.replace(/[^\w-]+/g, "_").slice(0, 60)}`);
  }
  if (run) await (await import(resolve(run))).default({ go, evaluate, until, press, shot, wait, send, problems });
} catch (error) {
  problems.push(String(error.stack));
} finally {
  await send("Browser.close", {}, null).catch(() => {});
  await new Promise((done) => (browser.exitCode === null ? browser.on("exit", done) : done()));
  rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
}
for (const problem of problems) console.error(problem);
process.exit(problems.length ? 1 : 0);
