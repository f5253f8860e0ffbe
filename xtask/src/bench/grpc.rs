//! gRPC as `--protocol grpc` measures it: unary calls with one small message each way, over TLS to the gateway and over HTTP/2
//! without TLS to the node, which is nghttpd.
//!
//! The load (h2load) does not interpret gRPC, where failures have the status 200 too; so it checks the length of the responses'
//! messages, which no failed call has, and each gateway is sent one call beforehand that must end with `grpc-status: 0`.

use super::OTHER_CPU;
use super::{free_port, start};
use crate::Result;
use crate::step;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use stillgate_rig::Running;

/// The path of the call; nghttpd derives the content type from the extension.
pub(super) const PATH: &str = "/call.grpc";
/// Headers of a call.
pub(super) const HEADERS: [&str; 2] = ["content-type: application/grpc", "te: trailers"];
/// Bytes of a message, the same each way, including the five of its prefix.
pub(super) const MESSAGE_BYTES: usize = 100;
const PREFIX_BYTES: usize = 5;

/// The file with the message of every call.
pub(super) fn message(dir: &Path) -> PathBuf {
    dir.join("message")
}

/// Starts the node on the other CPU.
pub(super) fn start_node(dir: &Path) -> Result<(Running, SocketAddr)> {
    let address = free_port()?;
    let (root, media_types) = (dir.join("calls"), dir.join("media_types"));
    let length = MESSAGE_BYTES - PREFIX_BYTES;
    let text = [vec![0, 0, 0, 0, u8::try_from(length)?], vec![b'x'; length]].concat();
    fs::create_dir(&root)?;
    fs::write(message(dir), &text)?;
    fs::write(root.join(PATH.trim_start_matches('/')), &text)?;
    fs::write(&media_types, "application/grpc grpc\n")?;
    let (root, media_types) = (root.to_string_lossy(), media_types.to_string_lossy());
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let mut words = vec!["nghttpd", "--no-tls", "--address", &ip, "--htdocs", &root, "--mime-types-file", &media_types];
    // Servers of gRPC do not know the length in advance.
    words.extend(["--no-content-length", "--trailer", "grpc-status: 0", &port]);
    let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
    let mut running = start(&words, &[OTHER_CPU], &dir.join("nghttpd.log"))?;
    running.wait_for(address, Running::START_TIMEOUT)?;
    Ok((running, address))
}

/// Fails if a call through a gateway fails.
pub(super) fn check(dir: &Path, address: SocketAddr) -> Result {
    let mut command = Command::new("nghttp");
    command.args(["--verbose", "--no-verify-peer", "--data"]).arg(message(dir));
    for header in HEADERS {
        command.args(["--header", header]);
    }
    let told = step::output(command.arg(format!("https://{address}{PATH}")))?;
    if !told.contains("grpc-status: 0") {
        return Err(format!("a call did not end with grpc-status: 0:\n{told}").into());
    }
    Ok(())
}
