//! Changes under load: no request fails.

use super::stage::{Stage, upstream};
use serde_json::json;
use std::time::{Duration, Instant};
use stillgate_testkit::{Rounds, Setup, Upstream};

/// Changes, one each [`BETWEEN`]: fifty a second.
const CHANGES: u32 = 150;
const BETWEEN: Duration = Duration::from_millis(20);
/// Clients at once.
const CLIENTS: usize = 4;

#[test]
fn no_request_fails_while_routes_change() {
    let node = Upstream::echo();
    let mut stage = Stage::with(&Setup::default().gateway("workers: 2"));
    stage.admin.put("upstreams/1", &upstream(node.addr()));
    stage.admin.put("routes/all", &json!({ "uri": "/*", "upstream_id": "1" }));
    let (rounds, addr) = (Rounds::default(), stage.gateway.addr());
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let rounds = &rounds;
            scope.spawn(move || {
                rounds.of_requests(addr, number == 0, |client| assert_eq!(client.get("/changing").head.status(), 200));
            });
        }
        let _end = rounds.until_dropped();
        let begun = Instant::now();
        for change in 0..CHANGES {
            // The route that takes the requests changes each time, and so does its upstream at times.
            match change % 3 {
                0 => drop(stage.admin.put("routes/one", &json!({ "uri": "/changing", "upstream_id": "1" }))),
                1 => stage.admin.delete("routes/one"),
                _ => drop(stage.admin.put("upstreams/1", &upstream(node.addr()))),
            }
            let due = BETWEEN * (change + 1);
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
        }
    });
    assert!(rounds.done() > u64::from(CHANGES));
    assert_eq!(stage.admin.revision(), u64::from(CHANGES) + 2);
    assert!(node.faults().is_empty(), "{:?}", node.faults());
    stage.gateway.assert_healthy();
}
