//! What `run` needs of the machine besides the configuration and the certificates it names: folders and addresses.
//!
//! `check` checks it without a trace: it creates no file or folder and listens nowhere. A missing requirement is an error, since
//! `run` would end with it. A missing permission of this user is a warning, since the service is often run by another.

use super::kept;
use crate::upgrade::PidFile;
use rustix::fs::{Access, access, statfs};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, bind, socket, sockopt};
use std::fs;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use stillgate_config::{Config, LogDestination, Severity, Transport, listener_paths};
use stillgate_measures::metrics;
use stillgate_tls::Problem;

/// Ports below this are the system's, unless `net.ipv4.ip_unprivileged_port_start` says otherwise.
const PRIVILEGED_PORTS: u16 = 1024;

/// File systems of the kernel's own, in which nothing can be made, whatever their permissions say: proc and sysfs.
const KERNELS_OWN: [rustix::fs::FsWord; 2] = [0x9fa0, 0x6265_6572];

/// All problems, by the keys that they concern.
pub(crate) fn look_at(config: &Config) -> Vec<(Problem, Severity)> {
    let gateway = &config.gateway;
    let mut found = Vec::new();
    if let Some(LogDestination::File(file)) = gateway.access_log.as_ref().map(|log| &log.destination) {
        let remedy =
            |folder: &Path| format!("create it (`mkdir -p {}`), or change gateway.access_log", folder.display());
        found.extend(file_problem("gateway.access_log.path", file, Severity::Error, remedy));
    }
    if let Some((key, file)) = kept::written_file(gateway) {
        let remedy = |folder: &Path| format!("create it (`mkdir -p {}`), or change {key}", folder.display());
        found.extend(file_problem(key, file, Severity::Error, remedy));
    }
    if let Some(folder) = gateway.metrics.as_ref().and_then(|metrics| metrics.shared.as_deref()) {
        found.extend(folder_problem("gateway.metrics.shared", folder));
    }
    if let Some(file) = gateway.pid_file.as_deref() {
        found.extend(pid_file_problem(file));
    }
    found.extend(
        kept::problem(gateway).into_iter().chain(metrics::problem(config)).map(|problem| (problem, Severity::Error)),
    );
    found.extend(addresses(config).into_iter().filter_map(|(key, kind, address)| address_problem(key, kind, address)));
    found
}

/// A file that is appended to, or created in a folder that has to exist.
fn file_problem(
    key: &str,
    file: &Path,
    severity: Severity,
    remedy: impl Fn(&Path) -> String,
) -> Option<(Problem, Severity)> {
    let problem = |message: String, hint| Problem { path: key.to_owned(), message, hint: Some(hint) };
    let shown = file.display();
    match fs::metadata(file) {
        Ok(metadata) if metadata.is_dir() => {
            Some((problem(format!("{shown} is a folder"), "name a file in it".to_owned()), severity))
        }
        Ok(metadata) if metadata.file_type().is_fifo() => (!has_reader(&metadata)).then(|| {
            let message =
                format!("no running program reads the pipe {shown}; without a reader the gateway does not start");
            (problem(message, "start its reader first".to_owned()), Severity::Warning)
        }),
        Ok(_) => not_permitted(key, file, Access::WRITE_OK),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            // A bare name refers to the current folder.
            let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            match fs::metadata(folder) {
                Ok(metadata) if metadata.is_dir() => not_possible(key, folder),
                Ok(_) => {
                    let message = format!("{} is not a folder", folder.display());
                    Some((problem(message, "name a file in a folder".to_owned()), severity))
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    Some((problem(format!("the folder {} does not exist", folder.display()), remedy(folder)), severity))
                }
                Err(error) => Some(unseen(key, folder, &error, severity)),
            }
        }
        Err(error) => Some(unseen(key, file, &error, severity)),
    }
}

/// A folder that is created where it is missing.
fn folder_problem(key: &str, folder: &Path) -> Option<(Problem, Severity)> {
    let is_there = |folder: &&Path| !matches!(fs::metadata(folder), Err(error) if error.kind() == ErrorKind::NotFound);
    let nearest = folder.ancestors().find(is_there)?;
    match fs::metadata(nearest) {
        Ok(metadata) if metadata.is_dir() => match fs::symlink_metadata(folder) {
            Ok(_) if nearest != folder => {
                let message = format!("{} is a link that leads nowhere", folder.display());
                let hint = Some("name a folder, or remove the link".to_owned());
                Some((Problem { path: key.to_owned(), message, hint }, Severity::Error))
            }
            _ => not_possible(key, nearest),
        },
        Ok(_) => {
            let message = format!("{} is not a folder", nearest.display());
            let hint = Some("name one, as in \"/dev/shm/stillgate\"".to_owned());
            Some((Problem { path: key.to_owned(), message, hint }, Severity::Error))
        }
        Err(error) => Some(unseen(key, nearest, &error, Severity::Error)),
    }
}

/// Serving does not depend on it, so it is never more than a warning.
fn pid_file_problem(file: &Path) -> Option<(Problem, Severity)> {
    const KEY: &str = "gateway.pid_file";
    if let Err(error) = PidFile::check(file) {
        let message = format!("it will not be written: {error}");
        return Some((Problem { path: KEY.to_owned(), message, hint: None }, Severity::Warning));
    }
    file_problem(KEY, file, Severity::Warning, |folder| format!("create it (`mkdir -p {}`)", folder.display()))
}

/// Whether a program has a pipe open to read it. Opening the pipe would show that, too, but its reader would then see the end.
fn has_reader(pipe: &fs::Metadata) -> bool {
    const ACCESS_MODE: u32 = 0o3;
    const WRITE_ONLY: u32 = 0o1;
    let is_pipe = |of: &fs::Metadata| (of.dev(), of.ino()) == (pipe.dev(), pipe.ino());
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
    let reads = |process: &Path, descriptor: &Path| {
        let number = descriptor.file_name().unwrap_or_default();
        let info = fs::read_to_string(process.join("fdinfo").join(number)).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
        flags.is_some_and(|flags| flags & ACCESS_MODE != WRITE_ONLY)
    };
    entries(Path::new("/proc")).any(|process| {
        let process = process.path();
        entries(&process.join("fd")).any(|descriptor| {
            let descriptor = descriptor.path();
            fs::metadata(&descriptor).is_ok_and(|of| is_pipe(&of)) && reads(&process, &descriptor)
        })
    })
}

/// Why nothing can be created in a folder.
fn not_possible(key: &str, folder: &Path) -> Option<(Problem, Severity)> {
    if statfs(folder).is_ok_and(|of| KERNELS_OWN.contains(&of.f_type)) {
        let message = format!("nothing can be made in {}, which is the kernel's", folder.display());
        let hint = Some("name a folder on a disk or in memory, such as /dev/shm".to_owned());
        return Some((Problem { path: key.to_owned(), message, hint }, Severity::Error));
    }
    not_permitted(key, folder, Access::WRITE_OK | Access::EXEC_OK)
}

fn not_permitted(key: &str, path: &Path, wanted: Access) -> Option<(Problem, Severity)> {
    match access(path, wanted) {
        Ok(()) => None,
        Err(Errno::ACCESS | Errno::PERM) => {
            let message = format!("the current user cannot write to {}", path.display());
            let hint = Some("run the gateway as a user who can, or give this one access".to_owned());
            Some((Problem { path: key.to_owned(), message, hint }, Severity::Warning))
        }
        Err(error) => Some(unseen(key, path, &error.into(), Severity::Error)),
    }
}

/// A path that cannot be checked; where permissions are the reason, another user may.
fn unseen(key: &str, path: &Path, error: &io::Error, severity: Severity) -> (Problem, Severity) {
    let severity = if error.kind() == ErrorKind::PermissionDenied { Severity::Warning } else { severity };
    let message = format!("{}: {error}", path.display());
    (Problem { path: key.to_owned(), message, hint: None }, severity)
}

/// All addresses to listen on, with their keys.
fn addresses(config: &Config) -> Vec<(String, SocketType, SocketAddr)> {
    let gateway = &config.gateway;
    let listeners = listener_paths(&config.listeners).map(|(path, listener)| {
        let kind = match listener.kind.transport() {
            Transport::Tcp => SocketType::STREAM,
            Transport::Udp => SocketType::DGRAM,
        };
        (format!("{path}.address"), kind, listener.address)
    });
    let one = |key: &str, address| (key.to_owned(), SocketType::STREAM, address);
    let admin = gateway.admin.as_ref().map(|admin| one("gateway.admin.address", admin.address));
    let metrics = gateway.metrics.as_ref().and_then(|metrics| metrics.address);
    let metrics = metrics.map(|address| one("gateway.metrics.address", address));
    let devices = gateway.devices.as_ref().map(|devices| one("gateway.devices.address", devices.address));
    let peer = gateway.devices.as_ref().and_then(|devices| devices.peer.as_ref());
    let peer = peer.map(|peer| one("gateway.devices.peer.address", peer.address));
    listeners.chain(admin).chain(metrics).chain(devices).chain(peer).collect()
}

/// Binds it without listening. An address in use is not a problem: the gateway that the file is for probably uses it.
fn address_problem(key: String, kind: SocketType, address: SocketAddr) -> Option<(Problem, Severity)> {
    let (message, hint, severity) = match try_bind(kind, address) {
        Ok(()) | Err(Errno::ADDRINUSE) => return None,
        Err(Errno::ADDRNOTAVAIL) => {
            let message = format!("{} is not an address of this machine", address.ip());
            (message, "use an address that `ip addr` lists, or 0.0.0.0 or [::] for all", Severity::Error)
        }
        Err(Errno::ACCESS | Errno::PERM) if address.port() < PRIVILEGED_PORTS => {
            let message = format!("the current user cannot listen on port {}", address.port());
            (
                message,
                "run the gateway as a user who can, or with the capability CAP_NET_BIND_SERVICE",
                Severity::Warning,
            )
        }
        Err(error) => (
            format!("cannot listen on {address}: {error}"),
            "check that this machine supports addresses of this kind",
            Severity::Error,
        ),
    };
    Some((Problem { path: key, message, hint: Some(hint.to_owned()) }, severity))
}

fn try_bind(kind: SocketType, address: SocketAddr) -> Result<(), Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket(family, kind, None)?;
    // Not in the way of a gateway that starts in this moment. A UDP socket would share the address, and take its datagrams.
    if kind == SocketType::STREAM {
        sockopt::set_socket_reuseaddr(&socket, true)?;
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    bind(&socket, &address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn folders_and_files() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "").unwrap();
        let file = |path: PathBuf| file_problem("k", &path, Severity::Error, |_| "make it".to_owned());
        let message = |found: Option<(Problem, Severity)>| found.map(|(problem, severity)| (problem.message, severity));
        assert_eq!(message(file(at("file"))), None);
        assert_eq!(message(file(at("new"))), None);
        let missing = format!("the folder {} does not exist", at("no").display());
        assert_eq!(message(file(at("no/new"))), Some((missing, Severity::Error)));
        assert_eq!(message(file(at(""))), Some((format!("{} is a folder", at("").display()), Severity::Error)));
        assert!(message(file(at("file/new"))).is_some());
        assert_eq!(message(folder_problem("k", &at("a/b/c"))), None);
        assert_eq!(message(folder_problem("k", &at("file"))).unwrap().1, Severity::Error);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is made");
        assert_eq!(message(file(PathBuf::from("/proc/x"))).unwrap().1, Severity::Error);
        assert_eq!(message(folder_problem("k", Path::new("/proc/x/y"))).unwrap().1, Severity::Error);
        std::os::unix::fs::symlink(at("nowhere"), at("link")).unwrap();
        assert!(message(folder_problem("k", &at("link"))).unwrap().0.contains("leads nowhere"));
    }

    #[test]
    fn a_pipe_needs_a_reader() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let found = || file_problem("k", &pipe, Severity::Error, |_| String::new()).map(|(problem, _)| problem.message);
        assert!(found().unwrap().contains("no running program reads the pipe"));
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK;
        let reader = rustix::fs::open(&pipe, flags, rustix::fs::Mode::empty()).unwrap();
        assert_eq!(found(), None);
        drop(reader);
        assert!(found().is_some());
    }

    #[test]
    fn addresses_of_this_machine() {
        let problem = |kind, address: &str| address_problem("k".to_owned(), kind, address.parse().unwrap());
        let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        for (kind, address) in [
            (SocketType::STREAM, held.local_addr().unwrap().to_string().as_str()),
            (SocketType::STREAM, "0.0.0.0:0"),
            (SocketType::DGRAM, "127.0.0.1:0"),
        ] {
            assert!(problem(kind, address).is_none(), "{address}");
        }
        let (found, severity) = problem(SocketType::STREAM, "192.0.2.1:9080").unwrap();
        assert_eq!(
            (found.message.as_str(), severity),
            ("192.0.2.1 is not an address of this machine", Severity::Error)
        );
    }
}
