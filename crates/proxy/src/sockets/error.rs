//! Why the workers could not start.

use std::fmt;
use std::io;
use std::net::SocketAddr;

/// Why the workers could not be started, or did not end normally.
#[derive(Debug)]
pub enum StartError {
    /// A listener's address is not available.
    Bind {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
    /// A thread or its runtime could not be created.
    Thread(io::Error),
    /// A worker's thread ended in a panic, which its own log line describes.
    Panicked {
        /// Its number, from 0.
        worker: usize,
    },
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Bind { address, error } => {
                write!(f, "cannot listen on {address}: {error}")?;
                match error.kind() {
                    io::ErrorKind::AddrInUse => {
                        write!(f, "; see who does: ss -lntup 'sport = :{}'", address.port())
                    }
                    io::ErrorKind::PermissionDenied => {
                        write!(f, "; ports below 1024 need root or the capability CAP_NET_BIND_SERVICE")
                    }
                    io::ErrorKind::AddrNotAvailable => write!(f, "; no interface has this address (see: ip addr)"),
                    _ => Ok(()),
                }
            }
            StartError::Thread(error) => write!(f, "cannot start a worker thread: {error}"),
            StartError::Panicked { worker } => write!(f, "worker {worker} ended in a panic"),
        }
    }
}

impl std::error::Error for StartError {}
