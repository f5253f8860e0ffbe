//! Whether a node is alive: it has its own lease, renewed by its heartbeat. Devices have none, so their number costs no
//! renewals.

/// A node's lease in the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Epoch of the process that holds it.
    pub epoch: u64,
    /// When it ends, in milliseconds of the directory's clock.
    pub until_ms: u64,
}

/// Another process with this node's name holds the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseConflict {
    /// When it ends, unless it is renewed.
    pub until_ms: u64,
}

impl Lease {
    /// Takes or renews a node's lease. A renewal of a lease that has ended succeeds if no other process has taken it: its
    /// epoch was dead in between, so the process takes a new one ([`super::Registrations::begin_epoch`]).
    pub fn hold(lease: &mut Option<Lease>, epoch: u64, now_ms: u64, ttl_ms: u64) -> Result<(), LeaseConflict> {
        match lease {
            Some(Lease { epoch: other, until_ms }) if *other != epoch && now_ms < *until_ms => {
                Err(LeaseConflict { until_ms: *until_ms })
            }
            _ => {
                *lease = Some(Lease { epoch, until_ms: now_ms.saturating_add(ttl_ms) });
                Ok(())
            }
        }
    }

    /// Whether connections of this epoch are alive.
    pub fn is_alive(lease: Option<&Lease>, epoch: u64, now_ms: u64) -> bool {
        lease.is_some_and(|lease| lease.epoch == epoch && now_ms < lease.until_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_holds_it() {
        let mut lease = None;
        Lease::hold(&mut lease, 1, 0, 5_000).unwrap();
        assert_eq!(Lease::hold(&mut lease, 2, 4_999, 5_000), Err(LeaseConflict { until_ms: 5_000 }));
        Lease::hold(&mut lease, 1, 4_999, 5_000).unwrap();
        assert!(Lease::is_alive(lease.as_ref(), 1, 9_998) && !Lease::is_alive(lease.as_ref(), 1, 9_999));
        Lease::hold(&mut lease, 2, 9_999, 5_000).unwrap();
        assert!(!Lease::is_alive(lease.as_ref(), 1, 9_999));
    }
}
