//! A client that was written from APISIX's documentation, in Python with its standard library alone.

use super::stage::{KEY, Stage};
use stillgate_testkit::{ReservedPort, Setup, Upstream, run_tool};

#[test]
fn an_independent_client_uses_every_resource() {
    let (node, tcp) = (Upstream::echo(), ReservedPort::new());
    let stream = format!("stream_proxy: {{tcp: [{{address: \"{}\"}}]}}", tcp.addr());
    let stage = Stage::with(&Setup::default().admin(&format!("key: {KEY}")).gateway(&stream));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/control/store/admin_client.py");
    let arguments = [
        script,
        &format!("http://{}", stage.admin.addr),
        KEY,
        &format!("http://{}", stage.gateway.addr()),
        &node.addr().to_string(),
        &tcp.addr().port().to_string(),
    ];
    let output = run_tool("python3", "python3", &arguments);
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("all is well"), "{said}\n{}", stage.gateway.log());
}
