//! A scraper that behaves as Prometheus does: at fixed times it reads all bytes and ignores them.
//!
//! Unpacking or parsing would cost the CPU that it shares with the load. Scrapes never overlap: one that takes longer
//! than the interval delays the next, which its times show, and missed times are skipped. It runs in its own thread,
//! which yields to all others. The series of an exposition are counted outside the measured time, by [`count_series`].

use crate::client::{self, Failure, Part, receive};
use crate::error::{Error, Result};
use crate::result::tail::Scrape;
use crate::target::MetricsAddress;
use std::fmt;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use stillgate_rig::{cpus, schedule};

/// A running scraper.
#[derive(Debug)]
pub(crate) struct Scraper {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Scrape>>,
}

impl Scraper {
    /// Scrapes every `every`, first after half of that: a measured time as short as the interval has one scrape.
    /// `begin` is when the measured time begins, possibly in the future; the times of scrapes count from it. Empty
    /// `cpus`: any.
    pub(crate) fn start(
        metrics: &MetricsAddress,
        every: Duration,
        gzip: bool,
        cpus: &[usize],
        begin: Instant,
    ) -> Result<Scraper> {
        if every.is_zero() {
            return Err("the time between scrapes must not be zero".into());
        }
        let over = Arc::new(AtomicBool::new(false));
        let run = Run { metrics: metrics.clone(), every, gzip, begin, over: Arc::clone(&over) };
        let spawn = || thread::Builder::new().name("scraper".to_owned()).spawn(move || run.run());
        let thread = cpus::on(cpus, spawn)?.map_err(|error| format!("the scraper's thread: {error}"))?;
        Ok(Scraper { over, thread })
    }

    /// Ends it and returns its scrapes. It waits for a scrape under way: otherwise the target would continue it during
    /// the next measurement.
    pub(crate) fn stop(self) -> Result<Vec<Scrape>> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        self.thread.join().map_err(|_| Error::new("the scraper's thread panicked; its message is above"))
    }
}

/// Scrapes once and counts the series: the lines that are neither comments nor empty.
pub(crate) fn count_series(metrics: &MetricsAddress) -> Result<u64> {
    let mut counter = SeriesCounter::default();
    let got = exchange(metrics, ScrapeKind::Lines, &mut |content| counter.see(content));
    got.map_err(|error| format!("the exposition at http://{}{}: {error}", metrics.address, metrics.path))?;
    Ok(counter.count())
}

/// The whole body at an address.
pub(crate) fn body(at: &MetricsAddress) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let got = exchange(at, ScrapeKind::Scrape { gzip: false }, &mut |content| bytes.extend_from_slice(content));
    got.map_err(|error| format!("http://{}{}: {error}", at.address, at.path))?;
    Ok(bytes)
}

/// Scrapes once and adds up the series of a metric, `name` or `name{label="value"}`; `None` if there are none.
pub(crate) fn sum(metrics: &MetricsAddress, name: &str) -> Result<Option<f64>> {
    let mut text = Vec::new();
    let got = exchange(metrics, ScrapeKind::Lines, &mut |content| text.extend_from_slice(content));
    got.map_err(|error| format!("the exposition at http://{}{}: {error}", metrics.address, metrics.path))?;
    Ok(sum_in(&String::from_utf8_lossy(&text), name))
}

/// `name{label="a b"} 7` and `name 7`, optionally followed by a time.
fn sum_in(text: &str, wanted: &str) -> Option<f64> {
    let (name, label) =
        wanted.split_once('{').map_or((wanted, ""), |(name, label)| (name, label.trim_end_matches('}')));
    let value = |line: &str| -> Option<f64> {
        let rest = line.strip_prefix(name)?;
        let (labels, rest) = if rest.starts_with('{') { rest.rsplit_once('}')? } else { ("", rest) };
        let is_asked = label.is_empty() || ["{", ","].iter().any(|before| labels.contains(&format!("{before}{label}")));
        rest.strip_prefix(' ').filter(|_| is_asked)?.split(' ').next()?.parse().ok()
    };
    text.lines().filter_map(value).reduce(|sum, value| sum + value)
}

/// The state of the thread.
struct Run {
    metrics: MetricsAddress,
    every: Duration,
    gzip: bool,
    begin: Instant,
    over: Arc<AtomicBool>,
}

impl Run {
    fn run(self) -> Vec<Scrape> {
        // Without permission for a lower priority it runs at the normal one, which costs the load a little.
        let _ = schedule::make_own_thread_idle();
        let mut scrapes = Vec::new();
        let mut next = self.begin + self.every / 2;
        while !self.over.load(Ordering::Relaxed) {
            let now = Instant::now();
            if now < next {
                thread::park_timeout(next - now);
                continue;
            }
            let got = exchange(&self.metrics, ScrapeKind::Scrape { gzip: self.gzip }, &mut |_| {});
            let (bytes, error, broke_off) = match got {
                Ok(bytes) => (bytes, None, false),
                Err(failed) => (failed.bytes, Some(failed.to_string()), failed.broke_off),
            };
            scrapes.push(Scrape {
                at_s: now.saturating_duration_since(self.begin).as_secs_f64(),
                took_s: now.elapsed().as_secs_f64(),
                bytes,
                error,
                broke_off,
            });
            next = following(next, self.every, Instant::now());
        }
        scrapes
    }
}

/// The next of the fixed times; a missed one is made up for at once, those before it are skipped.
fn following(last: Instant, every: Duration, now: Instant) -> Instant {
    let mut next = last + every;
    while next + every <= now {
        next += every;
    }
    next
}

/// Counts series in pieces of an exposition.
#[derive(Debug, Default)]
struct SeriesCounter {
    lines: u64,
    within: LineState,
}

/// The line that is being read.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
enum LineState {
    #[default]
    Empty,
    Comment,
    Sample,
}

impl SeriesCounter {
    fn see(&mut self, content: &[u8]) {
        for &byte in content {
            self.within = match (self.within, byte) {
                (line, b'\n') => {
                    self.lines += u64::from(line == LineState::Sample);
                    LineState::Empty
                }
                (LineState::Empty, b'#') => LineState::Comment,
                (LineState::Empty, b' ' | b'\t' | b'\r') => LineState::Empty,
                (LineState::Empty, _) => LineState::Sample,
                (line, _) => line,
            };
        }
    }

    fn count(&self) -> u64 {
        self.lines + u64::from(self.within == LineState::Sample)
    }
}

// One scrape: a GET on its own connection, with the answer read to the last byte.

/// Longest silence: a worker that first sorts a million series is silent for long.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(120);

/// The kind of request.
#[derive(Debug, Clone, Copy)]
enum ScrapeKind {
    /// As Prometheus requests it.
    Scrape {
        /// Whether it may be compressed.
        gzip: bool,
    },
    /// The simplest format, in which each line is a series: OpenMetrics has further lines with the creation times of
    /// series.
    Lines,
}

const ACCEPT_LINES: &str = "text/plain;version=0.0.4";

/// The text formats.
const ACCEPT: &str = "application/openmetrics-text;version=1.0.0;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,\
    text/plain;version=1.0.0;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";

/// A failure, and how many bytes came before it.
#[derive(Debug)]
struct ExchangeFailure {
    message: String,
    bytes: u64,
    /// The request was sent and not refused, and the answer broke off.
    broke_off: bool,
}

/// Sends the request and reads the whole answer; `see` gets the content piece by piece, still encoded. Returns the
/// bytes of the whole answer.
fn exchange(metrics: &MetricsAddress, wanted: ScrapeKind, see: &mut dyn FnMut(&[u8])) -> Result<u64, ExchangeFailure> {
    let mut bytes = 0;
    match scrape(metrics, wanted, see, &mut bytes) {
        Ok(_) => Ok(bytes),
        Err(Failure { message, broke_off }) => Err(ExchangeFailure { message, bytes, broke_off }),
    }
}

fn scrape(
    metrics: &MetricsAddress,
    wanted: ScrapeKind,
    see: &mut dyn FnMut(&[u8]),
    bytes: &mut u64,
) -> Result<bool, Failure> {
    let mut stream = client::connect(metrics.address, SILENCE_TIMEOUT)?;
    let (accept, encoding) = match wanted {
        ScrapeKind::Scrape { gzip: true } => (ACCEPT, "Accept-Encoding: gzip\r\n"),
        ScrapeKind::Scrape { gzip: false } => (ACCEPT, ""),
        ScrapeKind::Lines => (ACCEPT_LINES, ""),
    };
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: stillgate-lab\r\nAccept: {accept}\r\n{encoding}Connection: close\r\n\r\n",
        metrics.path, metrics.address
    );
    stream.write_all(request.as_bytes()).map_err(|error| format!("cannot send the request: {error}"))?;
    receive(&mut stream, bytes, &mut |part| match part {
        Part::Head(head) if head.status != 200 => Err(format!("answered {}", head.status)),
        Part::Head(_) => Ok(()),
        Part::Body(content) => {
            see(content);
            Ok(())
        }
    })
}

impl fmt::Display for ExchangeFailure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::net::TcpListener;
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    const TOLD_MAX: usize = 100;

    /// A server that reports each request and answers when it is allowed to.
    fn serve(answer: &'static str) -> (MetricsAddress, Receiver<String>, SyncSender<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, told) = sync_channel(TOLD_MAX);
        let (let_go, go) = sync_channel(TOLD_MAX);
        thread::spawn(move || {
            for mut stream in listener.incoming().map_while(std::io::Result::ok) {
                let mut request = [0; 4096];
                let length = stream.read(&mut request).unwrap();
                if tell.send(String::from_utf8_lossy(&request[..length]).into_owned()).is_err() || go.recv().is_err() {
                    return;
                }
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        (MetricsAddress { address, path: "/metrics".to_owned() }, told, let_go)
    }

    const ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\na 1\n";

    #[test]
    fn the_series_of_a_metric_are_added_up() {
        let text = "# TYPE a counter\na{x=\"} 9\"} 2\na{x=\"2\"} 3 1700000000\nab 100\nb 7\n";
        assert_eq!((sum_in(text, "a"), sum_in(text, "b"), sum_in(text, "c")), (Some(5.0), Some(7.0), None));
        let text =
            "a{state=\"x\",worker=\"1\"} 2\na{worker=\"2\",state=\"x\"} 3\na{old_state=\"x\"} 9\na{state=\"y\"} 4\n";
        assert_eq!(sum_in(text, "a{state=\"x\"}"), Some(5.0));
        assert_eq!(
            (sum_in(text, "a{state=\"z\"}"), sum_in(text, "a{}"), sum_in("b 1\n", "b{x=\"1\"}")),
            (None, Some(18.0), None)
        );
    }

    #[test]
    fn scrapes_come_one_after_the_other() {
        let (metrics, told, let_go) = serve(ANSWER);
        let every = Duration::from_millis(20);
        let scraper = Scraper::start(&metrics, every, true, &[], Instant::now()).unwrap();
        for _ in 0..3 {
            let request = told.recv().unwrap();
            assert!(request.starts_with("GET /metrics HTTP/1.1\r\n"), "{request}");
            assert!(request.contains("Accept-Encoding: gzip\r\n"), "{request}");
            // Longer than the interval, and still without a second request.
            assert!(told.recv_timeout(3 * every).is_err());
            let_go.send(()).unwrap();
        }
        // It waits for one under way.
        told.recv().unwrap();
        let_go.send(()).unwrap();
        let scrapes = scraper.stop().unwrap();
        let complete = &scrapes[..3];
        assert!(
            complete.iter().all(|scrape| scrape.error.is_none() && scrape.bytes == ANSWER.len() as u64),
            "{scrapes:?}"
        );
        assert!(complete.iter().all(|scrape| scrape.took_s >= (3 * every).as_secs_f64()), "{scrapes:?}");
        assert!(scrapes[0].at_s >= every.as_secs_f64() / 2.0, "{scrapes:?}");
        assert!(scrapes.windows(2).all(|pair| pair[1].at_s >= pair[0].at_s + pair[0].took_s), "{scrapes:?}");
    }

    #[test]
    fn failures_are_reported() {
        let (metrics, told, let_go) = serve("HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n");
        let begin = Instant::now();
        let scraper = Scraper::start(&metrics, Duration::from_millis(10), false, &[], begin).unwrap();
        assert!(!told.recv().unwrap().contains("gzip"));
        let_go.send(()).unwrap();
        // Whether it began another one depends on timing.
        drop((told, let_go));
        let scrapes = scraper.stop().unwrap();
        assert_eq!(scrapes[0].error.as_deref(), Some("answered 500"));
        assert!(scrapes[1..].iter().all(|scrape| scrape.error.is_some()), "{scrapes:?}");
    }

    #[test]
    fn none_before_the_first_time() {
        let (metrics, _told, _let_go) = serve(ANSWER);
        let scraper = Scraper::start(&metrics, Duration::from_secs(3600), true, &[], Instant::now()).unwrap();
        assert_eq!(scraper.stop().unwrap(), Vec::new());
        assert!(Scraper::start(&metrics, Duration::ZERO, true, &[], Instant::now()).is_err());
    }

    #[test]
    fn times_are_kept() {
        #[track_caller]
        fn check(now_ms: u64, expected_ms: u64) {
            let begin = Instant::now();
            let at = |ms: u64| begin + Duration::from_millis(ms);
            assert_eq!(following(at(500), Duration::from_secs(1), at(now_ms)), at(expected_ms));
        }
        check(600, 1500);
        check(1600, 1500);
        check(2499, 1500);
        check(2500, 2500);
        check(9000, 8500);
    }

    #[test]
    fn series_are_counted_in_pieces() {
        #[track_caller]
        fn check(text: &str, expected: u64) {
            for cut in 0..=text.len() {
                let mut counter = SeriesCounter::default();
                counter.see(&text.as_bytes()[..cut]);
                counter.see(&text.as_bytes()[cut..]);
                assert_eq!(counter.count(), expected, "{text:?} cut at {cut}");
            }
        }
        check("# TYPE a counter\na 1\na{b=\"#\"} 2\n\n# EOF\n", 2);
        check("a 1\r\n\r\nb 2", 2);
        check("", 0);
        check("#", 0);
    }

    #[test]
    fn series_of_an_exposition() {
        let (metrics, _told, let_go) =
            serve("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\na 1\nb\r\n3\r\n 2\n\r\n0\r\n\r\n");
        let_go.send(()).unwrap();
        assert_eq!(count_series(&metrics).unwrap(), 2);
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = count_series(&MetricsAddress { address: closed, path: "/m".to_owned() }).unwrap_err().to_string();
        assert!(error.starts_with(&format!("the exposition at http://{closed}/m: cannot connect: ")), "{error}");
    }
}

#[cfg(test)]
mod exchange_tests {
    use super::*;
    use std::io::Read as _;
    use std::net::TcpListener;

    /// One exchange with a server that sends this answer in pieces of `piece` bytes, and closes.
    fn run_exchange(answer: &str, piece: usize) -> (Result<u64, String>, Vec<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut content = Vec::new();
        let got = std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                stream.set_nodelay(true).unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    request.push(byte[0]);
                }
                for part in answer.as_bytes().chunks(piece) {
                    // The client may have closed already.
                    if stream.write_all(part).is_err() {
                        return;
                    }
                }
            });
            let metrics = MetricsAddress { address, path: "/metrics".to_owned() };
            exchange(&metrics, ScrapeKind::Lines, &mut |part| content.extend_from_slice(part))
                .map_err(|failed| failed.to_string())
        });
        (got, content)
    }

    #[test]
    fn an_answer_is_taken_whole() {
        #[track_caller]
        fn check(answer: &str, expected: &str) {
            for piece in [1, 7, answer.len()] {
                let (got, content) = run_exchange(answer, piece);
                assert_eq!(got, Ok(answer.len() as u64), "in pieces of {piece}");
                assert_eq!(String::from_utf8_lossy(&content), expected);
            }
        }
        check("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", "abc");
        check("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "");
        check("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n", "abc");
        check("HTTP/1.0 200 OK\r\n\r\nabc", "abc");
    }

    #[test]
    fn incomplete_answers_are_reported() {
        #[track_caller]
        fn check(answer: &str, expected: &str) {
            assert_eq!(run_exchange(answer, answer.len().max(1)).0, Err(expected.to_owned()));
        }
        check("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc", "cut off after 41 bytes");
        check("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", "cut off after 54 bytes");
        check("HTTP/1.1 200 OK\r\nConte", "cut off after 22 bytes");
        check("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "answered 404");
        check("", "cut off after 0 bytes");
        check("220 mail\r\n\r\n", "not an HTTP answer: StatusLine");
    }
}
