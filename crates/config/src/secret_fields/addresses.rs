//! Finds the parts of single texts that may be secrets: logins, paths and queries of addresses, and private keys.

use super::Each;
use super::open_keys::ShownPart;
use super::possible::is_secret_name;
use std::iter;
use std::ops::Range;
use stillgate_route::Variable;
use stillgate_schema::secret_texts::{PEM_BEGIN, private_key};

/// Visits the parts of a text that its key does not show.
pub(super) fn each_in_text(shown: ShownPart, text: &mut String, each: Each<'_>) {
    if is_reference(text) {
        return;
    }
    let mut places = match shown {
        ShownPart::Address => not_shown_of_address(text),
        ShownPart::Path => not_shown_of_path(text),
        ShownPart::Variables if !is_variables(text) => whole(text),
        ShownPart::Certificates if !is_certificate(text) => whole(text),
        _ => Vec::new(),
    };
    for find in [private_key, login, secret_query] {
        add_all(text, find, &mut places);
    }
    replace(text, places, each);
}

/// Adds all places that a function finds.
fn add_all(text: &str, find: fn(&str) -> Option<Range<usize>>, places: &mut Vec<Range<usize>>) {
    let mut from = 0;
    while let Some(place) = find(&text[from..]) {
        places.push(from + place.start..from + place.end);
        from += place.end.max(1);
    }
}

fn whole(text: &str) -> Vec<Range<usize>> {
    iter::once(0..text.len()).collect()
}

/// Visits the parts of a text. Parts that overlap are one.
fn replace(text: &mut String, mut places: Vec<Range<usize>>, each: Each<'_>) {
    places.retain(|place| !place.is_empty());
    places.sort_unstable_by_key(|place| place.start);
    places.dedup_by(|later, earlier| {
        let overlaps = later.start < earlier.end;
        if overlaps {
            earlier.end = earlier.end.max(later.end);
        }
        overlaps
    });
    // From the end, so that earlier positions stay valid.
    for place in places.into_iter().rev() {
        let mut secret = text[place.clone()].to_owned();
        each(&mut secret);
        if text[place.clone()] != secret {
            text.replace_range(place, &secret);
        }
    }
}

/// Whether a text says where its value is, instead of having it.
pub(super) fn is_reference(text: &str) -> bool {
    let is_name =
        |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c));
    ["$secret://", "$env://", "$ENV://"].iter().any(|prefix| text.strip_prefix(prefix).is_some_and(is_name))
        || text.strip_prefix("${{").and_then(|text| text.strip_suffix("}}")).is_some_and(|name| is_name(name.trim()))
}

/// `user:password` in front of an `@`, with or without a scheme.
fn login(text: &str) -> Option<Range<usize>> {
    let is_end = |c: char| c.is_whitespace() || "/?#".contains(c);
    let mut from = 0;
    while let Some(at) = text[from..].find('@').map(|at| from + at) {
        let begin = text[..at].rfind(is_end).map_or(0, |end| end + 1);
        // A scheme without slashes belongs to what is hidden.
        let end = text[at..].find(is_end).map_or(text.len(), |end| at + end);
        let last = text[at..end].rfind('@').map_or(at, |last| at + last);
        if text[begin..last].contains(':') || text[..begin].ends_with("://") {
            return Some(begin..last).filter(|login| !login.is_empty());
        }
        from = at + 1;
    }
    None
}

/// The query of an address or path, if a parameter has the name of a secret.
fn secret_query(text: &str) -> Option<Range<usize>> {
    let is_secret = |parameter: &str| {
        let (name, value) = parameter.split_once('=').unwrap_or_default();
        !value.is_empty() && (name == "key" || is_secret_name(name))
    };
    let mut queries = text.match_indices('?').map(|(at, _)| {
        let length = text[at + 1..].find(char::is_whitespace).unwrap_or(text.len() - at - 1);
        at + 1..at + 1 + length
    });
    queries.find(|query| text[query.clone()].split(['&', ';', '?']).any(is_secret))
}

/// The parts of an address that may be secrets.
fn not_shown_of_address(text: &str) -> Vec<Range<usize>> {
    if let Some((scheme, rest)) = text.split_once("://")
        && !scheme.is_empty()
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    {
        let begin = text.len() - rest.len();
        let end = begin + rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let host = text[begin..end].rfind('@').map_or(begin, |at| begin + at + 1);
        // An `@` behind a slash: the password may contain the slash.
        if !is_host(&text[host..end]) || text[end..].contains('@') {
            return iter::once(begin..text.len()).collect();
        }
        let path = end + 1..text.len();
        return [begin..host.saturating_sub(1).max(begin), path]
            .into_iter()
            .filter(|part| part.start < part.end)
            .collect();
    }
    // A path or the pattern of one: `/a/*`, `~/^a`, `^/a/(.*)`.
    if text.starts_with(['/', '*', '~', '^', '(', '$']) && !text.starts_with("//") {
        return query(text).into_iter().collect();
    }
    if is_host(text) { Vec::new() } else { whole(text) }
}

/// Whether a text is a host, perhaps with a wildcard, and perhaps with a port.
pub(super) fn is_host(text: &str) -> bool {
    let is_name = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || "-._*".contains(c));
    let is_port = |port: &str| port.chars().all(|c| c.is_ascii_digit());
    let is_ipv6 = |text: &str| text.chars().all(|c| c.is_ascii_hexdigit() || ".:".contains(c));
    if let Some((address, port)) = text.strip_prefix('[').and_then(|text| text.split_once(']')) {
        return is_ipv6(address) && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port));
    }
    match text.split_once(':') {
        None => is_name(text),
        Some((host, port)) => is_name(host) && is_port(port) || is_ipv6(text) && port.contains(':'),
    }
}

fn not_shown_of_path(text: &str) -> Vec<Range<usize>> {
    let end = text.find(['?', '#']).unwrap_or(text.len());
    let is_open = text[..end].chars().all(|c| c.is_ascii_alphanumeric() || "-._/*".contains(c));
    if is_open { query(text).into_iter().collect() } else { whole(text) }
}

/// The query of a path: a question mark of a pattern begins none.
fn query(text: &str) -> Option<Range<usize>> {
    let query = text.find('?').map(|at| at + 1..text.len())?;
    Some(query.clone()).filter(|_| text[query].contains('='))
}

/// Whether a text is the name of a variable, or consists of variables and punctuation.
pub(super) fn is_variables(text: &str) -> bool {
    let is_known = |name: &str| Variable::parse_with_body(name).is_ok() || Variable::parse_late(name).is_ok();
    if !text.contains('$') {
        return is_known(text);
    }
    let mut parts = text.split('$');
    let has_no_word = |text: &str| !text.contains(|c: char| c.is_alphanumeric());
    parts.next().is_some_and(has_no_word)
        && parts.all(|part| {
            let (name, rest) = match part.strip_prefix('{') {
                Some(part) => part.split_once('}').unwrap_or_default(),
                None => part.split_at(part.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(part.len())),
            };
            is_known(name) && has_no_word(rest)
        })
}

/// Whether a text is PEM without a private key, or the path of a file.
fn is_certificate(text: &str) -> bool {
    let is_path = text.len() <= 256
        && text.contains(['/', '.'])
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-._/".contains(c));
    is_path || text.trim_start().starts_with(PEM_BEGIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(shown: ShownPart, text: &str) -> String {
        let mut masked = text.to_owned();
        each_in_text(shown, &mut masked, &mut |secret| "*".clone_into(secret));
        masked
    }

    #[test]
    fn addresses_show_scheme_and_host() {
        for (text, expected) in [
            ("https://hooks.test/services/T0/B1", "https://hooks.test/*"),
            ("https://hooks.test?a=b", "https://hooks.test?*"),
            ("https://hooks.test/", "https://hooks.test/"),
            ("http://u:p@127.0.0.1:1/x", "http://*@127.0.0.1:1/*"),
            ("http://token@h", "http://*@h"),
            ("http://u:p/w@h:1/x", "http://*"),
            ("http://u:p?w@h:1/x", "http://*"),
            ("redis://:p@h", "redis://*@h"),
            ("http:u:p@127.0.0.1:1/x", "*"),
            ("//u:p@h/x", "*"),
            ("http ://u:p@h/x", "*"),
            ("http//h/services/s", "*"),
            ("127.0.0.1:1/x?k=s", "*"),
            ("127.0.0.1:1", "127.0.0.1:1"),
            ("*.example.com", "*.example.com"),
            ("::1", "::1"),
            ("[::1]:80", "[::1]:80"),
            ("u:p@h:1", "*"),
            ("/a/*", "/a/*"),
            ("/a?x=s", "/a?*"),
            ("^/a(?<name>.*)$", "^/a(?<name>.*)$"),
            ("$secret://vault/1/a/b", "$secret://vault/1/a/b"),
        ] {
            assert_eq!(masked(ShownPart::Address, text), expected, "{text}");
        }
    }

    #[test]
    fn plain_texts_hide_logins_secret_parameters_and_keys() {
        for (text, expected) in [
            ("see https://u:p@h/x", "see https://*@h/x"),
            ("u:p@h:1", "*@h:1"),
            ("a https://u:p1@h b https://u:p2@h c v:q@i", "a https://*@h b https://*@h c *@i"),
            ("/a?token=s /b?key=t", "/a?* /b?*"),
            ("owner: team@example.com", "owner: team@example.com"),
            ("/a?b=1&sig_token=s", "/a?*"),
            ("https://h/?token=s\n", "https://h/?*\n"),
            ("why? see /a?token=s", "why? see /a?*"),
            ("/a?b=1", "/a?b=1"),
            ("a -----BEGIN EC PRIVATE KEY-----\nk\n-----END EC PRIVATE KEY-----\nb", "a *b"),
            (
                "c\n-----BEGIN PRIVATE KEY-----\nk\n-----END PRIVATE KEY-----\n-----BEGIN CERTIFICATE-----\n\
                 -----BEGIN PRIVATE KEY-----\nl\n-----END PRIVATE KEY-----\n",
                "c\n*-----BEGIN CERTIFICATE-----\n*",
            ),
        ] {
            assert_eq!(masked(ShownPart::Plain, text), expected, "{text}");
        }
    }
}
