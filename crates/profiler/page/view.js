// Shows one profile, or the difference of two: shares by route, plugin, phase and thread, a flame graph, a table by function.
//
// The page that `stillgate profile` writes holds this text, and the dashboard loads it; so it imports nothing, sends no requests, and
// makes its own elements. A side is {title, unit, notes, threads, phases, functions, stacks}: stacks are [thread, phase, value, numbers
// of functions from the outermost on, route, plugin], where the last two are names or null; functions are [name, file]. `title` begins
// with the kind of value. A side may have `whole`, which counts as 100% in place of its sum.

const ROW_PIXELS = 20;
const FUNCTIONS_SHOWN = 25;
const STALLS_SHOWN = 20;
const ROWS_SHOWN = 6;
const ROWS_MORE = 50;
const WIDTH_MIN = 0.7;
/** Widths from which a frame shows its name, and the path before it. */
const NAME_PIXELS = 24;
const PATH_PIXELS = 150;

/** By crate: what runs of its frames are folded to. */
const RUNTIME = {
  std: "std",
  core: "std",
  alloc: "std",
  tokio: "tokio",
  tokio_util: "tokio",
  mio: "tokio",
  futures: "futures",
  futures_core: "futures",
  futures_util: "futures",
  pin_project_lite: "futures",
};

/** What allocates, by names. */
const ALLOCATOR = /^<?(__rustc::__|_?mi_|mimalloc::|stillgate_allocator::|stillgate_profiler::heap::)/;
/** What a run of the runtime's frames is called by, the first that is in it. */
const RUNS = ["tokio", "futures", "allocator", "std"];
/** Of these, what is a part of the function that calls it. */
const CALLED = ["allocator", "std"];

/** By phase: hue and chroma; the lightness is the theme's. Neighbours in a stack are far apart. */
const PHASES = {
  "event loop": [255, 0.035],
  "client connection": [298, 0.1],
  "TLS handshake": [325, 0.14],
  "TLS records": [325, 0.07],
  parsing: [95, 0.13],
  "HTTP/2": [75, 0.09],
  routing: [150, 0.13],
  plugins: [42, 0.13],
  "choosing a node": [185, 0.09],
  "connecting to a node": [205, 0.1],
  "relaying bodies": [240, 0.1],
  "log and metrics": [0, 0.1],
  "rest of the request": [125, 0.06],
};
/** Hues of phases that are not known here, by their order. */
const MORE_HUES = [50, 170, 290, 110, 220, 10];

/** What shares are shown by: the parts' names, title, and name of stacks without one. */
const KEYS = [
  { name: "routes", title: "Route", none: "no route", of: (_, stack) => stack[4] ?? "" },
  { name: "plugins", title: "Plugin", none: "no plugin", of: (_, stack) => stack[5] ?? "" },
  { name: "phases", title: "Phase", none: "unknown", of: (side, stack) => side.phases[stack[1]] || "" },
  { name: "threads", title: "Thread", none: "unknown", of: (side, stack) => side.threads[stack[0]] || "" },
];

/**
 * Shows a profile in an element, beside `base` unless that is null. Of the stacks, only those in `certain` are coloured, if given; with
 * `graph_only` there are no tables.
 */
export function view(root, { profile, base, certain, graph_only }) {
  const sides = base ? [profile, base] : [profile];
  const frames = new Map(sides.map((side) => [side, side.functions.map(([name, file]) => frame_of(name, file))]));
  const coloured = certain && new Set(certain.map((path) => path.join("\n")));
  const kind = profile.title.split(":")[0];
  // Of what is not a share of the machine's time, the amount says more.
  const is_amount = kind === "delay" || profile.unit === "bytes";
  const state = {
    search: "",
    chosen: {},
    shown: { functions: FUNCTIONS_SHOWN },
    reversed: false,
    folded: true,
    unfolded: new Set(),
    zoom: [],
    sort: "own",
  };
  const keys = KEYS.filter(({ of }) => sides.some((side) => side.stacks.some((stack) => of(side, stack) !== "")));
  const tone = phase_tones(sides);
  const parts = {};
  const part = (name, tag, attributes = {}, ...children) =>
    (parts[name] = make(tag, { ...attributes, "data-part": name }, ...children));
  const section = (title, name, note) =>
    make(
      "section",
      {},
      make("h2", {}, title),
      note && make("p", { class: "quiet" }, note),
      part(name, "table", { class: "profile-table", "aria-label": title }),
    );
  const help = `profile-help-${(last_view += 1)}`;

  root.replaceChildren(
    make(
      "div",
      { class: "profile-view" },
      part("title", "p", { class: "profile-title" }, sides.map((side) => side.title).join("; base: ")),
      part("notes", "p", { class: "quiet" }, profile.notes.join("; ")),
      !graph_only &&
        make(
          "div",
          { class: "profile-shares" },
          ...keys.map(({ name, title }) => part(name, "table", { "aria-label": `Shares by ${title.toLowerCase()}` })),
        ),
      !graph_only &&
        kind === "delay" &&
        section("Longest stalls", "stalls", "By stack: how long event loops were kept in it."),
      make(
        "div",
        { class: "profile-controls" },
        make(
          "label",
          {},
          "Search ",
          part("search", "input", { type: "search", placeholder: "part of a name, or /regex/" }),
        ),
        part("matches", "output"),
        make("label", {}, part("folded", "input", { type: "checkbox", checked: "" }), " Fold the runtime"),
        part("refold", "button", { type: "button" }, "Fold again"),
        base && make("label", {}, part("reversed", "input", { type: "checkbox" }), " Laid out by the base"),
        part("reset", "button", { type: "button" }, "Reset zoom"),
        part("clear", "button", { type: "button" }, "Clear filters"),
      ),
      legend(sides, base, coloured, tone),
      make("p", { class: "visually-hidden", id: help }, HELP),
      make(
        "div",
        {},
        part("graph", "div", {
          class: "profile-graph",
          role: "group",
          "aria-label": "Flame graph",
          "aria-describedby": help,
        }),
        part("detail", "div", { class: "profile-detail" }),
      ),
      !graph_only &&
        section(
          "Functions",
          "functions",
          "Itself includes calls of the standard library and the allocator where they are folded.",
        ),
    ),
  );

  const chosen = (side, except) => ({
    ...side,
    stacks: side.stacks.filter((stack) =>
      keys.every(
        (key) => key === except || !(key.name in state.chosen) || key.of(side, stack) === state.chosen[key.name],
      ),
    ),
  });
  const tree = (side) => tree_of(chosen(side), frames.get(side), state, coloured);
  const whole = (side, all) => side.whole ?? (all || 1);
  let trees = [];

  const draw_shares = () => {
    for (const key of graph_only ? [] : keys) {
      const sums = sides.map((side) => sums_of(chosen(side, key), key));
      const names = [...new Set(sums.flatMap(({ by }) => [...by.keys()]))];
      names.sort(
        (a, b) => sums.reduce((sum, { by }) => sum || (by.get(b) ?? 0) - (by.get(a) ?? 0), 0) || (a < b ? -1 : 1),
      );
      const picked = state.chosen[key.name];
      const most = state.shown[key.name] ?? ROWS_SHOWN;
      const lines = names.slice(0, most);
      if (picked !== undefined && !lines.includes(picked)) lines.push(picked);
      const value = ({ by, all }, name) =>
        is_amount ? amount(by.get(name) ?? 0, profile.unit) : percent(by.get(name) ?? 0, all);
      const rows = lines.map((name) => {
        const button = make(
          "button",
          { type: "button", "aria-pressed": String(picked === name) },
          key.name === "phases" && swatch(tone(name)),
          make("span", { class: name ? "profile-name" : "quiet", title: shown(name) }, shown(name) || key.none),
        );
        button.onclick = () => choose(key.name, picked === name ? undefined : name);
        const [now, before] = sums.map(({ by, all }) => (by.get(name) ?? 0) / (all || 1));
        return make(
          "tr",
          { class: picked === name ? "is-chosen" : "" },
          make("th", { scope: "row" }, button, bar(now, before)),
          ...sums.map((of) => number(value(of, name))),
        );
      });
      const columns = [
        [key.title],
        [is_amount ? (kind === "delay" ? "Delay" : "Size") : "Share", true],
        base && ["Base", true],
      ];
      parts[key.name].replaceChildren(
        head(columns.filter(Boolean)),
        make(
          "tbody",
          {},
          ...rows,
          more_row(names.length - lines.length, key.name, most, sides.length + 1, draw_shares),
        ),
      );
    }
  };
  /** A row that shows more rows of a part. */
  const more_row = (rest, name, most, columns, draw) => {
    if (rest <= 0) return null;
    const button = make("button", { type: "button" }, `${rest} more`);
    button.onclick = () => {
      state.shown[name] = most + ROWS_MORE;
      draw();
      parts[name].querySelector("tbody").lastElementChild.querySelector("button")?.focus();
    };
    return make("tr", { class: "is-more" }, make("td", { colspan: String(columns) }, button));
  };
  const choose = (name, value) => {
    const focused = document.activeElement?.closest("table")?.dataset.part;
    const label = document.activeElement?.textContent;
    if (value === undefined) delete state.chosen[name];
    else state.chosen[name] = value;
    draw_all();
    if (focused) [...parts[focused].querySelectorAll("button")].find((one) => one.textContent === label)?.focus();
  };

  const draw_stalls = () => {
    if (!parts.stalls) return;
    const side = chosen(profile);
    const longest = [...side.stacks].sort((a, b) => b[2] - a[2]).slice(0, STALLS_SHOWN);
    const rows = longest.map((stack) => {
      const path = [trees[0], ...path_to(trees[0].leaves.get(stack))];
      // Where the runtime was called, which is what can be changed.
      while (path.length > 1 && (path.at(-1).folded || path.at(-1).frame.runtime)) path.pop();
      const node = path.at(-1);
      const where = make("button", { type: "button", title: shown(node.frame.name) }, name_of(node.frame, true));
      where.onclick = () => zoom_to(keys_to(node));
      const named = (key) => make("span", { class: "profile-name" }, shown(key.of(side, stack)) || key.none);
      const [first, ...rest] = keys.map((key) => cell(named(key)));
      const delay = number(measured(stack[2] / longest[0][2], amount(stack[2], side.unit)));
      return make("tr", {}, delay, first, cell(where), ...rest);
    });
    const [first, ...rest] = keys.map(({ title }) => [title]);
    parts.stalls.replaceChildren(head([["Delay", true], first, ["Where"], ...rest]), make("tbody", {}, ...rows));
  };

  let drawn = [];
  const draw_graph = () => {
    const is_reversed = base && state.reversed;
    const [side, hidden] = is_reversed ? [base, profile] : [profile, base];
    const [laid, other] = is_reversed ? [trees[1], trees[0]] : trees;
    const matches = matcher(state.search);
    const zoomed = at(laid, state.zoom) ? state.zoom : [];
    const had_focus = parts.graph.contains(document.activeElement);
    let deepest = 0;
    drawn = [];
    const draw = (node, opposite, above, left, width, phase) => {
      if (width < WIDTH_MIN) return;
      const { frame, depth } = node;
      deepest = Math.max(deepest, depth);
      const share = node.total / whole(side, laid.total);
      const before = other && (opposite?.total ?? 0) / whole(hidden, other.total);
      const own_phase = phase_of(node, phase);
      const is_match = matches && [...(node.folded ?? [frame.name])].some(matches);
      const is_above = depth < zoomed.length;
      const name = node.folded ? label_of(node) : shown(frame.name);
      const said = `${name}: ${said_of(node, share, before, is_reversed)}`;
      const button = make(
        "button",
        {
          type: "button",
          title: said,
          tabindex: "-1",
          class: [is_match && "is-match", is_above && "is-above", node.folded && "is-fold", frame.is_lua && "is-lua"]
            .filter(Boolean)
            .join(" "),
        },
        width > NAME_PIXELS ? (node.folded ? name : name_of(frame, width > PATH_PIXELS)) : "",
      );
      for (const [property, pixels] of [
        ["left", left],
        ["width", width],
        ["top", depth * ROW_PIXELS],
      ])
        button.style[property] = `${pixels}px`;
      if (is_match || (node.folded && !other)) {
        // As the style sheet has it.
      } else if (!other) tint(button, tone(own_phase));
      // In the reversed layout the base is shown: what is gone since then is less.
      else if (!coloured || node.is_certain) tint_change(button, ...(is_reversed ? [before, share] : [share, before]));
      const entry = { node, button, above, left };
      button.onmouseenter = button.onfocus = () => (set_stop(entry), show_detail(node, share, before, is_reversed));
      button.onclick = () => open(node);
      drawn.push(entry);
      if (is_above) return entry;
      let from = left;
      for (const child of [...node.children.values()].sort((a, b) => (a.key < b.key ? -1 : 1))) {
        const pixels = (width * child.total) / node.total;
        draw(child, opposite?.children.get(child.key), entry, from, pixels, own_phase);
        from += pixels;
      }
      return entry;
    };
    let above = null;
    let phase = null;
    for (let depth = 0; depth <= zoomed.length; depth++) {
      const path = zoomed.slice(0, depth);
      const node = at(laid, path);
      above = draw(node, other && at(other, path), above, 0, parts.graph.clientWidth, phase);
      phase = phase_of(node, phase);
    }
    parts.graph.style.height = `${(deepest + 1) * ROW_PIXELS}px`;
    parts.graph.replaceChildren(...drawn.map(({ button }) => button));
    set_stop(drawn.find(({ node }) => node.depth === zoomed.length) ?? null);
    if (had_focus) stop?.button.focus({ preventScroll: true });
    parts.matches.textContent = matches
      ? `matched: ${matched(chosen(profile), matches)}${base ? `, base: ${matched(chosen(base), matches)}` : ""}`
      : "";
    parts.reset.hidden = zoomed.length === 0;
    parts.clear.hidden = Object.keys(state.chosen).length === 0;
    parts.refold.hidden = !state.folded || state.unfolded.size === 0;
  };
  // One frame is in the order of Tab; arrow keys reach the others.
  let stop = null;
  const set_stop = (entry) => {
    if (stop) stop.button.tabIndex = -1;
    stop = entry;
    if (stop) stop.button.tabIndex = 0;
  };
  const zoom_to = (path) => {
    state.zoom = path;
    draw_graph();
    parts.graph.scrollIntoView({ block: "nearest" });
  };
  const open = (node) => {
    if (!node.folded) return zoom_to(keys_to(node));
    state.unfolded.add(id_of(node));
    // A zoom below it ends: what it is in has another path now.
    if (state.zoom[node.depth - 1] === node.key) state.zoom = state.zoom.slice(0, node.depth - 1);
    draw_trees();
    const above = id_of(node.parent);
    const is_first = ({ parent, frame }) => parent && node.folded.has(frame.name) && id_of(parent) === above;
    drawn.find((entry) => is_first(entry.node))?.button.focus({ preventScroll: true });
  };
  const show_detail = (node, share, before, is_reversed) => {
    const { frame, folded } = node;
    const all = folded && [...folded];
    parts.detail.replaceChildren(
      make(
        "p",
        {},
        make("b", {}, folded ? label_of(node) : frame.short),
        ` ${said_of(node, share, before, is_reversed, true)}`,
      ),
      make(
        "p",
        { class: "profile-path" },
        folded
          ? `${shown(all[0])} … ${shown(all.at(-1))}. Click to show them.`
          : `${shown(frame.name)}${frame.file ? ` ${frame.file}` : ""}`,
      ),
    );
  };
  const said_of = (node, share, before, is_reversed, is_short) =>
    `${amount(node.total, profile.unit)}, ${percent(share, 1)}` +
    `, itself ${percent(node.own, whole(is_reversed ? base : profile, trees[is_reversed ? 1 : 0].total))}` +
    (before !== undefined ? `; ${is_reversed ? "now" : "base"} ${percent(before, 1)}` : "") +
    (node.frame.file && !is_short ? ` (${node.frame.file})` : "");

  const draw_functions = () => {
    if (graph_only) return;
    const [now, before] = trees.map(functions_of);
    const matches = matcher(state.search);
    const names = new Set([...now.keys(), ...(before?.keys() ?? [])]);
    const share = (of, i, name, key) => (of.get(name)?.[key] ?? 0) / whole(sides[i], trees[i].total);
    const lines = [...names]
      .filter((name) => !matches || matches(name))
      .map((name) => {
        const own = share(now, 0, name, "own");
        const was = before && share(before, 1, name, "own");
        const frame = (now.get(name) ?? before.get(name)).frame;
        const total = share(now, 0, name, "total");
        return { name, frame, own, total, change: before ? own - was : 0, ratio: before ? own / was : 0 };
      });
    const by = state.sort;
    lines.sort((a, b) => Math.abs(b[by]) - Math.abs(a[by]) || (a.name < b.name ? -1 : 1));
    const heads = [["Function"], ["Itself", "own"], ["With calls", "total"]];
    if (before) heads.push(["Itself, change", "change"], ["Itself, ratio", "ratio"]);
    const titles = heads.map(([text, key]) => {
      if (!key) return make("th", { scope: "col" }, text);
      const button = make("button", { type: "button" }, text);
      button.onclick = () => {
        state.sort = key;
        draw_functions();
        parts.functions.querySelector("[aria-sort=descending] button").focus();
      };
      return make("th", { scope: "col", class: "is-number", "aria-sort": key === by ? "descending" : "none" }, button);
    });
    const body = lines
      .slice(0, state.shown.functions)
      .map(({ frame, own, total, change, ratio }) =>
        make(
          "tr",
          {},
          make("td", { title: shown(frame.name) }, name_of(frame, true), " ", make("small", {}, frame.file)),
          number(measured(own, percent(own, 1))),
          number(measured(total, percent(total, 1))),
          before && number((change >= 0 ? "+" : "") + (100 * change).toFixed(1)),
          before && number(times(ratio)),
        ),
      );
    const more = more_row(lines.length - body.length, "functions", body.length, heads.length, draw_functions);
    parts.functions.replaceChildren(make("thead", {}, make("tr", {}, ...titles)), make("tbody", {}, ...body, more));
  };

  const draw_trees = () => {
    trees = sides.map(tree);
    draw_graph();
    draw_stalls();
    draw_functions();
  };
  const draw_all = () => (draw_shares(), draw_trees());
  parts.search.oninput = () => ((state.search = parts.search.value), draw_graph(), draw_functions());
  parts.folded.onchange = () => ((state.folded = parts.folded.checked), state.unfolded.clear(), draw_trees());
  parts.refold.onclick = () => (state.unfolded.clear(), draw_trees(), parts.folded.focus());
  if (base) parts.reversed.onchange = () => ((state.reversed = parts.reversed.checked), draw_graph());
  parts.reset.onclick = () => (zoom_to([]), parts.search.focus());
  parts.clear.onclick = () => ((state.chosen = {}), draw_all(), parts.search.focus());
  parts.detail.replaceChildren(
    make(
      "p",
      { class: "quiet" },
      "Click a function to zoom in. Frames of the runtime are folded; click them to unfold.",
    ),
  );
  parts.graph.onkeydown = (event) => {
    const here = drawn.find(({ button }) => button === document.activeElement);
    if (!here) return;
    const level = () => drawn.filter(({ node }) => node.depth === here.node.depth).sort((a, b) => a.left - b.left);
    const below = () => drawn.filter(({ above }) => above === here).sort((a, b) => b.node.total - a.node.total)[0];
    const next = {
      ArrowUp: () => here.above,
      ArrowDown: below,
      ArrowLeft: () => level()[level().indexOf(here) - 1],
      ArrowRight: () => level()[level().indexOf(here) + 1],
      Home: () => drawn[0],
      Escape: () => (zoom_to([]), drawn[0]),
    }[event.key];
    if (!next) return;
    event.preventDefault();
    next()?.button.focus();
  };
  draw_all();
  let drawn_width = parts.graph.clientWidth;
  // Also says the width that it has at first, once it is laid out.
  new ResizeObserver(() => {
    if (parts.graph.clientWidth === drawn_width) return;
    drawn_width = parts.graph.clientWidth;
    draw_graph();
  }).observe(parts.graph);
}

let last_view = 0;

const HELP =
  "Arrow keys move: down to the largest function called, up to the caller, left and right to neighbours. Enter zooms in or unfolds; " +
  "Escape resets the zoom.";

// Texts reach the page as text nodes and attributes alone.
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes))
    if (value !== "" || name === "checked") element.setAttribute(name, value);
  element.append(...children.filter(Boolean));
  return element;
}

/** A text with characters made visible that hide or reorder text. */
const shown = (text) =>
  text.replace(
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
    (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );

const head = (titles) =>
  make(
    "thead",
    {},
    make(
      "tr",
      {},
      ...titles.map(([title, is_number]) => make("th", { scope: "col", class: is_number ? "is-number" : "" }, title)),
    ),
  );
const cell = (content) => make("td", {}, content);
const number = (text) => make("td", { class: "is-number" }, text);

/** A bar as long as a share, with a mark at that of the base. */
function bar(share, before) {
  const element = make("i", { class: "profile-bar", "aria-hidden": "true" });
  element.style.setProperty("--part", Math.min(1, share));
  if (before !== undefined) {
    element.classList.add("has-base");
    element.style.setProperty("--base", Math.min(1, before));
  }
  return element;
}

/** A number with its bar. */
const measured = (share, text) => make("span", { class: "profile-measured" }, bar(share), make("span", {}, text));

function swatch(tone) {
  const element = make("i", { class: "profile-swatch", "aria-hidden": "true" });
  tint(element, tone);
  return element;
}

const tint = (element, tone) => {
  element.style.setProperty("--hue", tone[0]);
  element.style.setProperty("--chroma", tone[1]);
};

// Red: its share has grown. Blue: it has shrunk. By shares, as the profiles may be of different length.
function tint_change(element, share, other) {
  const change = share - other;
  const size = Math.min(1, Math.abs(change) / Math.max(share, other, 1e-9)) * Math.min(1, Math.abs(change) * 20 + 0.3);
  tint(element, [change >= 0 ? 25 : 250, 0.14 * size]);
}

/** The colours of phases: a function from the name. */
function phase_tones(sides) {
  const names = [...new Set(sides.flatMap((side) => side.phases))]
    .filter((name) => name && !PHASES[name] && name !== "other")
    .sort();
  return (phase) => {
    const more = names.indexOf(phase);
    return PHASES[phase] ?? (more < 0 ? [0, 0] : [MORE_HUES[more % MORE_HUES.length], 0.1]);
  };
}

function legend(sides, base, coloured, tone) {
  const item = (mark, text) => make("li", {}, mark, text);
  const change = (share, other) => {
    const element = make("i", { class: "profile-swatch", "aria-hidden": "true" });
    tint_change(element, share, other);
    return element;
  };
  const plain = (given) => make("i", { class: `profile-swatch ${given}`, "aria-hidden": "true" });
  const phases = [...new Set(sides.flatMap((side) => side.phases))].filter(Boolean).sort();
  const has_lua = sides.some((side) => side.functions.some(([name]) => name.startsWith(LUA)));
  const items = base
    ? [
        item(change(1, 0), "larger share"),
        item(change(0, 1), "smaller share"),
        coloured && item(plain(""), "no certain change"),
      ]
    : [
        ...phases.map((name) => item(swatch(tone(name)), shown(name))),
        phases.length > 1 && item(plain(""), "several phases"),
      ];
  return make(
    "ul",
    { class: "profile-legend", "aria-label": "Colours" },
    ...items,
    has_lua && item(plain("is-lua"), "function in Lua"),
  );
}

function amount(value, unit) {
  const size = Math.abs(value);
  const three = (number) => String(Number(number.toPrecision(3)));
  if (unit === "nanoseconds") return size >= 1e9 ? `${(value / 1e9).toFixed(2)} s` : `${three(value / 1e6)} ms`;
  if (unit === "bytes") return size >= 1 << 20 ? `${three(value / (1 << 20))} MiB` : `${three(value / 1024)} KiB`;
  return String(value);
}

// Not a number: in neither profile is time of the function itself.
const times = (ratio) => (Number.isNaN(ratio) ? "" : Number.isFinite(ratio) ? `${ratio.toFixed(2)}×` : "new");

/** 0.31 %. */
function percent(part, whole) {
  const value = whole ? (100 * part) / whole : 0;
  if (value > 0 && value < 0.01) return "< 0.01 %";
  return `${Number(value.toFixed(value < 1 ? 2 : 1))} %`;
}

/** The functions in Lua of a native stack. */
const LUA = "lua ";
/** What a compiler makes inside of a function, as in `{{closure}}`, `{closure_env#0}` and `{impl#6}`. */
const INNER = /^\{/;

/**
 * A frame by its function's name: `short` is the last part, with its type; `path` what is before that; `base` the function that a closure
 * is of; `runtime` what it is folded to, or null.
 */
export function frame_of(name, file) {
  const frame = {
    name,
    file: file_of(file),
    short: shown(name),
    path: "",
    base: name,
    runtime: null,
    is_closure: false,
  };
  if (name.startsWith(LUA)) return { ...frame, is_lua: true };
  const given = split(name, "::");
  const outer = given.filter((segment) => !INNER.test(segment));
  if (!outer.length) return { ...frame, short: "closure" };
  const parts = outer.flatMap((segment, i) =>
    segment[0] === "<"
      ? type_of(segment).slice(i > 0 ? -1 : 0)
      : [{ text: plain(segment), is_type: /^[A-Z]/.test(segment) }],
  );
  const texts = parts.map(({ text }) => text);
  const from = parts.length - (parts.at(-2)?.is_type ? 2 : 1);
  const crate = from > 0 ? texts[0] : crate_of(file);
  return {
    ...frame,
    short: shown(texts.slice(from).join("::")),
    path: shown(texts.slice(0, from).join("::")),
    base: texts.join("::"),
    runtime:
      (ALLOCATOR.test(name) && "allocator") ||
      (RUNTIME[crate] ?? (/^_*rust_(try|begin|end)/.test(name) ? "std" : null)),
    is_closure: outer.length < given.length,
  };
}

/** The parts of a text between marks that are in no bracket. */
function split(text, mark) {
  const parts = [];
  let [depth, from] = [0, 0];
  for (let i = 0; i < text.length; i++) {
    if ("<([{".includes(text[i])) depth++;
    else if (")]}".includes(text[i]) || (text[i] === ">" && text[i - 1] !== "-")) depth--;
    else if (depth === 0 && text.startsWith(mark, i)) {
      parts.push(text.slice(from, i));
      from = i + mark.length;
    }
  }
  return [...parts, text.slice(from)].filter(Boolean);
}

/** The path of the type in `<A as B>`, `<impl A>` and `<impl A for B>`; in the first that of B, where A is a parameter. */
function type_of(segment) {
  const inner = segment.slice(1, -1);
  const [first, second] = inner.startsWith("impl ") ? split(inner.slice(5), " for ").reverse() : split(inner, " as ");
  const is_parameter = second && /^(&|mut )*[A-Z]\d?$/.test(first);
  const path = split((is_parameter ? second : (first ?? "")).replace(/^(&|mut |\*const |\*mut |dyn )+/, ""), "::");
  return path.map((part, i) => ({ text: plain(part), is_type: i === path.length - 1 }));
}

/** Without parameters. */
const plain = (segment) => segment.replace(/(?<=.)[<{].*$/s, "");

/** The crate that a source file is of, where it is the runtime's. */
const crate_of = (file) =>
  file
    .match(/\/library\/(\w+)\/|\/registry\/src\/[^/]+\/([\w-]+?)-\d/)
    ?.slice(1)
    .find(Boolean)
    ?.replaceAll("-", "_");

/** Without the folder of the compiler, of cargo, or of this repository. */
const file_of = (file) =>
  shown(file.replace(/^.*\/(?:rustc\/\w+\/|registry\/src\/[^/]+\/|(?=crates\/[^/]+\/src\/))/, ""));

/** The name of a frame, its last part first. */
const name_of = ({ short, path }, has_path) =>
  make("span", {}, make("b", {}, short), has_path && path && make("span", { class: "profile-path" }, ` ${path}`));

const node_of = (key, frame, parent) => ({
  key,
  frame,
  parent,
  depth: parent ? parent.depth + 1 : 0,
  total: 0,
  own: 0,
  phases: new Map(),
  own_phase: null,
  children: new Map(),
  // Of folded frames: their names, and how many there are in a stack.
  folded: null,
  least: Infinity,
  most: 0,
  is_certain: false,
});

/** The nodes from the outermost function to this one. */
const path_to = (node) => (node.parent ? [...path_to(node.parent), node] : []);
const keys_to = (node) => path_to(node).map(({ key }) => key);
/** Names a node in every tree of this profile. */
export const id_of = (node) => keys_to(node).join("\n");
const at = (tree, path) => path.reduce((node, key) => node?.children.get(key), tree);

/**
 * A tree of names: profiles of two builds have other numbers for the same functions. Runs of the runtime's frames are one node, and a
 * closure is that of its function; not where `is_folded` is false, or a run is in `unfolded`. `leaves` has the node of each stack.
 */
export function tree_of(side, frames, { folded: is_folded, unfolded }, coloured) {
  const root = node_of("", frame_of("all", ""), null);
  root.leaves = new Map();
  const add = (node, value, phase) => {
    node.total += value;
    node.phases.set(phase, (node.phases.get(phase) ?? 0) + value);
    return node;
  };
  // Where a thread begins, the C library has no name for its function.
  const is_runtime = (frame, i) => frame.runtime || (i === 0 && /^libc[.-]/.test(frame.name));
  const below = (node, key, frame) => {
    let child = node.children.get(key);
    if (!child) node.children.set(key, (child = node_of(key, frame, node)));
    return child;
  };
  const is_unfolded = (node, key) => unfolded.size > 0 && unfolded.has([...keys_to(node), key].join("\n"));
  for (const stack of side.stacks) {
    const [, phase_number, value, list] = stack;
    const phase = side.phases[phase_number];
    let node = add(root, value, phase);
    let names = "";
    let kept_to = 0;
    for (let i = 0; i < list.length; i++) {
      const frame = frames[list[i]];
      let end = i;
      if (is_folded && i >= kept_to) while (end < list.length && is_runtime(frames[list[end]], end)) end++;
      const run = end - i > 1 ? list.slice(i, end).map((number) => frames[number]) : [];
      const label = run.length && (RUNS.find((name) => run.some(({ runtime }) => runtime === name)) ?? "std");
      // No function's name begins with a space.
      if (run.length && !is_unfolded(node, ` ${label}`)) {
        node = add(below(node, ` ${label}`, { ...FOLD, short: label }), value, phase);
        node.folded ??= new Set();
        for (const { name } of run) node.folded.add(name);
        node.least = Math.min(node.least, run.length);
        node.most = Math.max(node.most, run.length);
        i = end - 1;
      } else {
        kept_to = Math.max(kept_to, end);
        const is_same = is_folded && frame.is_closure && !node.folded && frame.base === node.frame.base;
        if (!is_same) node = add(below(node, frame.name, frame), value, phase);
      }
      if (!coloured) continue;
      for (const { name } of node.folded ? run : [frame]) {
        names += (names && "\n") + name;
        node.is_certain ||= coloured.has(names);
      }
    }
    node.own += value;
    node.own_phase = phase;
    root.leaves.set(stack, node);
  }
  return root;
}

const FOLD = { name: "", file: "", path: "runtime, folded", base: "" };

/** Such as `tokio, 31 frames`. */
const label_of = ({ frame, least, most }) => `${frame.short}, ${least === most ? most : `${least}–${most}`} frames`;

/** The phase that a frame is drawn in: its own, that of nearly all below it, or that of its caller; null: several. */
function phase_of(node, above) {
  if (node.own_phase !== null) return node.own_phase;
  const most = [...node.phases].find(([, value]) => value >= 0.95 * node.total);
  return most ? most[0] : node.phases.has(above) ? above : null;
}

/** By function: in itself, with folded calls of the standard library; and with what it called, once a stack. */
function functions_of(tree) {
  const functions = new Map();
  const name_in = (node) => (node.folded ? node.key : node.frame.name);
  const walk = (node, above) => {
    const name = name_in(node);
    let of = functions.get(name);
    if (!of) functions.set(name, (of = { frame: node.frame, own: 0, total: 0 }));
    const is_part = node.folded && node.parent.parent && CALLED.includes(node.frame.short);
    functions.get(is_part ? name_in(node.parent) : name).own += node.own;
    if (!above.has(name)) of.total += node.total;
    const inside = new Set(above).add(name);
    for (const child of node.children.values()) walk(child, inside);
  };
  for (const child of tree.children.values()) walk(child, new Set());
  return functions;
}

/** Sums by what a key finds of each stack. */
function sums_of(side, key) {
  const by = new Map();
  let all = 0;
  for (const stack of side.stacks) {
    const name = key.of(side, stack);
    by.set(name, (by.get(name) ?? 0) + stack[2]);
    all += stack[2];
  }
  return { by, all };
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
  const is_match = side.functions.map(([name]) => matches(name));
  let all = 0;
  let part = 0;
  for (const [, , value, stack] of side.stacks) {
    all += value;
    if (stack.some((number) => is_match[number])) part += value;
  }
  return percent(part, all);
}
