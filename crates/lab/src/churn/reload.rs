//! Reloads: routes of the configuration file change many times a second.
//!
//! In a block without changes the same are written to a file that nobody reads: the cost of writing is not the target's. How long a
//! change takes to be served is measured afterwards, under the same load and changes, since asking for it is a load, too.

use super::changing_file::ChangingFile;
use super::{Change, ChangeOptions, Mode, Requests, micros, paced, routes};
use crate::client::Client;
use crate::error::{Error, Result};
use crate::result::figures::Durations;
use crate::target::{Kind, RoutePlan, Spec, Started};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};
use stillgate_rig::{Signal, schedule};

/// The longest time until a change is served.
const SERVED_TIMEOUT: Duration = Duration::from_secs(60);

/// Reloads of a target.
struct Reload {
    routes: Option<RoutePlan>,
    per_second: u32,
    signal: Option<Signal>,
    /// The file that the target reads, and one that nobody reads.
    files: Option<[ChangingFile; 2]>,
    served_us: Vec<u64>,
}

/// A change: when it was written, and a path that only it takes.
struct Written {
    at: Instant,
    number: u64,
    path: String,
}

pub(super) fn make(options: &ChangeOptions, spec: &mut Spec) -> Result<Box<dyn Change>> {
    let signal = match (options.signal, spec.kind) {
        (Some(signal), _) => Some(signal),
        // It sees a new file by itself.
        (None, Kind::Stillgate) => None,
        (None, Kind::Nginx | Kind::NginxLua) => Some(Signal::HUP),
        (None, Kind::Haproxy) => Some(Signal::USR2),
        (None, kind) => {
            return Err(Error::new(format!(
                "--reload: name the signal after which {} reads its configuration again, by --signal",
                kind.name()
            )));
        }
    };
    if spec.kind == Kind::Haproxy {
        // Only a master reads it again.
        spec.arguments.push("-W".to_owned());
    }
    let routes = routes(options, spec);
    Ok(Box::new(Reload { routes, per_second: options.per_second, signal, files: None, served_us: Vec::new() }))
}

impl Change for Reload {
    fn requests(&self) -> Requests {
        self.routes.map_or(Requests::Any, |routes| Requests::Paths(routes.fixed_paths()))
    }

    fn begin(&mut self, target: &mut Started) -> Result {
        let file = target.configuration.as_ref().ok_or("--reload needs a target whose configuration we write")?;
        let changing = ChangingFile::of(file)?;
        let decoy = changing.decoy(&file.with_file_name("decoys"))?;
        self.files = Some([changing, decoy]);
        Ok(())
    }

    fn during(&mut self, target: &mut Started, mode: Mode, over: &AtomicBool) -> Result<u64> {
        // The work of writing must not take CPU time from the load.
        schedule::own_last()?;
        let Some([file, decoy]) = &mut self.files else { return Ok(0) };
        if mode == Mode::Without {
            return paced(self.per_second, over, || decoy.change().map(drop));
        }
        let (signal, address) = (self.signal, target.address);
        let process = target.process()?;
        let write = |file: &mut ChangingFile| {
            let path = file.change()?;
            if let Some(signal) = signal {
                process.signal(signal)?;
            }
            Ok(Written { at: Instant::now(), number: file.written(), path })
        };
        if mode == Mode::With {
            return paced(self.per_second, over, || write(file).map(drop));
        }
        // While one change is awaited, later ones are not observed.
        let (changes, written) = sync_channel(0);
        let served = AtomicU64::new(0);
        let mut awaited = 0;
        thread::scope(|scope| {
            let following = scope.spawn(|| follow(&mut Client::new(address), written, &served));
            let count = paced(self.per_second, over, || {
                if awaited > served.load(Ordering::Relaxed) && file.replaces_next(awaited) {
                    // It would never be seen.
                    return Ok(());
                }
                let next = write(file)?;
                let number = next.number;
                if changes.try_send(next).is_ok() {
                    awaited = number;
                }
                Ok(())
            });
            drop(changes);
            self.served_us.extend(following.join().map_err(|_| "following the changes panicked")??);
            count
        })
    }

    fn settle(&mut self, target: &mut Started) -> Result {
        match &self.files {
            Some([file, _]) if file.written() > 0 => {
                Client::new(target.address).wait_for(&file.path_of(file.written()), SERVED_TIMEOUT)
            }
            _ => Ok(()),
        }
    }

    fn follows(&self) -> bool {
        true
    }

    fn durations(&mut self) -> Vec<Durations> {
        vec![Durations { of: "from written to served".to_owned(), us: std::mem::take(&mut self.served_us) }]
    }
}

/// Waits for the changes to be served, one by one, until no more come.
fn follow(client: &mut Client, changes: Receiver<Written>, served: &AtomicU64) -> Result<Vec<u64>> {
    let mut served_us = Vec::new();
    while let Ok(written) = changes.recv() {
        client.wait_for(&written.path, SERVED_TIMEOUT)?;
        served_us.push(micros(written.at));
        served.store(written.number, Ordering::Relaxed);
    }
    Ok(served_us)
}
