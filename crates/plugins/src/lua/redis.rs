//! Connections of `resty.redis`: those that a request or a timer has open, and the ends of replies.
//!
//! They are closed with the request, unless a function has returned them to their pool. A connection that is out of
//! step with its replies is closed: the next reply could be another request's.

use super::http::TIMEOUT_MAX;
use memchr::memmem;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;
use stillgate_lua::{LinkCall, OpenedLink};
use stillgate_plugin_api::calls::REPLY_BYTES_MAX;
use stillgate_plugin_api::{CallError, Exchange, Io, Keep, Link, LinkTo, RequestState, Url};

/// Most open connections of a request.
const LINKS_MAX: usize = 16;
/// Longest line of a reply.
const LINE_BYTES_MAX: usize = 64 * 1024;
/// Most levels of nested lists.
const DEPTH_MAX: usize = 32;
/// Duration of a call that fails at once.
const REFUSED_PAUSE: Duration = Duration::from_millis(1);

thread_local! {
    /// Numbers are local to a worker: one that a function has kept from another request is invalid.
    static NEXT: Cell<u64> = const { Cell::new(1) };
}

/// The connections of one request.
#[derive(Clone, Default)]
pub(super) struct Links(Rc<RefCell<HashMap<u64, Box<dyn Link>>>>);

impl Links {
    /// The connections of a request.
    pub(super) fn of(settled: &mut RequestState) -> Links {
        if let Some(links) = settled.held.iter().find_map(|held| held.downcast_ref::<Links>()) {
            return links.clone();
        }
        let links = Links::default();
        settled.held.push(Box::new(links.clone()));
        links
    }

    /// Executes a function's operation on a connection; the error is for the function, in OpenResty's words if it has
    /// some.
    pub(super) async fn perform(
        self,
        call: LinkCall,
        io: Rc<dyn Io>,
        client: Option<IpAddr>,
    ) -> Result<Vec<u8>, String> {
        let done = self.try_perform(call, &*io, client).await;
        if done.is_err() {
            // A function may try for ever: this lets others run.
            io.sleep(REFUSED_PAUSE).await;
        }
        done
    }

    async fn try_perform(&self, call: LinkCall, io: &dyn Io, client: Option<IpAddr>) -> Result<Vec<u8>, String> {
        match call {
            LinkCall::Connect { host, port, verifies, pool, timeout } => {
                if self.0.borrow().len() >= LINKS_MAX {
                    return Err(format!("a request has at most {LINKS_MAX} connections; give some back"));
                }
                let to = LinkTo { client, ..link_to((&host, port, verifies), pool, timeout)? };
                let link = io.link(to).await.map_err(|error| error_text(error, &host))?;
                let (number, reused) = (NEXT.get(), link.reused());
                NEXT.set(number + 1);
                self.0.borrow_mut().insert(number, link);
                Ok(OpenedLink { link: number, reused }.text())
            }
            LinkCall::Exchange { link, replies, send_timeout, read_timeout, message } => {
                let (mut scan, connection) = (Replies::new(replies), self.take(link)?);
                let exchange = Exchange {
                    message,
                    send_timeout: send_timeout.min(TIMEOUT_MAX),
                    read_timeout: read_timeout.min(TIMEOUT_MAX),
                    reply_bytes_max: REPLY_BYTES_MAX,
                    whole: Box::new(move |received| scan.end(received)),
                };
                let (replies, connection) =
                    connection.exchange(exchange).await.map_err(|error| error_text(error, ""))?;
                self.0.borrow_mut().insert(link, connection);
                Ok(replies)
            }
            LinkCall::Keep { link, idle, connections } => {
                self.take(link)?.keep(Keep { idle, connections_max: connections });
                Ok(Vec::new())
            }
            LinkCall::Close { link } => self.take(link).map(|_| Vec::new()),
        }
    }

    fn take(&self, link: u64) -> Result<Box<dyn Link>, String> {
        self.0.borrow_mut().remove(&link).ok_or_else(|| error_text(CallError::Closed, ""))
    }
}

fn link_to(
    (host, port, verifies): (&str, u16, Option<bool>),
    pool: String,
    timeout: Duration,
) -> Result<LinkTo, String> {
    let is_address = host.contains(':') && !host.starts_with('[');
    let host = if is_address { format!("[{host}]") } else { host.to_owned() };
    let scheme = if verifies.is_some() { "https" } else { "http" };
    let url = Url::parse(&format!("{scheme}://{host}:{port}/"), verifies.unwrap_or(true));
    // The host must end where the port begins, with nothing in between.
    let url = url.ok().filter(|url| &*url.target == "/" && url.origin.port == port);
    let origin = url.ok_or_else(|| format!("{host:?} is not a host"))?.origin;
    Ok(LinkTo { origin, client: None, pool: pool.into(), timeout: timeout.min(TIMEOUT_MAX) })
}

fn error_text(error: CallError, host: &str) -> String {
    match error {
        CallError::Timeout => "timeout".to_owned(),
        CallError::Connect => "connection refused".to_owned(),
        CallError::Closed => "closed".to_owned(),
        CallError::Resolve => format!("{host} could not be resolved (3: Host not found)"),
        CallError::Tls => "failed to do ssl handshake: handshake failed".to_owned(),
        CallError::BadReply => "the reply is not valid Redis protocol".to_owned(),
        CallError::TooLarge => format!("a reply of more than {REPLY_BYTES_MAX} bytes"),
        CallError::Resting | CallError::Busy => error.to_string(),
    }
}

/// Finds the end of replies in RESP 2. Bytes are parsed only once.
struct Replies {
    /// Number of missing items: of the replies, then of the open lists, each nested in the one before.
    missing: Vec<usize>,
    /// Position of the next item.
    at: usize,
}

impl Replies {
    fn new(count: usize) -> Replies {
        Replies { missing: vec![count], at: 0 }
    }

    /// The end of the replies; `None`: they are incomplete.
    fn end(&mut self, received: &[u8]) -> Result<Option<usize>, CallError> {
        loop {
            while self.missing.pop_if(|missing| *missing == 0).is_some() {}
            let depth = self.missing.len();
            let Some(missing) = self.missing.last_mut() else { return Ok(Some(self.at)) };
            let rest = &received[self.at..];
            let Some(line) = memmem::find(&rest[..rest.len().min(LINE_BYTES_MAX)], b"\r\n") else {
                return if rest.len() < LINE_BYTES_MAX { Ok(None) } else { Err(CallError::TooLarge) };
            };
            let behind = line + 2;
            let mut length = behind;
            let mut items = None;
            match (rest[0], rest.get(1..line).unwrap_or_default()) {
                (b'+' | b'-', _) => {}
                (b':', number) => _ = number_of(number)?,
                (b'$', number) => {
                    if let Some(size) = count_of(number)? {
                        let end = behind + size;
                        match rest.get(end..end + 2) {
                            Some(b"\r\n") => length = end + 2,
                            Some(_) => return Err(CallError::BadReply),
                            None => return Ok(None),
                        }
                    }
                }
                (b'*', number) => items = count_of(number)?,
                _ => return Err(CallError::BadReply),
            }
            *missing -= 1;
            self.at += length;
            if let Some(items) = items {
                if depth > DEPTH_MAX {
                    return Err(CallError::BadReply);
                }
                self.missing.push(items);
            }
        }
    }
}

fn number_of(text: &[u8]) -> Result<i64, CallError> {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.ok_or(CallError::BadReply)
}

/// `None`: it is null.
fn count_of(text: &[u8]) -> Result<Option<usize>, CallError> {
    match number_of(text)? {
        -1 => Ok(None),
        number => match usize::try_from(number) {
            Ok(number) if number <= REPLY_BYTES_MAX => Ok(Some(number)),
            Ok(_) => Err(CallError::TooLarge),
            Err(_) => Err(CallError::BadReply),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the end of replies for any split of the bytes.
    #[track_caller]
    fn check(text: &str, count: usize, expected: Result<Option<usize>, CallError>) {
        assert_eq!(Replies::new(count).end(text.as_bytes()), expected, "{text:?}");
        let mut in_pieces = Replies::new(count);
        let mut told = Ok(None);
        for length in 0..=text.len() {
            told = in_pieces.end(&text.as_bytes()[..length]);
            if told != Ok(None) {
                break;
            }
        }
        assert_eq!(told, expected, "{text:?} in pieces");
    }

    #[test]
    fn replies_are_found_to_be_whole() {
        let whole = |text: &str, count| check(text, count, Ok(Some(text.len())));
        whole("", 0);
        whole("+OK\r\n", 1);
        whole("-ERR no\r\n", 1);
        whole(":-12\r\n", 1);
        whole("$-1\r\n", 1);
        whole("$0\r\n\r\n", 1);
        whole("$4\r\n\r\n\r\n\r\n", 1);
        whole("*-1\r\n", 1);
        whole("*0\r\n", 1);
        whole("*2\r\n*1\r\n:1\r\n$1\r\na\r\n", 1);
        whole("*3\r\n*0\r\n*1\r\n*0\r\n-ERR\r\n+OK\r\n", 2);
        for text in ["", "+", "+OK", "+OK\r", "$3\r\nab", "$3\r\nabc\r", "*2\r\n:1\r\n", "*1\r\n*1\r\n"] {
            check(text, 1, Ok(None));
        }
        check("+OK\r\n", 2, Ok(None));
    }

    #[test]
    fn what_is_not_a_reply_is_refused() {
        for text in [
            "\r\n",
            "OK\r\n",
            "%1\r\n+a\r\n+b\r\n",
            ":1.5\r\n",
            ":\r\n",
            "$-2\r\n",
            "$a\r\n",
            "$1\r\nabc\r\n",
            "*-2\r\n",
            "* 1\r\n",
            "HTTP/1.1 400 Bad Request\r\n",
        ] {
            check(text, 1, Err(CallError::BadReply));
        }
        check(&"*1\r\n".repeat(DEPTH_MAX + 2), 1, Err(CallError::BadReply));
        for text in ["$99999999999\r\n", "*9999999\r\n", &*format!("+{}", "a".repeat(LINE_BYTES_MAX))] {
            assert_eq!(Replies::new(1).end(text.as_bytes()), Err(CallError::TooLarge));
        }
    }

    #[test]
    fn hosts() {
        let check = |host: &str, verifies| {
            let to = link_to((host, 6379, verifies), "p".to_owned(), Duration::from_secs(9999)).ok()?;
            assert_eq!((to.timeout, to.origin.port), (TIMEOUT_MAX, 6379));
            Some(format!("{} {} {}", to.origin.host, to.origin.is_https, to.origin.verifies))
        };
        for (host, verifies, expected) in [
            ("127.0.0.1", None, Some("127.0.0.1 false true")),
            ("Redis.example", Some(false), Some("redis.example true false")),
            ("::1", Some(true), Some("::1 true true")),
            ("[::1]", None, Some("::1 false true")),
            ("", None, None),
            ("a/b", None, None),
            ("a?b", None, None),
            ("a:80", None, None),
            ("user@host", None, None),
            ("a b", None, None),
        ] {
            assert_eq!(check(host, verifies).as_deref(), expected, "{host}");
        }
    }
}
