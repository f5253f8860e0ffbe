//! Makes a target's series, as many as requested.
//!
//! By requests if a label takes a query argument; by idle servers or clusters if every part of the configuration has
//! its series. The number of series per part depends on the version, so it is counted first.

use super::{RunningTarget, Spec, TargetKind, gateways, nginx};
use crate::error::{Error, Result};
use crate::scraper;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;
use stillgate_load::{Mix, Target};
use stillgate_wire::{BodyDecoder, HeadLimits, HeadProgress, Method, ResponseHead};

/// Allowed relative deviation of the series made by idle parts.
const TOLERANCE: f64 = 0.1;

/// The most that one program with one configuration file was seen to serve in reasonable time and memory.
const SERIES_MAX: u64 = 2_000_000;

/// Clusters of the smaller of the two probes.
const ENVOY_PROBE: u64 = 20;

/// A file of the touched numbers, and the mix that names it.
const NUMBERS_FILE: &str = "touched.txt";
const MIX_FILE: &str = "touched.yaml";

/// Makes the requested series, then counts those in the exposition.
pub(crate) fn make_series(started: &RunningTarget, spec: &Spec) -> Result<u64> {
    let asked = spec.series.filter(|_| spec.kind.makes_series());
    if let Some(series) = asked
        && by_requests(spec.kind)
    {
        request_each(started.address, series, &path).map_err(|error| error.context(&spec.name))?;
    }
    let shown = shown(started)?;
    if spec.kind == TargetKind::Nginx {
        return Ok(nginx::STUB_STATUS_FIGURES);
    }
    let fits = |asked: u64| match by_requests(spec.kind) {
        true => shown >= asked,
        false => (shown as f64 - asked as f64).abs() <= TOLERANCE * asked as f64,
    };
    match asked {
        Some(asked) if !fits(asked) => {
            Err(format!("{}: its exposition has {shown} series, not the {asked} requested", spec.name).into())
        }
        _ => Ok(shown),
    }
}

/// The requests of the load: with series that requests make, `touched_percent` of them, spread over all; else `/`.
pub(crate) fn mix(spec: &Spec, target: &Target, touched_percent: f64) -> Result<Mix> {
    let cannot =
        |error: &dyn std::fmt::Display| Error::new(format!("{}: the requests of the load: {error}", spec.name));
    let Some(series) = spec.series.filter(|_| by_requests(spec.kind)) else {
        return Mix::single("GET", "/", &target.host, &[], Vec::new()).map_err(|errors| cannot(&errors));
    };
    let touched = ((series as f64 * touched_percent / 100.0).round() as u64).clamp(1, series.max(1));
    let distance = series.max(1) / touched;
    let numbers: String = (0..touched).map(|number| format!("{}\n", number * distance)).collect();
    let write = |name: &str, text: &str| {
        let file = spec.directory.join(name);
        fs::write(&file, text).map(|()| file).map_err(|error| cannot(&error))
    };
    write(NUMBERS_FILE, &numbers)?;
    let requests = format!("variables: {{id: {{file: {NUMBERS_FILE}}}}}\nrequests: [{{path: '/?id=${{id}}'}}]\n");
    let file = write(MIX_FILE, &requests)?;
    Mix::from_file(&file, target).map_err(|errors| cannot(&errors))
}

/// The number of series in a scrape.
pub(super) fn shown(started: &RunningTarget) -> Result<u64> {
    let name = &started.subject.name;
    let metrics =
        started.metrics.as_ref().ok_or_else(|| format!("{name}: the address of its exposition is unknown"))?;
    scraper::count_series(metrics).map_err(|error| error.context(name))
}

/// The number of idle parts that the configuration needs, found by counting the series of few and of more of them;
/// `count` starts a target with a given number. `None` for kinds without idle parts.
pub(super) fn idle_parts(spec: &Spec, count: impl Fn(u64) -> Result<u64>) -> Result<u64> {
    let probe = match spec.kind {
        TargetKind::Haproxy => gateways::HAPROXY_BACKEND_SERVERS,
        TargetKind::Envoy => ENVOY_PROBE,
        TargetKind::Stillgate | TargetKind::Nginx | TargetKind::NginxLua | TargetKind::Command => return Ok(0),
    };
    let Some(series) = spec.series else { return Ok(0) };
    if series > SERIES_MAX {
        return Err(
            format!("{}: {series} series are more than it is set up for; use {SERIES_MAX} at most", spec.name).into()
        );
    }
    let (few, more) = (count(probe)?, count(2 * probe)?);
    if more <= few {
        return Err(format!(
            "{}: {probe} idle parts show {few} series and {} show {more}, so no number of them is known to make {series}",
            spec.name,
            2 * probe
        )
        .into());
    }
    Ok(parts(series, probe, few, more))
}

fn by_requests(kind: TargetKind) -> bool {
    matches!(kind, TargetKind::Stillgate | TargetKind::NginxLua)
}

fn path(number: u64) -> String {
    format!("/?id={number}")
}

/// The nearest point to `series` on the line through both probes.
fn parts(series: u64, probe: u64, few: u64, more: u64) -> u64 {
    let each = (more - few) as f64 / probe as f64;
    let without = few as f64 - each * probe as f64;
    // A negative number of parts becomes none.
    ((series as f64 - without) / each).round() as u64
}

// Makes series: one request for each number, as fast as they are answered.
//
// Several requests are under way on each connection (pipelining), which is the fastest way. For making series, not for
// measuring: any answer that is not a success ends it.

const CONNECTIONS: u64 = 4;
/// Concurrent requests on each connection.
const DEPTH: u64 = 32;

/// No answers at all for this long is an error.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

const BUFFER_BYTES: usize = 64 * 1024;

/// A server that closes this many connections without an answer in between does not want to answer.
const FRUITLESS_MAX: usize = 3;

/// Requests `path` of every number from 0 to `count`, each at least once.
pub(super) fn request_each(address: SocketAddr, count: u64, path: &(dyn Fn(u64) -> String + Sync)) -> Result {
    let lane = |lane: u64| {
        let mut numbers = (lane..count).step_by(CONNECTIONS as usize).peekable();
        let mut batch = Vec::with_capacity(DEPTH as usize);
        let mut connection = None;
        let mut fruitless = 0;
        loop {
            let room = DEPTH as usize - batch.len();
            batch.extend(numbers.by_ref().take(room).map(path));
            if batch.is_empty() {
                return Ok(());
            }
            let open: &mut TcpStream = match &mut connection {
                Some(open) => open,
                None => connection.insert(connect(address)?),
            };
            let Answers { answered, kept } = exchange(open, &batch)?;
            fruitless = if answered == 0 { fruitless + 1 } else { 0 };
            if fruitless == FRUITLESS_MAX {
                return Err(io::Error::other("it closes connections without answering"));
            }
            batch.drain(..answered);
            if !kept {
                connection = None;
            }
        }
    };
    let failed = thread::scope(|scope| {
        let lanes: Vec<_> = (0..CONNECTIONS).map(|number| scope.spawn(move || lane(number))).collect();
        let ends =
            lanes.into_iter().map(|lane| lane.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))));
        ends.filter_map(io::Result::err).next()
    });
    match failed {
        None => Ok(()),
        Some(error) => Err(Error::new(format!("making series by requests to {address}: {error}"))),
    }
}

struct Answers {
    answered: usize,
    /// Whether the connection can take more.
    kept: bool,
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, STALL_TIMEOUT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(STALL_TIMEOUT))?;
    Ok(stream)
}

/// Sends a batch and reads its answers, or as many as come before the connection ends.
fn exchange(stream: &mut TcpStream, paths: &[String]) -> io::Result<Answers> {
    let mut requests = Vec::with_capacity(paths.len() * 64);
    for path in paths {
        requests.extend_from_slice(b"GET ");
        requests.extend_from_slice(path.as_bytes());
        requests.extend_from_slice(b" HTTP/1.1\r\nHost: load.example\r\n\r\n");
    }
    stream.write_all(&requests)?;
    let mut reader = AnswerReader { stream, buffer: vec![0; BUFFER_BYTES], filled: 0 };
    for answered in 0..paths.len() {
        match reader.answer()? {
            None => return Ok(Answers { answered, kept: false }),
            Some(false) => return Ok(Answers { answered: answered + 1, kept: false }),
            Some(true) => {}
        }
    }
    Ok(Answers { answered: paths.len(), kept: true })
}

/// Parses the answers of a stream, one after the other.
struct AnswerReader<'a> {
    stream: &'a mut TcpStream,
    buffer: Vec<u8>,
    filled: usize,
}

impl AnswerReader<'_> {
    /// Reads one answer, and returns whether the connection is kept after it; `None` if it ended before.
    fn answer(&mut self) -> io::Result<Option<bool>> {
        let mut head = ResponseHead::default();
        let limits = HeadLimits::default();
        let length = loop {
            match head.advance(&self.buffer[..self.filled], Method::Get, &limits) {
                Ok(HeadProgress::Complete(length)) => break length,
                Ok(HeadProgress::Partial) if self.more()? => {}
                Ok(HeadProgress::Partial) if self.filled == 0 => return Ok(None),
                Ok(HeadProgress::Partial) => return Err(io::Error::other("an answer was cut off")),
                Err(error) => return Err(io::Error::other(format!("not HTTP: {error:?}"))),
            }
        };
        if !(200..400).contains(&head.status) {
            return Err(io::Error::other(format!("answered {}", head.status)));
        }
        self.drop_front(length);
        let mut body = BodyDecoder::new(head.framing);
        loop {
            let decoded = body.decode(&mut self.buffer[..self.filled]);
            let decoded = decoded.map_err(|error| io::Error::other(format!("a bad body: {error:?}")))?;
            self.drop_front(decoded.consumed);
            if body.is_done() {
                return Ok(Some(head.keep_alive));
            }
            if !self.more()? {
                return match body {
                    BodyDecoder::UntilClose => Ok(Some(false)),
                    _ => Err(io::Error::other("an answer was cut off")),
                };
            }
        }
    }

    /// Reads once; false at the end.
    fn more(&mut self) -> io::Result<bool> {
        let read = self.stream.read(&mut self.buffer[self.filled..])?;
        self.filled += read;
        Ok(read > 0)
    }

    fn drop_front(&mut self, bytes: usize) {
        self.buffer.copy_within(bytes..self.filled, 0);
        self.filled -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stillgate_load::mix::Composer;

    #[test]
    fn parts_for_a_number_of_series() {
        #[track_caller]
        fn check(series: u64, probe: u64, each: u64, without: u64, expected: u64) {
            assert_eq!(parts(series, probe, without + each * probe, without + 2 * each * probe), expected);
        }
        check(1000, 100, 55, 262, 13);
        check(1_000_000, 100, 55, 262, 18_177);
        check(1000, 20, 170, 653, 2);
        check(10, 20, 170, 653, 0);
    }

    #[test]
    fn probes_only_where_parts_make_series() {
        #[track_caller]
        fn check(kind: TargetKind, series: Option<u64>, expected: Result<u64, &str>) {
            let spec = Spec { series, ..Spec::built_in(kind, std::env::temp_dir()) };
            let found = idle_parts(&spec, |parts| Ok(500 + 100 * parts)).map_err(|error| error.to_string());
            assert_eq!(found.as_ref().map(|parts| *parts).map_err(String::as_str), expected);
        }
        check(TargetKind::Haproxy, Some(1000), Ok(5));
        check(TargetKind::Envoy, Some(10_000), Ok(95));
        check(TargetKind::Envoy, None, Ok(0));
        check(TargetKind::Stillgate, Some(1000), Ok(0));
        check(
            TargetKind::Envoy,
            Some(50_000_000),
            Err("envoy: 50000000 series are more than it is set up for; use 2000000 at most"),
        );
        let stubborn = Spec { series: Some(1000), ..Spec::built_in(TargetKind::Haproxy, std::env::temp_dir()) };
        assert!(idle_parts(&stubborn, |_| Ok(7)).unwrap_err().to_string().contains("100 idle parts show 7 series"));
    }

    #[test]
    fn touched_series_are_spread_over_all() {
        #[track_caller]
        fn check(kind: TargetKind, series: Option<u64>, percent: f64, expected: &[&str]) {
            let dir = tempfile::tempdir().unwrap();
            let spec = Spec { series, ..Spec::built_in(kind, dir.path().to_owned()) };
            let target = Target::parse("http://127.0.0.1:80/").unwrap();
            let mix = mix(&spec, &target, percent).unwrap();
            let mut composer = Composer::new(&mix, 7, 0, 1);
            let paths = (0..1000).map(|_| {
                let request = String::from_utf8(composer.compose().bytes.to_vec()).unwrap();
                request.split(' ').nth(1).unwrap().to_owned()
            });
            let paths: std::collections::BTreeSet<String> = paths.collect();
            assert_eq!(paths.iter().map(String::as_str).collect::<Vec<_>>(), expected);
        }
        check(TargetKind::Stillgate, Some(1000), 0.3, &["/?id=0", "/?id=333", "/?id=666"]);
        check(TargetKind::NginxLua, Some(2), 100.0, &["/?id=0", "/?id=1"]);
        check(TargetKind::Stillgate, Some(1000), 0.0, &["/?id=0"]);
        check(TargetKind::Stillgate, None, 1.0, &["/"]);
        check(TargetKind::Haproxy, Some(1000), 1.0, &["/"]);
    }
}

#[cfg(test)]
mod pipelined_tests {
    use super::*;
    use std::collections::HashSet;
    use std::io::{BufRead as _, BufReader};
    use std::net::TcpListener;
    use std::sync::mpsc::{Receiver, sync_channel};

    const SEEN_MAX: usize = 10_000;

    /// A server that sends `answer` to this many requests of a connection and then closes it.
    fn serve(answer: &'static str, requests_max: usize) -> (SocketAddr, Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, all) = sync_channel(SEEN_MAX);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(io::Result::ok) {
                let seen = seen.clone();
                thread::spawn(move || {
                    let mut reader = BufReader::new(stream.try_clone().unwrap());
                    let mut stream = stream;
                    for _ in 0..requests_max {
                        let mut request = String::new();
                        while !request.ends_with("\r\n\r\n") {
                            if reader.read_line(&mut request).unwrap_or(0) == 0 {
                                return;
                            }
                        }
                        seen.send(request.split(' ').nth(1).unwrap().to_owned()).unwrap();
                        if stream.write_all(answer.as_bytes()).is_err() {
                            return;
                        }
                    }
                    // Unread input would reset the connection, together with answers on their way.
                    let _ = stream.shutdown(std::net::Shutdown::Write);
                    let _ = io::copy(&mut reader, &mut io::sink());
                });
            }
        });
        (address, all)
    }

    #[track_caller]
    fn check_all_asked(answer: &'static str, requests_max: usize) {
        let (address, seen) = serve(answer, requests_max);
        request_each(address, 1001, &|number| format!("/{number}")).unwrap();
        let seen: HashSet<String> = seen.try_iter().collect();
        assert_eq!(seen.len(), 1001);
        assert!(seen.contains("/0") && seen.contains("/1000"));
    }

    #[test]
    fn each_is_asked() {
        check_all_asked("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", usize::MAX);
        check_all_asked("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", usize::MAX);
    }

    #[test]
    fn each_is_asked_on_connections_that_end() {
        check_all_asked("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 100);
        check_all_asked("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", 1);
    }

    #[test]
    fn what_is_no_success_ends_it() {
        let (address, _seen) = serve("HTTP/1.1 503 Oh\r\nContent-Length: 0\r\n\r\n", usize::MAX);
        let error = request_each(address, 10, &|number| format!("/{number}")).unwrap_err();
        assert_eq!(error.to_string(), format!("making series by requests to {address}: answered 503"));
        let (address, _seen) = serve("", 0);
        let error = request_each(address, 10, &|number| format!("/{number}")).unwrap_err();
        assert!(error.to_string().ends_with("it closes connections without answering"), "{error}");
    }
}
