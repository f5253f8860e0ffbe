#!/usr/bin/env bash
# rustc 1.95.0, crate tokio 1.47.1.
#
# A task of a `LocalSet` that wakes itself (`cx.waker().wake_by_ref()`, the usual way to give others a turn) is polled again and
# again before the runtime looks for input: a socket of another task that is readable by then waits meanwhile. `yield_now()`,
# polled once in the same place, hands the waker to the runtime, which wakes the task after it has looked.
#
# Seen: 62 polls with `wake_by_ref`, 2 with `yield_now`.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export CARGO_TARGET_DIR=$folder/target CARGO_INCREMENTAL=0
cargo new --quiet --vcs none probe
cd probe
cargo add --quiet tokio@=1.47.1 --features rt,net
cat > src/main.rs <<'EOF'
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use tokio::net::UdpSocket;
use tokio::task::{LocalSet, spawn_local, yield_now};

fn polls(yields: bool) -> u32 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.send_to(b"x", socket.local_addr().unwrap()).unwrap();
        let received = spawn_local(async move { socket.recv(&mut [0]).await });
        spawn_local(async move {
            let mut polls = 0;
            poll_fn(|cx| {
                polls += 1;
                if received.is_finished() {
                    return Poll::Ready(polls);
                }
                if yields {
                    let _ = pin!(yield_now()).poll(cx);
                } else {
                    cx.waker().wake_by_ref();
                }
                Poll::Pending
            })
            .await
        })
        .await
        .unwrap()
    })
}

fn main() {
    let (woken, yielded) = (polls(false), polls(true));
    println!("{woken} polls with wake_by_ref, {yielded} with yield_now");
    assert!(woken >= 30 && yielded < 10);
}
EOF
cargo run --quiet
