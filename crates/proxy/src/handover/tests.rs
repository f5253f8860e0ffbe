//! Parcels: what goes in comes out, and invalid parcels are refused.

use super::state::COUNT_MAX;
use super::*;
use crate::basics::buffer::BUFFER_BYTES;
use crate::plan::TunnelBounds;
use proptest::prelude::*;
use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use stillgate_plugin_api::record::NodeTry;
use stillgate_wire::HEAD_BYTES_MAX;

fn sockets(count: usize) -> Vec<OwnedFd> {
    (0..count).map(|_| File::open("/dev/null").unwrap().into()).collect()
}

fn address() -> impl Strategy<Value = SocketAddr> {
    (any::<IpAddr>(), any::<u16>()).prop_map(SocketAddr::from)
}

/// `max`: bound of counts.
fn direction(max: u64) -> impl Strategy<Value = DirectionState> {
    let ends = prop_oneof![Just(Ends::Open), Just(Ends::Untold), Just(Ends::Told)];
    let held = prop_oneof![Just(0), 0..200usize, Just(BUFFER_BYTES)];
    (held, ends, 0..=max, 0..=max, any::<u64>()).prop_map(|(held, ends, read, written, quiet_ms)| DirectionState {
        held,
        ends,
        read,
        written,
        quiet_ms,
    })
}

fn connection() -> impl Strategy<Value = ConnectionState> {
    (address(), address(), address(), any::<bool>(), any::<u64>()).prop_map(
        |(peer, local, listener, is_new, quiet_ms)| ConnectionState {
            peer,
            local,
            listener,
            is_https: !is_new,
            is_new,
            quiet_ms,
        },
    )
}

prop_compose! {
    fn node_try(max: u64)(node in address(), status: u16, connect_us in prop::option::of(0..=max)) -> NodeTry {
        NodeTry { node, status, connect_us }
    }
}

prop_compose! {
    fn request(max: u64)(
        head in prop_oneof![0..500usize, Just(HEAD_BYTES_MAX)],
        path: Option<usize>,
        status: u16,
        head_bytes in 0..=max,
        upstream_us in prop::option::of(0..=max),
        tries in prop::collection::vec(node_try(max), 0..4),
        times: [Option<u64>; 2],
    ) -> OriginState {
        let [started_us, node_since_us] = times;
        OriginState::Request(RequestState { head, path, status, head_bytes, upstream_us, tries, started_us, node_since_us })
    }
}

prop_compose! {
    fn tunnel(max: u64)(
        connection in connection(),
        address: IpAddr,
        origin in prop_oneof![request(max), session(max)],
        (route, node_host) in (".{0,40}", ".{0,40}"),
        node in address(),
        policy in prop::option::of(prop_oneof![Just(PolicyState::Drain), Just(PolicyState::Close)]),
        revoked_ms: Option<u64>,
        [idle_ms, total_ms, node_send_ms, client_send_ms, drain_ms] in [0..=max, 0..=max, 0..=max, 0..=max, 0..=max],
        age_ms: u64,
        (up, down) in (direction(max), direction(max)),
    ) -> TunnelState {
        let bounds = TunnelBounds { idle_ms, total_ms, node_send_ms, client_send_ms, drain_ms };
        let upstream = None;
        TunnelState { connection, address, origin, route, upstream, node, node_host, policy, revoked_ms, bounds, age_ms, up, down }
    }
}

prop_compose! {
    fn session(max: u64)(
        status: u16,
        server_name in prop::option::of(".{0,40}"),
        tries in prop::collection::vec(node_try(max), 0..4),
        connect_us in prop::option::of(0..=max),
        started_us: u64,
    ) -> OriginState {
        OriginState::Session(SessionState { status, server_name, tries, connect_us, started_us })
    }
}

fn state(max: u64) -> impl Strategy<Value = HandedState> {
    prop_oneof![
        connection().prop_map(HandedState::Connection),
        tunnel(max).prop_map(|state| HandedState::Tunnel(Box::new(state))),
        (0..=BROADCAST_BYTES_MAX).prop_map(|bytes| HandedState::Broadcast { bytes }),
    ]
}

/// A parcel with as many bytes and sockets as the state requires.
fn parcel(state: HandedState) -> Parcel {
    let (bytes, count) = match &state {
        HandedState::Connection(_) => (0, 1),
        HandedState::Tunnel(tunnel) => {
            let head = match &tunnel.origin {
                OriginState::Request(request) => request.head,
                OriginState::Session(_) => 0,
            };
            (head + tunnel.up.held + tunnel.down.held, 2)
        }
        HandedState::Device(device) => {
            (device.request.head + device.messages.iter().map(|message| message.bytes).sum::<usize>(), 1)
        }
        HandedState::Broadcast { bytes } => (*bytes, 0),
    };
    // Line ends are among them.
    let bytes = (0..bytes).map(|at| (at % 251) as u8).collect();
    Parcel { state, bytes, sockets: sockets(count) }
}

proptest! {
    #[test]
    fn what_goes_in_comes_out(state in state(COUNT_MAX)) {
        let packed = parcel(state);
        let datagram = packed.encode();
        let found = Parcel::decode(&datagram, sockets(packed.sockets.len())).unwrap();
        prop_assert_eq!(&found.state, &packed.state);
        prop_assert!(found.bytes == packed.bytes);
    }

    /// Checks how they are used: bounds are added to the current time, counts to each other.
    #[test]
    fn counts_can_be_added_up(tunnel in tunnel(u64::MAX)) {
        let packed = parcel(HandedState::Tunnel(Box::new(tunnel)));
        let Parcel { state: HandedState::Tunnel(found), .. } = Parcel::decode(&packed.encode(), sockets(2)).unwrap() else {
            panic!("it was a tunnel");
        };
        let TunnelBounds { idle_ms, total_ms, node_send_ms, client_send_ms, drain_ms } = found.bounds;
        for bound in [idle_ms, total_ms, node_send_ms, client_send_ms, drain_ms] {
            let now_ms = 100 * 366 * 24 * 3600 * 1000;
            prop_assert!(bound.checked_add(now_ms).is_some());
        }
        let (head_bytes, took_us) = match &found.origin {
            OriginState::Request(request) => (request.head_bytes, request.upstream_us),
            OriginState::Session(session) => (0, session.connect_us),
        };
        let bytes = [found.up.read, found.down.written, head_bytes];
        prop_assert!(bytes.iter().try_fold(0u64, |sum, bytes| sum.checked_add(*bytes)).is_some());
        prop_assert!(took_us.is_none_or(|us| us.checked_add(COUNT_MAX).is_some()));
    }

    /// Any datagram is either a parcel or refused.
    #[test]
    fn damage_is_refused_or_harmless(state in state(u64::MAX), at: prop::sample::Index, with: u8, cut: prop::sample::Index, count in 0..4usize) {
        let mut datagram = parcel(state).encode();
        let at = at.index(datagram.len());
        datagram[at] = with;
        let _ = Parcel::decode(&datagram, sockets(count));
        datagram.truncate(cut.index(datagram.len()));
        prop_assert!(Parcel::decode(&datagram, sockets(count)).is_err(), "it was cut");
    }

    #[test]
    fn noise_is_refused(noise in prop::collection::vec(any::<u8>(), 0..300), count in 0..3usize) {
        prop_assert!(Parcel::decode(&noise, sockets(count)).is_err());
    }
}

fn example() -> Parcel {
    let any: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let connection =
        ConnectionState { peer: any, local: any, listener: any, is_https: true, is_new: true, quiet_ms: 7 };
    let flow = |held| DirectionState { held, ends: Ends::Open, read: 3, written: 2, quiet_ms: 1 };
    let request = RequestState {
        head: 4,
        path: Some(0),
        status: 101,
        head_bytes: 5,
        upstream_us: None,
        tries: Vec::new(),
        started_us: Some(1),
        node_since_us: None,
    };
    let bounds = TunnelBounds { idle_ms: 1, total_ms: 2, node_send_ms: 3, client_send_ms: 4, drain_ms: 5 };
    parcel(HandedState::Tunnel(Box::new(TunnelState {
        connection,
        address: any.ip(),
        origin: OriginState::Request(request),
        route: "r".to_owned(),
        upstream: Some("u".to_owned()),
        node: any,
        node_host: "h".to_owned(),
        policy: Some(PolicyState::Drain),
        revoked_ms: None,
        bounds,
        age_ms: 9,
        up: flow(1),
        down: flow(2),
    })))
}

#[test]
fn foreign_parcels_are_refused_by_name() {
    #[track_caller]
    fn check(change: impl Fn(String) -> String, sockets_count: usize, expected: &str) {
        let text = String::from_utf8(example().encode()).unwrap();
        let found = Parcel::decode(change(text).as_bytes(), sockets(sockets_count));
        let error = found.expect_err("it is not a parcel").to_string();
        assert!(error.contains(expected), "{error}");
    }
    let same = |text: String| text;
    assert!(Parcel::decode(&example().encode(), sockets(2)).is_ok());
    check(same, 1, "1 sockets");
    check(same, 3, "3 sockets");
    check(|text| text + "x", 2, "8 bytes");
    check(|text| text.replace("\"held\":2", "\"held\":3"), 2, "7 bytes");
    check(|text| text.replace("\"held\":2", "\"held\":99999999"), 2, "7 bytes");
    check(|text| text.replace("\"head\":4", "\"head\":18446744073709551615"), 2, "7 bytes");
    check(|text| text.replace("\"route\":\"r\",", ""), 2, "route");
    check(|text| text.replace("tunnel", "carriage"), 2, "carriage");
    check(|text| text.replace("\"policy\":\"drain\"", "\"policy\":\"perhaps\""), 2, "perhaps");
    check(|text| text.replace('\n', ""), 2, "no end");
}

#[test]
fn keys_of_a_later_version_are_ignored() {
    let text = String::from_utf8(example().encode()).unwrap();
    let later = text.replace("\"age_ms\":9", "\"age_ms\":9,\"mood\":{\"is\":\"good\"}");
    assert_ne!(text, later);
    assert_eq!(Parcel::decode(later.as_bytes(), sockets(2)).unwrap().state, example().state);
}
