//! Debian packages that a task needs: found, installed if we are root, or reported as missing.

use crate::Result;
use crate::step;
use rustix::process::geteuid;
use std::path::Path;
use std::process::{Command, Stdio};
use stillgate_rig::find_program;

/// One package, and how to detect it. Checking for the program and not for the package works on systems other than Debian, too.
#[derive(Clone, Copy)]
pub(crate) struct Package {
    name: &'static str,
    probe: PackageProbe,
}

#[derive(Clone, Copy)]
enum PackageProbe {
    Program(&'static str),
    PythonModule(&'static str),
    /// A file of a program without a version option.
    File(&'static str),
}

const fn program(name: &'static str, program: &'static str) -> Package {
    Package { name, probe: PackageProbe::Program(program) }
}

/// A client and an upstream of the end-to-end tests, written by others.
pub(crate) const CURL: Package = program("curl", "curl");
/// The other upstream of the end-to-end tests; the first peer of the benches.
pub(crate) const NGINX: Package = program("nginx", "nginx");
/// A gateway whose workers format their metrics in Lua, whose cost the laboratory shows.
pub(crate) const NGINX_LUA: Package = Package {
    name: "libnginx-mod-http-lua",
    probe: PackageProbe::File("/usr/lib/nginx/modules/ngx_http_lua_module.so"),
};
/// Strictly validates every message in the end-to-end tests.
pub(crate) const H11: Package = Package { name: "python3-h11", probe: PackageProbe::PythonModule("h11") };
/// Decodes brotli in the end-to-end tests.
pub(crate) const PYTHON_BROTLI: Package =
    Package { name: "python3-brotli", probe: PackageProbe::PythonModule("brotli") };
/// Decodes zstd in the end-to-end tests, as `zstd` does.
pub(crate) const PYTHON_ZSTD: Package =
    Package { name: "python3-zstandard", probe: PackageProbe::PythonModule("zstandard") };
/// Decodes zstd in the end-to-end tests.
pub(crate) const ZSTD: Package = program("zstd", "zstd");
/// The terminal in which the tests run `stillgate top`.
pub(crate) const TMUX: Package = Package { name: "tmux", probe: PackageProbe::File("/usr/bin/tmux") };
/// A WebSocket client and server of the end-to-end tests.
pub(crate) const WEBSOCKETS: Package =
    Package { name: "python3-websockets", probe: PackageProbe::PythonModule("websockets") };
/// A gRPC client and server of the end-to-end tests.
pub(crate) const GRPCIO: Package = Package { name: "python3-grpcio", probe: PackageProbe::PythonModule("grpc") };
/// An ACME server of the end-to-end tests.
pub(crate) const PROTOBUF: Package =
    Package { name: "python3-protobuf", probe: PackageProbe::PythonModule("google.protobuf") };

/// Fetches wheels if the first interpreter on the path has no pip.
pub(crate) const PIP: Package = Package { name: "python3-pip", probe: PackageProbe::PythonModule("pip") };
pub(crate) const PERF: Package = program("linux-perf", "perf");

pub(crate) const PEBBLE: Package = program("pebble", "pebble");
/// Stores configurations, for the tests of following it.
pub(crate) const REDIS: Package = program("redis-server", "redis-server");
pub(crate) const ETCD: Package = program("etcd-server", "etcd");
/// A syslog receiver of the end-to-end tests.
pub(crate) const RSYSLOG: Package = program("rsyslog", "rsyslogd");
/// Scrapes and is queried afterwards; includes promtool.
pub(crate) const PROMETHEUS: Package = program("prometheus", "prometheus");
/// Parses expositions strictly.
pub(crate) const PROMETHEUS_CLIENT: Package =
    Package { name: "python3-prometheus-client", probe: PackageProbe::PythonModule("prometheus_client") };
/// Renders the laboratory's reports.
pub(crate) const CHROMIUM: Package = program("chromium", "chromium");
/// libFuzzer is C++.
pub(crate) const GXX: Package = program("g++", "c++");
/// Counts instructions.
pub(crate) const VALGRIND: Package = program("valgrind", "valgrind");
/// The second peer of the benches; a target of the laboratory.
pub(crate) const HAPROXY: Package = program("haproxy", "haproxy");
/// Builds the programs that Debian does not package.
pub(crate) const GO: Package = program("golang-go", "go");

/// Ensures that all of `packages` are installed.
pub(crate) fn ensure(packages: &[Package]) -> Result {
    let missing = |packages: &[Package]| -> Vec<&'static str> {
        let absent = packages.iter().filter(|package| !present(package.probe));
        absent.map(|package| package.name).collect()
    };
    let lacking = missing(packages);
    if lacking.is_empty() {
        return Ok(());
    }
    let typed = format!("apt-get install --no-install-recommends {}", lacking.join(" "));
    if !geteuid().is_root() || find_program("apt-get").is_none() {
        return Err(format!("programs are missing; run: sudo {typed}").into());
    }
    println!("missing, installing: {}", lacking.join(" "));
    step::run(&mut apt(&["update", "-qq"]))?;
    let mut install = apt(&["install", "-qq", "--yes", "--no-install-recommends"]);
    step::run(install.args(&lacking).stdout(Stdio::null()))?;
    let still = missing(packages);
    if !still.is_empty() {
        return Err(format!("still missing after `{typed}`: {}", still.join(" ")).into());
    }
    Ok(())
}

fn present(probe: PackageProbe) -> bool {
    match probe {
        PackageProbe::Program(name) => find_program(name).is_some(),
        PackageProbe::File(path) => Path::new(path).is_file(),
        PackageProbe::PythonModule(name) => {
            let import = format!("import {name}");
            // Debian's interpreter, which finds Debian's modules; another may come first on the path.
            let tried = step::capture(Command::new("/usr/bin/python3").args(["-c", &import]));
            matches!(tried, Ok((true, ..)))
        }
    }
}

fn apt(arguments: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    // We need a daemon's program only. It is not started at this runlevel (SysV scripts) nor by a systemctl in offline mode (units,
    // such as Prometheus's).
    command.env("RUNLEVEL", "1").env("SYSTEMD_OFFLINE", "1");
    command
}
