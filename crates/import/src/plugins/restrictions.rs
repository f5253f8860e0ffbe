//! Plugins that keep clients out by group, address or user agent.

use super::translation::{Translation, TranslationContext, close};
use crate::expression::regex_problem;
use crate::kong_file::Plugin;
use crate::object::Object;
use ipnet::{IpNet, Ipv4Net, Ipv4Subnets, Ipv6Net, Ipv6Subnets};
use serde_json::{Map, Value as Json, json};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The label of consumers that has the groups of `acls`.
pub(crate) const GROUPS_LABEL: &str = "groups";

/// Values under either of two names: Kong 2 had other ones.
fn list(config: &Object, name: &str, old_name: &str) -> Vec<String> {
    let values = config.texts(name);
    let old = config.texts(old_name);
    if values.is_empty() { old } else { values }
}

pub(super) fn acl(plugin: &Plugin, _: &TranslationContext<'_>) -> Translation {
    let config = &plugin.config;
    let (allow, deny) = (list(config, "allow", "whitelist"), list(config, "deny", "blacklist"));
    let hides = config.flag("hide_groups_header").unwrap_or(false);
    config.lost_if_set("always_use_authenticated_groups", "groups come from the labels of consumers only");
    config.lost_if_set("include_consumer_groups", "consumer groups do not count here; only the groups of `acls` do");
    // With both, Kong looks at `deny` only.
    let lists = match (allow.is_empty(), deny.is_empty()) {
        (_, false) => json!({"deny_labels": {GROUPS_LABEL: deny}}),
        (false, true) => json!({"allow_labels": {GROUPS_LABEL: allow}}),
        (true, true) => return close(plugin, "neither `allow` nor `deny` can be read"),
    };
    let mut keys = crate::upstreams::json_map(lists);
    keys.insert("rejected_msg".to_owned(), "You cannot consume this service".into());
    let mut chain = vec![("acl", Json::from(keys))];
    if !hides {
        let headers = json!({"headers": {"X-Consumer-Groups": format!("${GROUPS_LABEL}")}});
        chain.push(("attach-consumer-label", headers));
    }
    Translation::Plain(chain)
}

pub(super) fn ip_restriction(plugin: &Plugin, _: &TranslationContext<'_>) -> Translation {
    let config = &plugin.config;
    let (allow, deny) = (list(config, "allow", "whitelist"), list(config, "deny", "blacklist"));
    let (status, message) = (config.whole("status"), config.text("message"));
    let (Some(allowed), Some(denied)) = (networks(&allow), networks(&deny)) else {
        return close(plugin, "one of the addresses cannot be read");
    };
    let mut keys = Map::new();
    match (allowed.is_empty(), denied.is_empty()) {
        (true, true) => return close(plugin, "neither `allow` nor `deny` can be read"),
        (true, false) => keys.insert("blacklist".to_owned(), deny.into()),
        (false, true) => keys.insert("whitelist".to_owned(), allow.into()),
        (false, false) => {
            let rest = difference(&allowed, &denied);
            if rest.is_empty() {
                return close(plugin, "`deny` has all addresses of `allow`");
            }
            keys.insert("whitelist".to_owned(), rest.into())
        }
    };
    if let Some(message) = message {
        keys.insert("message".to_owned(), message.into());
    }
    match status {
        None | Some(403) => {}
        Some(404) => drop(keys.insert("response_code".to_owned(), 404.into())),
        Some(_) => config.lost("status", "the status is 403 here; only 403 and 404 are possible"),
    }
    Translation::Plain(vec![("ip-restriction", keys.into())])
}

fn networks(texts: &[String]) -> Option<Vec<IpNet>> {
    let network = |text: &String| {
        text.parse::<IpNet>()
            .ok()
            .or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
            .map(|network| network.trunc())
    };
    texts.iter().map(network).collect()
}

/// The networks of all addresses that are in `allowed` and not in `denied`: a plugin has only one of the two lists.
fn difference(allowed: &[IpNet], denied: &[IpNet]) -> Vec<String> {
    let allowed = IpNet::aggregate(&allowed.to_vec());
    let mut rest = Vec::new();
    for network in allowed {
        match network {
            IpNet::V4(network) => {
                let denied =
                    denied.iter().filter_map(|net| if let IpNet::V4(net) = net { Some(bounds_v4(*net)) } else { None });
                for (from, to) in cut(bounds_v4(network), denied) {
                    let subnets = Ipv4Subnets::new(Ipv4Addr::from(from as u32), Ipv4Addr::from(to as u32), 0);
                    rest.extend(subnets.map(|net| net.to_string()));
                }
            }
            IpNet::V6(network) => {
                let denied =
                    denied.iter().filter_map(|net| if let IpNet::V6(net) = net { Some(bounds_v6(*net)) } else { None });
                for (from, to) in cut(bounds_v6(network), denied) {
                    let subnets = Ipv6Subnets::new(Ipv6Addr::from(from), Ipv6Addr::from(to), 0);
                    rest.extend(subnets.map(|net| net.to_string()));
                }
            }
        }
    }
    rest
}

fn bounds_v4(network: Ipv4Net) -> (u128, u128) {
    (u32::from(network.network()).into(), u32::from(network.broadcast()).into())
}

fn bounds_v6(network: Ipv6Net) -> (u128, u128) {
    (network.network().into(), network.broadcast().into())
}

/// A range without others.
fn cut(range: (u128, u128), others: impl Iterator<Item = (u128, u128)>) -> Vec<(u128, u128)> {
    let mut rest = vec![range];
    for (from, to) in others {
        let split = |(begin, end): (u128, u128)| {
            if to < begin || from > end {
                return [Some((begin, end)), None];
            }
            [(from > begin).then(|| (begin, from - 1)), (to < end).then(|| (to + 1, end))]
        };
        rest = rest.into_iter().flat_map(split).flatten().collect();
    }
    rest
}

pub(super) fn bot_detection(plugin: &Plugin, _: &TranslationContext<'_>) -> Translation {
    let config = &plugin.config;
    let usable = |name: &str, old_name: &str| {
        let (mut regexes, mut is_whole) = (Vec::new(), true);
        for field in config.items(name).into_iter().chain(config.items(old_name)) {
            let Some(regex) = field.text() else { continue };
            match regex_problem(&regex) {
                None => regexes.push(regex),
                Some(problem) => {
                    is_whole = false;
                    field.lost(&format!("the regex cannot be used here ({problem}); it is left out"));
                }
            }
        }
        (regexes, is_whole)
    };
    let ((allow, _), (deny, denies_all)) = (usable("allow", "whitelist"), usable("deny", "blacklist"));
    config.changed(
        "Kong's own list of robots is not known here; only `deny` of the file is, so add others to `ua-restriction`",
    );
    if !denies_all {
        return close(plugin, "a regex of `deny` cannot be used");
    }
    if deny.is_empty() {
        return Translation::Nothing;
    }
    let mut keys = json!({"denylist": deny, "bypass_missing": true});
    if !allow.is_empty() {
        let any: Vec<String> = allow.iter().map(|regex| format!("(?:{regex})")).collect();
        keys["_meta"] = json!({"filter": [["http_user_agent", "!", "~~", any.join("|")]]});
    }
    Translation::Plain(vec![("ua-restriction", keys)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denied_addresses_are_taken_out_of_allowed_networks() {
        let check = |allow: &[&str], deny: &[&str], want: &[&str]| {
            let read =
                |texts: &[&str]| networks(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>()).unwrap();
            assert_eq!(difference(&read(allow), &read(deny)), want);
        };
        check(&["10.0.0.0/30"], &["10.0.0.1"], &["10.0.0.0/32", "10.0.0.2/31"]);
        check(&["10.0.0.0/24"], &["10.0.0.0/8"], &[]);
        check(&["10.0.0.0/24"], &["192.0.2.0/24", "fd00::/8"], &["10.0.0.0/24"]);
        check(&["0.0.0.0/0"], &["128.0.0.0/1"], &["0.0.0.0/1"]);
        check(&["fd00::/126"], &["fd00::/127"], &["fd00::2/127"]);
    }
}
