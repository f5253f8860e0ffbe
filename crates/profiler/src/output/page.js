"use strict";
// Adds up the stacks of one profile or two, and draws them. Nothing is loaded, nothing is sent.
(() => {
  const ROW = 18, ROWS_OF_TABLE = 200, WIDTH_MIN = 0.5;
  const data = JSON.parse(document.getElementById("data").textContent);
  const element = (id) => document.getElementById(id);
  const state = { search: "", thread: "", reversed: false, zoom: [], sort: "own" };

  const amount = (value, unit) => {
    const size = Math.abs(value);
    if (unit === "nanoseconds") return size >= 1e9 ? (value / 1e9).toFixed(2) + " s" : (value / 1e6).toFixed(2) + " ms";
    if (unit === "bytes") return size >= 1 << 20 ? (value / (1 << 20)).toFixed(1) + " MiB" : (value / 1024).toFixed(1) + " KiB";
    return String(value);
  };
  const percent = (part, whole) => (whole ? (100 * part / whole).toFixed(2) : "0.00") + "%";

  const stacksOf = (side) => side.stacks.filter(([thread]) => state.thread === "" || side.threads[thread] === state.thread);

  // A tree of names: profiles of two builds have other numbers for the same functions.
  const treeOf = (side) => {
    const root = { name: "all", file: "", total: 0, own: 0, children: new Map() };
    for (const [, value, stack] of stacksOf(side)) {
      let at = root;
      at.total += value;
      for (const number of stack) {
        const [name, file] = side.functions[number];
        let below = at.children.get(name);
        if (!below) at.children.set(name, below = { name, file, total: 0, own: 0, children: new Map() });
        at = below;
        at.total += value;
      }
      at.own += value;
    }
    return root;
  };

  // By function: in itself, and with what it called, once a stack.
  const functionsOf = (side) => {
    const functions = new Map();
    let all = 0;
    for (const [, value, stack] of stacksOf(side)) {
      all += value;
      const seen = new Set();
      stack.forEach((number, depth) => {
        const [name, file] = side.functions[number];
        let of = functions.get(name);
        if (!of) functions.set(name, of = { name, file, own: 0, total: 0 });
        if (!seen.has(name)) of.total += value;
        seen.add(name);
        if (depth === stack.length - 1) of.own += value;
      });
    }
    return { all, functions };
  };

  const matcher = () => {
    const text = state.search;
    if (!text) return null;
    const regex = text.match(/^\/(.+)\/(i?)$/);
    try {
      if (regex) { const compiled = new RegExp(regex[1], regex[2]); return (name) => compiled.test(name); }
    } catch { return () => false; }
    const lower = text.toLowerCase();
    return (name) => name.toLowerCase().includes(lower);
  };

  // Of the stacks with a match anywhere: each counts once.
  const matched = (side, matches) => {
    let all = 0, part = 0;
    for (const [, value, stack] of stacksOf(side)) {
      all += value;
      if (stack.some((number) => matches(side.functions[number][0]))) part += value;
    }
    return percent(part, all);
  };

  const colour = (name) => {
    let hash = 7;
    for (let i = 0; i < name.length; i++) hash = (hash * 31 + name.charCodeAt(i)) >>> 0;
    return `rgb(${225 + hash % 30} ${130 + (hash >> 8) % 90} ${60 + (hash >> 16) % 60})`;
  };

  // Red: its share has grown. Blue: it has shrunk. By shares, as the profiles may be of different length.
  const differenceColour = (share, other) => {
    const change = share - other, size = Math.min(1, Math.abs(change) / Math.max(share, other, 1e-9));
    const pale = Math.round(235 - 120 * size * Math.min(1, Math.abs(change) * 20 + 0.3));
    return change >= 0 ? `rgb(255 ${pale} ${pale})` : `rgb(${pale} ${Math.min(255, pale + 25)} 255)`;
  };

  const walk = (tree, path) => {
    let at = tree;
    for (const name of path) { at = at && at.children.get(name); }
    return at;
  };

  const drawGraph = () => {
    const shown = data.base && state.reversed ? data.base : data.profile;
    const other = data.base && (state.reversed ? data.profile : data.base);
    const tree = treeOf(shown), otherTree = other && treeOf(other);
    const graph = element("graph"), width = graph.clientWidth, matches = matcher();
    const zoomed = walk(tree, state.zoom) ? state.zoom : [];
    const fragment = document.createDocumentFragment();
    let deepest = 0;
    const draw = (node, opposite, path, x, pixels, isAbove) => {
      if (pixels < WIDTH_MIN) return;
      deepest = Math.max(deepest, path.length);
      const button = document.createElement("button");
      button.style.left = x + "px";
      button.style.width = pixels + "px";
      button.style.top = path.length * ROW + "px";
      const share = node.total / (tree.total || 1);
      const before = otherTree && (opposite ? opposite.total : 0) / (otherTree.total || 1);
      // In the reversed layout the base is shown: what is gone since then is less.
      button.style.background = otherTree ? (state.reversed ? differenceColour(before, share) : differenceColour(share, before)) : colour(node.name);
      if (pixels > 20) button.textContent = node.name;
      if (matches && matches(node.name)) button.className = "matched";
      if (isAbove) button.classList.add("faded");
      const told = `${node.name}: ${amount(node.total, shown.unit)}, ${percent(node.total, tree.total)}` +
        `, itself ${percent(node.own, tree.total)}` +
        (otherTree ? `; ${state.reversed ? "now" : "base"} ${(100 * before).toFixed(2)}%` : "") + (node.file ? ` (${node.file})` : "");
      button.title = told;
      button.onmouseenter = button.onfocus = () => { element("detail").textContent = told; };
      button.onclick = () => { state.zoom = path; drawGraph(); };
      fragment.append(button);
      if (isAbove) return;
      let at = x;
      const children = [...node.children.values()].sort((a, b) => a.name < b.name ? -1 : 1);
      for (const child of children) {
        const childPixels = pixels * child.total / node.total;
        draw(child, opposite && opposite.children.get(child.name), [...path, child.name], at, childPixels, false);
        at += childPixels;
      }
    };
    for (let depth = 0; depth < zoomed.length; depth++) {
      const path = zoomed.slice(0, depth);
      draw(walk(tree, path), otherTree && walk(otherTree, path), path, 0, width, true);
    }
    draw(walk(tree, zoomed), otherTree && walk(otherTree, zoomed), zoomed, 0, width, false);
    graph.style.height = (deepest + 1) * ROW + "px";
    graph.replaceChildren(fragment);
    const told = [];
    if (matches) {
      told.push(`matched: ${matched(data.profile, matches)}`);
      if (data.base) told.push(`base: ${matched(data.base, matches)}`);
    }
    element("matches").textContent = told.join(", ");
  };

  const row = (cells, kind) => {
    const line = document.createElement("tr");
    cells.forEach((cell, index) => {
      const place = document.createElement(kind);
      if (index > 0) place.className = "number";
      place.append(cell);
      line.append(place);
    });
    return line;
  };

  const drawFunctions = () => {
    const now = functionsOf(data.profile), before = data.base && functionsOf(data.base), matches = matcher();
    const names = new Set([...now.functions.keys(), ...(before ? before.functions.keys() : [])]);
    const share = (of, name, key) => { const found = of.functions.get(name); return found && of.all ? found[key] / of.all : 0; };
    const lines = [...names].filter((name) => !matches || matches(name)).map((name) => ({
      name,
      file: (now.functions.get(name) || before.functions.get(name)).file,
      own: share(now, name, "own"),
      total: share(now, name, "total"),
      change: before ? share(now, name, "own") - share(before, name, "own") : 0,
    }));
    const key = state.sort;
    lines.sort((a, b) => Math.abs(b[key]) - Math.abs(a[key]) || (a.name < b.name ? -1 : 1));
    const sorter = (text, by) => {
      const button = document.createElement("button");
      button.textContent = text;
      button.onclick = () => { state.sort = by; drawFunctions(); };
      return button;
    };
    const head = ["Function", sorter("Itself", "own"), sorter("With calls", "total")];
    if (before) head.push(sorter("Itself, change", "change"));
    const body = lines.slice(0, ROWS_OF_TABLE).map((line) => {
      const name = document.createElement("span"), file = document.createElement("small");
      name.append(line.name + " ", file);
      file.textContent = line.file;
      const cells = [name, percent(line.own, 1), percent(line.total, 1)];
      if (before) cells.push((line.change >= 0 ? "+" : "") + (100 * line.change).toFixed(2));
      return row(cells, "td");
    });
    element("functions").replaceChildren(row(head, "th"), ...body);
  };

  const drawShares = (id, head, keyOf) => {
    const sides = data.base ? [data.profile, data.base] : [data.profile];
    const sums = sides.map((side) => {
      const sum = new Map();
      let all = 0;
      for (const [thread, value, stack] of side.stacks) {
        const key = keyOf(side, thread, stack);
        sum.set(key, (sum.get(key) || 0) + value);
        all += value;
      }
      return { sum, all };
    });
    const keys = [...new Set(sums.flatMap(({ sum }) => [...sum.keys()]))];
    keys.sort((a, b) => (sums[0].sum.get(b) || 0) - (sums[0].sum.get(a) || 0));
    const lines = keys.map((key) => row([key || "unknown", ...sums.map(({ sum, all }) => percent(sum.get(key) || 0, all))], "td"));
    element(id).replaceChildren(row([head, "Share", ...(data.base ? ["Base"] : [])], "th"), ...lines);
  };

  const phaseOf = (side, thread, stack) => {
    for (let depth = stack.length - 1; depth >= 0; depth--) {
      const name = side.functions[stack[depth]][0];
      const found = data.phases.find(([, part]) => name.includes(part));
      if (found) return found[0];
    }
    return "other";
  };

  const drawAll = () => { drawGraph(); drawFunctions(); };
  element("title").textContent = data.base ? `${data.profile.title}; base: ${data.base.title}` : data.profile.title;
  document.title = data.profile.title;
  element("notes").textContent = data.profile.notes.join("; ");
  const threads = new Set([...data.profile.threads, ...(data.base ? data.base.threads : [])]);
  for (const name of [...threads].sort()) element("thread").append(new Option(name || "unknown", name));
  element("comparing").hidden = !data.base;
  element("phases-section").hidden = data.phases.length === 0;
  element("search").oninput = (event) => { state.search = event.target.value; drawAll(); };
  element("thread").onchange = (event) => { state.thread = event.target.value; drawAll(); };
  element("reversed").onchange = (event) => { state.reversed = event.target.checked; drawGraph(); };
  element("reset").onclick = () => { state.zoom = []; drawGraph(); };
  addEventListener("resize", drawGraph);
  drawShares("threads", "Thread", (side, thread) => side.threads[thread]);
  drawShares("phases", "Phase", phaseOf);
  drawAll();
})();
