//! What pages of the dashboard say of nodes, consumers, labels and the fleet, in Chromium: it is what was sent, and it is text.

use crate::dashboard::HOSTILE;
use crate::shared::STILLGATE;
use crate::shared::dashboard::chromium::{DESK, Page};
use crate::shared::dashboard::{admin, gateway, put, sign_in};
use serde_json::{Value as Json, json};
use stillgate_testkit::{Gateway, Setup, Upstream, eventually};

/// Whether the page has a text, which may be for screen readers only.
fn has(text: &str) -> String {
    format!("document.querySelector('main').textContent.includes({})", json!(text))
}

/// Answers a page's requests to some addresses with JavaScript expressions; `passed` is the time in seconds since the first answer.
fn answer_instead(page: &mut Page, answers: &[(&str, String)]) {
    let cases: String = answers.iter().map(|(path, answer)| format!("{}: () => ({answer}),", json!(path))).collect();
    page.run_first(&format!(
        "(() => {{ \
           const ask = window.fetch; \
           let first = 0, passed = 0; \
           const answers = {{ {cases} }}; \
           window.fetch = async (path, given) => {{ \
             const answer = answers[path.split('?')[0]]; \
             if (!answer) return ask(path, given); \
             first ||= performance.now(); \
             passed = (performance.now() - first) / 1000; \
             return new Response(JSON.stringify(answer())); \
           }}; \
         }})()"
    ));
}

/// A node as `/v1/upstreams` lists it, with counters.
fn endpoint(address: &str, state: &str, counters: &Json) -> Json {
    let mut endpoint = json!({
        "address": address, "host": address, "weight": 1, "priority": 0, "state": state, "active_checks": null,
        "set_aside": [], "requests_in_flight": 0, "idle_connections": 0, "out_reason": null,
    });
    for (name, value) in counters.as_object().expect("a map") {
        endpoint[name] = value.clone();
    }
    endpoint
}

#[test]
fn the_requests_and_errors_of_a_node_are_those_that_were_sent() {
    let gateway = gateway();
    let (node, gone) = (Upstream::echo(), Upstream::refusing());
    let nodes = |addr: std::net::SocketAddr| json!({ addr.to_string(): 1 });
    put(&gateway, "upstreams/shop", &json!({ "name": "Nodes of the shop", "nodes": nodes(node.addr()) }));
    let failures = json!({ "interval": 1, "tcp_failures": 1, "http_failures": 1 });
    let active = json!({ "http_path": "/", "healthy": { "interval": 1 }, "unhealthy": failures });
    put(&gateway, "upstreams/gone", &json!({ "nodes": nodes(gone.addr()), "checks": { "active": active } }));
    put(&gateway, "routes/shop", &json!({ "uri": "/shop", "upstream_id": "shop" }));
    put(&gateway, "routes/gone", &json!({ "uri": "/gone", "upstream_id": "gone" }));
    for request in 0..20 {
        let status = if request % 5 == 0 { 503 } else { 200 };
        assert_eq!(gateway.get(&format!("/shop?status={status}")).head.status(), status);
    }
    let mut page = Page::open(DESK);
    sign_in(&mut page, &gateway);
    page.visit("/upstreams");
    page.until(&has("Nodes of the shop"));
    page.eval("[...document.querySelectorAll('.upstream details')].forEach((one) => (one.open = true))");
    page.until(&has("20 requests, 4 errors since the start"));
    // The node that is out is named first, with the reason that the gateway gives.
    let mut reason = None;
    eventually("a reason", || {
        let (_, answer) = admin(&gateway, "GET", "/v1/upstreams", &Json::Null);
        let upstreams = answer["upstreams"].as_array().expect("a list");
        let upstream = upstreams.iter().find(|upstream| upstream["id"] == "gone").expect("it is listed");
        reason = upstream["endpoints"][0]["out_reason"].as_str().map(str::to_owned);
        reason.is_some()
    });
    let sentence = format!("{} of gone gets no requests: {}", gone.addr(), reason.expect("a reason"));
    page.until(&format!("document.querySelector('.verdict').innerText.includes({})", json!(sentence)));
    page.assert_calm("the figures of nodes");
}

#[test]
fn rates_are_what_the_counters_gain_in_a_second() {
    let gateway = gateway();
    let steady = endpoint("10.0.0.1:80", "healthy", &json!({}));
    let fresh = endpoint("10.0.0.2:80", "healthy", &json!({}));
    let upstreams = format!(
        "{{ silent_workers: [], upstreams: [{{ id: 'u', name: null, type: 'roundrobin', requests_waiting: 0, unresolved: [], endpoints: [ \
           {{ ...{steady}, requests_total: 900 + 50 * passed, errors_total: 5 * passed, response_seconds_total: passed }}, \
           {{ ...{fresh}, requests_total: 900 - 50 * passed, errors_total: 0, response_seconds_total: passed }} ] }}] }}"
    );
    let mut page = Page::open(DESK);
    answer_instead(&mut page, &[("/v1/upstreams", upstreams)]);
    sign_in(&mut page, &gateway);
    page.visit("/upstreams");
    let rows = "[...document.querySelectorAll('.node')].map((row) => row.innerText.replaceAll('\\n', ' '))";
    page.until(&format!("{rows}.some((row) => row.includes('10 % errors') && row.includes('20 ms'))"));
    let rate = format!("{rows}.find((row) => row.includes('10 % errors')).match(/([0-9.]+)\\/s/)[1]");
    page.until(&format!("Math.abs({rate} - 50) < 5"));
    // A counter that fell says that the workers were replaced, and nothing of the traffic.
    assert_eq!(page.eval(&format!("{rows}.some((row) => row.includes('10.0.0.2') && row.includes('/s'))")), false);
    page.until("document.querySelector('.verdict').innerText.includes('10.0.0.1:80 of u: 10 % of the requests end in errors.')");
}

#[test]
fn a_consumer_is_seen_once_it_has_sent_a_request() {
    let gateway = gateway();
    let node = Upstream::echo();
    let plugins = |key: &str| json!({ "key-auth": { "key": key } });
    put(&gateway, "consumers/rose", &json!({ "username": "rose", "plugins": plugins("rose-key") }));
    put(&gateway, "consumers/lily", &json!({ "username": "lily", "plugins": plugins("lily-key") }));
    let upstream = json!({ "nodes": { node.addr().to_string(): 1 } });
    put(&gateway, "routes/shop", &json!({ "uri": "/shop", "plugins": { "key-auth": {} }, "upstream": upstream }));
    for _ in 0..5 {
        assert_eq!(gateway.get("/shop?apikey=rose-key").head.status(), 200);
    }
    let mut page = Page::open(DESK);
    sign_in(&mut page, &gateway);
    page.visit("/consumers");
    let row = |name: &str| {
        format!(
            "[...document.querySelectorAll('main tbody tr')].find((row) => row.innerText.includes('{name}')).innerText"
        )
    };
    page.until(&format!("{}.includes('5 in total') && {}.includes('shop')", row("rose"), row("rose")));
    page.until(&format!("{}.includes('not seen since the start')", row("lily")));
    page.visit("/consumers/rose");
    page.until("document.querySelector('main').innerText.includes('Since the start\\n5')");
    // A consumer without credentials: the list of them is answered 404.
    page.forget();
}

#[test]
fn hostile_names_of_nodes_consumers_labels_and_hosts_are_texts() {
    let gateway = gateway();
    let long = "x".repeat(300);
    let names: Vec<&str> = HOSTILE.iter().copied().chain([long.as_str(), "\u{202e}gnp.exe"]).collect();
    let counters = json!({ "requests_total": 1, "errors_total": 0, "response_seconds_total": 0.1 });
    let upstream = |name: &&str| {
        let mut out = endpoint(name, "unhealthy", &counters);
        out["out_reason"] = json!(name);
        let unresolved = [json!({ "name": name, "reason": name })];
        json!({ "id": name, "name": name, "type": name, "requests_waiting": 0, "endpoints": [out], "unresolved": unresolved })
    };
    let upstreams = json!({ "silent_workers": [], "upstreams": names.iter().map(upstream).collect::<Vec<_>>() });
    let seen = |name: &&str| {
        let routes = [json!({ "id": name, "requests_total": 1 })];
        json!({ "name": name, "last_seen_unix_s": 1_700_000_000, "requests": 1.0, "errors": 1.0, "requests_total": 1,
                "routes_total": 1, "routes": routes })
    };
    let consumers = json!({ "known": true, "since_unix_s": 1_700_000_000, "total": names.len(),
                            "list": names.iter().map(seen).collect::<Vec<_>>() });
    let document = |name: &&str| {
        json!({ "key": format!("/apisix/consumers/{name}"), "modifiedIndex": 1,
                "value": { "username": name, "desc": name, "labels": { *name: name }, "group_id": name } })
    };
    let documents = json!({ "total": names.len(), "list": names.iter().map(document).collect::<Vec<_>>() });
    let family = |name: &&str| {
        let label = json!({ "name": name, "distinct": 9, "collapsed": true, "exploding": true, "samples": [name], "key": name });
        json!({ "name": name, "series": 9, "bytes": 9, "labels": [label], "examples": [{ *name: name }] })
    };
    let cardinality = json!({ "families": names.iter().map(family).collect::<Vec<_>>() });
    let node = |name: &&str| {
        let rejected = [json!({ "kind": "routes", "id": name, "reason": name })];
        json!({ "id": name, "hostname": name, "version": name, "is_self": false, "product": "stillgate", "revision": 40,
                "generation": 1, "rejected": rejected, "rejected_total": 1, "started_unix_s": 1_700_000_000,
                "reported_unix_s": 1_700_000_000, "state": "behind" })
    };
    let fleet = json!({ "source": "etcd", "revision": 42, "nodes": names.iter().map(node).collect::<Vec<_>>() });
    let mut page = Page::open(DESK);
    let answers = [
        ("/v1/upstreams", upstreams.to_string()),
        ("/v1/consumers", consumers.to_string()),
        ("/apisix/admin/consumers", documents.to_string()),
        ("/v1/metrics/cardinality", cardinality.to_string()),
        ("/v1/fleet", fleet.to_string()),
    ];
    answer_instead(&mut page, &answers);
    sign_in(&mut page, &gateway);
    // Of characters that reorder a text, their numbers are shown.
    let shown: Vec<&str> = HOSTILE.iter().copied().chain(["xxxxxxxxxx", "\\u202egnp.exe"]).collect();
    for path in ["/upstreams", "/consumers", "/cardinality", "/fleet"] {
        page.visit(path);
        for text in &shown {
            page.until(&has(text));
        }
        page.eval("[...document.querySelectorAll('main details')].forEach((one) => (one.open = true))");
        let broken =
            "window.broken !== undefined || document.querySelectorAll('main img, main script, main iframe').length > 0";
        assert_eq!(page.eval(broken), false, "{path}: something broke out");
        let wide = page.eval("document.documentElement.scrollWidth - innerWidth");
        assert!(wide.as_f64().is_some_and(|wide| wide <= 1.0), "{path}: the page is {wide} px too wide");
        page.assert_named(path);
        page.assert_calm(path);
    }
}

/// The verdict of the page about labels, and what to write; its former address leads there, too.
#[test]
fn the_label_that_explodes_is_named_with_what_to_write() {
    let gateway = gateway();
    let key = "gateway.metrics.labels.http_requests_total: leave out `uri`";
    let label = |name: &str, distinct: u64, key: Option<&str>| {
        let exploding = key.is_some();
        json!({ "name": name, "distinct": distinct, "collapsed": false, "exploding": exploding, "samples": [], "key": key })
    };
    let family = json!({
        "name": "stillgate_http_requests_total", "series": 9, "bytes": 9,
        "labels": [label("route", 9, None), label("uri", 310_412, Some(key))],
        "examples": [{ "route": "shop", "uri": "/items/8231" }],
    });
    let cardinality = json!({ "families": [family] });
    let mut page = Page::open(DESK);
    answer_instead(&mut page, &[("/v1/metrics/cardinality", cardinality.to_string())]);
    sign_in(&mut page, &gateway);
    page.visit("/metrics");
    page.until(&has("uri of stillgate_http_requests_total explodes: about 310,412 values"));
    page.until(&has("{route=\"shop\", uri=\"/items/8231\"}"));
    page.until(&format!("document.querySelector('.copyable code').innerText === {}", json!(key)));
    page.until("document.title.startsWith('Cardinality')");
    page.until("document.querySelector('.side [aria-current]').textContent === 'Cardinality'");
    page.click(".copyable button", "Copy");
    page.until("['Copied', 'Selected'].includes(document.querySelector('.copyable button').textContent)");
}

#[test]
fn a_node_that_is_behind_is_named() {
    let gateway = gateway();
    let node = |name: &str, revision: u64, state: &str| {
        json!({ "id": name, "hostname": name, "version": "0.1.0", "is_self": name == "a", "product": "stillgate",
                "revision": revision, "generation": 1, "rejected": [], "rejected_total": 0,
                "started_unix_s": 1_700_000_000, "reported_unix_s": 1_700_000_000, "state": state })
    };
    let mut apisix = node("old", 0, "unknown");
    (apisix["product"], apisix["revision"]) = (json!("apisix"), Json::Null);
    let fleet = |nodes: &[Json]| json!({ "source": "etcd", "revision": 42, "nodes": nodes });
    let some = fleet(&[node("a", 42, "ok"), node("b", 40, "behind"), node("c", 42, "ok"), apisix]);
    let all = fleet(&[node("a", 42, "ok"), node("b", 42, "ok"), node("c", 42, "ok")]);
    let mut page = Page::open(DESK);
    answer_instead(&mut page, &[("/v1/fleet", format!("window.is_updated ? {all} : {some}"))]);
    sign_in(&mut page, &gateway);
    page.visit("/fleet");
    for sentence in [
        "2 of 3 nodes serve revision 42.",
        "b serves revision 40, 2 behind.",
        "1 APISIX node on the same etcd does not report its revision.",
    ] {
        page.until(&has(sentence));
    }
    // The page asks again by itself.
    page.eval("window.is_updated = true");
    page.until(&has("All 3 nodes serve revision 42."));
    page.assert_calm("the fleet");
}

#[test]
fn resources_of_a_file_are_listed_read_only() {
    let node = Upstream::echo();
    let resources = format!(
        "routes: [{{id: whole-shop, uri: /*, service_id: s}}]\n\
         services: [{{id: s, name: from the file, upstream: {{nodes: {{\"{}\": 1}}}}}}]\n\
         consumers: [{{username: rose, plugins: {{key-auth: {{key: hidden-key}}}}}}]\n\
         global_rules: [{{id: everywhere, plugins: {{request-id: {{}}}}}}]\n",
        node.addr()
    );
    let gateway = Gateway::start(STILLGATE, &Setup::resources(resources));
    let mut page = Page::open(DESK);
    // Without a key, loopback may read.
    page.navigate(&format!("http://{}/ui/", gateway.admin_addr()));
    page.until("document.querySelector('.side a')");
    for (path, shown) in [
        ("/resources/services", "from the file"),
        ("/resources/global_rules", "everywhere"),
        ("/resources/routes", "whole-shop"),
        ("/resources/protos", "There is no proto"),
        ("/consumers", "rose"),
        ("/consumers/rose", "Document"),
        ("/edit/services/s", "The service s"),
        ("/fleet", "This is the only node."),
    ] {
        page.visit(path);
        page.until(&format!("document.querySelector('main').innerText.includes({})", json!(shown)));
        let text = page.text();
        assert!(path == "/fleet" || text.contains("stillgate.yaml"), "{path} names no file: {text}");
        for word in ["New ", "Delete", "Review and", "hidden-key"] {
            assert!(!text.contains(word), "{path} has {word:?}: {text}");
        }
    }
}
