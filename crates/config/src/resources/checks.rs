//! Compiles an upstream's `checks` and `limits`, and warns of parts without effect.

use crate::keys::checks::{ActiveCheck, Checks, QUEUE_TIMEOUT_DEFAULT, UpstreamLimits};
use crate::model::{Balance, UpstreamTls};
use crate::values::CheckType;
use std::sync::Arc;
use stillgate_schema::kind::At;
use stillgate_schema::text::diagnostic::{Fault, Path, Position, Sink};

/// Compiles an upstream's limits; warns of a queue that is never used, and of a timeout without waiting requests.
pub(crate) fn limits(written: At<UpstreamLimits>, path: &Path<'_>, sink: &mut Sink) -> UpstreamLimits {
    let At { at, value: limits } = written;
    if limits.queue > 0 && limits.requests.is_none() {
        let fault = Fault::new("has no effect without `requests`").hint("say how many requests may be in flight");
        sink.warning(at, &path.key("limits").key("queue"), fault);
    }
    // A value that equals its default is not distinguished from an absent one.
    if limits.queue == 0 && limits.queue_timeout != QUEUE_TIMEOUT_DEFAULT {
        let fault =
            Fault::new("has no effect without `queue`: no request waits").hint("say how many requests may wait");
        sink.warning(at, &path.key("limits").key("queue_timeout"), fault);
    }
    limits
}

/// Compiles the checks of an upstream; warns of parts without effect. `None`: as if there were none.
pub(crate) fn checks(
    written: Option<At<Checks>>,
    balance: &Balance,
    tls: Option<&UpstreamTls>,
    http2: bool,
    path: &Path<'_>,
    sink: &mut Sink,
) -> Option<Arc<Checks>> {
    let At { at, value: checks } = written?;
    let path = path.key("checks");
    if checks.active.is_none() && checks.passive.is_none() && checks.slow_start.is_zero() {
        return None;
    }
    if !checks.slow_start.is_zero() && matches!(balance, Balance::ConsistentHash(_)) {
        let fault = Fault::new("has no effect with `type: chash`, where a key's place does not depend on time");
        sink.warning(at, &path.key("slow_start"), fault.hint("remove it"));
    }
    if let Some(active) = &checks.active {
        check_type(active, tls, http2, at, &path.key("active"), sink);
    }
    let lists = [
        ("active", checks.active.as_ref().map(|c| (&c.healthy.http_statuses, &c.unhealthy.http_statuses))),
        ("passive", checks.passive.as_ref().map(|c| (&c.healthy.http_statuses, &c.unhealthy.http_statuses))),
    ];
    for (key, lists) in lists {
        let Some((healthy, unhealthy)) = lists else { continue };
        if let Some(both) = healthy.iter().find(|status| unhealthy.contains(status)) {
            let fault =
                Fault::new(format!("the status {both} is in both lists of http_statuses; it counts as healthy"));
            sink.warning(at, &path.key(key), fault.hint("name it in one of them"));
        }
    }
    Some(Arc::new(checks))
}

/// Whether active checks use the same protocol as requests.
fn check_type(
    active: &ActiveCheck,
    tls: Option<&UpstreamTls>,
    http2: bool,
    at: Position,
    path: &Path<'_>,
    sink: &mut Sink,
) {
    match (active.r#type, tls) {
        // Another port may well answer for the node over HTTP/1.1.
        (CheckType::Http | CheckType::Https, _) if http2 && active.port.is_none() => {
            let fault = Fault::new("checks speak HTTP/1.1, and this upstream's nodes are spoken to in HTTP/2");
            sink.error(at, &path.key("type"), fault.hint("use `type: tcp`, or name the `port` that speaks HTTP/1.1"));
        }
        (CheckType::Https, None) => {
            let fault = Fault::new("checks with TLS need an upstream with TLS");
            sink.error(at, &path.key("type"), fault.hint("write `scheme: https` in the upstream, or `type: http`"));
        }
        (CheckType::Https, Some(tls)) if tls.verify && !active.https_verify_certificate => {
            let fault = Fault::new("checks verify certificates as requests do");
            let fault = fault.hint("remove the key, or write `verify: false` in the upstream's `tls`");
            sink.error(at, &path.key("https_verify_certificate"), fault);
        }
        (CheckType::Http, Some(_)) if active.port.is_none() => {
            let fault = Fault::new("nodes with `scheme: https` are checked without TLS");
            sink.warning(at, &path.key("type"), fault.hint("write `type: https`, or the port that speaks plain HTTP"));
        }
        _ => {}
    }
}
