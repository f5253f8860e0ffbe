//! The dashboard's pages of devices in Chromium: searched by prefixes of their ids, sent to, closed; a viewer may only read.

use crate::shared::STILLGATE;
use crate::shared::dashboard;
use crate::shared::dashboard::chromium::{DARK, DESK, PHONE, Page};
use crate::shared::dashboard::sign_in_with;
use serde_json::json;
use stillgate_testkit::{Client, Gateway, Python, ReservedPort, Setup, eventually};

const KEY: &str = "an-admin-key-for-tests";
const VIEWER_KEY: &str = "a-viewer-key-for-tests";

/// Becomes an element, or runs, where it is not shown as a text.
const HOSTILE: &str = "lamp-<img src=x onerror=window.broken=1>\"'/..";

/// Devices that reply with what they were sent, and come back.
const SCRIPT: &str = r#"
import asyncio, json, sys, websockets

async def device(name):
    url, headers = f"ws://127.0.0.1:{sys.argv[1]}/connect", {"X-Device": name}
    async for gateway in websockets.connect(url, subprotocols=["stillgate.v1"], extra_headers=headers, open_timeout=180):
        try:
            async for text in gateway:
                message = json.loads(text)
                if message["type"] == "message":
                    reply = {"type": "reply", "id": message["id"], "body": {"got": message["body"]}}
                    await gateway.send(json.dumps(reply))
        except websockets.ConnectionClosed:
            await asyncio.sleep(0.2)

async def main():
    await asyncio.gather(*[device(name) for name in sys.argv[2:]])

asyncio.run(main())
"#;

/// A gateway with devices, and those that are connected.
fn start() -> (Gateway, ReservedPort, Python) {
    let api = ReservedPort::new();
    let resources = "routes: [{id: devices, uri: /connect, plugins: {device-gateway: {id: $http_x_device}}}]";
    let lines = format!(
        "  keys: [{{name: admin, key: {KEY}, role: admin}}, {{name: looker, key: {VIEWER_KEY}, role: viewer}}]\n\
         devices: {{node: north, address: \"{}\", key: the-key-of-back-ends}}\n",
        api.addr()
    );
    let gateway = Gateway::start(STILLGATE, &Setup::resources(resources).gateway(&lines));
    let port = gateway.addr().port().to_string();
    let devices = Python::start(SCRIPT, &[&port, "lamp-1", "lamp-2", "oven-1", HOSTILE]);
    eventually("four devices", || {
        let answer = Client::connect(gateway.admin_addr()).get(&format!("/v1/devices?api_key={KEY}"));
        String::from_utf8_lossy(&answer.body).contains("\"connected\":4")
    });
    (gateway, api, devices)
}

#[test]
fn devices_are_found_sent_to_and_closed() {
    let (gateway, _api, _devices) = start();
    let mut page = Page::open(DESK);
    sign_in_with(&mut page, &gateway, KEY);
    page.until(
        "[...document.querySelectorAll('.side a')].some((one) => one.dataset.page === 'devices' && one.offsetParent)",
    );
    for (look, suffix) in [(DESK, ""), (DARK, "-dark"), (PHONE, "-phone")] {
        page.look(look);
        page.visit("/devices");
        page.until("document.querySelector('main table')?.innerText.includes('oven-1')");
        page.picture(&format!("devices{suffix}"));
        page.assert_calm(&format!("devices{suffix}"));
        let wide = page.eval("document.documentElement.scrollWidth - innerWidth");
        assert!(wide.as_f64().is_some_and(|wide| wide <= 1.0), "devices{suffix}: the page is {wide} px too wide");
    }
    page.look(DESK);
    assert!(page.text().contains(HOSTILE), "{}", page.text());
    let broken = "window.broken !== undefined || document.querySelectorAll('main img, main script').length > 0";
    assert_eq!(page.eval(broken), false, "an id broke out");
    page.fill("[data-search]", "lamp-");
    page.until("document.querySelectorAll('main tbody tr').length === 3 && location.hash.includes('prefix=lamp-')");

    page.visit("/devices/lamp-1");
    page.until("document.querySelector('main .facts')?.innerText.includes('north')");
    page.fill("main textarea", "{\"on\": 7}");
    page.click("main form button", "Send");
    page.until(
        "document.querySelector('.device-answer')?.innerText.includes('{\"got\":{\"on\": 7}}') || \
                document.querySelector('.device-answer')?.innerText.includes('{\"got\": {\"on\": 7}}') || \
                document.querySelector('.device-answer')?.innerText.includes('{\"got\":{\"on\":7}}')",
    );
    page.picture("device");
    page.fill("main textarea", "not json");
    page.click("main form button", "Send");
    page.until("document.querySelector('.device-answer').innerText.includes('This is not JSON')");
    page.click("main .page-head button", "Close connection");
    page.until("document.querySelector('dialog[open]')");
    page.click("dialog[open] button[type=submit]", "Close connection");
    page.until("document.querySelector('.toast')?.innerText.includes('being closed')");
    page.visit("/devices");
    // It comes back, which the page sees as it happens.
    page.until("document.querySelector('main table')?.innerText.includes('lamp-1')");
    page.assert_calm("devices");

    // A device with this id does not exist; the answer is shown, and no text of it runs.
    page.visit(&format!("/devices/{}", "none%3Cimg%20src%3Dx%20onerror%3Dwindow.broken%3D1%3E"));
    page.until("document.querySelector('main').innerText.includes('this device has not been seen')");
    assert_eq!(page.eval(broken), false, "an id broke out");
}

#[test]
fn a_viewer_looks_and_does_not_send() {
    let (gateway, api, _devices) = start();
    let ask = |method: &str, path: &str, key: &str| {
        let target = format!("{path}?api_key={key}");
        let answer = Client::connect(gateway.admin_addr()).request(method, &target, b"{\"on\":true}");
        (answer.head.status(), String::from_utf8_lossy(&answer.body).into_owned())
    };
    assert_eq!(ask("GET", "/v1/devices/lamp-1", VIEWER_KEY).0, 200);
    assert_eq!(ask("POST", "/v1/devices/lamp-1/messages", VIEWER_KEY).0, 401);
    assert_eq!(ask("DELETE", "/v1/devices/lamp-1/connection", VIEWER_KEY).0, 401);
    assert_eq!(ask("POST", "/v1/devices/lamp-1/messages", KEY).0, 202);
    assert_eq!(ask("POST", "/v1/devices/nobody/messages", KEY).0, 404);
    assert_eq!(ask("GET", "/v1/devices", "wrong").0, 401);
    // The key of back-ends is not one of the admin address, nor the other way round.
    assert_eq!(ask("GET", "/v1/devices", "the-key-of-back-ends").0, 401);
    let answer = Client::connect(api.addr()).get(&format!("/v1/devices?api_key={KEY}"));
    assert_eq!(answer.head.status(), 401);
    let mut page = Page::open(DESK);
    sign_in_with(&mut page, &gateway, VIEWER_KEY);
    page.visit("/devices/lamp-1");
    page.until("document.querySelector('main').innerText.includes('This session is read-only')");
    assert_eq!(page.eval("document.querySelectorAll('main form, main .page-head button').length"), json!(0));
    page.assert_calm("a viewer's page");
}

#[test]
fn without_devices_there_is_no_page_of_them() {
    let gateway = dashboard::gateway();
    let mut page = Page::open(DESK);
    sign_in_with(&mut page, &gateway, KEY);
    page.until("document.querySelector('#source a')");
    assert_eq!(page.eval("document.querySelector('.side a[data-page=devices]').offsetParent"), json!(null));
    page.visit("/devices");
    page.until("document.querySelector('main').innerText.includes('Devices are not enabled')");
    page.assert_calm("no devices");
}
