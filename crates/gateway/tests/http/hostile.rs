//! Messages that two parties could read differently are never forwarded (RFC 9112 section 11.2).

use crate::shared::STILLGATE;
use stillgate_testkit::{
    Client, Delivery, Gateway, HostileCase, MessageError, Setup, Upstream, encode, eventually, hostile_cases,
};

/// Behind every hostile request; must be neither answered nor forwarded.
const SMUGGLED: &[u8] = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn requests_whole() {
    requests(Delivery::Whole);
}

#[test]
fn requests_bytewise() {
    requests(Delivery::Bytewise);
}

#[test]
fn requests_at_line_ends() {
    requests(Delivery::AtLineEnds);
}

fn requests(how: Delivery) {
    let cases = hostile_cases(include_str!("../data/hostile_requests.txt"));
    assert!(cases.len() >= 60);
    let upstream = Upstream::echo();
    let mut gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()).listener("http2: false"));
    let mut failures = Vec::new();
    for case in &cases {
        let before = (upstream.connections(), upstream.requests());
        if let Err(why) = refused(&gateway, case, how) {
            failures.push(format!("{} ({how:?}): {why}", case.name));
        }
        let ours = usize::from(case.says("body"));
        if ours > 0 {
            // The gateway may have connected: what waits to be accepted is so before this, not while another case is on.
            Client::connect(upstream.addr()).get("/ours");
        }
        let after = (upstream.connections(), upstream.requests() - ours);
        if after.1 != before.1 || (!case.says("body") && after != before) {
            failures.push(format!("{} ({how:?}): reached the upstream: {:?}", case.name, upstream.seen().last()));
        }
    }
    gateway.assert_healthy();
    assert!(failures.is_empty(), "{} failed\n\n{}", failures.len(), failures.join("\n\n"));
}

/// Sends one case with the smuggled request behind it: one refusal, then the end.
fn refused(gateway: &Gateway, case: &HostileCase, how: Delivery) -> Result<(), String> {
    let mut client = gateway.client();
    client.deliver(&[&case.message, SMUGGLED].concat(), how);
    let response = client.read_response("GET").map_err(|broken| format!("no refusal: {broken:?}"))?;
    let status = response.head.status();
    if !case.statuses().contains(&status) {
        return Err(format!("answered {status}: {}", encode(&response.body)));
    }
    if !response.head.connection_has("close") {
        return Err("no Connection: close".to_owned());
    }
    match client.read_to_end() {
        Ok(rest) | Err(MessageError::Reset(rest)) if rest.is_empty() => Ok(()),
        other => Err(format!("not closed: {other:?}")),
    }
}

#[test]
fn responses() {
    let cases = hostile_cases(include_str!("../data/hostile_responses.txt"));
    assert!(cases.len() >= 20);
    let upstream = Upstream::bind();
    let mut gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()).listener("http2: false"));
    let mut failures = Vec::new();
    for case in &cases {
        for how in Delivery::ALL {
            if let Err(why) = response_refused(&gateway, &upstream, case, how) {
                failures.push(format!("{} ({how:?}): {why}", case.name));
            }
        }
    }
    gateway.assert_healthy();
    assert!(failures.is_empty(), "{} failed\n\n{}", failures.len(), failures.join("\n\n"));
}

/// One hostile response on a connection of its own, which must then be closed.
fn response_refused(gateway: &Gateway, upstream: &Upstream, case: &HostileCase, how: Delivery) -> Result<(), String> {
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut node = Client::from_connection(upstream.accept());
    node.expect_request();
    node.deliver(&case.message, how);
    if case.message.is_empty() {
        node.half_close();
    }
    let response = client.read_response("GET");
    match &response {
        Ok(response) if case.statuses().contains(&response.head.status()) => {}
        Err(MessageError::Truncated(_) | MessageError::Closed | MessageError::Reset(_)) if case.says("body") => {}
        // What was refused before its head was passed on may still become a 502.
        Ok(response) if case.says("body") && response.head.status() == 502 => {}
        other => return Err(format!("the client got {other:?}")),
    }
    eventually("the upstream connection to be closed", || node.is_closed());
    Ok(())
}
