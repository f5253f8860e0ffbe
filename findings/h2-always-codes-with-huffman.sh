#!/usr/bin/env bash
# crates h2 0.4.20, http 1.5.0, tokio 1.54.1.
#
# HPACK lets an encoder write a text as it is or in its Huffman code (RFC 7541 section 5.2), and encoders usually take what is
# shorter. h2 always takes the code, which has 15 bits for a brace and 13 for a tilde: such a value grows on the wire. A field that
# is within a server's limit as text can be beyond it as it is sent.
#
# Seen: a value of 4,000 braces takes 7,500 bytes, and one of 4,000 letters "a" takes 2,500.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export CARGO_TARGET_DIR=$folder/target CARGO_INCREMENTAL=0
cargo new --quiet --vcs none probe
cd probe
cargo add --quiet h2@=0.4.20 http@=1.5.0
cargo add --quiet tokio@=1.54.1 --features rt,io-util,macros,time
cat > src/main.rs <<'RUST'
use tokio::io::AsyncReadExt;

/// Bytes that a client writes for a request with this field, beyond what it writes without it.
async fn bytes(value: &str) -> usize {
    let (client, mut server) = tokio::io::duplex(1 << 20);
    let (mut send, connection) = h2::client::handshake(client).await.unwrap();
    let request = http::Request::get("http://a/").header("x-field", value).body(()).unwrap();
    let (response, _) = send.send_request(request, true).unwrap();
    let driven = tokio::time::timeout(std::time::Duration::from_millis(200), connection);
    drop(driven.await);
    drop((send, response));
    let mut written = Vec::new();
    server.read_to_end(&mut written).await.unwrap();
    written.len()
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let none = bytes("").await;
    println!("{} {}", bytes(&"{".repeat(4000)).await - none, bytes(&"a".repeat(4000)).await - none);
}
RUST
read -r braces letters < <(cargo run --quiet)
echo "h2 0.4.20: 4,000 braces take $braces bytes, 4,000 letters $letters"
[ "$braces" -gt 7400 ] && [ "$braces" -lt 7600 ] && [ "$letters" -lt 2600 ]
