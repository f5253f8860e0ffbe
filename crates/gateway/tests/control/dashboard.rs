//! The dashboard in Chromium, served by the gateway: every page opens, routes are made and taken back, nothing breaks out.
//!
//! Pictures are written to `target/.../dashboard/`; the good ones are committed for docs/dashboard.md.

use crate::shared::STILLGATE;
use crate::shared::dashboard::chromium::{DARK, DESK, PHONE, Page};
use crate::shared::dashboard::{KEY, admin, gateway, put, sign_in};
use crate::shared::measured::Exposition;
use serde_json::{Value as Json, json};
use std::process::Command;
use std::time::{Duration, Instant};
use stillgate_testkit::{Client, END_PATIENCE, Gateway, Process, Setup, Upstream, eventually};

/// Every page, with the text that shows that it is loaded.
const PAGES: [(&str, &str); 16] = [
    ("/overview", "Requests per second"),
    ("/routes", "routes"),
    ("/routes/shop", "How a request is handled"),
    ("/slow", "requests of the last 15 minutes"),
    ("/explain", "Explain"),
    ("/upstreams", "node"),
    ("/consumers", "rose"),
    ("/consumers/rose", "rose"),
    ("/certificates", "Certificates"),
    ("/fleet", "This is the only node"),
    ("/cardinality", "stillgate_http_requests_total"),
    ("/profiles", "Take profile"),
    ("/lua", "No function in Lua has run"),
    ("/status", "History and audit"),
    ("/resources/services", "Services"),
    ("/edit/routes/shop", "Earlier versions"),
];

/// Texts that become elements, or run, where they are not shown as texts.
pub(crate) const HOSTILE: [&str; 4] = [
    "<img src=x onerror=window.broken=1>",
    "\"><script>window.broken=1</script>",
    "' onmouseover='window.broken=1",
    "<svg onload=window.broken=1>",
];

/// Where metrics are off, a page has one panel that says so, in place of charts and lists that would be empty.
#[test]
fn without_metrics_one_panel_says_so() {
    let keys = format!("  keys: [{{name: admin, key: {KEY}, role: admin}}]\nmetrics: {{enabled: false}}\n");
    let routes = "routes: [{id: own, uri: /own, plugins: {mocking: {response_example: x}}}]\n";
    let gateway = Gateway::start(STILLGATE, &Setup::resources(routes).gateway(&keys));
    let mut page = Page::open(DESK);
    sign_in(&mut page, &gateway);
    let panels = "[...document.querySelectorAll('.empty-title')].filter((it) => it.checkVisibility() && it.innerText === 'Metrics are off').length";
    for (path, unknown, shown) in [
        ("/overview", ["Most errors", "Slowest routes", "Errors per second"], "Requests per second"),
        ("/cardinality", ["failed", "404", "No series"], "gateway.metrics.enabled"),
        ("/routes/own", ["Latency", "5xx", "Requests per second"], "How a request is handled"),
    ] {
        page.visit(path);
        page.until(&format!("{panels} === 1"));
        let text = page.text();
        assert!(text.contains(shown), "{path}: {text}");
        for unknown in unknown {
            assert!(!text.contains(unknown), "{path}: {unknown}: {text}");
        }
    }
}

/// An upstream without nodes and requests that fail are not called healthy.
#[test]
fn what_is_not_served_is_named() {
    let keys = format!("  keys: [{{name: admin, key: {KEY}, role: admin}}]\n");
    let routes = "routes: [{id: own, uri: /own, upstream: {nodes: {\"nowhere.invalid:80\": 1}}}]\n";
    let gateway = Gateway::start(STILLGATE, &Setup::resources(routes).gateway(&keys));
    let mut page = Page::open(DESK);
    sign_in(&mut page, &gateway);
    page.visit("/upstreams");
    page.until("document.body.innerText.includes('no nodes: nowhere.invalid does not resolve')");
    page.until("document.body.innerText.includes('1 upstream without nodes')");
    page.visit("/overview");
    page.until("document.body.innerText.includes('Upstream routes/own: no nodes: nowhere.invalid does not resolve')");
    eventually("the failing requests to be named", || {
        assert_eq!(gateway.get("/own").head.status(), 503);
        page.text().contains("Failing: most requests are answered with an error")
    });
    assert!(!page.text().contains("healthy"), "{}", page.text());
}

/// Without a section `gateway.metrics` they are on. With few requests a second the slowest is shown, and no high percentile.
#[test]
fn of_few_requests_the_slowest_is_shown() {
    let keys = format!("  keys: [{{name: admin, key: {KEY}, role: admin}}]\n");
    let routes = "routes: [{id: own, uri: /own, plugins: {mocking: {response_example: x}}}]\n";
    let gateway = Gateway::start(STILLGATE, &Setup::resources(routes).gateway(&keys));
    let mut page = Page::open(DESK);
    sign_in(&mut page, &gateway);
    let shown = [
        ("/overview", "document.body.innerText.includes('the slowest of')"),
        (
            "/overview",
            "[...document.querySelectorAll('.ranking-about')].some((it) => /max [0-9.,]+ .?s/.test(it.innerText))",
        ),
        (
            "/routes/own",
            "[...document.querySelectorAll('.legend li')].some((it) => /^max[0-9.,]+ .?s$/.test(it.innerText.replaceAll('\\n', '')))",
        ),
        (
            "/routes/own",
            "[...document.querySelectorAll('.legend li')].some((it) => it.innerText.replaceAll('\\n', '') === 'p99–')",
        ),
    ];
    // These are far fewer in a second than a high percentile needs, however late the gateway counts them.
    let mut sent = None;
    for (path, script) in shown {
        page.visit(path);
        eventually(script, || {
            if sent.is_none_or(|sent: Instant| sent.elapsed() > Duration::from_millis(200)) {
                assert_eq!(gateway.get("/own").head.status(), 200);
                sent = Some(Instant::now());
            }
            page.eval(script) == Json::Bool(true)
        });
    }
}

/// Requests of a route that are sent together: what each asks for, the status of the answer, and how many there are.
const ROUND: [(&str, u16, u32); 3] = [("/own", 200, 13), ("/own?x=four", 403, 5), ("/own?x=five", 503, 2)];
/// How long after a round the next one is sent, so that figures of the last minute are of whole rounds.
const ROUND_EVERY: Duration = Duration::from_secs(15);

/// What the page Routes shows of the route `own`: requests, 4xx and 5xx per second, and how many requests the times are of.
const FIGURES: &str = r#"(() => {
    const row = [...document.querySelectorAll('main tbody tr')].find((it) => it.querySelector('a').innerText === 'own');
    const figure = (column) => row?.querySelector(`[data-title="${column}"] .figure`);
    const number = (column) => Number(figure(column)?.innerText);
    const timed = figure('p99')?.title.match(/of ([0-9]+) request/)?.[1];
    return [number('Requests/s'), number('4xx/s'), number('5xx/s'), Number(timed)];
})()"#;

/// The page Routes shows the shares of 4xx and 5xx that the counters of the metrics have, and sorts by its figures.
#[test]
fn figures_of_routes_are_those_of_the_metrics() {
    let keys = format!("  keys: [{{name: admin, key: {KEY}, role: admin}}]\ndebug: {{slow: true}}\n");
    let routes = "routes:\n\
        - {id: own, uri: /own, plugins: {mocking: {response_example: x}, uri-blocker: {block_rules: [four]}, \
        fault-injection: {abort: {http_status: 503, vars: [[[arg_x, '==', five]]]}}}}\n\
        - {id: quiet, uri: /quiet, plugins: {mocking: {response_example: x}}}\n";
    let gateway = Gateway::start(STILLGATE, &Setup::resources(routes).gateway(&keys));
    let mut page = Page::open(DESK);
    sign_in(&mut page, &gateway);
    page.visit("/routes");
    let in_round = ROUND.iter().map(|(_, _, times)| f64::from(*times)).sum::<f64>();
    let (mut rounds, mut sent) = (0.0, None);
    eventually("the page to show figures of whole rounds", || {
        if sent.is_none_or(|sent: Instant| sent.elapsed() > ROUND_EVERY) {
            for (target, status, times) in ROUND {
                (0..times).for_each(|_| assert_eq!(gateway.get(target).head.status(), status));
            }
            (rounds, sent) = (rounds + 1.0, Some(Instant::now()));
        }
        let shown = page.eval(FIGURES);
        let [requests, client_errors, errors, timed] =
            [0_usize, 1, 2, 3].map(|at| shown[at].as_f64().unwrap_or_default());
        let is_share = |part: f64, of_round: f64| (part / requests - of_round / in_round).abs() < 0.01;
        timed > 0.0 && timed % in_round == 0.0 && is_share(client_errors, 5.0) && is_share(errors, 2.0)
    });
    let counted = |labels: &[(&str, &str)]| {
        let text = Client::connect(gateway.admin_addr()).get(&format!("/metrics?api_key={KEY}")).body;
        Exposition(String::from_utf8(text).expect("UTF-8")).sum("stillgate_http_requests_total", labels)
    };
    eventually("all requests to be counted", || counted(&[("route", "own")]) == rounds * in_round);
    let by_code = ["403", "503"].map(|code| counted(&[("route", "own"), ("code", code)]));
    assert_eq!(by_code, [5.0 * rounds, 2.0 * rounds]);

    // Routes without requests come last.
    let first = |id: &str| format!("document.querySelector('main tbody a').innerText === '{id}'");
    page.click("main th button", "Requests/s");
    page.until("location.hash === '#/routes?sort=requests&order=desc'");
    page.until("document.querySelector('main th[aria-sort=descending]').innerText.includes('Requests/s')");
    page.until(&first("own"));
    page.click("main th button", "Route");
    page.click("main th[aria-sort=ascending] button", "Route");
    page.until("location.hash === '#/routes?sort=id&order=desc'");
    page.until(&first("quiet"));
    page.visit("/routes?status=off");
    page.until("document.querySelector('main').innerText.includes('No route matches')");

    // From the slowest route to what its requests waited for.
    page.visit("/overview");
    eventually("the slowest route", || {
        assert_eq!(gateway.get("/own").head.status(), 200);
        page.eval("document.querySelector('.ranking a[href=\"#/slow?route=own\"]')?.checkVisibility()") == true
    });
    page.visit("/slow?route=own");
    page.until("document.querySelector('main details.slow')?.innerText.includes('/own')");
    page.assert_calm("figures of routes");
}

/// Paths of slow requests are texts. A row opens, and where nothing is recorded the page names the key.
#[test]
fn slow_requests_say_what_they_waited_for() {
    let (gateway, _node) = full();
    let raw = "/h1/<img/src=x/onerror=window.broken=1>";
    assert_eq!(gateway.get(raw).head.status(), 200);
    let mut page = Page::open(DESK);
    sign_in(&mut page, &gateway);
    page.visit("/slow");
    page.until(&format!("document.querySelector('main .slow-list').innerText.includes({})", json!(raw)));
    page.eval("document.querySelector('details.slow summary').click()");
    page.until("document.querySelector('.slow-body').innerText.includes('Longest turn of its event loop')");
    page.visit("/slow?order=minute&route=h1");
    page.until("document.querySelectorAll('main details.slow').length === 1");
    page.until("document.querySelector('main h2').innerText.match(/^[0-9]{2}:[0-9]{2}$/)");
    page.visit("/slow?route=%3Cimg%20src=x%20onerror=window.broken=1%3E&cause=constructor");
    page.until("document.querySelector('main').innerText.includes('No slow request matches')");
    let broken = "window.broken !== undefined || document.querySelectorAll('main img, main script').length > 0";
    assert_eq!(page.eval(broken), false, "something broke out");
    page.assert_calm("slow requests");

    let keys = format!("  keys: [{{name: admin, key: {KEY}, role: admin}}]\ndebug: {{slow: false}}\n");
    let gateway = Gateway::start(STILLGATE, &Setup::resources("").gateway(&keys));
    sign_in(&mut page, &gateway);
    page.visit("/slow");
    page.until("document.querySelector('main').innerText.includes('gateway.debug.slow is false')");
}

/// A gateway with resources of every kind, most of them with a hostile name.
fn full() -> (Gateway, Upstream) {
    let gateway = gateway();
    let node = Upstream::echo();
    put(
        &gateway,
        "upstreams/u",
        &json!({ "nodes": { node.addr().to_string(): 1 }, "name": HOSTILE[0], "desc": HOSTILE[1] }),
    );
    put(&gateway, "services/s", &json!({ "name": HOSTILE[1], "upstream_id": "u", "plugins": { "cors": {} } }));
    put(
        &gateway,
        "consumers/rose",
        &json!({ "username": "rose", "desc": HOSTILE[0], "plugins": { "key-auth": { "key": HOSTILE[2] } } }),
    );
    let credential = json!({ "name": HOSTILE[0], "plugins": { "key-auth": { "key": "another" } } });
    put(&gateway, "consumers/rose/credentials/one", &credential);
    for (index, name) in HOSTILE.iter().enumerate() {
        let route = json!({ "name": name, "desc": name, "labels": { "x": name.replace(' ', "/") }, "uri": format!("/h{index}/*"), "service_id": "s" });
        put(&gateway, &format!("routes/h{index}"), &route);
        let plugins = json!({ "response-rewrite": { "body": name, "headers": { "set": { "X-A": name } } } });
        let texts = json!({ "uri": format!("/t{index}"), "upstream_id": "u", "vars": [["http_x", "==", name]], "plugins": plugins });
        put(&gateway, &format!("routes/t{index}"), &texts);
    }
    let plugins = json!({ "key-auth": {}, "limit-count": { "count": 100, "time_window": 60, "rejected_code": 429 } });
    put(&gateway, "routes/shop", &json!({ "name": "shop", "uri": "/shop/*", "upstream_id": "u", "plugins": plugins }));
    put(&gateway, "routes/off", &json!({ "name": "off", "uri": "/off", "upstream_id": "u", "status": 0 }));
    gateway.get("/h0/%3Cimg%20src=x%20onerror=window.broken=1%3E");
    gateway.get("/nothing/%22%3E%3Cscript%3Ewindow.broken=1%3C/script%3E");
    (gateway, node)
}

#[test]
fn every_page_opens_and_nothing_breaks_out() {
    let (gateway, _node) = full();
    let mut page = Page::open(DESK);
    sign_in(&mut page, &gateway);
    for (look, suffix) in [(DESK, ""), (DARK, "-dark"), (PHONE, "-phone")] {
        page.look(look);
        for (path, said) in PAGES {
            page.visit(path);
            page.until(&format!(
                "document.querySelector('main').innerText.toLowerCase().includes({})",
                json!(said.to_lowercase())
            ));
            page.picture(&format!("{}{suffix}", path[1..].replace('/', "-")));
            let broken = "window.broken !== undefined || document.querySelectorAll('main img, main script, main iframe').length > 0";
            assert_eq!(page.eval(broken), false, "{path}: something broke out");
            let wide = page.eval("document.documentElement.scrollWidth - innerWidth");
            assert!(wide.as_f64().is_some_and(|wide| wide <= 1.0), "{path}{suffix}: the page is {wide} px too wide");
            page.assert_named(&format!("{path}{suffix}"));
            page.assert_calm(&format!("{path}{suffix}"));
        }
    }
    page.look(DESK);
    page.visit("/routes");
    for name in HOSTILE {
        page.until(&format!("document.querySelector('main').innerText.includes({})", json!(name)));
    }
    page.visit("/routes?search=status-that-nothing-has");
    page.until("document.querySelector('main').innerText.includes('No route matches')");
}

/// The label of a field of the form.
fn label(name: &str) -> String {
    let name = json!(name);
    format!("[...document.querySelectorAll('.schema-form label')].find((one) => one.textContent === {name})")
}

/// Id, path, name, and the node in place of the one that a new route begins with.
fn make_by_form(page: &mut Page, node: &Upstream) {
    page.visit("/new/routes");
    page.fill("#new-id", "made");
    for (name, value) in [("uri", "/made"), ("name", "by form")] {
        page.mark(&format!("document.getElementById({}.htmlFor)", label(name)), name);
        page.fill(&format!("[data-test={name}]"), value);
    }
    page.mark(
        "[...document.querySelectorAll('.schema-form input')].find((one) => one.value === '127.0.0.1:8080')",
        "node",
    );
    page.fill("[data-test=node]", &node.addr().to_string());
    page.press("Tab");
    page.until(&format!("document.querySelector('.editor textarea').value.includes('{}')", node.addr()));
    page.click("button", "Review and create");
    page.until("document.querySelector('dialog[open]').innerText.includes(' added, ')");
    page.picture("dry-run");
    page.click("dialog[open] button[type=submit]", "Create");
    page.until("location.hash === '#/routes/made'");
    page.settle();
}

#[test]
fn a_route_is_made_by_the_form_edited_as_text_rolled_back_and_deleted() {
    let gateway = gateway();
    let node = Upstream::echo();
    put(&gateway, "upstreams/u", &json!({ "nodes": { node.addr().to_string(): 1 } }));
    let mut page = Page::open(DESK);
    sign_in(&mut page, &gateway);
    assert_eq!(gateway.get("/made").head.status(), 404);

    make_by_form(&mut page, &node);
    assert_eq!(gateway.get("/made").head.status(), 200, "the page says it when every worker serves it");

    // Selects by text.
    page.visit("/new/routes");
    page.fill("#new-id", "typed");
    page.fill(".editor textarea", r#"{"uri": "/typed", "upstream_id": "u"}"#);
    page.click("button", "Review and create");
    page.click("dialog[open] button[type=submit]", "Create");
    page.until("location.hash === '#/routes/typed'");
    page.settle();
    assert_eq!(gateway.get("/typed").head.status(), 200);

    // The dry run refuses invalid input.
    page.visit("/edit/routes/made");
    page.fill(".editor textarea", r#"{"uri": "/a/**", "upstream_id": "u"}"#);
    page.click("button", "Review and save");
    page.until("document.querySelector('dialog[open]').innerText.includes(\"'*'\")");
    page.forget();
    page.click("dialog[open] button", "Cancel");
    page.fill(".editor textarea", r#"{"uri": "/edited", "upstream_id": "u", "name": "as text"}"#);
    page.click("button", "Review and save");
    page.click("dialog[open] button[type=submit]", "Save");
    // Until it says so, leaving the page would show the prompt about unsaved changes.
    page.until("document.querySelector('#toasts').innerText.includes('Saved.')");
    eventually("the edited route", || gateway.get("/edited").head.status() == 200);
    assert_eq!(gateway.get("/made").head.status(), 404);

    // Back to the revision that made it.
    let (_, history) = admin(&gateway, "GET", "/v1/history", &Json::Null);
    let revision = history["changes"][2]["revision"].clone();
    page.visit(&format!("/history/{revision}"));
    page.until("document.querySelector('main').innerText.includes('routes/made was created')");
    page.click("main button", "Roll back to this");
    page.click("dialog[open] button[type=submit]", "Roll back");
    page.until("location.hash.startsWith('#/status')");
    page.settle();
    page.until("document.querySelector('main').innerText.includes('rolled back by admin')");
    eventually("the former route", || gateway.get("/made").head.status() == 200);
    assert_eq!(gateway.get("/typed").head.status(), 404, "it came later");

    page.visit("/routes/made");
    page.click("main button", "Delete");
    page.click("dialog[open] button[type=submit]", "Delete");
    page.until("location.hash === '#/routes'");
    eventually("the route to be gone", || gateway.get("/made").head.status() == 404);
    page.assert_calm("making and deleting");
}

#[test]
fn a_consumer_is_found_and_deleted_with_its_credentials() {
    let (gateway, _node) = full();
    put(&gateway, "consumers/lily", &json!({ "username": "lily" }));
    let mut page = Page::open(DESK);
    sign_in(&mut page, &gateway);
    page.visit("/consumers?search=rose");
    page.until("document.querySelectorAll('main tbody tr').length === 1");
    page.until("document.querySelector('main tbody').innerText.includes('rose')");
    page.visit("/consumers/rose");
    page.click("main header button", "Delete");
    page.click("dialog[open] button[type=submit]", "Delete");
    page.until("location.hash === '#/consumers'");
    page.settle();
    page.until("document.querySelector('main tbody').innerText.includes('lily')");
    assert!(!page.text().contains("rose"), "{}", page.text());
    for gone in ["rose", "rose/credentials/one"] {
        assert_eq!(admin(&gateway, "GET", &format!("/apisix/admin/consumers/{gone}"), &Json::Null).0, 404, "{gone}");
    }
    page.assert_calm("deleting a consumer");
}

#[test]
fn the_keyboard_is_enough() {
    let (gateway, _node) = full();
    let mut page = Page::open(DESK);
    page.navigate(&format!("http://{}/ui/", gateway.admin_addr()));
    page.until("document.activeElement.id === 'key'");
    page.type_text(KEY);
    page.press("Enter");
    page.until("document.querySelector('.side a')");
    page.settle();
    page.tab_to("at.getAttribute('href') === '#/routes'");
    page.press("Enter");
    page.until("location.hash === '#/routes'");
    // The address changes before the page does.
    page.until("document.querySelector('[data-search]')");
    page.settle();
    page.press("/");
    page.until("document.activeElement.matches('[data-search]')");
    page.type_text("shop");
    page.until("document.querySelectorAll('main tbody tr').length === 1");
    page.tab_to("at.getAttribute('href') === '#/routes/shop'");
    page.press("Enter");
    page.until("location.hash === '#/routes/shop'");
    page.settle();
    page.tab_to("at.textContent === 'Edit'");
    page.press("Enter");
    page.until("location.hash === '#/edit/routes/shop'");
    page.settle();
    page.tab_to("at.tagName === 'INPUT' && at.closest('.schema-form')");
    page.type_text("!");
    page.tab_to("at.textContent === 'Review and save'");
    page.press("Enter");
    page.until("document.querySelector('dialog[open]')");
    page.press("Escape");
    page.until("!document.querySelector('dialog[open]')");
    // The focused element is visible.
    page.press("Tab");
    let seen = "getComputedStyle(document.activeElement).outlineStyle !== 'none' || getComputedStyle(document.activeElement).boxShadow !== 'none'";
    assert_eq!(page.eval(seen), true, "the focus is seen");
}

#[test]
fn with_a_file_pages_are_read_only_and_say_how_to_edit() {
    let node = Upstream::echo();
    let setup = Setup::to(node.addr()).route("name: from a file\nplugins: {cors: {}}\n");
    let gateway = Gateway::start(STILLGATE, &setup);
    let mut page = Page::open(DESK);
    // Without a key, loopback may read.
    page.navigate(&format!("http://{}/ui/", gateway.admin_addr()));
    page.until("document.querySelector('.side a')");
    page.visit("/routes");
    page.until("document.querySelector('main').innerText.includes('from a file')");
    let text = page.text();
    assert!(text.contains("Read-only") && text.contains("stillgate.yaml"), "{text}");
    assert!(!text.contains("New route"), "{text}");
    page.visit("/routes/all");
    page.until("document.querySelector('main').innerText.includes('cors')");
    assert!(!page.text().contains("Delete"));
    page.assert_calm("the routes of a file");
    page.visit("/overview");
    gateway.get("/");
    page.visit("/status");
    page.until("document.querySelector('main').innerText.includes('no history')");
    page.assert_calm("overview and status of a file");
}

#[test]
fn the_demo_has_something_to_show() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut command = Command::new(STILLGATE);
    let mut demo = Process::spawn("stillgate demo", command.arg("demo"), &folder.path().join("log"));
    let mut link = None;
    eventually("the link", || {
        assert!(demo.ended().is_none(), "the demo ended");
        let log = demo.log();
        link = log.split_ascii_whitespace().find(|word| word.contains("/ui/#")).map(str::to_owned);
        log.contains("Ctrl-C ends it.\n")
    });
    let link = link.expect("a link");
    let authority = link.trim_start_matches("http://").split('/').next().expect("an authority").to_owned();
    let mut page = Page::open(DESK);
    page.measure_overview();
    page.navigate(&link);
    page.until("document.querySelector('.side a')");
    assert_eq!(page.eval("location.hash"), "#/overview", "the token leaves the address");
    page.until("document.querySelector('.verdict-words').innerText.includes('requests per second')");
    page.until("document.querySelectorAll('.ranking li:not([hidden])').length > 3");
    page.assert_calm("the overview of the demo");
    page.picture("demo-overview");

    let rejected = page.eval("fetch('/v1/status').then((answer) => answer.json()).then(({ rejected }) => rejected)");
    assert_eq!(rejected, json!([]), "all of the demo is served");

    // The link signs in once.
    let used = Client::connect(authority.parse().expect("an address")).request(
        "POST",
        "/v1/session",
        json!({ "token": link.split('#').nth(1) }).to_string().as_bytes(),
    );
    assert_eq!(used.head.status(), 401);

    page.visit("/routes/orders");
    page.until("document.querySelector('main').innerText.includes('service shop, ') || document.querySelector('main').innerText.includes('service shop')");
    page.until("document.querySelector('main').innerText.includes('global rule everywhere')");
    page.picture("demo-route");
    for path in ["/routes", "/explain", "/upstreams", "/cardinality", "/status", "/edit/routes/orders"] {
        page.visit(path);
        page.picture(&format!("demo{}", path.replace('/', "-")));
        page.assert_calm(path);
    }

    // Measurements without a limit: first paint, and the time until the Overview is shown.
    page.navigate(&format!("http://{authority}/ui/"));
    page.until("window.overview_shown_ms");
    let paint = page.eval("performance.getEntriesByName('first-contentful-paint')[0]?.startTime");
    let shown = page.eval("window.overview_shown_ms");
    println!("Overview in Chromium on loopback: first contentful paint {paint} ms, its page {shown} ms");
    demo.signal("INT");
    assert!(demo.wait_within(END_PATIENCE).success(), "Ctrl-C ends it cleanly");
}
