//! What a process inherits of its predecessor's metrics.

use super::*;
use stillgate_config::{Dialect, FamilyKind};
use stillgate_proxy::Counters;

/// A family whose source does not exist would be exposed without a series and without an error.
#[test]
fn every_count_of_the_workers_exists() {
    for spec in Dialect::ALL.into_iter().flat_map(|(_, dialect)| dialect.families()) {
        let Measure::WorkerCount(name) = spec.measure else { continue };
        assert!(Counters::default().named(name).is_some(), "{}: the workers have no count {name:?}", spec.name);
        assert!(
            matches!(spec.kind, FamilyKind::Counter | FamilyKind::Gauge(_)) && spec.labels.is_empty(),
            "{}",
            spec.name
        );
    }
}

#[test]
fn a_socket_is_inherited_where_it_is_at_the_address() {
    let fresh = || TcpListener::bind("127.0.0.1:0").unwrap();
    let at = |listener: &TcpListener| listener.local_addr().unwrap();
    let (before, other) = (fresh(), fresh());
    let check = |address: SocketAddr, inherited: OwnedFd, expected: Option<bool>| match listen(address, Some(inherited))
    {
        Ok((listener, is_inherited)) => {
            assert_eq!(Some(is_inherited), expected, "{address}");
            assert_eq!(at(&listener) == at(&before), is_inherited);
        }
        Err(MeteringError::Listen(_)) => assert_eq!(expected, None, "{address}"),
        Err(error) => panic!("{error}"),
    };
    let inherited = || OwnedFd::from(before.try_clone().unwrap());
    check(at(&before), inherited(), Some(true));
    // Any port is acceptable, so the inherited one is.
    check("127.0.0.1:0".parse().unwrap(), inherited(), Some(true));
    check("127.0.0.2:0".parse().unwrap(), inherited(), Some(false));
    // A socket at another address.
    check(at(&other), inherited(), None);
    let free = stillgate_testkit::ReservedPort::new();
    check(free.addr(), inherited(), Some(false));
    // A descriptor that is not a socket.
    check("127.0.0.1:0".parse().unwrap(), std::io::pipe().unwrap().0.into(), Some(false));
    let nothing = listen("127.0.0.1:0".parse().unwrap(), None).unwrap();
    assert!(!nothing.1);
}

#[test]
fn totals_begin_again_where_another_folder_is_shared() {
    const SEGMENTS: bool = true;
    for (now, before, segments, expected) in [
        (None, None, SEGMENTS, None),
        (Some("/a"), Some("/a"), !SEGMENTS, None),
        // The previous process had no metrics, or there was none.
        (Some("/a"), None, !SEGMENTS, None),
        (None, None, !SEGMENTS, None),
        (Some("/a"), None, SEGMENTS, Some("new: totals start at zero")),
        (None, Some("/a"), !SEGMENTS, Some("are in /a")),
        (Some("/b"), Some("/a"), !SEGMENTS, Some("are in /a")),
    ] {
        let reason = begins_anew(now, before, segments);
        assert_eq!(reason.is_some(), expected.is_some(), "{now:?} after {before:?}");
        assert!(reason.unwrap_or_default().contains(expected.unwrap_or_default()), "{now:?} after {before:?}");
    }
}
