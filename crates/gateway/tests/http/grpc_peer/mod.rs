//! A gRPC server of another implementation, and the scripts that call it.

use std::net::TcpStream;
use std::time::Duration;
use stillgate_testkit::{Process, ReservedPort, eventually_within, run_tool};

/// Time for grpcio to start.
const PYTHON_PATIENCE: Duration = Duration::from_secs(300);

/// A server of Python's grpcio, see `grpc/server.py`.
pub(crate) struct Server {
    process: Process,
    pub(crate) port: ReservedPort,
    _dir: tempfile::TempDir,
}

/// A script of the folder `grpc`, with its arguments.
pub(crate) fn python(script: &str, arguments: &[&str]) -> std::process::Command {
    let mut command = std::process::Command::new("/usr/bin/python3");
    let file = format!("{}/tests/http/grpc/{script}", env!("CARGO_MANIFEST_DIR"));
    command.arg("-u").arg(file).args(arguments).env_remove("http_proxy").env_remove("https_proxy");
    command
}

impl Server {
    /// How many bytes each unary call had, in the order they came.
    pub(crate) fn unary_calls(&self) -> Vec<usize> {
        let log = self.process.log();
        log.lines()
            .filter_map(|line| line.strip_prefix("unary "))
            .map(|bytes| bytes.parse().expect("a number"))
            .collect()
    }
}

/// Starts one and waits until it listens.
pub(crate) fn server() -> Server {
    server_with(&[])
}

/// Starts a server with further arguments.
pub(crate) fn server_with(arguments: &[&str]) -> Server {
    let probe = run_tool("/usr/bin/python3", "python3", &["-c", "import grpc"]);
    assert!(probe.status.success(), "Python's grpcio is missing; install the Debian package python3-grpcio");
    let port = ReservedPort::new();
    let dir = tempfile::tempdir().expect("a temporary folder");
    let listen = port.addr().port().to_string();
    let mut command = python("server.py", &[&[&*listen], arguments].concat());
    let mut process = Process::spawn("python3", &mut command, &dir.path().join("server.log"));
    eventually_within(PYTHON_PATIENCE, "the gRPC server to listen", || {
        assert!(process.ended().is_none(), "{}", process.log());
        TcpStream::connect(port.addr()).is_ok()
    });
    Server { process, port, _dir: dir }
}
