//! Local replies with large bodies: how much memory they use, and how long a client may take to read them.

use crate::shared::STILLGATE;
use std::time::Duration;
use stillgate_testkit::http2::{Frame, Http2, kind};
use stillgate_testkit::{Gateway, Setup, Upstream, eventually};

/// Size of an answer that is made for one request, and of one that all share.
const MADE_BYTES: usize = 1_000_000;
const SHARED_BYTES: usize = 500_000;
/// SETTINGS_INITIAL_WINDOW_SIZE.
const INITIAL_WINDOW_SIZE: u16 = 4;
/// No body may come. Without a dynamic table (SETTINGS_HEADER_TABLE_SIZE) each head shows its status.
const NO_WINDOW: [(u16, u32); 2] = [(1, 0), (INITIAL_WINDOW_SIZE, 0)];

/// `/made` is answered by a server that denies, and `/shared` from the configuration.
fn start(auth: &Upstream, keys: &str) -> Gateway {
    let uri = format!("http://{}/?status=403&size={MADE_BYTES}", auth.addr());
    let text = "x".repeat(SHARED_BYTES);
    let resources = format!(
        "routes:\n  - {{id: made, uri: /made, plugins: {{forward-auth: {{uri: \"{uri}\"}}}}}}\n  \
         - {{id: shared, uri: /shared, plugins: {{mocking: {{response_example: \"{text}\"}}}}}}\n"
    );
    Gateway::start(STILLGATE, &Setup::resources(resources).gateway(keys))
}

/// The statuses of `count` responses whose bodies the client does not read.
fn statuses_of_unread(client: &mut Http2, path: &str, count: u32) -> Vec<u16> {
    (0..count).for_each(|number| client.get(2 * number + 1, path));
    (0..count).map(|_| client.until(|frame| frame.kind == kind::HEADERS)).map(|head: Frame| head.status()).collect()
}

#[test]
fn a_client_that_reads_slowly_and_steadily_gets_all_of_an_answer() {
    const PIECE_BYTES: usize = 16 * 1024;
    let auth = Upstream::echo();
    let gateway = start(&auth, "timeouts: {send: 1s}");
    let mut client = Http2::connect_with(gateway.addr(), &[(INITIAL_WINDOW_SIZE, PIECE_BYTES as u32)]);
    client.get(1, "/made");
    assert_eq!(client.until(|frame| frame.kind == kind::HEADERS).status(), 403);
    let mut got = 0;
    while got < MADE_BYTES {
        let frame = client.until(|frame| matches!(frame.kind, kind::DATA | kind::RST_STREAM));
        assert_eq!(frame.kind, kind::DATA, "reset after {got} bytes");
        got += frame.payload.len();
        // So that all of it takes longer than `timeouts.send`.
        std::thread::sleep(Duration::from_millis(25));
        let more = u32::try_from(frame.payload.len()).expect("a frame is small").to_be_bytes();
        [0, 1].into_iter().for_each(|stream| client.send(kind::WINDOW_UPDATE, 0, stream, &more));
    }
    assert_eq!(got, MADE_BYTES);
}

#[test]
fn unread_answers_have_a_bound_for_each_client() {
    let auth = Upstream::echo();
    let gateway = start(&auth, "");
    let mut client = Http2::connect_with(gateway.addr(), &NO_WINDOW);
    let statuses = statuses_of_unread(&mut client, "/made", 60);
    let count = |status: u16| statuses.iter().filter(|found| **found == status).count();
    // Half of 64 MiB, and then as much as one client may hold, which it does.
    assert!((25..=34).contains(&count(403)), "{statuses:?}");
    assert_eq!(count(403) + count(503), 60, "{statuses:?}");
    drop(client);
    eventually("the memory to be free again", || gateway.get("/made").head.status() == 403);
}

#[test]
fn an_answer_from_the_configuration_is_not_copied() {
    const STREAMS: u32 = 80;
    let auth = Upstream::echo();
    let gateway = start(&auth, "");
    assert_eq!(gateway.get("/shared").body.len(), SHARED_BYTES);
    let rss = gateway.rss();
    let mut client = Http2::connect_with(gateway.addr(), &NO_WINDOW);
    assert_eq!(statuses_of_unread(&mut client, "/shared", STREAMS), [200; STREAMS as usize]);
    let grown = gateway.rss().saturating_sub(rss);
    assert!(grown < STREAMS as usize * SHARED_BYTES / 3, "{grown} bytes more");
}
