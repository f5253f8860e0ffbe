//! The cases of the plugin bench: each row of the table of features alone, and the chain of five; one listener or route each.

use super::super::LOOPBACK;
use super::super::served::Asker;
use super::features::credentials::{AUTHORIZATION, DATE, TOKEN, TOKEN_HEADER};
use super::features::{
    CORS_FEATURE, Feature, KEY_AUTH, KEY_HEADER, LIMIT_COUNT, ORIGIN, REFERER, REGEX_PATH, RESPONSE_REWRITE, Seen,
    others,
};
use crate::Result;
use std::net::SocketAddr;
use stillgate_rig::ports;

/// Number of keys that the gateway knows, each of a different consumer.
const CONSUMERS: usize = 1000;
/// The consumer of all requests.
const CONSUMER: usize = 500;

/// The content type of requests without a body, for `grpc-web`.
const CONTENT_TYPE: &str = "application/grpc-web+proto";

/// The baseline for cases with large responses.
const LARGE_PLAIN: &str = "none, 16 KiB";

/// A set of features with its own path.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) features: Vec<&'static Feature>,
    /// All have the same length, so that their cost of parsing is equal.
    pub(super) path: &'static str,
    /// Whether the response is a text of 16 KiB.
    pub(super) is_large: bool,
}

/// The baselines for small and for large responses, and then all cases. They are kept to the end of the process.
pub(super) fn all() -> Vec<&'static Case> {
    let five = [&KEY_AUTH, &LIMIT_COUNT, &CORS_FEATURE, &REGEX_PATH, &RESPONSE_REWRITE];
    let alone = five.into_iter().chain(others());
    let alone = alone.map(|feature| (feature.name, feature.beside.into_iter().chain([feature]).collect()));
    let plain = [("none", Vec::new()), (LARGE_PLAIN, Vec::new())];
    let cases = plain.into_iter().chain(alone).chain([("all five, regex_uri", five.to_vec())]);
    let numbered = cases.enumerate().map(|(number, (name, features))| {
        let is_large = name == LARGE_PLAIN || features.iter().any(|feature: &&Feature| feature.is_large);
        let item = if is_large { "text" } else { "item" };
        let path: &'static str = format!("/{number:02}/{item}").leak();
        &*Box::leak(Box::new(Case { name, features, path, is_large }))
    });
    numbered.collect()
}

impl Case {
    /// Whether it is a baseline.
    pub(super) fn is_plain(&self) -> bool {
        self.features.is_empty()
    }

    /// The `Authorization` of its requests.
    fn authorization(&self) -> &'static str {
        self.features.iter().find_map(|feature| feature.authorization).unwrap_or(AUTHORIZATION)
    }

    /// The path of its route: that of its requests, or its prefix if a plugin strips that.
    pub(super) fn uri(&self) -> String {
        match self.path.rsplit_once('/') {
            Some((prefix, _)) if self.method() == "POST" => format!("{prefix}/*"),
            _ => self.path.to_owned(),
        }
    }

    /// The method of its requests.
    pub(super) fn method(&self) -> &'static str {
        if self.features.iter().any(|feature| feature.is_post) { "POST" } else { "GET" }
    }

    /// The status of its responses.
    pub(super) fn status(&self) -> u16 {
        let other = self.features.iter().find_map(|feature| match feature.seen {
            Seen::Status(status) => Some(status),
            _ => None,
        });
        other.unwrap_or(200)
    }

    /// Whether Stillgate sends data about its requests with a delay of some seconds.
    pub(super) fn collects(&self) -> bool {
        self.features.iter().any(|feature| feature.collects)
    }

    /// Whether the node receives a different path than the client requested.
    pub(super) fn rewrites(&self) -> bool {
        self.features.iter().any(|feature| feature.rewrites)
    }
}

/// The address of a case.
pub(super) struct Endpoint {
    pub(super) case: &'static Case,
    pub(super) address: SocketAddr,
}

impl Endpoint {
    /// One endpoint for each case, each with a separate port.
    pub(super) fn each(cases: &[&'static Case]) -> Result<Vec<Endpoint>> {
        Ok(cases
            .iter()
            .zip(ports::free(LOOPBACK, cases.len())?)
            .map(|(case, address)| Endpoint { case, address })
            .collect())
    }

    /// Fails if a feature has no effect that a client can see. Returns the bytes of the response's body.
    pub(super) fn check(&self) -> Result<usize> {
        let mut asker = Asker::connect(self.address)?;
        let answer = asker.ask(self.case.method(), self.case.path, &request_headers(self.case))?;
        let (name, status) = (self.case.name, self.case.status());
        for feature in &self.case.features {
            match feature.seen {
                Seen::Nothing | Seen::Status(_) => {}
                Seen::Header(field, expected) => {
                    let seen = answer.header(field);
                    if seen != Some(expected) {
                        return Err(format!("{name}: {field} is {seen:?} and not {expected}").into());
                    }
                }
                Seen::Present(field) => {
                    if answer.header(field).is_none() {
                        return Err(format!("{name}: there is no {field}").into());
                    }
                }
                Seen::Refused => {
                    let refused = asker.ask(self.case.method(), self.case.path, &[])?.status;
                    if !matches!(refused, 401 | 403) {
                        return Err(format!("{name}: without its headers answered {refused}").into());
                    }
                }
            }
        }
        match answer.status == status {
            true => Ok(answer.body.len()),
            false => Err(format!("{name}: answered {} and not {status}", answer.status).into()),
        }
    }
}

/// The headers of every request, so that those of the plain case have the same cost of parsing; except for a signed one.
pub(super) fn request_headers(case: &Case) -> Vec<String> {
    let fields = [
        (KEY_HEADER, used_key()),
        ("Origin", ORIGIN.to_owned()),
        ("Referer", REFERER.to_owned()),
        ("Authorization", case.authorization().to_owned()),
        ("Date", DATE.to_owned()),
        ("Content-Type", CONTENT_TYPE.to_owned()),
        (TOKEN_HEADER, TOKEN.to_owned()),
        ("User-Agent", "Bench/1.0 (of plugins)".to_owned()),
        ("X-Real-IP", "203.0.113.7".to_owned()),
        ("Accept-Encoding", "gzip, br, zstd".to_owned()),
    ];
    fields.map(|(name, value)| format!("{name}: {value}")).to_vec()
}

/// The key in requests.
pub(super) fn used_key() -> String {
    key(CONSUMER)
}

/// All keys with their consumers' names.
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
        let cases = all();
        let mut paths: Vec<&str> = cases.iter().map(|case| case.path).collect();
        assert!(paths.iter().all(|path| path.len() == paths[0].len()));
        paths.sort_unstable();
        paths.dedup();
        assert_eq!(paths.len(), cases.len());
    }
}
