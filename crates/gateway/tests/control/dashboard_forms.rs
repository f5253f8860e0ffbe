//! The dashboard's forms in Chromium, except those of routes: every kind is made and deleted, conflicts are reported, a viewer
//! reads.

use crate::shared::STILLGATE;
use crate::shared::dashboard::chromium::{DESK, Page};
use crate::shared::dashboard::{KEY, admin, put, sign_in, sign_in_with};
use serde_json::{Value as Json, json};
use stillgate_testkit::{Gateway, Setup, Upstream, eventually};

const VIEWER_KEY: &str = "a-viewer-key-for-tests";

/// More times than a browser has connections to one address.
const TIMES_LEFT: usize = 8;

fn gateway() -> Gateway {
    let lines = format!(
        "  keys: [{{name: admin, key: {KEY}, role: admin}}, {{name: guest, key: {VIEWER_KEY}, role: viewer}}]\n\
         config: {{source: store, store: \"{{dir}}/config.redb\"}}\n"
    );
    Gateway::start(STILLGATE, &Setup::resources("").gateway(&lines))
}

/// A kind, the id that is typed in (none: the document has it), the resource it becomes, and its document.
struct FormCase {
    kind: &'static str,
    id: &'static str,
    resource: &'static str,
    document: Json,
}

fn every_kind(node: &str) -> Vec<FormCase> {
    let made = |kind, id, resource, document| FormCase { kind, id, resource, document };
    let nodes = json!({ "type": "roundrobin", "nodes": { node: 1 } });
    let made_pair = rcgen::generate_simple_self_signed(["shop.example".to_owned()]).expect("a certificate");
    let (cert, key) = (made_pair.cert.pem(), made_pair.signing_key.serialize_pem());
    vec![
        made("upstreams", "u", "upstreams/u", nodes.clone()),
        made("services", "s", "services/s", json!({ "name": "s", "upstream_id": "u" })),
        made(
            "consumer_groups",
            "g",
            "consumer_groups/g",
            json!({ "plugins": { "limit-count": { "count": 9, "time_window": 9 } } }),
        ),
        made("consumers", "", "consumers/rose", json!({ "username": "rose", "group_id": "g" })),
        made(
            "consumers/rose/credentials",
            "c",
            "consumers/rose/credentials/c",
            json!({ "plugins": { "key-auth": { "key": "k" } } }),
        ),
        made("plugin_configs", "p", "plugin_configs/p", json!({ "plugins": { "cors": {} } })),
        made("global_rules", "r", "global_rules/r", json!({ "plugins": { "request-id": {} } })),
        made(
            "plugin_metadata",
            "http-logger",
            "plugin_metadata/http-logger",
            json!({ "log_format": { "host": "$host" } }),
        ),
        made("ssls", "t", "ssls/t", json!({ "snis": ["shop.example"], "cert": cert, "key": key })),
        made("stream_routes", "x", "stream_routes/x", json!({ "upstream": nodes, "remote_addr": "10.9.9.9" })),
        made(
            "secrets",
            "vault/v",
            "secrets/vault/v",
            json!({ "uri": "http://127.0.0.1:8200", "prefix": "kv", "token": "t" }),
        ),
        made("protos", "o", "protos/o", json!({ "content": "syntax = \"proto3\"; message A { string a = 1; }" })),
    ]
}

#[test]
fn every_kind_is_made_and_deleted_by_its_page() {
    let gateway = gateway();
    let node = Upstream::echo();
    let mut page = Page::open(DESK);
    sign_in(&mut page, &gateway);
    let all = every_kind(&node.addr().to_string());
    for FormCase { kind, id, resource, document } in &all {
        page.visit(&format!("/new/{kind}"));
        if !id.is_empty() {
            page.fill("#new-id", id);
        }
        page.fill(".editor textarea", &document.to_string());
        page.picture(&format!("new-{}", kind.replace('/', "-")));
        page.click("button", "Review and create");
        page.until("document.querySelector('dialog[open]').innerText.includes(' added, ')");
        page.click("dialog[open] button[type=submit]", "Create");
        page.until("!document.querySelector('dialog[open]') && !location.hash.startsWith('#/new/')");
        page.settle();
        let (status, stored) = admin(&gateway, "GET", &format!("/apisix/admin/{resource}"), &Json::Null);
        assert_eq!(status, 200, "{resource}: {stored}");
        // Its own fields come back, except for secrets, which are masked.
        for (name, value) in document.as_object().expect("an object") {
            let is_secret = ["key", "token", "plugins"].contains(&name.as_str());
            assert!(is_secret || stored["value"][name] == *value, "{resource}: {stored}");
        }
        // The page has requested whether one exists, and got 404.
        page.forget();
    }
    // Resources that others refer to are deleted last.
    for FormCase { resource, .. } in all.iter().rev() {
        page.visit(&format!("/edit/{resource}"));
        page.click("main button.is-danger", "Delete");
        page.click("dialog[open] button[type=submit]", "Delete");
        page.until("!document.querySelector('dialog[open]') && !location.hash.startsWith('#/edit/')");
        page.settle();
        let (status, _) = admin(&gateway, "GET", &format!("/apisix/admin/{resource}"), &Json::Null);
        assert_eq!(status, 404, "{resource} is deleted");
        // An empty list of credentials is answered 404, as by APISIX; the consumer's page requests it.
        if resource.contains("/credentials/") {
            page.until("document.querySelector('main').innerText.includes('No credentials')");
        }
        if resource.contains("consumers") {
            page.forget();
        }
        page.assert_calm(&format!("{resource} is deleted"));
    }
}

/// Adds a plugin or a field in the form, not in the text.
fn add(page: &mut Page, name: &str, button: &str) {
    let select = format!("document.querySelector('.schema-form .adder select:has(option[value={name}])')");
    page.mark(&select, "adder");
    page.eval(&format!("document.querySelector('[data-test=adder]').value = {}", json!(name)));
    page.click(".schema-form .adder:has([data-test=adder]) button", button);
    page.until(&format!("document.querySelector('.editor textarea').value.includes({})", json!(name)));
}

#[test]
fn plugins_are_added_in_the_form_of_a_global_rule_and_run() {
    let gateway = gateway();
    let node = Upstream::echo();
    let route = json!({ "uri": "/*", "upstream": { "nodes": { node.addr().to_string(): 1 } } });
    put(&gateway, "routes/1", &route);
    let mut page = Page::open(DESK);
    sign_in(&mut page, &gateway);
    page.visit("/new/global_rules");
    page.fill("#new-id", "everywhere");
    add(&mut page, "request-id", "Add a plugin");
    // The form offers its own fields, and one is filled in.
    add(&mut page, "header_name", "Add a field");
    let label = "[...document.querySelectorAll('.schema-form label')].find((one) => one.textContent === 'header_name')";
    page.mark(&format!("document.getElementById({label}.htmlFor)"), "header");
    page.fill("[data-test=header]", "X-Trace");
    page.press("Tab");
    page.until("document.querySelector('.editor textarea').value.includes('X-Trace')");
    page.click("button", "Review and create");
    page.click("dialog[open] button[type=submit]", "Create");
    page.until("!document.querySelector('dialog[open]') && !location.hash.startsWith('#/new/')");
    page.settle();
    page.forget();
    eventually("the rule to run", || gateway.get("/").head.all("x-trace").len() == 1);
}

#[test]
fn a_conflict_is_reported_and_nothing_is_overwritten() {
    let gateway = gateway();
    let document = |name: &str| json!({ "name": name, "nodes": { "127.0.0.1:9": 1 } });
    put(&gateway, "upstreams/u", &document("first"));
    let mut page = Page::open(DESK);
    sign_in(&mut page, &gateway);
    page.visit("/edit/upstreams/u");
    page.fill(".editor textarea", &document("mine").to_string());
    put(&gateway, "upstreams/u", &document("theirs"));
    page.click("button", "Review and save");
    page.until("document.querySelector('dialog[open]').innerText.includes('revision')");
    // The browser logs the 412.
    page.forget();
    page.click("dialog[open] button[type=submit]", "Save");
    page.until("document.querySelector('main').innerText.includes('Somebody has changed it since you loaded it')");
    page.picture("conflict");
    let name =
        |gateway: &Gateway| admin(gateway, "GET", "/apisix/admin/upstreams/u", &Json::Null).1["value"]["name"].clone();
    assert_eq!(name(&gateway), "theirs");
    page.click("main button", "Keep my version and review again");
    page.click("button", "Review and save");
    page.until("document.querySelector('dialog[open]').innerText.includes(' added, ')");
    page.click("dialog[open] button[type=submit]", "Save");
    page.until("document.querySelector('#toasts').innerText.includes('Saved.')");
    assert_eq!(name(&gateway), "mine");
    page.assert_calm("a conflict");
}

#[test]
fn a_viewer_reads_and_cannot_write() {
    let gateway = gateway();
    put(&gateway, "routes/1", &json!({ "uri": "/1", "upstream": { "nodes": { "127.0.0.1:9": 1 } } }));
    let credential = json!({ "plugins": { "key-auth": { "key": "hidden-key-2" } } });
    put(&gateway, "consumers/rose", &json!({ "username": "rose", "plugins": { "key-auth": { "key": "hidden-key" } } }));
    put(&gateway, "consumers/rose/credentials/c", &credential);
    let mut page = Page::open(DESK);
    sign_in_with(&mut page, &gateway, VIEWER_KEY);
    for path in [
        "/routes",
        "/routes/1",
        "/consumers",
        "/consumers/rose",
        "/resources/upstreams",
        "/edit/routes/1",
        "/edit/consumers/rose",
    ] {
        page.visit(path);
        let text = page.text();
        for word in ["New ", "Delete", "Review and", "hidden-key"] {
            assert!(!text.contains(word), "{path} has {word:?}: {text}");
        }
    }
    page.until("document.querySelector('main').innerText.includes('signed in as a viewer')");
    page.picture("viewer");
    page.assert_calm("a viewer's pages");
    // Its session cannot write either, whatever a page offers.
    let write = "fetch('/apisix/admin/routes/2', {method: 'PUT', headers: {'Content-Type': 'application/json', 'X-Stillgate-Session': '1'}, \
                 body: '{\"uri\": \"/2\"}'}).then((answer) => answer.status)";
    let status = page.eval(write);
    assert!(status == 403 || status == 401, "{status}");
    assert_eq!(admin(&gateway, "GET", "/apisix/admin/routes/2", &Json::Null).0, 404);
}

#[test]
fn pages_that_were_left_keep_no_connection() {
    let gateway = gateway();
    let mut page = Page::open(DESK);
    sign_in(&mut page, &gateway);
    for time in 0..TIMES_LEFT {
        // The browser keeps each page, to go back to it.
        page.navigate(&format!("http://{}/ui/?{time}#/overview", gateway.admin_addr()));
        page.until("document.querySelector('main .verdict')");
    }
    page.visit("/routes");
    for _ in 0..TIMES_LEFT {
        page.eval("history.back()");
        page.until("document.readyState === 'complete' && document.querySelector('main h1')");
        page.settle();
    }
    page.visit("/status");
    page.until("document.querySelector('main').innerText.includes('History and audit')");
    page.assert_calm("pages that were left");
}
