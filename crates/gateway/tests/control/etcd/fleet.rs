//! Gateways on one etcd: the page of the dashboard that says whether all serve the same revision.

use super::gateways::{ADMIN_KEY, await_status, put, route, start};
use crate::shared::dashboard::chromium::{DESK, Page};
use crate::shared::dashboard::sign_in_with;
use serde_json::json;
use stillgate_testkit::{EtcdServer, Upstream};

#[test]
fn the_page_says_whether_all_nodes_serve_one_revision() {
    let (etcd, node) = (EtcdServer::start(), Upstream::echo());
    let mut gateways = [start(&etcd, 1), start(&etcd, 1), start(&etcd, 1)];
    put(&gateways[0], "routes/1", &route("/one", node.addr()));
    for gateway in &gateways {
        await_status(gateway, "/one", 200);
    }
    let mut page = Page::open(DESK);
    sign_in_with(&mut page, &gateways[0], ADMIN_KEY);
    page.visit("/fleet");
    let says = |text: &str| format!("document.querySelector('main').innerText.includes({})", json!(text));
    page.until(&says("All 3 nodes serve revision"));
    page.until("document.querySelectorAll('main tbody tr').length === 3");
    page.until(&says("this node"));
    page.assert_calm("the fleet");

    // A node that has ended without a word is named after a minute.
    gateways[2].signal("KILL");
    gateways[2].wait();
    page.until(&says("has not reported for"));
    page.until(&says("2 of 3 nodes serve revision"));
}
