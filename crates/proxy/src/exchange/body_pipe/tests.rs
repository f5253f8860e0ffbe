//! What filters of bodies may hold, and how long they may take.

use super::offloaded::OFFLOADED_CPU_MAX;
use super::*;
use crate::basics::clock::thread_cpu_time;
use stillgate_plugin::{BodyError, BodyFilter};

use crate::worker::body_memory::{BodyMemory, WORKER_BYTES_MAX};
use std::rc::Rc;
use stillgate_wire::Framing;

const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// Holds what it gets, and takes CPU time at the end, the first part of it here and the others elsewhere.
struct Holding {
    bytes: usize,
    cpu: Duration,
    parts: usize,
}

fn take(cpu: Duration) {
    let until = thread_cpu_time() + cpu;
    while thread_cpu_time() < until {}
}

impl BodyFilter for Holding {
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
}

fn filtered(worker: &Rc<BodyMemory>, cpu: Duration, parts: usize) -> Filtered {
    let mut filtered = Filtered::default();
    filtered.changes.plugin = "holding";
    filtered.changes.filter(Box::new(Holding { bytes: 0, cpu, parts }));
    filtered.start(false, worker.begin(CLIENT));
    filtered
}

fn refused(refusal: Refusal) -> Result<(), BrokenBody> {
    Err(BrokenBody { plugin: "holding", why: Why::Refused(refusal) })
}

#[test]
fn what_filters_of_a_worker_hold_is_bounded() {
    let worker = Rc::default();
    let start = || filtered(&worker, Duration::ZERO, 0);
    let piece = vec![0; 1024 * 1024];
    let mut bodies: Vec<Filtered> = Vec::new();
    let last = loop {
        let mut filtered = start();
        let ran = filtered.run(&piece, Step::Piece);
        bodies.push(filtered);
        if ran.is_err() {
            break ran;
        }
        assert!(bodies.len() * piece.len() <= WORKER_BYTES_MAX);
    };
    // They are of one client.
    assert_eq!((last, bodies.len()), (refused(Refusal::ClientMemory), 33));
    // Whatever ends a body gives back what it held.
    bodies.iter_mut().for_each(Filtered::clear);
    assert!(start().run(&piece[..1024], Step::Piece).is_ok());
}

#[test]
fn the_time_that_filters_take_is_bounded() {
    let worker = Rc::default();
    let end = |mut filtered: Filtered| {
        let ran = filtered.run(b"a", Step::End).and_then(|()| filtered.finish_work());
        (ran, filtered)
    };
    assert_eq!(end(filtered(&worker, CPU_MAX / 10, 5)).0, Ok(()));
    assert_eq!(end(filtered(&worker, CPU_MAX * 2, 1)).0, refused(Refusal::Time));
    // In parts elsewhere it may take longer, and no part is begun beyond that.
    let (ran, long) = end(filtered(&worker, CPU_MAX / 2, 10_000));
    assert_eq!(ran, refused(Refusal::Time));
    assert!(long.offloaded_cpu < OFFLOADED_CPU_MAX + CPU_MAX * 2, "{:?}", long.offloaded_cpu);
    // A long body may take longer.
    let seen_bytes = CPU_MAX.as_nanos() as u64 * 2 / CPU_NANOS_PER_BYTE;
    assert_eq!(end(Filtered { seen_bytes, ..filtered(&worker, CPU_MAX * 2, 1) }).0, Ok(()));
}

/// Passes on what it gets, with a dot behind all of it.
struct Dotted;

impl BodyFilter for Dotted {
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
        let mut filtered = Filtered::default();
        filtered.changes.filter(Box::new(Dotted));
        filtered.start(false, Rc::<BodyMemory>::default().begin(CLIENT));
        let mut receiver = Receiver::of(b"hello");
        receiver.start_body(0, Framing::Length(length)).unwrap();
        filtered.advance(&mut receiver).unwrap();
        assert_eq!((filtered.unwritten(), filtered.is_ended), (expected, is_ended));
    }
}
