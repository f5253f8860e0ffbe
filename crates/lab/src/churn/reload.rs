//! Reloads: routes of the configuration file change many times a second.
//!
//! In a block without changes the same are written to a file that nobody reads: the cost of writing is not the target's. How long a
//! change takes to be served is measured afterwards, under the same load and changes, since asking for it is a load, too.

use super::{Change, ChangeOptions, Mode, Requests, micros, repeat_at_pace, routes};
use crate::client::Client;
use crate::error::{Error, Result};
use crate::result::Durations;
use crate::target::{CHANGING, MARK_DIGITS, RoutePlan, RunningTarget, Spec, TargetKind, changed_prefix};
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
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
struct WrittenChange {
    at: Instant,
    number: u64,
    path: String,
}

pub(super) fn make(options: &ChangeOptions, spec: &mut Spec) -> Result<Box<dyn Change>> {
    let signal = match (options.signal, spec.kind) {
        (Some(signal), _) => Some(signal),
        // It sees a new file by itself.
        (None, TargetKind::Stillgate) => None,
        (None, TargetKind::Nginx | TargetKind::NginxLua) => Some(Signal::HUP),
        (None, TargetKind::Haproxy) => Some(Signal::USR2),
        (None, kind) => {
            return Err(Error::new(format!(
                "--reload: name the signal after which {} reads its configuration again, by --signal",
                kind.name()
            )));
        }
    };
    if spec.kind == TargetKind::Haproxy {
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

    fn begin(&mut self, target: &mut RunningTarget) -> Result {
        let file = target.configuration.as_ref().ok_or("--reload needs a target whose configuration we write")?;
        let changing = ChangingFile::of(file)?;
        let decoy = changing.decoy(&file.with_file_name("decoys"))?;
        self.files = Some([changing, decoy]);
        Ok(())
    }

    fn change_until_over(&mut self, target: &mut RunningTarget, mode: Mode, over: &AtomicBool) -> Result<u64> {
        // The work of writing must not take CPU time from the load.
        schedule::make_own_thread_idle()?;
        let Some([file, decoy]) = &mut self.files else { return Ok(0) };
        if mode == Mode::Without {
            return repeat_at_pace(self.per_second, over, || decoy.change().map(drop));
        }
        let (signal, address) = (self.signal, target.address);
        let process = target.process()?;
        let write = |file: &mut ChangingFile| {
            let path = file.change()?;
            if let Some(signal) = signal {
                process.signal(signal)?;
            }
            Ok(WrittenChange { at: Instant::now(), number: file.written(), path })
        };
        if mode == Mode::With {
            return repeat_at_pace(self.per_second, over, || write(file).map(drop));
        }
        // While one change is awaited, later ones are not observed.
        let (changes, written) = sync_channel(0);
        let served = AtomicU64::new(0);
        let mut awaited = 0;
        thread::scope(|scope| {
            let following = scope.spawn(|| follow(&mut Client::new(address), written, &served));
            let count = repeat_at_pace(self.per_second, over, || {
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

    fn settle(&mut self, target: &mut RunningTarget) -> Result {
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
fn follow(client: &mut Client, changes: Receiver<WrittenChange>, served: &AtomicU64) -> Result<Vec<u64>> {
    let mut served_us = Vec::new();
    while let Ok(written) = changes.recv() {
        client.wait_for(&written.path, SERVED_TIMEOUT)?;
        served_us.push(micros(written.at));
        served.store(written.number, Ordering::Relaxed);
    }
    Ok(served_us)
}

// A configuration file of many routes, some with a mark that changes again and again, with negligible cost of writing.
//
// Writing megabytes fifty times a second would be a load of its own. So copies of the file are kept; each change is applied to
// the oldest copy, a few bytes in place, and a link to that copy is renamed over the file, as an editor does. By the time a copy
// is changed again, its readers have long read it.
//
// ```text
//  copies/0 … copies/15     nginx.conf ──▶ copies/k     the same inode, until the next change
//              k = number of the change, modulo copies
// ```

/// At 50 changes a second, a copy is changed again after a third of a second.
const COPIES: u64 = 16;

/// A step through the marks that visits all of them: it is prime, and so coprime to most numbers.
const STRIDE: u64 = 7_919;

/// The place in the text that a change writes to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct WritePosition {
    /// The number of its route.
    route: String,
    /// Where its digits begin.
    at: usize,
}

/// A file, its marks and its copies.
#[derive(Debug)]
pub(super) struct ChangingFile {
    file: PathBuf,
    link: PathBuf,
    copies: Vec<(PathBuf, File)>,
    marks: Vec<WritePosition>,
    /// Number of changes so far; the first one is 1.
    written: u64,
    /// The last changes, which the oldest copy lacks.
    last: VecDeque<(usize, u64)>,
}

impl ChangingFile {
    /// Takes over a file that exists.
    pub(super) fn of(file: &Path) -> Result<ChangingFile> {
        let text = fs::read_to_string(file).map_err(|error| unusable(file, &error))?;
        ChangingFile::create(file, &text)
    }

    /// A file with the same content in another folder, for nobody to read.
    pub(super) fn decoy(&self, folder: &Path) -> Result<ChangingFile> {
        let text = fs::read_to_string(&self.file).map_err(|error| unusable(&self.file, &error))?;
        let write = || fs::create_dir_all(folder).and_then(|()| fs::write(folder.join("decoy"), &text));
        write().map_err(|error| unusable(folder, &error))?;
        ChangingFile::create(&folder.join("decoy"), &text)
    }

    fn create(file: &Path, text: &str) -> Result<ChangingFile> {
        let marks = marks(text);
        if marks.is_empty() {
            return Err(Error::new(format!(
                "{}: has no path to change; write {} into it, where requests for it should be taken",
                file.display(),
                changed_prefix("0", 0)
            )));
        }
        let beside = file.with_file_name("copies");
        let make = || -> io::Result<Vec<(PathBuf, File)>> {
            fs::create_dir_all(&beside)?;
            let copy = |number: u64| {
                let path = beside.join(number.to_string());
                fs::write(&path, text)?;
                let file = File::options().write(true).open(&path)?;
                Ok((path, file))
            };
            (0..COPIES).map(copy).collect()
        };
        let copies = make().map_err(|error| unusable(&beside, &error))?;
        let link = beside.join("link");
        Ok(ChangingFile { file: file.to_owned(), link, copies, marks, written: 0, last: VecDeque::new() })
    }

    /// Number of changes so far.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Replaces the file by one with the next change; returns a path that is taken since this change, and not before.
    pub(super) fn change(&mut self) -> Result<String> {
        self.written += 1;
        let at = self.mark(self.written).at;
        self.last.push_back((at, self.written));
        while self.last.len() as u64 > COPIES {
            self.last.pop_front();
        }
        let (path, copy) = &self.copies[(self.written % COPIES) as usize];
        let write = || {
            for (at, number) in &self.last {
                copy.write_all_at(format!("{number:0MARK_DIGITS$}").as_bytes(), *at as u64)?;
            }
            fs::hard_link(path, &self.link)?;
            fs::rename(&self.link, &self.file)
        };
        write().map_err(|error| unusable(&self.file, &error))?;
        Ok(self.path_of(self.written))
    }

    /// Whether the next change takes the place of this one, whose path is then gone.
    pub(super) fn replaces_next(&self, number: u64) -> bool {
        self.mark(self.written + 1) == self.mark(number)
    }

    /// A path that is taken since this change, and not before.
    pub(super) fn path_of(&self, number: u64) -> String {
        format!("{}/x", changed_prefix(&self.mark(number).route, number))
    }

    fn mark(&self, number: u64) -> &WritePosition {
        &self.marks[(number.wrapping_mul(STRIDE) % self.marks.len() as u64) as usize]
    }
}

fn marks(text: &str) -> Vec<WritePosition> {
    let mark = |(found, _): (usize, &str)| {
        let rest = &text[found + CHANGING.len()..];
        let (route, digits) = rest.split_once("/v")?;
        let is_mark = digits.as_bytes().get(..MARK_DIGITS)?.iter().all(u8::is_ascii_digit)
            && !route.is_empty()
            && route.bytes().all(|byte| byte.is_ascii_digit());
        is_mark.then(|| WritePosition { route: route.to_owned(), at: text.len() - digits.len() })
    };
    text.match_indices(CHANGING).filter_map(mark).collect()
}

fn unusable(path: &Path, error: &io::Error) -> Error {
    Error::new(format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_holds_every_change() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("server.conf");
        let routes: String =
            (0..30).map(|number| format!("route {}/ up;\n", changed_prefix(&number.to_string(), 0))).collect();
        fs::write(&path, &routes).unwrap();
        let mut file = ChangingFile::of(&path).unwrap();
        let mut decoy = file.decoy(&dir.path().join("decoy")).unwrap();
        let mut expected = routes.clone();
        for number in 1..=100 {
            let taken = file.change().unwrap();
            let at = file.mark(number).at;
            expected.replace_range(at..at + MARK_DIGITS, &format!("{number:08}"));
            assert!(fs::read_to_string(&path).unwrap() == expected, "change {number}");
            assert!(expected.contains(taken.trim_end_matches('x')) && taken == file.path_of(number));
            decoy.change().unwrap();
        }
        assert!(fs::read_to_string(&path).unwrap() == expected, "the decoy changes nothing else");
        assert_eq!((file.written(), decoy.written()), (100, 100));
        // There are thirty marks.
        assert!(file.replaces_next(71) && !file.replaces_next(72) && !file.replaces_next(100));
    }

    #[test]
    fn marks_are_told_from_what_looks_alike() {
        let text = "/changing-7/v00000000 /changing-x/v00000000 /changing-/v00000000 /changing-8/v0000000 /changing-9/v12345678";
        let marks = marks(text);
        assert_eq!(marks.iter().map(|mark| mark.route.as_str()).collect::<Vec<_>>(), ["7", "9"]);
        assert!(text[marks[1].at..].starts_with("12345678"));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("server.conf");
        fs::write(&path, "listen 80;").unwrap();
        let error = ChangingFile::of(&path).unwrap_err().to_string();
        assert!(error.contains("has no path to change; write /changing-0/v00000000 into it"), "{error}");
    }
}
