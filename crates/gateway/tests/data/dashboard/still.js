// Replaces the gateway's answers, the clock, the timers and the fonts of a page, so that it looks the same in every run.
//
// `ANSWERS` is answers.json: an answer for each path. Schemas and the session are the gateway's own.

(() => {
  const NOW_MS = Date.UTC(2026, 11, 1, 3);
  const OF_THE_GATEWAY = /^\/v1\/session|^\/apisix\/admin\/(schema\/|plugins\/list)/;
  const LATE_MS = 1000;
  const FONTS = { "--font": '"DejaVu Sans"', "--mono": '"DejaVu Sans Mono"' };

  window.Date = class extends Date {
    constructor(...given) {
      super(...(given.length ? given : [NOW_MS]));
    }
    static now() {
      return NOW_MS;
    }
  };

  // Nothing is polled: a page stays as it is once it is loaded.
  const later = window.setTimeout;
  window.setInterval = () => 0;
  window.setTimeout = (call, ms = 0, ...given) => (ms < LATE_MS ? later(call, ms, ...given) : 0);

  const ask = window.fetch;
  window.fetch = async (path, given) => {
    if (OF_THE_GATEWAY.test(path)) return ask(path, given);
    const answer = ANSWERS[path] ?? ANSWERS[path.split("?")[0]];
    if (!answer) console.error(`answers.json has no answer for ${path}`);
    return new Response(JSON.stringify(answer ?? { error_msg: "no answer" }), { status: answer ? 200 : 404 });
  };

  // Waves, no two of them in step.
  const wave = (t, period, at) => 1 + 0.4 * Math.sin(t / period + at) + 0.2 * Math.sin(t / 7 + at);
  const figures = (t, at, requests) => ({
    requests: Math.round(requests * wave(t, 61, at)),
    client_errors: Math.round(requests * 0.02 * wave(t, 23, at)),
    errors: t % 300 < 40 ? Math.round(requests * 0.1) : 0,
    timed: requests,
    p50: 0.004 * wave(t, 90, at),
    p99: 0.05 * wave(t, 40, at),
    p999: 0.2 * wave(t, 30, at),
    max: 0.4 * wave(t, 20, at),
  });
  const second = (t, followed) => ({
    t,
    ...figures(t, 0, 4000),
    connections: Math.round(900 * wave(t, 200, 1)),
    tunnels: Math.round(140 * wave(t, 300, 2)),
    generation: 74,
    routes: ["orders", "search", "slow", "members", "hostile"].map((id, i) => ({ id, ...figures(t, i, 1500 / (i + 1)) })),
    route: followed && { id: followed, ...figures(t, 3, 1500) },
  });

  window.EventSource = class extends EventTarget {
    static CLOSED = 2;
    readyState = 1;
    constructor(address) {
      super();
      const url = new URL(address, location.href);
      if (url.pathname !== "/v1/live") return;
      const last = NOW_MS / 1000;
      const followed = url.searchParams.get("route");
      const history = Array.from({ length: 900 }, (_, i) => second(last - 900 + i, followed));
      setTimeout(() => this.onmessage?.({ data: JSON.stringify({ metrics: true, history }) }));
    }
    close() {}
  };

  document.addEventListener("DOMContentLoaded", () => {
    for (const [name, font] of Object.entries(FONTS)) document.documentElement.style.setProperty(name, font);
  });
})();
