//! The hosts file, read again whenever it changes.
//!
//! As in the C library, a name in it is answered from it alone: no server is asked for the other address family, which
//! would make a gateway without a network wait for answers it does not need.
//!
//! The resolver owns the one [`HostsFile`] and calls [`HostsFile::refresh`] once in each of its steps, which costs one
//! `stat`, however many names there are. [`HostsFile::lookup`] does no IO.

use super::lookup::{FamilyLookup, LookupAnswer};
use hickory_resolver::Hosts;
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// How long an answer from the file is used before the file is asked again.
const HOSTS_TTL: Duration = Duration::from_secs(10);

/// The file and its content when it was last read.
#[derive(Debug)]
pub(super) struct HostsFile {
    path: PathBuf,
    /// Modification time and length of the file that `hosts` was read from; `None` if there was no file.
    version: Option<(SystemTime, u64)>,
    hosts: Hosts,
    /// How often the file was checked, for tests.
    #[cfg(test)]
    pub(super) checks: usize,
}

impl HostsFile {
    /// A file that was not read yet.
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            version: None,
            hosts: Hosts::default(),
            #[cfg(test)]
            checks: 0,
        }
    }

    /// Reads the file again if it has changed; returns whether it has.
    pub(super) fn refresh(&mut self) -> bool {
        #[cfg(test)]
        {
            self.checks += 1;
        }
        let version = fs::metadata(&self.path).and_then(|metadata| Ok((metadata.modified()?, metadata.len()))).ok();
        if version == self.version {
            return false;
        }
        self.version = version;
        match self.read() {
            Ok(hosts) => self.hosts = hosts,
            Err(error) => {
                let file = self.path.display();
                tracing::warn!(%file, %error, "hosts file not read; its names are asked of DNS");
                self.hosts = Hosts::default();
            }
        }
        true
    }

    /// The file's answer for the name, if it had one when it was last read.
    pub(super) fn lookup(&self, name: &str) -> Option<LookupAnswer> {
        let name = Name::from_utf8(name).ok()?;
        let records = |record_type| {
            let query = Query::query(name.clone(), record_type);
            let lookup = self.hosts.lookup_static_host(&query);
            lookup.map_or_else(Vec::new, |lookup| lookup.answers().to_vec())
        };
        let v4: Vec<_> = (records(RecordType::A).into_iter())
            .filter_map(|record| match record.data {
                RData::A(address) => Some(address.0),
                _ => None,
            })
            .collect();
        let v6: Vec<_> = (records(RecordType::AAAA).into_iter())
            .filter_map(|record| match record.data {
                RData::AAAA(address) => Some(address.0),
                _ => None,
            })
            .collect();
        (!v4.is_empty() || !v6.is_empty()).then_some(LookupAnswer {
            v4: FamilyLookup::Known(v4),
            v6: FamilyLookup::Known(v6),
            ttl: HOSTS_TTL,
        })
    }

    fn read(&self) -> io::Result<Hosts> {
        let mut hosts = Hosts::default();
        if self.version.is_some() {
            hosts.read_hosts_conf(File::open(&self.path)?)?;
        }
        Ok(hosts)
    }
}
