//! The memory of idle connections, each of which has had one request answered: so all that a used connection keeps is in the
//! figure. Memory of the kernel is not: no program can change that.

use super::side::LoadSettings;
use crate::error::{Error, Result};
use crate::result::compare::CompareDesign;
use crate::target::{Spec, Started, Upstream};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;
use stillgate_rig::descriptors;

/// Connections that are opened and closed first, so that nothing that is allocated once counts.
const WARM_UP: usize = 100;

/// Descriptors of this program besides its connections.
const OTHER_FILES: u64 = 64;

const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of a connection while it is open, and of what is left of it after it has closed.
pub(super) fn bytes(spec: &Spec, upstream: &Upstream, design: &CompareDesign) -> Result<(f64, f64)> {
    let needed = design.connections as u64 + OTHER_FILES;
    descriptors::raise_to(descriptors::limit().hard);
    if descriptors::limit().current < needed {
        let (allowed, wanted) = (descriptors::limit().current, design.connections);
        return Err(Error::new(format!(
            "{wanted} connections need {needed} open files, and {allowed} are allowed: `ulimit -n`"
        )));
    }
    let mut started = spec.start(upstream.address, &design.placement)?;
    let request = LoadSettings::of_spec(&started, spec, design)?.example();
    drop(open(&started, &request, WARM_UP)?);
    let before = settled_kib(&mut started)?;
    let held = open(&started, &request, design.connections)?;
    let with = settled_kib(&mut started)?;
    drop(held);
    let after = settled_kib(&mut started)?;
    let each = |kib: f64| (kib - before) * 1024.0 / design.connections as f64;
    Ok((each(with), each(after)))
}

fn settled_kib(started: &mut Started) -> Result<f64> {
    match started.process()?.settled_memory()? {
        (memory, true) => Ok(memory.pss_kib as f64),
        (_, false) => Err("its memory does not settle".into()),
    }
}

/// Opens connections, and sends a request on each.
fn open(started: &Started, request: &[u8], count: usize) -> Result<Vec<TcpStream>> {
    let connect = |_| TcpStream::connect(started.address);
    let streams: std::io::Result<Vec<_>> = (0..count).map(connect).collect();
    let mut streams = streams.map_err(|error| Error::new(format!("cannot connect: {error}")))?;
    for (number, stream) in streams.iter_mut().enumerate() {
        let mut answer = [0; 4096];
        let mut exchange = || {
            stream.set_read_timeout(Some(SILENCE_TIMEOUT))?;
            stream.write_all(request)?;
            stream.read(&mut answer)
        };
        let length = exchange().map_err(|error| Error::new(format!("connection {number}: {error}")))?;
        if !answer[..length].starts_with(b"HTTP/1.1 2") {
            let text = String::from_utf8_lossy(&answer[..length]).into_owned();
            return Err(Error::new(format!("connection {number}: it was answered {text:?}")));
        }
    }
    Ok(streams)
}
