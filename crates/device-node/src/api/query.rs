//! Arguments of a query: only those in the table, each once.

use super::super::peers::PAGE_MAX;
use super::endpoints::Endpoint;
use std::time::Duration;
use stillgate_devices::session::AckLevel;
use stillgate_door::KEY_ARGUMENT;

/// How long a sender may wait.
const TIMEOUT_MAX: Duration = Duration::from_secs(300);
const TIMEOUT: Duration = Duration::from_secs(5);
const PAGE: usize = 100;

/// The parsed query.
#[derive(Debug, Default)]
pub(super) struct Query {
    arguments: Vec<(String, String)>,
}

impl Query {
    /// Parses the query of a request; the error says what is wrong.
    pub(super) fn of(endpoint: &Endpoint, text: Option<&str>) -> Result<Query, String> {
        let known = endpoint.query;
        let mut query = Query::default();
        for (name, value) in form_urlencoded::parse(text.unwrap_or_default().as_bytes()) {
            // The guard has checked it already.
            if name == KEY_ARGUMENT {
                continue;
            }
            if !known.iter().any(|(known, _)| *known == name) {
                let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
                return Err(match names.is_empty() {
                    true => format!("unknown argument {name:?}; this call has none"),
                    false => format!("unknown argument {name:?}; known arguments: {}", names.join(", ")),
                });
            }
            if query.get(&name).is_some() {
                return Err(format!("the argument {name:?} is given twice"));
            }
            query.arguments.push((name.into_owned(), value.into_owned()));
        }
        Ok(query)
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.arguments.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// `ack`
    pub(super) fn level(&self) -> Result<AckLevel, String> {
        match self.get("ack") {
            None | Some("written") => Ok(AckLevel::Written),
            Some("device") => Ok(AckLevel::Acknowledged),
            Some("reply") => Ok(AckLevel::Replied),
            Some(other) => Err(format!("ack={other} is unknown; use written, device or reply")),
        }
    }

    /// `timeout`, in milliseconds.
    pub(super) fn timeout_ms(&self) -> Result<u64, String> {
        let Some(text) = self.get("timeout") else { return Ok(TIMEOUT.as_millis() as u64) };
        let wrong = || format!("timeout={text} is not valid; write for example 500ms, 5s or 1m, at most 5m");
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let factor = match &text[end..] {
            "ms" => 1,
            "" | "s" => 1000,
            "m" => 60_000,
            _ => return Err(wrong()),
        };
        let time = text[..end].parse::<u64>().ok().and_then(|count| count.checked_mul(factor));
        time.filter(|ms| (1..=TIMEOUT_MAX.as_millis() as u64).contains(ms)).ok_or_else(wrong)
    }

    /// `page_size`
    pub(super) fn page_size(&self) -> Result<usize, String> {
        let Some(text) = self.get("page_size") else { return Ok(PAGE) };
        let wrong = || format!("page_size={text} is not a number from 1 to {PAGE_MAX}");
        text.parse().ok().filter(|size| (1..=PAGE_MAX).contains(size)).ok_or_else(wrong)
    }

    /// `online`
    pub(super) fn parse_online(&self) -> Result<bool, String> {
        match self.get("online") {
            None | Some("true") => Ok(true),
            Some("false") => Ok(false),
            Some(other) => Err(format!("online={other} is unknown; use true or false")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::endpoints::{Action, ENDPOINTS};
    use super::*;

    fn of(action: Action, text: &str) -> Result<Query, String> {
        Query::of(ENDPOINTS.iter().find(|endpoint| endpoint.action == action).unwrap(), Some(text))
    }

    #[test]
    fn times() {
        let check = |query: &str, expected: Option<u64>| {
            let query = of(Action::Send, query).unwrap();
            assert_eq!(query.timeout_ms().ok(), expected, "{query:?}");
        };
        check("", Some(5000));
        check("timeout=5", Some(5000));
        check("timeout=500ms", Some(500));
        check("timeout=5m", Some(300_000));
        for wrong in ["timeout=", "timeout=0", "timeout=6m", "timeout=5h", "timeout=-1", "timeout=99999999999999999999"]
        {
            check(wrong, None);
        }
    }

    #[test]
    fn what_is_not_known_is_refused() {
        assert!(of(Action::Send, "akc=device").unwrap_err().contains("ack, timeout, key"));
        assert!(of(Action::Top, "api_key=k").is_ok());
        assert!(of(Action::Top, "a=1").unwrap_err().contains("has none"));
        assert!(of(Action::Send, "ack=device&ack=reply").unwrap_err().contains("twice"));
    }
}
