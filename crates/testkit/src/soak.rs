//! Mixed load that checks every byte, while clients abort and an upstream comes and goes.
//!
//! It finds wrong bodies, leaks and panics; it does not measure speed. The same plan runs for seconds in a test and for
//! a minute or a night from `examples/soak.rs`.

use crate::gateway::{Gateway, Setup};
use crate::message::Message;
use crate::prometheus::Client;
use crate::upstream::Upstream;
use crate::{PATIENCE, eventually_within};
use sha2::{Digest, Sha256};
use std::io::Read;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The plan of a run.
#[derive(Debug, Clone)]
pub struct SoakPlan {
    /// How long.
    pub duration: Duration,
    /// Concurrent clients.
    pub clients: usize,
    /// Largest body.
    pub body_bytes_max: usize,
    /// How long an upstream stays up, and then down.
    pub upstream_period: Duration,
    /// Every client's choices derive from it.
    pub seed: u64,
}

/// The results. `faults` must be empty.
#[derive(Debug, Default)]
pub struct SoakReport {
    /// Exchanges whose every byte was checked.
    pub checked: usize,
    /// Exchanges that the client aborted on purpose.
    pub aborted: usize,
    /// Exchanges that failed while an upstream was down: 502, 503, 504, or cut off.
    pub excused: usize,
    /// Times an upstream was killed and restarted.
    pub restarts: usize,
    /// Profiles taken during the run, of CPU time and of the heap.
    pub profiles: usize,
    /// Anonymous resident memory before and after, in bytes.
    pub rss: (usize, usize),
    /// File descriptors before, and after all clients have gone.
    pub fds: (usize, usize),
    /// All faults.
    pub faults: Vec<String>,
}

/// Interval of profiles.
const PROFILE_EVERY: Duration = Duration::from_secs(2);

/// The two kinds, in alternation: one takes a second, the other is immediate.
const PROFILES: [&str; 2] = ["/debug/pprof/profile?seconds=1&hz=99", "/debug/pprof/heap"];

/// Faults kept per client; more of them add nothing.
const FAULTS_PER_CLIENT_MAX: usize = 5;

/// Memory a debug or release gateway may hold on to after load (pools, allocator slack), in bytes.
const RSS_SLACK_BYTES: usize = 32 * 1024 * 1024;

/// Runs the plan against its own gateway.
///
/// # Panics
/// If the gateway does not even start.
pub fn soak(binary: &str, plan: &SoakPlan) -> SoakReport {
    let steady = Upstream::echo();
    let mut flaky = Upstream::echo();
    let setup = Setup::resources(format!(
        "upstreams:\n  - {{id: steady, type: roundrobin, nodes: {{\"{}\": 1}}}}\n  - {{id: flaky, type: roundrobin, nodes: {{\"{}\": 1}}}}\n\
         routes:\n  - {{id: s, uri: /steady/*, upstream_id: steady}}\n  - {{id: f, uri: /flaky/*, upstream_id: flaky}}\n",
        steady.addr(),
        flaky.addr()
    ))
    .gateway("workers: 2\ndebug: {pprof: true, heap: 512KiB}");
    let mut gateway = Gateway::start(binary, &setup);
    gateway.get("/steady/warm");
    // The first profile reads the symbols of a binary that may be large.
    for path in PROFILES {
        profile(gateway.admin_addr(), path).expect("an idle gateway can be inspected");
    }
    let mut report =
        SoakReport { rss: (gateway.rss_anonymous(), 0), fds: (gateway.fd_count(), 0), ..SoakReport::default() };
    let over = AtomicBool::new(false);
    let deadline = Instant::now() + plan.duration;
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..plan.clients)
            .map(|number| {
                let (addr, over) = (gateway.addr(), &over);
                scope.spawn(move || client_loop(addr, plan, number as u64, over))
            })
            .collect();
        let (admin, over_here) = (gateway.admin_addr(), &over);
        let profiles = scope.spawn(move || profile_loop(admin, over_here));
        while Instant::now() < deadline {
            std::thread::park_timeout(plan.upstream_period);
            flaky.stop();
            std::thread::park_timeout(plan.upstream_period / 4);
            flaky.start_echo();
            report.restarts += 1;
        }
        over.store(true, Ordering::Relaxed);
        profiles.thread().unpark();
        report.add(profiles.join().expect("it reports, it does not panic"));
        for client in clients {
            report.add(client.join().expect("a client thread reports, it does not panic"));
        }
    });
    report.look_at(&mut gateway, plan);
    for fault in steady.faults().into_iter().chain(flaky.faults()) {
        report.faults.push(format!("an upstream got: {fault}"));
    }
    report
}

impl SoakReport {
    fn add(&mut self, other: Self) {
        self.checked += other.checked;
        self.aborted += other.aborted;
        self.excused += other.excused;
        self.profiles += other.profiles;
        self.faults.extend(other.faults);
    }

    fn look_at(&mut self, gateway: &mut Gateway, plan: &SoakPlan) {
        if let Some(status) = gateway.ended() {
            self.faults.push(format!("the gateway ended: {status}\n{}", gateway.log()));
            return;
        }
        if gateway.log().contains("panicked") {
            self.faults.push(format!("a panic in the log:\n{}", gateway.log()));
        }
        // Idle upstream connections are kept on purpose: at most one per client and node.
        let allowed = self.fds.0 + 2 * plan.clients + 4;
        let settles = |what, is_settled: &dyn Fn() -> bool| {
            let wait = || eventually_within(PATIENCE, what, is_settled);
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(wait)).is_ok()
        };
        let is_closed = settles("file descriptors to go", &|| gateway.fd_count() <= allowed);
        self.fds.1 = gateway.fd_count();
        if !is_closed {
            self.faults.push(format!("{} descriptors, {} at the start", self.fds.1, self.fds.0));
        }
        // A profile that is being written takes memory until it is done.
        let rss_max = self.rss.0 + RSS_SLACK_BYTES;
        let is_freed = settles("memory to be given back", &|| gateway.rss_anonymous() <= rss_max);
        self.rss.1 = gateway.rss_anonymous();
        if !is_freed {
            self.faults.push(format!("{} bytes resident, {} at the start", self.rss.1, self.rss.0));
        }
    }
}

/// Takes one profile after the other.
fn profile_loop(admin: SocketAddr, over: &AtomicBool) -> SoakReport {
    let mut report = SoakReport::default();
    for path in PROFILES.iter().cycle() {
        match profile(admin, path) {
            Ok(()) => report.profiles += 1,
            Err(fault) => report.faults.push(format!("{path}: {fault}")),
        }
        std::thread::park_timeout(PROFILE_EVERY);
        if over.load(Ordering::Relaxed) || report.faults.len() == FAULTS_PER_CLIENT_MAX {
            break;
        }
    }
    report
}

/// Takes a profile, which must be gzipped text with some content.
fn profile(admin: SocketAddr, path: &str) -> Result<(), String> {
    let mut client = Client::connect(admin);
    // Symbols are read by a nice thread.
    client.set_patience(5 * PATIENCE);
    client.try_send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")).map_err(|error| error.to_string())?;
    let answer = client.read_response("GET").map_err(|broken| shorten(&format!("{broken:?}")))?;
    if answer.head.status() != 200 {
        return Err(format!("status {}: {}", answer.head.status(), shorten(&String::from_utf8_lossy(&answer.body))));
    }
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(&answer.body[..]).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    // Names of functions and of the binary.
    let name = b"stillgate";
    let is_named = bytes.windows(name.len()).any(|part| part == name);
    if is_named { Ok(()) } else { Err(format!("{} bytes without any function of the gateway", bytes.len())) }
}

/// The life of a client: a connection is kept until an exchange ends it.
fn client_loop(addr: SocketAddr, plan: &SoakPlan, number: u64, over: &AtomicBool) -> SoakReport {
    let mut random = seeded(plan.seed ^ (number + 1).wrapping_mul(0xA5A5_5A5A_1234_4321));
    let mut report = SoakReport::default();
    let mut kept: Option<Client> = None;
    while !over.load(Ordering::Relaxed) && report.faults.len() < FAULTS_PER_CLIENT_MAX {
        let exchange = Exchange::choose(&mut random, plan.body_bytes_max);
        let mut client = kept.take().unwrap_or_else(|| Client::connect(addr));
        if exchange.aborts {
            exchange.abort(&mut client, &mut random);
            report.aborted += 1;
            continue;
        }
        match exchange.perform(&mut client) {
            Ok(response) if matches!(response.head.status(), 502..=504) && exchange.flaky => {
                report.excused += 1;
            }
            Ok(response) => match exchange.check(&response) {
                Ok(()) => {
                    report.checked += 1;
                    kept = Some(client).filter(|_| !response.head.connection_has("close"));
                }
                Err(fault) => report.faults.push(format!("{exchange:?}: {fault}")),
            },
            Err(_) if exchange.flaky => report.excused += 1,
            Err(fault) => report.faults.push(format!("{exchange:?}: {fault}")),
        }
    }
    report
}

#[derive(Debug)]
struct Exchange {
    method: &'static str,
    flaky: bool,
    aborts: bool,
    chunked_request: bool,
    chunked_response: bool,
    closes: bool,
    request_len: usize,
    response_len: usize,
    seed: u64,
}

impl Exchange {
    fn choose(random: &mut impl FnMut() -> u64, max: usize) -> Self {
        let mut below = |bound: u64| random() % bound;
        let method = ["GET", "GET", "GET", "POST", "PUT", "HEAD"][below(6) as usize];
        // Small bodies are usual, with all orders of magnitude up to the largest.
        let mut size = || {
            let magnitude = below(u64::from(usize::BITS - max.leading_zeros()) + 1);
            (below(1 << magnitude) as usize).min(max)
        };
        let (request_len, response_len) = (size(), size());
        let flaky = below(3) == 0;
        Self {
            method,
            request_len: if matches!(method, "POST" | "PUT") { request_len } else { 0 },
            response_len,
            flaky,
            aborts: below(12) == 0,
            chunked_request: below(3) == 0,
            chunked_response: below(3) == 0,
            // A body that ends with its connection cannot be distinguished from one cut by the upstream's death.
            closes: below(15) == 0 && !flaky,
            seed: below(1 << 20),
        }
    }

    fn request(&self) -> Vec<u8> {
        let target = format!(
            "/{}/x?size={}&seed={}{}{}",
            if self.flaky { "flaky" } else { "steady" },
            self.response_len,
            self.seed,
            if self.chunked_response { "&chunked" } else { "" },
            if self.closes { "&close" } else { "" },
        );
        let mut bytes = format!("{} {target} HTTP/1.1\r\nHost: soak\r\n", self.method).into_bytes();
        let body = payload(self.seed + 1, self.request_len);
        if self.request_len == 0 {
            bytes.extend_from_slice(b"\r\n");
        } else if self.chunked_request {
            bytes.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
            for part in body.chunks(7000) {
                bytes.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
                bytes.extend_from_slice(part);
                bytes.extend_from_slice(b"\r\n");
            }
            bytes.extend_from_slice(b"0\r\n\r\n");
        } else {
            bytes.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
            bytes.extend_from_slice(&body);
        }
        bytes
    }

    fn perform(&self, client: &mut Client) -> Result<Message, String> {
        let sent = client.try_send(self.request());
        client
            .read_response(self.method)
            .map_err(|broken| format!("sent {sent:?}, then {}", shorten(&format!("{broken:?}"))))
    }

    /// Sends some of the request, may read some of the response, and disconnects.
    fn abort(&self, client: &mut Client, random: &mut impl FnMut() -> u64) {
        let request = self.request();
        let part = (random() as usize % request.len()) + 1;
        // An aborting client may fail.
        let _ = client.try_send(&request[..part]);
        if part == request.len() && random() & 1 == 0 {
            let _ = client.read_head();
        }
        if random() & 1 == 0 {
            let lingering = socket2::SockRef::from(client.stream());
            lingering.set_linger(Some(Duration::ZERO)).expect("SO_LINGER");
        }
    }

    fn check(&self, response: &Message) -> Result<(), String> {
        if response.head.status() != 200 {
            return Err(format!("status {}", response.head.status()));
        }
        let expected = match self.method {
            "HEAD" => Vec::new(),
            _ => payload(self.seed, self.response_len),
        };
        if response.body != expected {
            return Err(format!("wrong body of {} bytes", response.body.len()));
        }
        let got = response.head.get("x-body-sha256");
        if got != Some(&sha256(&payload(self.seed + 1, self.request_len))) {
            return Err("the upstream got another body".to_owned());
        }
        Ok(())
    }
}

fn shorten(text: &str) -> String {
    text.chars().take(300).collect()
}

// Bodies that can be checked: reproducible bytes and their checksums.

/// `len` bytes that depend on `seed` and position only, so a shifted or swapped byte shows.
pub fn payload(seed: u64, len: usize) -> Vec<u8> {
    let mut next = seeded(seed);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A small generator of reproducible numbers (xorshift*).
pub fn seeded(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}

/// SHA-256 in lower-case hex.
pub fn sha256(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut hex = String::with_capacity(64);
    for byte in Sha256::digest(bytes) {
        write!(hex, "{byte:02x}").expect("writing to a String cannot fail");
    }
    hex
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_depend_on_the_seed_and_keep_their_prefix() {
        assert_eq!(payload(1, 100)[..50], payload(1, 50)[..]);
        assert_ne!(payload(1, 100), payload(2, 100));
        assert_eq!(sha256(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
