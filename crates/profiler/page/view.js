// Shows one profile, or the difference of two: a flame graph to zoom and search, a table by function, shares by thread and by phase.
//
// The page that `stillgate profile` writes holds this text, and the dashboard loads it; so it imports nothing, asks nothing, and
// brings its own elements. A side is {title, unit, notes, threads, phases, functions, stacks}: stacks are [thread, phase, value,
// numbers of functions from the outermost on], functions [name, file]. It may have `whole`, which counts as 100% in place of its sum.

const ROW_PIXELS = 18;
const FUNCTIONS_SHOWN = 200;
const WIDTH_MIN = 0.5;
// Of what is the same as far as can be told.
const SAME = "#ddd";

/**
 * Shows a profile in an element, beside `base` unless that is null. Of the stacks, only those in `certain` are coloured, if given; with
 * `graph_only` there are no tables.
 */
export function view(root, { profile, base, certain, graph_only }) {
  const coloured = certain && new Set(certain.map((path) => path.join("\n")));
  const state = { search: "", thread: "", reversed: false, zoom: [], sort: "own" };
  const part = (name, tag, attributes = {}, ...children) => {
    const element = make(tag, { ...attributes, "data-part": name }, ...children);
    return (parts[name] = element);
  };
  const parts = {};
  const sides = base ? [profile, base] : [profile];
  const threads = [...new Set(sides.flatMap((side) => side.threads))].sort();
  const controls = make(
    "div",
    { class: "profile-controls" },
    make("label", {}, "Search ", part("search", "input", { type: "search", placeholder: "part of a name, or /regex/" })),
    part("matches", "output"),
    make(
      "label",
      {},
      "Thread ",
      part("thread", "select", {}, new Option("all", ""), ...threads.map((name) => new Option(name || "unknown", name))),
    ),
    base &&
      make(
        "span",
        {},
        make("label", {}, part("reversed", "input", { type: "checkbox" }), " laid out by the base "),
        make("span", { class: "profile-key is-more" }, "more"),
        make("span", { class: "profile-key is-less" }, "less"),
        coloured && make("span", { class: "profile-key is-same" }, "no certain change"),
      ),
    part("reset", "button", { type: "button" }, "Reset zoom"),
  );
  const section = (title, name) => make("section", {}, make("h2", {}, title), part(name, "table"));
  root.replaceChildren(
    make(
      "div",
      { class: "profile-view" },
      part("title", "p", { class: "profile-title" }, sides.map((side) => side.title).join("; base: ")),
      part("notes", "p", { class: "profile-notes" }, profile.notes.join("; ")),
      controls,
      part("detail", "p", { class: "profile-notes", "aria-live": "polite" }, "Click a function to zoom in."),
      part("graph", "div", { class: "profile-graph", role: "group", "aria-label": "Flame graph" }),
      !graph_only && section("Functions", "functions"),
      !graph_only && section("Threads", "threads"),
      !graph_only && sides.some((side) => side.phases.some((name) => name !== "")) && section("Phases", "phases"),
    ),
  );
  const chosen = (side) => ({
    ...side,
    stacks: side.stacks.filter(([thread]) => state.thread === "" || side.threads[thread] === state.thread),
  });

  const draw_graph = () => {
    const is_reversed = base && state.reversed;
    const shown = chosen(is_reversed ? base : profile);
    const hidden = is_reversed ? profile : base;
    const other = base && tree_of(chosen(hidden));
    const tree = tree_of(shown);
    const matches = matcher(state.search);
    const zoomed = at(tree, state.zoom) ? state.zoom : [];
    const fragment = document.createDocumentFragment();
    let deepest = 0;
    const draw = (node, opposite, path, left, width, is_above) => {
      if (width < WIDTH_MIN) return;
      deepest = Math.max(deepest, path.length);
      const share = node.total / (shown.whole ?? (tree.total || 1));
      const before = other && (opposite?.total ?? 0) / (hidden.whole ?? (other.total || 1));
      const said =
        `${node.name}: ${amount(node.total, shown.unit)}, ${percent(share, 1)}` +
        `, itself ${percent(node.own, shown.whole ?? tree.total)}` +
        (other ? `; ${is_reversed ? "now" : "base"} ${percent(before, 1)}` : "") +
        (node.file ? ` (${node.file})` : "");
      const is_match = matches?.(node.name);
      const button = make(
        "button",
        { type: "button", title: said, class: `${is_match ? "is-match" : ""} ${is_above ? "is-above" : ""}` },
        width > 20 ? node.name : "",
      );
      button.style.left = `${left}px`;
      button.style.width = `${width}px`;
      button.style.top = `${path.length * ROW_PIXELS}px`;
      // In the reversed layout the base is shown: what is gone since then is less.
      if (!is_match)
        button.style.background = !other
          ? colour(node.name)
          : coloured && !coloured.has(path.join("\n"))
            ? SAME
            : is_reversed
            ? difference_colour(before, share)
            : difference_colour(share, before);
      button.onmouseenter = button.onfocus = () => (parts.detail.textContent = said);
      button.onclick = () => ((state.zoom = path), draw_graph());
      fragment.append(button);
      if (is_above) return;
      let from = left;
      for (const child of [...node.children.values()].sort((a, b) => (a.name < b.name ? -1 : 1))) {
        const pixels = (width * child.total) / node.total;
        draw(child, opposite?.children.get(child.name), [...path, child.name], from, pixels, false);
        from += pixels;
      }
    };
    const width = parts.graph.clientWidth;
    for (let depth = 0; depth <= zoomed.length; depth++) {
      const path = zoomed.slice(0, depth);
      draw(at(tree, path), other && at(other, path), path, 0, width, depth < zoomed.length);
    }
    parts.graph.style.height = `${(deepest + 1) * ROW_PIXELS}px`;
    parts.graph.replaceChildren(fragment);
    parts.matches.textContent = matches
      ? `matched: ${matched(chosen(profile), matches)}${base ? `, base: ${matched(chosen(base), matches)}` : ""}`
      : "";
  };

  const draw_functions = () => {
    if (graph_only) return;
    const now = functions_of(chosen(profile));
    const before = base && functions_of(chosen(base));
    const matches = matcher(state.search);
    const names = new Set([...now.functions.keys(), ...(before ? before.functions.keys() : [])]);
    const share = (of, name, key) => (of.functions.get(name)?.[key] ?? 0) / (of.whole ?? (of.all || 1));
    const lines = [...names]
      .filter((name) => !matches || matches(name))
      .map((name) => ({
        name,
        file: (now.functions.get(name) ?? before.functions.get(name)).file,
        own: share(now, name, "own"),
        total: share(now, name, "total"),
        change: before ? share(now, name, "own") - share(before, name, "own") : 0,
        ratio: before ? share(now, name, "own") / share(before, name, "own") : 0,
      }));
    const key = state.sort;
    lines.sort((a, b) => Math.abs(b[key]) - Math.abs(a[key]) || (a.name < b.name ? -1 : 1));
    const sorter = (text, by) => {
      const button = make("button", { type: "button" }, text);
      button.onclick = () => ((state.sort = by), draw_functions());
      return button;
    };
    const head = ["Function", sorter("Itself", "own"), sorter("With calls", "total")];
    if (before) head.push(sorter("Itself, change", "change"), sorter("Itself, ratio", "ratio"));
    const body = lines.slice(0, FUNCTIONS_SHOWN).map(({ name, file, own, total, change, ratio }) => {
      const cells = [make("span", {}, `${name} `, make("small", {}, file)), percent(own, 1), percent(total, 1)];
      if (before) cells.push((change >= 0 ? "+" : "") + (100 * change).toFixed(2), times(ratio));
      return row(cells, "td");
    });
    parts.functions.replaceChildren(row(head, "th"), ...body);
  };

  const draw_all = () => (draw_graph(), draw_functions());
  parts.search.oninput = () => ((state.search = parts.search.value), draw_all());
  parts.thread.onchange = () => ((state.thread = parts.thread.value), draw_all());
  if (base) parts.reversed.onchange = () => ((state.reversed = parts.reversed.checked), draw_graph());
  parts.reset.onclick = () => ((state.zoom = []), draw_graph());
  if (parts.threads) draw_shares(parts.threads, "Thread", sides, (side, [thread]) => side.threads[thread] || "unknown");
  if (parts.phases) draw_shares(parts.phases, "Phase", sides, (side, [, phase]) => side.phases[phase] || "unknown");
  draw_functions();
  let drawn_width = -1;
  // Also says the width that it has at first, once it is laid out.
  new ResizeObserver(() => {
    if (parts.graph.clientWidth === drawn_width) return;
    drawn_width = parts.graph.clientWidth;
    draw_graph();
  }).observe(parts.graph);
}

// Texts reach the page as text nodes and attributes alone.
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.filter(Boolean));
  return element;
}

function row(cells, kind) {
  return make("tr", {}, ...cells.map((cell, i) => make(kind, i > 0 ? { class: "is-number" } : {}, cell)));
}

function amount(value, unit) {
  const size = Math.abs(value);
  if (unit === "nanoseconds") return size >= 1e9 ? `${(value / 1e9).toFixed(2)} s` : `${(value / 1e6).toFixed(2)} ms`;
  if (unit === "bytes")
    return size >= 1 << 20 ? `${(value / (1 << 20)).toFixed(1)} MiB` : `${(value / 1024).toFixed(1)} KiB`;
  return String(value);
}

// Not a number: in neither profile is time of the function itself.
const times = (ratio) => (Number.isNaN(ratio) ? "" : Number.isFinite(ratio) ? `${ratio.toFixed(2)}×` : "new");

const percent = (part, whole) => `${(whole ? (100 * part) / whole : 0).toFixed(2)}%`;

// A tree of names: profiles of two builds have other numbers for the same functions.
function tree_of(side) {
  const root = { name: "all", file: "", total: 0, own: 0, children: new Map() };
  for (const [, , value, stack] of side.stacks) {
    let node = root;
    node.total += value;
    for (const number of stack) {
      const [name, file] = side.functions[number];
      let below = node.children.get(name);
      if (!below) node.children.set(name, (below = { name, file, total: 0, own: 0, children: new Map() }));
      node = below;
      node.total += value;
    }
    node.own += value;
  }
  return root;
}

const at = (tree, path) => path.reduce((node, name) => node?.children.get(name), tree);

// By function: in itself, and with what it called, once a stack.
function functions_of(side) {
  const functions = new Map();
  let all = 0;
  for (const [, , value, stack] of side.stacks) {
    all += value;
    const seen = new Set();
    stack.forEach((number, depth) => {
      const [name, file] = side.functions[number];
      let of = functions.get(name);
      if (!of) functions.set(name, (of = { name, file, own: 0, total: 0 }));
      if (!seen.has(name)) of.total += value;
      seen.add(name);
      if (depth === stack.length - 1) of.own += value;
    });
  }
  return { all, whole: side.whole, functions };
}

// Whether a name matches; null: nothing is searched for.
function matcher(text) {
  if (!text) return null;
  const [, pattern, flags] = text.match(/^\/(.+)\/(i?)$/) ?? [];
  if (pattern === undefined) return (name) => name.toLowerCase().includes(text.toLowerCase());
  try {
    const compiled = new RegExp(pattern, flags);
    return (name) => compiled.test(name);
  } catch {
    return () => false;
  }
}

// The share of the stacks with a match anywhere: each counts once.
function matched(side, matches) {
  let all = 0;
  let part = 0;
  for (const [, , value, stack] of side.stacks) {
    all += value;
    if (stack.some((number) => matches(side.functions[number][0]))) part += value;
  }
  return percent(part, all);
}

function colour(name) {
  let hash = 7;
  for (let i = 0; i < name.length; i++) hash = (hash * 31 + name.charCodeAt(i)) >>> 0;
  return `rgb(${225 + (hash % 30)} ${130 + ((hash >> 8) % 90)} ${60 + ((hash >> 16) % 60)})`;
}

// Red: its share has grown. Blue: it has shrunk. By shares, as the profiles may be of different length.
function difference_colour(share, other) {
  const change = share - other;
  const size = Math.min(1, Math.abs(change) / Math.max(share, other, 1e-9));
  const pale = Math.round(235 - 120 * size * Math.min(1, Math.abs(change) * 20 + 0.3));
  return change >= 0 ? `rgb(255 ${pale} ${pale})` : `rgb(${pale} ${Math.min(255, pale + 25)} 255)`;
}

function draw_shares(table, head, sides, key_of) {
  const sums = sides.map((side) => {
    const sum = new Map();
    let all = 0;
    for (const stack of side.stacks) {
      const key = key_of(side, stack);
      sum.set(key, (sum.get(key) ?? 0) + stack[2]);
      all += stack[2];
    }
    return { sum, all };
  });
  const keys = [...new Set(sums.flatMap(({ sum }) => [...sum.keys()]))];
  keys.sort((a, b) => (sums[0].sum.get(b) ?? 0) - (sums[0].sum.get(a) ?? 0));
  const lines = keys.map((key) => row([key, ...sums.map(({ sum, all }) => percent(sum.get(key) ?? 0, all))], "td"));
  table.replaceChildren(row([head, "Share", ...(sides.length > 1 ? ["Base"] : [])], "th"), ...lines);
}
