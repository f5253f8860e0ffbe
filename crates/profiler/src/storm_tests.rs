//! A storm of signals while threads panic, do TLS handshakes, allocate, fail to allocate and fault, with the heap
//! sampled: all of them make progress, and every stack can be read.
//!
//! `STILLGATE_STORM_SIGNALS` makes it longer: ten million take ten minutes.

use crate::heap::{self, SamplingAllocator};
use crate::machine;
use crate::signal::{RawSample, ask};
use crate::symbols::Modules;
use crate::threads::{self, Registration, Thread};
use crate::unwind::Unwinder;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use std::alloc::System;
use std::hint::black_box;
use std::panic::{catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: SamplingAllocator<System> = SamplingAllocator::new(System);

/// Least number of signals sent, unless the environment sets another. Several pending for a thread count as one.
const SIGNALS: u64 = 20_000;

/// Most signals per stack.
const SIGNALS_A_STACK_MAX: u64 = 4;

/// Most stacks that are awaited. A thread runs once in several milliseconds on a busy machine, and all signals until
/// then are one.
const STACKS_MAX: u64 = 100_000;

/// The pause between two signals.
const PAUSE: Duration = Duration::from_micros(5);

/// Time limit: far more than each signal takes, plus some for the beginning.
const BOUND: Duration = Duration::from_secs(1200);
const BOUND_A_SIGNAL: Duration = Duration::from_millis(1);

/// Mean bytes between two samples of the heap.
const HEAP_MEAN_BYTES: u64 = 4096;

fn signals() -> u64 {
    let text = std::env::var("STILLGATE_STORM_SIGNALS");
    text.map_or(SIGNALS, |text| text.parse().expect("STILLGATE_STORM_SIGNALS is a number"))
}

struct Bomb(Vec<u8>);

fn unwind_through(depth: usize) -> usize {
    let bomb = Bomb(vec![1; 100]);
    if depth == 0 {
        resume_unwind(Box::new(bomb));
    }
    unwind_through(depth - 1) + bomb.0.len()
}

fn panics() {
    let caught = catch_unwind(|| unwind_through(20)).unwrap_err();
    assert_eq!(caught.downcast_ref::<Bomb>().unwrap().0.len(), 100);
}

fn allocates() {
    let kept: Vec<Vec<u8>> = (0..200).map(|size| vec![size as u8; size * 37]).collect();
    assert_eq!(kept.iter().map(Vec::len).sum::<usize>(), (0..200).map(|size| size * 37).sum::<usize>());
    // Large enough for a mapping of its own, whose pages fault.
    black_box(vec![1_u8; 1 << 20]);
    // No machine has as much.
    let mut refused: Vec<u8> = Vec::new();
    assert!(black_box(&mut refused).try_reserve_exact(1 << 62).is_err());
}

/// Uses much of the stack.
fn recurses(depth: u64) -> u64 {
    let block = black_box([depth; 64]);
    if depth == 0 { 0 } else { recurses(depth - 1) + block[7] - depth + 1 }
}

fn configurations() -> (Arc<ClientConfig>, Arc<ServerConfig>) {
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = certified.cert.der().clone();
    let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let server = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key).unwrap();
    (Arc::new(client), Arc::new(server))
}

fn shakes_hands(client: &Arc<ClientConfig>, server: &Arc<ServerConfig>) {
    let mut client = ClientConnection::new(client.clone(), ServerName::try_from("localhost").unwrap()).unwrap();
    let mut server = ServerConnection::new(server.clone()).unwrap();
    while client.is_handshaking() || server.is_handshaking() {
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        server.read_tls(&mut &*bytes).unwrap();
        server.process_new_packets().unwrap();
        bytes.clear();
        server.write_tls(&mut bytes).unwrap();
        client.read_tls(&mut &*bytes).unwrap();
        client.process_new_packets().unwrap();
    }
}

/// Ends all threads on drop.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Works until the end, and counts.
fn work(name: &str, done: &AtomicU64, is_over: &AtomicBool, mut turn: impl FnMut()) {
    let _registered = Registration::new(name, None).unwrap();
    while !is_over.load(Ordering::Relaxed) {
        turn();
        done.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_storm_of_signals_harms_nothing() {
    heap::sample_every(Some(HEAP_MEAN_BYTES));
    let (signals, bound) = (signals(), BOUND + BOUND_A_SIGNAL.mul_f64(signals() as f64));
    let stacks = (signals / SIGNALS_A_STACK_MAX).min(STACKS_MAX);
    let (client, server) = configurations();
    let is_over = AtomicBool::new(false);
    let names = ["storm-panics", "storm-allocates", "storm-recurses", "storm-tls"];
    let done: [AtomicU64; 4] = Default::default();
    let (mut taken, mut complete, mut sent) = (0, 0, 0_u64);
    thread::scope(|scope| {
        // Also if the test fails: a scope waits for its threads.
        let ending = EndOnDrop(&is_over);
        let over = &is_over;
        let [a, b, c, d] = &done;
        scope.spawn(move || work(names[0], a, over, panics));
        scope.spawn(move || work(names[1], b, over, allocates));
        scope.spawn(move || work(names[2], c, over, || assert_eq!(recurses(100), 100)));
        scope.spawn(move || work(names[3], d, over, || shakes_hands(&client, &server)));
        let own = || -> Vec<Arc<Thread>> {
            threads::all().into_iter().filter(|thread| names.contains(&&*thread.name)).collect()
        };
        let begun = Instant::now();
        let mut threads = own();
        while threads.len() < names.len() && begun.elapsed() < bound {
            thread::yield_now();
            threads = own();
        }
        threads.iter().for_each(|thread| thread.asked_ring.prepare());
        let mut unwinder = Unwinder::new(Modules::read().unwrap());
        let mut record = Vec::new();
        while (taken < stacks || sent < signals) && begun.elapsed() < bound {
            for thread in &threads {
                ask(thread).unwrap();
                sent += 1;
                // The thread must make progress in between.
                let asked = Instant::now();
                while asked.elapsed() < PAUSE {
                    std::hint::spin_loop();
                }
                while thread.asked_ring.pop(&mut record) {
                    let sample = RawSample::of_record(&record).expect("records are whole");
                    assert!(sample.ticks <= machine::ticks());
                    taken += 1;
                    complete += u64::from(unwinder.unwind(&sample).is_complete);
                }
            }
        }
        drop(ending);
    });
    heap::sample_every(None);
    println!("{sent} signals, {taken} stacks, {complete} complete; turns: {done:?}");
    assert!(taken >= stacks && sent >= signals, "{sent} signals, {taken} stacks");
    assert!(done.iter().all(|done| done.load(Ordering::Relaxed) > 0), "every thread has made progress: {done:?}");
    // Not all: the unwinder of panics leaves frames in ways that tables cannot describe, and signals come just after
    // that.
    assert!(complete * 4 >= taken * 3, "{complete} of {taken} stacks are complete");
}
