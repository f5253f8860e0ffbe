//! Routes whose hosts have more labels than the names for which `ssls` requests client certificates.
//!
//! A wildcard of `ssls` matches one label in a handshake, that of a route's host any number of them. Requests for hosts in between
//! are answered 421 unless the connection has shown a certificate under another name, which is rarely what was meant. Hosts that
//! expressions match are not checked.

use std::collections::HashSet;
use stillgate_config::{Config, SslUse};
use stillgate_route::{HostPattern, RouteSpec};

/// Routes whose hosts exceed one name.
pub(crate) struct DeepHosts {
    /// The warning about the first of them.
    pub(crate) message: String,
    /// How to fix it.
    pub(crate) hint: String,
    /// Their indices, in the order of the file; never empty.
    pub(crate) routes: Vec<usize>,
}

/// One finding for each wildcard that requires client certificates and that hosts of routes exceed.
pub(crate) fn deep_hosts(config: &Config) -> Vec<DeepHosts> {
    let servers = || {
        config.ssls.iter().filter_map(|ssl| match &ssl.usage {
            SslUse::Server(server) => Some((ssl.id.as_str(), server)),
            SslUse::Client | SslUse::Refused(_) => None,
        })
    };
    let names: HashSet<&str> = servers().flat_map(|(_, server)| &server.names).map(String::as_str).collect();
    let asking = servers().filter(|(_, server)| server.client.is_some());
    let wildcards: Vec<(&str, &str)> = asking
        .flat_map(|(id, server)| server.names.iter().map(move |name| (id, name.as_str())))
        .filter(|(_, name)| name.starts_with('*'))
        .collect();
    if wildcards.is_empty() {
        return Vec::new();
    }
    let hosts =
        |spec: &RouteSpec| spec.uri().map_or(Vec::new(), |uri| uri.hosts.iter().map(HostPattern::to_string).collect());
    let hosts: Vec<Vec<String>> = config.routes.iter().map(|route| hosts(&route.spec)).collect();
    wildcards.into_iter().filter_map(|(id, wildcard)| beyond(id, wildcard, &hosts, &names, config)).collect()
}

/// `hosts`: those of each route.
fn beyond(
    id: &str,
    wildcard: &str,
    hosts: &[Vec<String>],
    names: &HashSet<&str>,
    config: &Config,
) -> Option<DeepHosts> {
    let parent = wildcard.strip_prefix('*')?;
    let of = |hosts: &Vec<String>| hosts.iter().find(|host| is_beyond(host, parent, names)).cloned();
    let found: Vec<(usize, String)> =
        hosts.iter().enumerate().filter_map(|(route, hosts)| Some((route, of(hosts)?))).collect();
    let (first, host) = found.first()?;
    let message = format!(
        "route {:?} takes hosts ({host}) deeper than the one label that {wildcard:?} of ssls {id:?} covers in a TLS \
         handshake; requests for them are answered 421 unless the client presented its certificate under another name of \
         that entry",
        config.routes[*first].spec.id
    );
    let hint = "list the exact hosts in the route, and add the deeper ones to `snis`".to_owned();
    Some(DeepHosts { message, hint, routes: found.iter().map(|(route, _)| *route).collect() })
}

/// Whether `host`, of a route, matches names more than one label below `parent` (with its leading dot) that no handshake covers.
fn is_beyond(host: &str, parent: &str, names: &HashSet<&str>) -> bool {
    match host.strip_prefix('*') {
        Some(suffix) => suffix.ends_with(parent) || parent.ends_with(suffix),
        None => {
            let is_deep = host.strip_suffix(parent).is_some_and(|labels| labels.contains('.'));
            let right_above = host.split_once('.').map(|(_, above)| format!("*.{above}"));
            is_deep && !names.contains(host) && !right_above.is_some_and(|above| names.contains(above.as_str()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_handshake_finds_a_name_for() {
        let names = HashSet::from(["*.sec.example", "x.y.sec.example", "*.z.sec.example"]);
        let check = |host: &str, expected: bool| {
            assert_eq!(is_beyond(host, ".sec.example", &names), expected, "{host}");
        };
        check("*.sec.example", true);
        check("*.example", true);
        check("*.a.sec.example", true);
        check("a.b.sec.example", true);
        check("a.sec.example", false);
        check("sec.example", false);
        check("x.y.sec.example", false);
        check("a.z.sec.example", false);
        check("*.other.example", false);
        check("*.xsec.example", false);
        check("a.b.xsec.example", false);
    }
}
