//! The kernel's memory for connections, which is charged to no process: sockets, their files and epoll's entries, of the whole machine
//! before and after.
//!
//! Both ends of loopback sockets are on this machine. Of a tunnel's four, two are the target's, and client and upstream have one
//! each; of an addressed connection's two, one is. So half of the result is the target's part, as it would be on a machine of its own.

use crate::error::Result;
use std::collections::BTreeMap;
use stillgate_rig::proc::machine;

/// The kinds of objects that sockets consist of. Other objects may be counted with them if the kernel has merged kinds.
const KINDS: &[&str] =
    &["TCP", "sock_inode_cache", "filp", "eventpoll_epi", "eventpoll_pwq", "lsm_inode_cache", "lsm_file_cache"];
/// Each socket has one as well. It is assumed and not counted: other programs have by far more open files, and their number varies.
const DENTRY: &str = "dentry";
const SOCKET: &str = "TCP";

/// A measurement of the kernel's memory.
pub(super) struct KernelMemory {
    slab_kib: u64,
    /// Buffers of TCP sockets.
    tcp_pages: u64,
    /// Number and bytes of the objects of each kind; empty if only root may read them.
    objects: BTreeMap<String, (u64, u64)>,
}

/// The difference between two measurements.
pub(super) struct Grown {
    /// All slabs, whatever uses them.
    slab_bytes: f64,
    buffer_bytes: f64,
    /// Number of objects of each kind, and the bytes of one.
    kinds: Vec<(&'static str, f64, u64)>,
}

impl KernelMemory {
    pub(super) fn now() -> Result<Self> {
        let sockets = machine::text("net/sockstat").and_then(|text| machine::field(&text, "TCP"));
        let pages = sockets.and_then(|sockets| number_after(&sockets, "mem"));
        Ok(Self {
            slab_kib: machine::memory_kib("Slab").ok_or("/proc/meminfo has no Slab")?,
            tcp_pages: pages.ok_or("/proc/net/sockstat has no TCP mem")?,
            objects: machine::text("slabinfo").map(|text| objects(&text)).unwrap_or_default(),
        })
    }

    pub(super) fn since(&self, before: &KernelMemory) -> Grown {
        let grown = |kind: &'static str| {
            let (number, bytes) = self.objects.get(kind)?;
            let (former, _) = before.objects.get(kind)?;
            Some((kind, *number as f64 - *former as f64, *bytes))
        };
        let mut kinds: Vec<_> =
            KINDS.iter().filter_map(|kind| grown(kind)).filter(|(_, number, _)| *number > 0.0).collect();
        if let Some(((_, sockets, _), (_, _, bytes))) = grown(SOCKET).zip(grown(DENTRY)) {
            kinds.push((DENTRY, sockets.max(0.0), bytes));
        }
        Grown {
            slab_bytes: (self.slab_kib as f64 - before.slab_kib as f64) * 1024.0,
            buffer_bytes: (self.tcp_pages as f64 - before.tcp_pages as f64) * rustix::param::page_size() as f64,
            kinds,
        }
    }
}

impl Grown {
    /// The slabs of sockets, or all slabs if the kinds are unknown.
    pub(super) fn bytes(&self) -> f64 {
        let kinds: f64 = self.kinds.iter().map(|(_, number, bytes)| number * *bytes as f64).sum();
        self.buffer_bytes + if self.kinds.is_empty() { self.slab_bytes } else { kinds }
    }
}

/// The number after `name`.
fn number_after(text: &str, name: &str) -> Option<u64> {
    let mut words = text.split_whitespace();
    words.find(|word| *word == name)?;
    words.next()?.parse().ok()
}

/// `name, active objects, objects, bytes of one, …` after two header lines.
fn objects(slabinfo: &str) -> BTreeMap<String, (u64, u64)> {
    let lines = slabinfo.lines().skip(2).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some((fields.first()?.to_string(), (number(1)?, number(3)?)))
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLABINFO: &str = "slabinfo - version: 2.1\n# name            <active_objs> <num_objs> <objsize>\n\
        TCP                   65    117   2496   13    8 : tunables    0    0    0 : slabdata      9      9      0\n\
        filp                 100    128    256   16    1 : tunables    0    0    0 : slabdata      8      8      0\n";

    #[test]
    fn what_the_kernel_says_is_read() {
        assert_eq!(number_after("inuse 1 orphan 0 tw 0 alloc 1 mem 7", "mem"), Some(7));
        assert_eq!(number_after("inuse 1", "mem"), None);
        let read = objects(SLABINFO);
        assert_eq!(read["TCP"], (65, 2496));
        assert_eq!(read.len(), 2);
    }

    #[test]
    fn what_was_added() {
        let look = |slab_kib, tcp, dentry| KernelMemory {
            slab_kib,
            tcp_pages: 3,
            objects: BTreeMap::from(
                [("TCP", (tcp, 2496)), ("dentry", (dentry, 192)), ("other", (tcp, 1))]
                    .map(|(name, of)| (name.to_owned(), of)),
            ),
        };
        // Other programs opened files meanwhile.
        let grown = look(110, 50, 900).since(&look(100, 10, 5));
        assert_eq!(grown.bytes(), 40.0 * (2496.0 + 192.0));
        let untold = |slab_kib| KernelMemory { slab_kib, tcp_pages: 3, objects: BTreeMap::new() };
        assert_eq!(untold(110).since(&untold(100)).bytes(), 10.0 * 1024.0);
    }
}
