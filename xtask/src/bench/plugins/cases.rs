//! What the plugin bench compares: features that every gateway has in some form, one listener or route for each set of them.
//!
//! A feature is named after the plugin that gives it in Stillgate. What a peer does in its place is in its own file; where
//! its own feature does less (a rate without remaining counts in headers, say), it is left at that.

use super::super::process::free_port;
use super::super::served::Asker;
use crate::Result;
use std::net::SocketAddr;

/// Keys that the gateway knows, each of a consumer of its own.
const CONSUMERS: usize = 1000;
/// The consumer that all requests come from.
const CONSUMER: usize = 500;
/// So many requests are admitted in a window: never fewer than the load sends.
pub(super) const LIMIT: u32 = 1_000_000_000;

/// The request header of keys. Field names are written as each gateway likes them.
pub(super) const KEY_HEADER: &str = "apikey";
/// The origin that all requests come from, the only one that is allowed.
pub(super) const ORIGIN: &str = "https://bench.example";
/// What the response headers of `cors` say beside the origin.
pub(super) const CORS: [(&str, &str); 3] = [
    ("Access-Control-Allow-Methods", "GET,POST"),
    ("Access-Control-Allow-Headers", "apikey,content-type"),
    ("Access-Control-Max-Age", "600"),
];
/// A request header that is set on the way to the node.
pub(super) const REQUEST_FIELD: (&str, &str) = ("X-Bench", "1");
/// A response header that is set.
pub(super) const RESPONSE_FIELD: (&str, &str) = ("X-Answer", "bench");

/// A rewritten path is any case's path, with the digit replaced.
pub(super) const PATH_PATTERN: &str = "^/[0-9]/(.*)$";
pub(super) const PATH_PREFIX: &str = "/rewritten/";
pub(super) const PATH_REWRITTEN: &str = "/rewritten/item";

/// What is done to a request or its response.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Feature {
    /// The request's key must be one that is known.
    KeyAuth,
    /// The client's requests are counted against a limit.
    LimitCount,
    /// Response headers for an allowed origin.
    Cors,
    /// A request header is set and the path replaced.
    FixedPath,
    /// A request header is set and the path rewritten by a regular expression.
    RegexPath,
    /// A response header is set.
    ResponseRewrite,
}

/// A set of features, with a path of its own.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) features: &'static [Feature],
    /// All are of one length, so that none costs more to read.
    pub(super) path: &'static str,
}

const fn case(name: &'static str, path: &'static str, features: &'static [Feature]) -> Case {
    Case { name, features, path }
}

/// What each case is compared with.
pub(super) const PLAIN: Case = case("none", "/0/item", &[]);

pub(super) const CASES: &[Case] = &[
    case("key-auth", "/1/item", &[Feature::KeyAuth]),
    case("limit-count", "/2/item", &[Feature::LimitCount]),
    case("cors", "/3/item", &[Feature::Cors]),
    case("proxy-rewrite, uri", "/4/item", &[Feature::FixedPath]),
    case("proxy-rewrite, regex_uri", "/5/item", &[Feature::RegexPath]),
    case("response-rewrite", "/6/item", &[Feature::ResponseRewrite]),
    case(
        "all five, regex_uri",
        "/7/item",
        &[Feature::KeyAuth, Feature::LimitCount, Feature::Cors, Feature::RegexPath, Feature::ResponseRewrite],
    ),
];

impl Case {
    /// Whether the node sees another path than the client asked for.
    pub(super) fn rewrites(&self) -> bool {
        self.features.iter().any(|feature| matches!(feature, Feature::FixedPath | Feature::RegexPath))
    }
}

/// Where a case is served.
pub(super) struct Endpoint {
    pub(super) case: &'static Case,
    pub(super) address: SocketAddr,
}

impl Endpoint {
    /// One endpoint for the plain case and for each of `cases`, each with a port of its own.
    pub(super) fn each(cases: &[&'static Case]) -> Result<Vec<Endpoint>> {
        let cases = [&PLAIN].into_iter().chain(cases.iter().copied());
        cases.map(|case| Ok(Endpoint { case, address: free_port()? })).collect()
    }

    /// Fails where a feature does nothing that a client can see. What only the node sees is the node's to check.
    pub(super) fn check(&self) -> Result {
        let mut asker = Asker::connect(self.address)?;
        let answer = asker.get(self.case.path, &request_headers())?;
        if answer.status != 200 {
            return Err(format!("{}: answered {}", self.case.name, answer.status).into());
        }
        for feature in self.case.features {
            let (name, expected) = match feature {
                Feature::KeyAuth => {
                    let refused = asker.get(self.case.path, &[])?.status;
                    if !matches!(refused, 401 | 403) {
                        return Err(format!("{}: without a key answered {refused}", self.case.name).into());
                    }
                    continue;
                }
                Feature::Cors => ("access-control-allow-origin", ORIGIN),
                Feature::ResponseRewrite => ("x-answer", RESPONSE_FIELD.1),
                Feature::LimitCount | Feature::FixedPath | Feature::RegexPath => continue,
            };
            let seen = answer.header(name);
            if seen != Some(expected) {
                return Err(format!("{}: {name} is {seen:?} and not {expected}", self.case.name).into());
            }
        }
        Ok(())
    }
}

/// What every request has, so that those of the plain case cost as much to read.
pub(super) fn request_headers() -> Vec<String> {
    vec![format!("{KEY_HEADER}: {}", key(CONSUMER)), format!("Origin: {ORIGIN}")]
}

/// The key that requests have.
pub(super) fn used_key() -> String {
    key(CONSUMER)
}

/// All keys, each with its consumer's name.
pub(super) fn consumers() -> impl Iterator<Item = (String, String)> {
    (0..CONSUMERS).map(|number| (key(number), format!("consumer_{number}")))
}

fn key(number: usize) -> String {
    format!("key-of-the-consumer-{number:06}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_distinct_and_of_one_length() {
        let mut paths: Vec<&str> = CASES.iter().map(|case| case.path).chain([PLAIN.path]).collect();
        assert!(paths.iter().all(|path| path.len() == PLAIN.path.len()));
        paths.sort_unstable();
        paths.dedup();
        assert_eq!(paths.len(), CASES.len() + 1);
    }
}
