//! What the tests of the dashboard have in common: a gateway with a store, the Admin API, and the browser.

pub(crate) mod chromium;

use chromium::Page;
use serde_json::Value as Json;
use stillgate_testkit::{Client, Gateway, Setup};

/// Admin key of the gateway that is started here.
pub(crate) const KEY: &str = "an-admin-key-for-tests";

/// A gateway whose resources are in a store.
pub(crate) fn gateway() -> Gateway {
    let lines = format!(
        "  keys: [{{name: admin, key: {KEY}, role: admin}}]\n\
         config: {{source: store, store: \"{{dir}}/config.redb\"}}\n\
         debug: {{pprof: true, slow: true, heap: 16KiB}}\n\
         metrics: {{address: \"127.0.0.1:0\", labels: {{http_requests_total: {{uri: $uri}}}}}}\n"
    );
    Gateway::start(crate::shared::STILLGATE, &Setup::resources("").gateway(&lines))
}

/// A request to the Admin API, without the page.
pub(crate) fn admin(gateway: &Gateway, method: &str, path: &str, body: &Json) -> (u16, Json) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let joint = if path.contains('?') { '&' } else { '?' };
    let target = format!("{path}{joint}api_key={KEY}");
    let answer = Client::connect(gateway.admin_addr()).request(method, &target, body.as_bytes());
    (answer.head.status(), serde_json::from_slice(&answer.body).unwrap_or_default())
}

/// Writes a document.
#[track_caller]
pub(crate) fn put(gateway: &Gateway, path: &str, document: &Json) {
    let (status, answer) = admin(gateway, "PUT", &format!("/apisix/admin/{path}"), document);
    assert!(matches!(status, 200 | 201), "{path}: {status} {answer}");
}

/// Opens the dashboard, signed in as an administrator.
pub(crate) fn sign_in(page: &mut Page, gateway: &Gateway) {
    sign_in_with(page, gateway, KEY);
}

/// Signs in with another key.
pub(crate) fn sign_in_with(page: &mut Page, gateway: &Gateway, key: &str) {
    page.navigate(&format!("http://{}/ui/", gateway.admin_addr()));
    page.until("document.querySelector('#key')");
    // The request for the session is answered 401, which the browser logs.
    page.forget();
    page.fill("#key", key);
    page.press("Enter");
    page.until("document.querySelector('.side a') && document.querySelector('main .page')");
    page.settle();
}
