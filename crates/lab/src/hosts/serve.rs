//! The agent's side: executes requests on its machine until its input ends.
//!
//! Then, or if it is killed, everything that it has started ends: see [`Running`](crate::target). So nothing continues
//! after the connection breaks.

use super::{Answer, Request, TargetStarted};
use crate::environment;
use crate::error::{Error, Result};
use crate::result::run::Placement;
use crate::stdout;
use crate::target::{Started, Upstream};
use std::collections::BTreeMap;
use std::io::BufRead as _;
use tempfile::TempDir;

/// The programs that it has started.
struct Agent {
    // In this order: programs end before their folders do.
    targets: BTreeMap<u64, Started>,
    upstreams: BTreeMap<u64, Upstream>,
    last: u64,
    folder: TempDir,
}

/// Answers each line of standard input on standard output.
pub(crate) fn serve() -> Result {
    let folder = tempfile::tempdir().map_err(|error| format!("cannot make a temporary folder: {error}"))?;
    let mut agent = Agent { targets: BTreeMap::new(), upstreams: BTreeMap::new(), last: 0, folder };
    for line in std::io::stdin().lock().lines() {
        // A broken connection is an end.
        let Ok(line) = line else { break };
        let request = serde_json::from_str(&line).map_err(|error| Error::new(format!("not a request: {error}")));
        let answer = request.and_then(|request| agent.answer(request));
        let answer = answer.unwrap_or_else(|error| Answer::Failed(error.to_string()));
        let text = serde_json::to_string(&answer).map_err(|error| Error::new(error.to_string()))?;
        stdout::show(format_args!("{text}\n"))?;
    }
    Ok(())
}

impl Agent {
    fn answer(&mut self, request: Request) -> Result<Answer> {
        match request {
            Request::Hello => {
                let environment = Box::new(environment::gather());
                Ok(Answer::Hello { version: env!("CARGO_PKG_VERSION").to_owned(), environment })
            }
            Request::StartTarget { mut spec, upstream, placement } => {
                self.folder.path().clone_into(&mut spec.directory);
                let started = spec.start(upstream, &placement)?;
                let told = TargetStarted {
                    number: self.next(),
                    subject: started.subject.clone(),
                    address: started.address,
                    metrics: started.metrics.clone(),
                    admin: started.admin,
                };
                self.targets.insert(told.number, started);
                Ok(Answer::Target(Box::new(told)))
            }
            Request::StartUpstream { ip, body_bytes } => {
                // Nothing else runs here.
                let started = Upstream::start_here(&Placement::default(), body_bytes, ip)?;
                let (number, address) = (self.next(), started.address);
                self.upstreams.insert(number, started);
                Ok(Answer::Upstream { number, address })
            }
            Request::CpuTimeUs { number } => Ok(Answer::CpuTimeUs(self.target(number)?.cpu_time_us()?)),
            Request::RssKib { number } => Ok(Answer::RssKib(self.target(number)?.rss_kib()?)),
            Request::Alive { number } => self.target(number)?.alive().map(|()| Answer::Done),
            Request::Stop { number } => {
                drop((self.targets.remove(&number), self.upstreams.remove(&number)));
                Ok(Answer::Done)
            }
        }
    }

    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn target(&mut self, number: u64) -> Result<&mut Started> {
        self.targets.get_mut(&number).ok_or_else(|| Error::new(format!("unknown target {number}")))
    }
}
