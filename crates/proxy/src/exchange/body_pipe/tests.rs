//! How much filters of bodies may hold, and how long they may take.

use super::filters::{OFFLOADED_CPU_MAX, WAIT_MAX};
use super::*;
use crate::basics::clock::thread_cpu_time;
use stillgate_plugin_api::{BodyError, BodyFilter};

use crate::worker::client_shares::WorkOwner;
use crate::worker::offload::{QUEUE_MAX, THREADS};
use crate::worker::plugins::WORKER_BYTES_MAX;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread::{self, ThreadId};
use stillgate_plugin_api::QueueFull;
use stillgate_plugin_api::client_bound::ClientBound;
use stillgate_plugin_api::work::Work;
use stillgate_wire::{BodyDecoder, Framing};

const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// Holds its input, and takes CPU time at the end, the first part of it here and the others on other threads.
struct HoldingFilter {
    bytes: usize,
    cpu: Duration,
    parts: usize,
    is_of_bounded_cost: bool,
}

fn take(cpu: Duration) {
    let until = thread_cpu_time() + cpu;
    while thread_cpu_time() < until {}
}

impl BodyFilter for HoldingFilter {
    fn piece(&mut self, piece: &[u8], _: &mut Vec<u8>) -> Result<(), BodyError> {
        self.bytes += piece.len();
        Ok(())
    }

    fn end(&mut self, _: &mut Vec<u8>) -> Result<(), BodyError> {
        take(self.cpu);
        self.parts = self.parts.saturating_sub(1);
        Ok(())
    }

    fn work(&mut self) -> Option<Work> {
        let cpu = self.cpu;
        self.parts = self.parts.checked_sub(1)?;
        Some(Box::new(move || -> Output {
            take(cpu);
            Box::new(())
        }))
    }

    fn held_bytes(&self) -> usize {
        self.bytes
    }

    fn is_of_bounded_cost(&self) -> bool {
        self.is_of_bounded_cost
    }
}

fn filtered(worker: &Rc<ClientBound>, cpu: Duration, parts: usize) -> FilteredBody {
    let mut filtered = FilteredBody::default();
    filtered.changes.plugin = "holding";
    filtered.changes.filter(Box::new(HoldingFilter { bytes: 0, cpu, parts, is_of_bounded_cost: false }));
    filtered.start(false, worker.begin(CLIENT));
    filtered
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

fn refused(refusal: PluginRefusal) -> Result<(), BrokenBody> {
    Err(BrokenBody { plugin: "holding", cause: BreakCause::Refused(refusal) })
}

#[test]
fn what_filters_of_a_worker_hold_is_bounded() {
    let worker = Plugins::default().held;
    let start = || filtered(&worker, Duration::ZERO, 0);
    let piece = vec![0; 1024 * 1024];
    let mut bodies: Vec<FilteredBody> = Vec::new();
    let last = loop {
        let mut filtered = start();
        let ran = filtered.run(&piece, PieceEnd::Piece);
        bodies.push(filtered);
        if ran.is_err() {
            break ran;
        }
        assert!(bodies.len() * piece.len() <= WORKER_BYTES_MAX);
    };
    // They belong to one client.
    assert_eq!((last, bodies.len()), (refused(PluginRefusal::ClientMemory), 33));
    // However a body ends, it returns what it held.
    bodies.iter_mut().for_each(FilteredBody::clear);
    assert!(start().run(&piece[..1024], PieceEnd::Piece).is_ok());
}

#[test]
fn the_time_that_filters_take_is_bounded() {
    let worker = Plugins::default().held;
    let plugins = Plugins::default();
    let end = |mut filtered: FilteredBody| {
        let ran = block_on(async {
            filtered.run(b"a", PieceEnd::End)?;
            filtered.finish_work(&plugins).await
        });
        (ran, filtered)
    };
    assert_eq!(end(filtered(&worker, CPU_MAX / 10, 5)).0, Ok(()));
    assert_eq!(end(filtered(&worker, CPU_MAX * 2, 1)).0, refused(PluginRefusal::Time));
    // In parts on other threads it may take longer, and no part is begun beyond that.
    let (ran, long) = end(filtered(&worker, CPU_MAX / 2, 10_000));
    assert_eq!(ran, refused(PluginRefusal::Time));
    assert!(long.offloaded_cpu < OFFLOADED_CPU_MAX + CPU_MAX * 2, "{:?}", long.offloaded_cpu);
    // Codings may take as long as their input does, however short its pieces are.
    let mut coded = FilteredBody::default();
    coded.start(false, worker.begin(CLIENT));
    let coding = HoldingFilter { bytes: 0, cpu: CPU_MAX / 2, parts: 15, is_of_bounded_cost: true };
    coded.changes.filter(Box::new(coding));
    assert!(CPU_MAX / 2 * 14 > OFFLOADED_CPU_MAX);
    assert_eq!(end(coded).0, Ok(()));
    // A long body may take longer.
    let seen_bytes = CPU_MAX.as_nanos() as u64 * 2 / CPU_NANOS_PER_BYTE;
    assert_eq!(end(FilteredBody { seen_bytes, ..filtered(&worker, CPU_MAX * 2, 1) }).0, Ok(()));
}

/// Passes on its input, and takes CPU time for each piece.
struct SlowFilter {
    cpu: Duration,
    is_of_bounded_cost: bool,
}

impl BodyFilter for SlowFilter {
    fn piece(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), BodyError> {
        take(self.cpu);
        out.extend_from_slice(piece);
        Ok(())
    }

    fn end(&mut self, _: &mut Vec<u8>) -> Result<(), BodyError> {
        Ok(())
    }

    fn held_bytes(&self) -> usize {
        0
    }

    fn is_of_bounded_cost(&self) -> bool {
        self.is_of_bounded_cost
    }
}

fn slow(cpu: Duration, is_of_bounded_cost: bool) -> FilteredBody {
    let mut filtered = FilteredBody::default();
    filtered.changes.plugin = "holding";
    filtered.changes.filter(Box::new(SlowFilter { cpu, is_of_bounded_cost }));
    filtered.start(false, Plugins::default().held.begin(CLIENT));
    filtered
}

#[test]
fn a_stream_of_short_pieces_does_not_end_by_itself() {
    // As long as twice the bound would last if pieces added nothing to it.
    let cpu = CPU_PER_PIECE / 2;
    let mut stream = slow(cpu, false);
    stream.began = Instant::now().checked_sub(Duration::from_secs(10));
    for _ in 0..2 * CPU_MAX.as_nanos() / cpu.as_nanos() {
        stream.run(b"data: 1\n\n", PieceEnd::Piece).unwrap();
        stream.clear_out();
    }
    // Its CPU time is all the time that passes.
    let mut quick = slow(cpu, false);
    let ran = (0..4 * CPU_MAX.as_nanos() / cpu.as_nanos()).try_for_each(|_| quick.run(b"1", PieceEnd::Piece));
    assert_eq!(ran, refused(PluginRefusal::Time));
    let mut slower = slow(4 * CPU_PER_PIECE, false);
    slower.began = stream.began;
    let pieces = 2 * CPU_MAX.as_nanos() / CPU_PER_PIECE.as_nanos();
    let ran = (0..pieces).try_for_each(|_| slower.run(b"data: 1\n\n", PieceEnd::Piece));
    assert_eq!(ran, refused(PluginRefusal::Time));
}

#[test]
fn a_coding_cuts_no_body_off() {
    let mut coded = slow(CPU_MAX * 2, true);
    assert_eq!(coded.run(b"a", PieceEnd::Piece), Ok(()));
    // What other filters of the body take counts still.
    coded.changes.filter(Box::new(SlowFilter { cpu: CPU_MAX * 2, is_of_bounded_cost: false }));
    assert_eq!(coded.run(b"a", PieceEnd::Piece), refused(PluginRefusal::Time));
}

#[test]
fn others_are_served_while_a_body_takes_long() {
    let mut long = slow(TURN_CPU, false);
    long.run(b"a", PieceEnd::Piece).unwrap();
    assert!(long.is_tired);
    let mut short = slow(Duration::ZERO, false);
    short.run(b"a", PieceEnd::Piece).unwrap();
    assert!(!short.is_tired);
}

/// Passes on its input, with a dot at the end.
struct DotFilter;

impl BodyFilter for DotFilter {
    fn piece(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), BodyError> {
        out.extend_from_slice(piece);
        Ok(())
    }

    fn end(&mut self, out: &mut Vec<u8>) -> Result<(), BodyError> {
        out.push(b'.');
        Ok(())
    }

    fn held_bytes(&self) -> usize {
        0
    }
}

#[test]
fn the_end_goes_with_the_last_piece() {
    for (length, expected, is_ended) in [(5, &b"hello."[..], true), (6, b"hello", false)] {
        let mut filtered = FilteredBody::default();
        filtered.changes.filter(Box::new(DotFilter));
        filtered.start(false, Plugins::default().held.begin(CLIENT));
        let mut receiver = Receiver::of(b"hello");
        receiver.start_body(0, BodyDecoder::new(Framing::Length(length))).unwrap();
        filtered.advance(&mut receiver).unwrap();
        assert_eq!((filtered.unwritten(), filtered.is_ended), (expected, is_ended));
    }
}

/// Has work done on another thread at its end, which reports the thread that did it.
struct OffloadingFilter(Option<mpsc::SyncSender<ThreadId>>);

impl BodyFilter for OffloadingFilter {
    fn piece(&mut self, _: &[u8], _: &mut Vec<u8>) -> Result<(), BodyError> {
        Ok(())
    }

    fn end(&mut self, out: &mut Vec<u8>) -> Result<(), BodyError> {
        out.push(b'.');
        Ok(())
    }

    fn work(&mut self) -> Option<Work> {
        let told = self.0.take()?;
        Some(Box::new(move || -> Output { Box::new(told.send(thread::current().id())) }))
    }

    fn held_bytes(&self) -> usize {
        0
    }
}

/// Work that waits, and the receiver of the thread that did it.
fn working() -> (FilteredBody, mpsc::Receiver<ThreadId>) {
    let (told, hears) = mpsc::sync_channel(1);
    let mut filtered = FilteredBody::default();
    filtered.changes.plugin = "working";
    filtered.changes.filter(Box::new(OffloadingFilter(Some(told))));
    filtered.start(false, Plugins::default().held.begin(CLIENT));
    filtered.run(b"a", PieceEnd::End).unwrap();
    (filtered, hears)
}

/// Fills the threads with work that does not end before the sender is dropped.
fn fill(plugins: &Plugins) -> crossbeam_channel::Sender<()> {
    let (hold, held) = crossbeam_channel::bounded::<()>(0);
    let mut jobs = 0;
    while jobs < THREADS + QUEUE_MAX {
        let held = held.clone();
        match plugins.offloading.submit(
            "working",
            WorkOwner::of("", [192, 0, 2, 1].into()),
            Box::new(move || Box::new(held.recv().is_err())),
        ) {
            // The receiver is leaked, as work without a waiting receiver is not begun.
            Ok(ends) => {
                std::mem::forget(ends);
                jobs += 1;
            }
            Err(QueueFull) => thread::yield_now(),
        }
    }
    hold
}

#[test]
fn work_waits_for_a_place_and_is_not_done_by_the_worker() {
    let plugins = Plugins::default();
    let hold = fill(&plugins);
    let mut bodies: Vec<_> = (0..3).map(|_| working()).collect();
    block_on(async {
        for (filtered, hears) in &mut bodies {
            for _ in 0..10 {
                let is_pending = poll_fn(|cx| Poll::Ready(filtered.poll_work(cx, &plugins).is_pending())).await;
                assert!(is_pending && filtered.is_waiting() && !filtered.is_ended);
            }
            assert!(hears.try_recv().is_err(), "nothing of it was done");
        }
        drop(hold);
        for (filtered, hears) in &mut bodies {
            filtered.finish_work(&plugins).await.unwrap();
            assert_eq!((filtered.unwritten(), filtered.is_ended), (&b"."[..], true));
            assert_ne!(hears.try_recv(), Ok(thread::current().id()));
        }
    });
}

#[test]
fn the_wait_for_work_elsewhere_has_a_bound() {
    let plugins = Plugins::default();
    let hold = fill(&plugins);
    let (mut filtered, hears) = working();
    let ran = block_on(async {
        let is_pending = poll_fn(|cx| Poll::Ready(filtered.poll_work(cx, &plugins).is_pending())).await;
        assert!(is_pending);
        let limit = filtered.waiting.as_mut().and_then(|waiting| waiting.limit.as_mut()).unwrap();
        assert!(limit.deadline() <= tokio::time::Instant::now() + WAIT_MAX);
        limit.as_mut().reset(tokio::time::Instant::now());
        filtered.finish_work(&plugins).await
    });
    let broken = ran.unwrap_err();
    assert_eq!(broken, BrokenBody { plugin: "working", cause: BreakCause::Refused(PluginRefusal::Busy) });
    assert_eq!((broken.status(), broken.status_of_response()), (503, 503));
    drop(hold);
    assert!(hears.recv().is_err(), "what nobody waits for is not begun");
}
