// Tests of what needs no browser: node --test dev/

import assert from "node:assert/strict";
import test from "node:test";
import { explain_query, read_curl } from "../curl.js";
import { diff } from "../edit/diff.js";
import { steps } from "../edit/document_history.js";
import { edit, node_at, parse, plain, pretty } from "../edit/json.js";
import { blank, describe, validate } from "../edit/schema.js";
import { bytes, percent, seconds, short, span } from "../format.js";
import { frame_of, id_of, tree_of } from "../profile_view.js";
import { describe_kind } from "./mock_schema.mjs";

// The same numbers at every run.
let seed = 7;
const random = (below) => (seed = (seed * 1103515245 + 12345) % 2147483648) % below;

function some_value(depth = 0) {
  const kind = random(depth > 3 ? 5 : 7);
  if (kind === 0) return null;
  if (kind === 1) return random(2) === 0;
  if (kind === 2) return random(2000) / 8 - 100;
  if (kind < 5) return ["", "a", 'quote " and \\', "line\nend", "漢字 🦀", "__proto__", "}"][random(7)];
  if (kind === 5) return Array.from({ length: random(4) }, () => some_value(depth + 1));
  return Object.fromEntries(
    Array.from({ length: random(4) }, (_, i) => [["a", "b", "8", "c d", "é"][random(5)] + i, some_value(depth + 1)]),
  );
}

function some_path(value, path = []) {
  if (value === null || typeof value !== "object" || random(3) === 0) return path;
  const keys = Array.isArray(value) ? value.map((_, i) => i) : Object.keys(value);
  if (!keys.length) return path;
  const key = keys[random(keys.length)];
  return some_path(value[key], [...path, key]);
}

const plainly = (text) => JSON.parse(JSON.stringify(plain(parse(text))));

test("a document reads as JSON.parse has it, however it is spaced", () => {
  for (let round = 0; round < 500; round++) {
    const value = some_value();
    for (const text of [pretty(value), JSON.stringify(value), JSON.stringify(value, null, "\t")])
      assert.deepEqual(plainly(text), JSON.parse(text));
  }
});

test("an edit changes one value and nothing else", () => {
  for (let round = 0; round < 2000; round++) {
    const value = { root: some_value(), last: 1 };
    const text = random(2) ? pretty(value) : JSON.stringify(value);
    const path = some_path(value.root, ["root"]);
    const next = some_value(2);
    const expected = structuredClone(value);
    const parent = path.slice(0, -1).reduce((at, key) => at[key], expected);
    const is_removal = random(3) === 0;
    if (!is_removal) parent[path.at(-1)] = next;
    else if (Array.isArray(parent)) parent.splice(path.at(-1), 1);
    else delete parent[path.at(-1)];
    const edited = edit(text, path, is_removal ? undefined : next);
    assert.deepEqual(plainly(edited), JSON.parse(JSON.stringify(expected)), `${text} ${JSON.stringify(path)}`);
  }
});

test("large numbers and the order of keys survive an edit elsewhere", () => {
  const text = '{"z": 12345678901234567890, "8": 1, "a": 1.50}';
  assert.equal(edit(text, ["8"], 2), '{"z": 12345678901234567890, "8": 2, "a": 1.50}');
  assert.equal(node_at(parse(text), ["a"]).start, text.indexOf("1.50"));
});

test("what is not JSON is said with its place", () => {
  const check = (text, line, column, words) => {
    assert.throws(
      () => parse(text),
      (fault) => fault.line === line && fault.column === column && fault.message.includes(words),
      text,
    );
  };
  check('{"a": 1,}', 1, 9, "remove the comma");
  check("{'a': 1}", 1, 2, "double quotes");
  check('{\n  "a": tru\n}', 2, 8, "a value is expected");
  check('{"a": 1, "a": 2}', 1, 10, "twice");
  check("[1 2]", 1, 4, '","');
  check("// no", 1, 1, "no comments");
  check("[".repeat(200), 1, 102, "nested");
  check("01", 1, 1, "a value is expected");
  check("{} x", 1, 4, "ends before this");
});

test("curl lines", () => {
  const check = (line, expected) => {
    const { notes, ...found } = read_curl(line);
    assert.deepEqual(found, expected, line);
  };
  const get = (url, headers = []) => ({ url, method: "GET", headers });
  check("curl http://a.example/x", get("http://a.example/x"));
  check("curl a.example/x", get("http://a.example/x"));
  check("GET http://a/b", get("http://a/b"));
  check("/p?q=1", get("/p?q=1"));
  check("$ curl -sSL 'http://a/b' | jq .", get("http://a/b"));
  check(
    'curl "http://a/b" -H "X-A: \\"q\\"" -H \'Empty;\'',
    get("http://a/b", [
      ["X-A", '"q"'],
      ["Empty", ""],
    ]),
  );
  check("curl 'http://a/b' \\\n  -H $'X: it\\'s \\u0021' \\\n  --compressed", get("http://a/b", [["X", "it's !"]]));
  check("curl -XPUT -d '{}' http://a", { url: "http://a", method: "PUT", headers: [] });
  check("curl --data-raw=x http://a", { url: "http://a", method: "POST", headers: [] });
  check("curl -G -d q=1 http://a/?p=2", get("http://a/?p=2&q=1"));
  check("curl -I -o /dev/null http://a", { url: "http://a", method: "HEAD", headers: [] });
  check("curl -u a:b http://a", get("http://a", [["Authorization", "Basic YTpi"]]));
  check("curl 'http://a", { error: "A ' is not closed. Paste the whole command." });
  check("curl -v", { error: "There is no URL in this command. Write curl http://host/path." });
  check("curl ftp://a", { error: "Only http:// and https:// can be explained, not ftp." });
  assert.equal(
    explain_query({ url: "http://a/%2F?b=1&c#d", method: "GET", headers: [["X", "a&b"]], host: "" }),
    "url=http%3A%2F%2Fa%2F%252F%3Fb%3D1%26c&method=GET&header=X%3Aa%26b",
  );
});

test("a difference leads from one text to the other", () => {
  for (let round = 0; round < 500; round++) {
    const some_text = () => Array.from({ length: random(12) }, () => "abc"[random(3)]).join("\n");
    const [before, after] = [some_text(), some_text()];
    const lines = diff(before, after);
    const of = (sign) =>
      lines
        .filter((line) => line.sign !== sign)
        .map(({ text }) => text)
        .join("\n");
    assert.equal(of("+"), before);
    assert.equal(of("-"), after);
    assert.ok(lines.every((line) => line.sign === "+" || before.split("\n")[line.old - 1] === line.text));
  }
});

test("what a schema finds wrong", () => {
  const schema = describe_kind("routes");
  const check = (value, expected) =>
    assert.deepEqual(
      validate(value, schema, schema).map(({ path, message }) => `${path.join(".")}: ${message}`),
      expected,
    );
  check({ uri: "/" }, []);
  check({ uri: "/", priority: "${PRIORITY:-3}", timeout: { read: "5s" } }, []);
  check({}, [": one of uri, uris, expression is required"]);
  check({ uri: 1 }, ["uri: expected text, found a number"]);
  check({ uri: "/", prioritty: 1 }, ['prioritty: there is no "prioritty"; did you mean "priority"?']);
  check({ uri: "/", status: 2 }, ["status: use one of 1, 0"]);
  check({ uri: "/", timeout: { read: "soon" } }, ["timeout.read: expected duration from 1ms to 1h"]);
  check({ uri: "/", upstream: { nodes: { "a:1": -1 } } }, ["upstream.nodes.a:1: must be at least 0"]);
  check({ uri: "/", upstream: {} }, ['upstream.nodes: "nodes" is missing']);
  check({ uri: "/", script: "x" }, ["script: this gateway does not support it; remove it"]);
});

test("what a schema asks for", () => {
  const schema = describe_kind("routes");
  const kind = (name, value) => describe(schema.properties[name], schema, value).kind;
  assert.deepEqual(
    ["uri", "hosts", "priority", "status", "enable_websocket", "upstream", "labels", "vars", "upstream_id"].map(
      (name) => kind(name),
    ),
    ["string", "list", "integer", "enum", "boolean", "object", "map", "list", "string"],
  );
  const nodes = describe({ $ref: "#/$defs/Upstream" }, schema).properties.nodes;
  assert.equal(describe(nodes, schema, { "a:1": 1 }).chosen, nodes.anyOf[0]);
  assert.equal(describe(nodes, schema, []).chosen, nodes.anyOf[1]);
  assert.deepEqual(blank({ $ref: "#/$defs/Upstream" }, schema), { nodes: {} });
});

test("typing in one place is one step, another place another", () => {
  const history = steps("");
  for (const [text, place] of [
    ["a", "uri"],
    ["ab", "uri"],
    ["abc", "name"],
    ["abcd", null],
  ])
    history.add(text, place);
  assert.deepEqual([history.undo(), history.undo(), history.undo(), history.undo()], ["abc", "ab", "", null]);
  assert.equal(history.redo(), "ab");
  history.add("x");
  assert.equal(history.redo(), null);
});

test("numbers as people read them", () => {
  assert.deepEqual(
    [short(0), short(0.538), short(999), short(12_345), short(4_200_000)],
    ["0", "0.538", "999", "12.3k", "4.2M"],
  );
  assert.deepEqual([seconds(0.00085), seconds(0.0021), seconds(1.4), seconds(NaN)], ["850 µs", "2.1 ms", "1.4 s", "–"]);
  assert.deepEqual(
    [span(0.2), span(61), span(93_784), span(86400 * 40)],
    ["less than a second", "1 minute 1 second", "1 day 2 hours", "40 days"],
  );
  assert.deepEqual(
    [bytes(96), bytes(4_637_760), percent(1, 3000), percent(0, 5), percent(1, 20_000)],
    ["96 B", "4.42 MiB", "0.03 %", "0 %", "< 0.01 %"],
  );
});

test("a frame is called by the last part of its function's name", () => {
  const check = (name, short, path, runtime = null, file = "") => {
    const frame = frame_of(name, file);
    assert.deepEqual([frame.short, frame.path, frame.runtime], [short, path, runtime], name);
  };
  check("stillgate_proxy::exchange::relay::relay", "relay", "stillgate_proxy::exchange::relay");
  check("stillgate_proxy::exchange::relay::Relay::poll", "Relay::poll", "stillgate_proxy::exchange::relay");
  check("stillgate_proxy::client::busy::{{closure}}", "busy", "stillgate_proxy::client");
  check("a::b::<impl a::c::Worker>::admit::{{closure}}", "Worker::admit", "a::b");
  check("<a::b::Id as c::Plugin>::rewrite", "Id::rewrite", "a::b");
  check("<T as core::convert::Into<U>>::into", "Into::into", "core::convert", "std");
  check("<alloc::boxed::Box<dyn core::ops::FnOnce<(), Output = ()>> as core::ops::FnOnce<()>>::call_once", "Box::call_once", "alloc::boxed", "std");
  check("catch_unwind<(), a::{closure_env#0}>", "catch_unwind", "", "std", "/rustc/5980/library/std/src/panicking.rs");
  check("with_mut<a::b>", "with_mut", "", "tokio", "/x/registry/src/index-1/tokio-1.54.1/src/loom.rs");
  check("__rust_try", "__rust_try", "", "std");
  check("mi_malloc_aligned", "mi_malloc_aligned", "", "allocator");
  check("libc.so.6+0x88ef0", "libc.so.6+0x88ef0", "");
  check("lua access (auth.lua:12)", "lua access (auth.lua:12)", "");
  for (const name of ["", "::", "<", "<>", ">", "{}", "<a as >::", "((((", "a::<b", "<impl >"]) assert.equal(frame_of(name, "").name, name);
});

test("runs of the runtime's frames are one, and unfold again", () => {
  const functions = ["main", "tokio::a", "std::b", "work", "work::{{closure}}", "std::c"].map((name) => [name, ""]);
  const side = { functions, phases: ["x", "y"], stacks: [[0, 0, 3, [0, 1, 2, 3, 4]], [0, 1, 1, [0, 1, 1, 2, 3, 5]]] };
  const frames = functions.map(([name, file]) => frame_of(name, file));
  const shape = (node) => [node.key, node.total, ...[...node.children.values()].map(shape)];
  const folded = tree_of(side, frames, { folded: true, unfolded: new Set() });
  assert.deepEqual(shape(folded), ["", 4, ["main", 4, [" tokio", 4, ["work", 4, ["std::c", 1]]]]]);
  const run = folded.children.get("main").children.get(" tokio");
  assert.deepEqual([run.least, run.most, [...run.folded]], [2, 3, ["tokio::a", "std::b"]]);
  const unfolded = tree_of(side, frames, { folded: true, unfolded: new Set([id_of(run)]) });
  assert.deepEqual(shape(unfolded).flat(9).includes(" tokio"), false);
  const all = tree_of(side, frames, { folded: false, unfolded: new Set() });
  assert.ok(shape(all).flat(9).includes("work::{{closure}}"));
});
