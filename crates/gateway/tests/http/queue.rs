//! The queue of an upstream: which requests wait, for how long, and which one is next.

use crate::shared::STILLGATE;
use std::time::{Duration, Instant};
use stillgate_testkit::http2::{END_STREAM, Http2, StreamEnd, code, kind};
use stillgate_testkit::{
    ACCEPT_TEXT, BufferedSocket, Client, END_PATIENCE, Gateway, ReservedPort, Setup, Upstream, eventually, scrape,
};

/// How far the gateway's clock may be behind, where it stood still in the middle of a turn.
const BEHIND: Duration = Duration::from_millis(700);

/// A gateway whose upstream takes one request at a time, with one under way.
struct Busy {
    gateway: Gateway,
    metrics: ReservedPort,
    upstream: Upstream,
    node: BufferedSocket,
    first: Client,
}

fn setup(upstream: &Upstream, metrics: &ReservedPort, limits: &str) -> Setup {
    Setup::to(upstream.addr())
        .upstream(&format!("limits: {{{limits}}}\nretries: 0"))
        .gateway(&format!("metrics: {{address: \"{}\"}}", metrics.addr()))
        .gateway("access_log: {path: \"{dir}/access.log\", format: json, fields: [status, {uri: request_uri}]}")
}

impl Busy {
    fn new(limits: &str) -> Busy {
        Busy::with(limits, |setup| setup)
    }

    fn with(limits: &str, change: impl FnOnce(Setup) -> Setup) -> Busy {
        let (upstream, metrics) = (Upstream::bind(), ReservedPort::new());
        let gateway = Gateway::start(STILLGATE, &change(setup(&upstream, &metrics, limits)));
        let mut first = gateway.client();
        ask(&mut first, "/first");
        let mut node = upstream.accept();
        expect_target(&mut node, "/first");
        Busy { gateway, metrics, upstream, node, first }
    }

    fn waiting(&self) -> u64 {
        waiting(&self.gateway)
    }

    #[track_caller]
    fn await_waiting(&self, count: u64) {
        eventually(&format!("{count} requests to wait"), || self.waiting() == count);
    }

    /// A client whose request waits behind `before` others.
    fn queued(&self, target: &str, before: u64) -> Client {
        let mut client = self.gateway.client();
        ask(&mut client, target);
        self.await_waiting(before + 1);
        client
    }

    /// Ends the request under way.
    fn finish_first(&mut self) {
        answer(&mut self.node);
        assert_eq!(self.first.expect_response("GET").head.status(), 204);
    }

    fn reload(&self, limits: &str) {
        self.gateway.reload(&setup(&self.upstream, &self.metrics, limits));
    }

    #[track_caller]
    fn await_metric(&self, line: &str) {
        eventually(line, || {
            let text = scrape(self.metrics.addr(), "/metrics", ACCEPT_TEXT, false).text().to_owned();
            text.contains(&format!("\n{line}\n"))
        });
    }

    #[track_caller]
    fn await_logged(&self, status: u16, uri: &str) {
        let line = format!("{{\"status\":{status},\"uri\":\"{uri}\"}}\n");
        let log = || std::fs::read_to_string(self.gateway.dir().join("access.log")).unwrap_or_default();
        eventually(&format!("{line} in {}", log()), || log().contains(&line));
    }
}

fn waiting(gateway: &Gateway) -> u64 {
    let mut admin = Client::connect(gateway.admin_addr());
    let upstreams: serde_json::Value = serde_json::from_slice(&admin.get("/v1/upstreams").body).expect("JSON");
    upstreams["upstreams"][0]["requests_waiting"].as_u64().expect("a number")
}

fn ask(client: &mut Client, target: &str) {
    client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
}

#[track_caller]
fn expect_target(node: &mut BufferedSocket, target: &str) {
    assert_eq!(node.expect_request().head.method_and_target().1, target);
}

fn answer(node: &mut BufferedSocket) {
    node.send("HTTP/1.1 204 No Content\r\n\r\n");
}

#[track_caller]
fn expect_shed(client: &mut Client) {
    let response = client.expect_response("GET");
    assert_eq!((response.head.status(), response.head.get("retry-after")), (503, Some("1")));
}

const PATIENT: &str = "requests: 1, queue: 2, queue_timeout: 1h";

#[test]
fn requests_go_in_the_order_they_came_and_one_too_many_is_answered_at_once() {
    let mut busy = Busy::new(PATIENT);
    let mut second = busy.queued("/2", 0);
    let mut third = busy.queued("/3", 1);
    let mut fourth = busy.gateway.client();
    ask(&mut fourth, "/4");
    expect_shed(&mut fourth);
    busy.await_metric("stillgate_upstream_requests_waiting{upstream=\"main\"} 2");
    busy.finish_first();
    expect_target(&mut busy.node, "/2");
    // There is room in the queue again, but no way past the one in it.
    ask(&mut fourth, "/5");
    busy.await_waiting(2);
    answer(&mut busy.node);
    assert_eq!(second.expect_response("GET").head.status(), 204);
    for (client, target) in [(&mut third, "/3"), (&mut fourth, "/5")] {
        expect_target(&mut busy.node, target);
        answer(&mut busy.node);
        assert_eq!(client.expect_response("GET").head.status(), 204);
    }
    assert!(busy.upstream.try_accept().is_none(), "all over the one connection");
    busy.await_metric("stillgate_upstream_requests_shed_total{upstream=\"main\"} 1");
    busy.await_metric("stillgate_upstream_requests_queued_total{upstream=\"main\"} 3");
    busy.await_metric("stillgate_upstream_requests_waiting{upstream=\"main\"} 0");
    eventually("nothing in flight", || busy.gateway.status()["requests"]["in_flight"] == 0);
}

#[test]
fn who_has_waited_long_enough_is_answered() {
    let mut busy = Busy::new("requests: 1, queue: 2, queue_timeout: 1200ms");
    let began = Instant::now();
    let mut second = busy.gateway.client();
    ask(&mut second, "/2");
    expect_shed(&mut second);
    assert!(began.elapsed() >= Duration::from_millis(1200) - BEHIND);
    busy.await_metric("stillgate_upstream_requests_shed_total{upstream=\"main\"} 1");
    busy.await_logged(503, "/2");
    // The connection goes on, and so does the queue.
    busy.finish_first();
    ask(&mut second, "/3");
    expect_target(&mut busy.node, "/3");
    answer(&mut busy.node);
    assert_eq!(second.expect_response("GET").head.status(), 204);
}

#[test]
fn a_client_that_goes_away_leaves_the_queue() {
    let mut busy = Busy::new("requests: 1, queue: 9, queue_timeout: 1h");
    let closed = busy.queued("/closed", 0);
    let reset = busy.queued("/reset", 1);
    let mut stays = busy.queued("/stays", 2);
    let mut sending = busy.gateway.client();
    sending.send("POST /sending HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc");
    busy.await_waiting(4);
    reset.into_connection().reset();
    busy.await_waiting(3);
    drop(closed);
    busy.await_waiting(2);
    drop(sending);
    busy.await_waiting(1);
    for uri in ["/closed", "/reset", "/sending"] {
        busy.await_logged(499, uri);
    }
    busy.finish_first();
    expect_target(&mut busy.node, "/stays");
    answer(&mut busy.node);
    assert_eq!(stays.expect_response("GET").head.status(), 204);
    busy.await_metric("stillgate_upstream_requests_shed_total{upstream=\"main\"} 0");
}

/// It still wants its response.
#[test]
fn a_client_that_only_closes_its_sending_side_goes_on_waiting() {
    let mut busy = Busy::new(PATIENT);
    let mut second = busy.queued("/2", 0);
    second.half_close();
    // The interim response shows whether it is still there: a client that is gone would answer with a reset.
    assert_eq!(second.read_head().expect("an interim response").status(), 100);
    let since = Instant::now();
    eventually("another look at it", || since.elapsed() > Duration::from_millis(400));
    busy.await_waiting(1);
    busy.finish_first();
    expect_target(&mut busy.node, "/2");
    answer(&mut busy.node);
    assert_eq!(second.expect_response("GET").head.status(), 204);
}

#[test]
fn a_body_that_comes_meanwhile_is_passed_on_whole() {
    let mut busy = Busy::new(PATIENT);
    let body: String = (0..20_000).map(|index| format!("{index:09} ")).collect();
    for (head, wire) in [
        (format!("Content-Length: {}", body.len()), body.clone()),
        (
            "Transfer-Encoding: chunked".to_owned(),
            body.as_bytes().chunks(7_000).fold(String::new(), |wire, chunk| {
                format!("{wire}{:x}\r\n{}\r\n", chunk.len(), String::from_utf8_lossy(chunk))
            }) + "0\r\n\r\n",
        ),
    ] {
        let mut second = busy.gateway.client();
        second.send(format!("POST /2 HTTP/1.1\r\nHost: a\r\n{head}\r\n\r\n{}", &wire[..10]));
        busy.await_waiting(1);
        second.send(&wire[10..30_000]);
        let since = Instant::now();
        eventually("some of it to be read", || since.elapsed() > Duration::from_millis(100));
        busy.finish_first();
        second.send(&wire[30_000..]);
        let request = busy.node.expect_request();
        assert!(request.body == body.as_bytes(), "{head}");
        answer(&mut busy.node);
        assert_eq!(second.expect_response("POST").head.status(), 204);
        ask(&mut busy.first, "/again");
        expect_target(&mut busy.node, "/again");
    }
    let mut bad = busy.gateway.client();
    bad.send("POST /bad HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    busy.await_waiting(1);
    bad.send("x\r\n");
    assert_eq!(bad.expect_response("POST").head.status(), 400);
}

#[test]
fn a_reload_that_changes_the_bound_wakes_who_waits() {
    for limits in ["requests: 3", "", "requests: 2, queue: 1"] {
        let mut busy = Busy::new(PATIENT);
        let clients = [busy.queued("/2", 0), busy.queued("/3", 1)];
        busy.reload(limits);
        let at_once = if limits.contains("requests: 2") { 1 } else { 2 };
        let mut nodes: Vec<BufferedSocket> = (0..at_once).map(|_| busy.upstream.accept()).collect();
        for (index, node) in nodes.iter_mut().enumerate() {
            expect_target(node, &format!("/{}", index + 2));
        }
        busy.await_waiting(2 - at_once as u64);
        for node in &mut nodes {
            answer(node);
        }
        if at_once == 1 {
            expect_target(&mut nodes[0], "/3");
            answer(&mut nodes[0]);
        }
        for mut client in clients {
            assert_eq!(client.expect_response("GET").head.status(), 204, "{limits}");
        }
        busy.finish_first();
    }
    // A lower one: both under way have to end.
    let (upstream, metrics) = (Upstream::bind(), ReservedPort::new());
    let gateway = Gateway::start(STILLGATE, &setup(&upstream, &metrics, "requests: 2, queue: 2, queue_timeout: 1h"));
    let mut clients: Vec<Client> = (0..3).map(|_| gateway.client()).collect();
    let mut nodes = Vec::new();
    for client in &mut clients[..2] {
        ask(client, "/x");
        nodes.push(upstream.accept());
        expect_target(nodes.last_mut().expect("one"), "/x");
    }
    ask(&mut clients[2], "/y");
    eventually("one to wait", || waiting(&gateway) == 1);
    gateway.reload(&setup(&upstream, &metrics, "requests: 1, queue: 0"));
    answer(&mut nodes[0]);
    assert_eq!(clients[0].expect_response("GET").head.status(), 204);
    eventually("it to wait still", || waiting(&gateway) == 1);
    // It took its place under the configuration it began with; the new queue admits no request.
    ask(&mut clients[0], "/z");
    expect_shed(&mut clients[0]);
    answer(&mut nodes[1]);
    expect_target(&mut nodes[1], "/y");
    answer(&mut nodes[1]);
    assert_eq!(clients[2].expect_response("GET").head.status(), 204);
}

#[test]
fn streams_of_http2_wait_as_well() {
    let mut busy = Busy::new(PATIENT);
    let mut client = Http2::connect(busy.gateway.addr());
    client.get(1, "/1");
    busy.await_waiting(1);
    client.get(3, "/3");
    busy.await_waiting(2);
    client.send(kind::RST_STREAM, 0, 1, &code::CANCEL.to_be_bytes());
    busy.await_waiting(1);
    busy.await_logged(499, "/1");
    busy.finish_first();
    expect_target(&mut busy.node, "/3");
    answer(&mut busy.node);
    let (heads, _, end) = client.finish(3);
    assert_eq!((heads[0].status(), end), (204, StreamEnd::Whole));
    // All requests of a connection that goes away leave the queue.
    ask(&mut busy.first, "/again");
    expect_target(&mut busy.node, "/again");
    client.get(5, "/5");
    client.get(7, "/7");
    busy.await_waiting(2);
    drop(client);
    busy.await_waiting(0);
}

#[test]
fn the_deadline_of_a_call_holds_in_the_queue() {
    let busy = Busy::new(PATIENT);
    let mut client = Http2::connect(busy.gateway.addr());
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/test.Echo/Unary"),
        (":authority", "h"),
        ("content-type", "application/grpc"),
        ("grpc-timeout", "1200m"),
    ];
    let began = Instant::now();
    client.send_head(1, &fields, END_STREAM);
    let (heads, body, end) = client.finish(1);
    assert!(began.elapsed() >= Duration::from_millis(1200) - BEHIND);
    assert_eq!((heads.len(), heads[0].status(), body.len(), end), (1, 200, 0, StreamEnd::Whole));
    busy.await_logged(504, "/test.Echo/Unary");
    busy.await_waiting(0);
    busy.await_metric("stillgate_upstream_requests_shed_total{upstream=\"main\"} 0");
}

#[test]
fn a_gateway_that_drains_serves_who_waits() {
    let mut busy = Busy::new(PATIENT);
    let mut second = busy.queued("/2", 0);
    busy.gateway.signal("TERM");
    eventually("no more connections to be taken", || std::net::TcpStream::connect(busy.gateway.addr()).is_err());
    busy.finish_first();
    expect_target(&mut busy.node, "/2");
    answer(&mut busy.node);
    assert_eq!(second.expect_response("GET").head.status(), 204);
    assert!(busy.gateway.wait_within(END_PATIENCE).success());
}

/// Each request of a tunnel is over when it has become one.
#[test]
fn a_tunnel_makes_room() {
    let mut busy = Busy::with(PATIENT, |setup| setup.route("enable_websocket: true"));
    busy.finish_first();
    let mut tunnel = busy.gateway.client();
    tunnel.send("GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    busy.node.expect_request();
    let mut second = busy.queued("/2", 0);
    busy.node.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    assert_eq!(tunnel.read_head().expect("a head").status(), 101);
    let mut node = busy.upstream.accept();
    expect_target(&mut node, "/2");
    answer(&mut node);
    assert_eq!(second.expect_response("GET").head.status(), 204);
}
