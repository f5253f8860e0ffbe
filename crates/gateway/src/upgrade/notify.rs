//! Notices to a supervisor (`sd_notify(3)`): that the process serves, and its pid after an upgrade.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use tracing::debug;

/// Notifies the supervisor, if one is configured.
pub(crate) fn tell_supervisor(what: &str) {
    if let Some(socket) = std::env::var_os("NOTIFY_SOCKET")
        && let Err(error) = send(&socket, what)
    {
        debug!(%error, "the supervisor is not told that {what}");
    }
}

/// Whether a supervisor ends the service with this process, since nothing informs it of another; then what to do about it.
pub(crate) fn supervisor_loses_us() -> Option<&'static str> {
    let is_service = std::env::var("SYSTEMD_EXEC_PID").is_ok_and(|pid| pid == std::process::id().to_string());
    (is_service && std::env::var_os("NOTIFY_SOCKET").is_none()).then_some(
        "systemd would end the service with this process; set Type=notify and NotifyAccess=all in its unit, and restart it once",
    )
}

fn send(socket: &OsStr, what: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(what.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_comes_to_either_kind_of_address() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("stillgate-test-{}", std::process::id());
        let abstract_address = SocketAddr::from_abstract_name(&name).unwrap();
        let sockets = [UnixDatagram::bind(&path).unwrap(), UnixDatagram::bind_addr(&abstract_address).unwrap()];
        for (socket, address) in sockets.iter().zip([path.into_os_string(), format!("@{name}").into()]) {
            send(&address, "READY=1").unwrap();
            let mut space = [0; 64];
            let n = socket.recv(&mut space).unwrap();
            assert_eq!(&space[..n], b"READY=1");
        }
        assert!(send(OsStr::new("/nowhere/at/all"), "x").is_err());
    }
}
