//! Independent programs: nginx, HAProxy, Python's h11, curl, `go tool pprof`. They prove that the gateway interoperates, and
//! that others can read its profiles.

use crate::port::ReservedPort;
use crate::process::Process;
use crate::{BufferedSocket, PATIENCE, eventually, eventually_within};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// # Panics
/// If `program` is not installed; names the Debian package that has it.
#[track_caller]
pub fn require_tool(program: &str, package: &str) {
    let found = Command::new("sh")
        .args(["-c", &format!("command -v {program} || test -x /usr/sbin/{program}")])
        .output()
        .expect("run sh");
    assert!(
        found.status.success(),
        "{program} is missing; install the Debian package {package} (`cargo xtask test` does it when root)"
    );
}

/// Runs a tool to its end.
///
/// # Panics
/// If it is missing; see [`require_tool`].
#[track_caller]
pub fn run_tool(program: &str, package: &str, arguments: &[&str]) -> Output {
    require_tool(program, package);
    Command::new(program)
        .args(arguments)
        .env_remove("http_proxy")
        .env_remove("ALL_PROXY")
        .output()
        .unwrap_or_else(|error| panic!("run {program}: {error}"))
}

/// A separate nginx.
#[derive(Debug)]
pub struct Nginx {
    process: Process,
    port: ReservedPort,
    dir: TempDir,
}

impl Nginx {
    /// Starts nginx with these lines inside `http { }`, where `{port}` is its port and `{dir}` its folder.
    ///
    /// # Panics
    /// If nginx is missing or refuses the lines.
    #[track_caller]
    pub fn start(http: &str) -> Self {
        Self::with_modules(&[], http)
    }

    /// [`Nginx::start`] with the Lua module.
    ///
    /// # Panics
    /// If nginx or the module is missing, or nginx refuses the lines.
    #[track_caller]
    pub fn with_lua(http: &str) -> Self {
        // The second module needs the first.
        let modules = ["ndk_http_module.so", "ngx_http_lua_module.so"].map(|name| format!("{MODULES}/{name}"));
        for module in &modules {
            let package = "libnginx-mod-http-lua";
            assert!(Path::new(module).exists(), "{module} is missing; install the Debian package {package}");
        }
        Self::with_modules(&modules, http)
    }

    #[track_caller]
    fn with_modules(modules: &[String], http: &str) -> Self {
        require_tool("nginx", "nginx");
        let modules: String = modules.iter().map(|module| format!("load_module {module};\n")).collect();
        let dir = tempfile::tempdir().expect("a temporary folder");
        // nginx's worker may run as another user.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir.path(), open).expect("open the folder to nginx's user");
        let port = crate::port::ReservedPort::new();
        let at = dir.path().display().to_string();
        let http = http.replace("{port}", &port.addr().port().to_string()).replace("{dir}", &at);
        let temp: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|kind| format!("{kind}_temp_path {at}/{kind};\n"))
            .collect();
        let config = format!(
            "{modules}daemon off;\nmaster_process off;\nworker_processes 1;\npid {at}/nginx.pid;\nerror_log stderr warn;\n\
             events {{ worker_connections 512; }}\nhttp {{\naccess_log off;\n{temp}{http}\n}}\n"
        );
        let file = dir.path().join("nginx.conf");
        std::fs::write(&file, config).expect("write nginx.conf");
        let mut command = Command::new("sh");
        command.args(["-c", "PATH=$PATH:/usr/sbin exec nginx -p \"$0\" -c \"$1\" -e stderr"]).args([dir.path(), &file]);
        let process = Process::spawn("nginx", &mut command, &dir.path().join("nginx.log"));
        let mut nginx = Self { process, port, dir };
        let addr = nginx.addr();
        eventually("nginx to listen", || {
            assert!(nginx.process.ended().is_none(), "nginx ended at its start");
            TcpStream::connect(addr).is_ok()
        });
        nginx
    }

    /// Its address.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// A connection to it.
    ///
    /// # Panics
    /// If it does not accept one.
    #[track_caller]
    pub fn client(&self) -> BufferedSocket {
        BufferedSocket::new(TcpStream::connect(self.addr()).expect("nginx takes a connection"))
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
}

/// Debian's folder of nginx modules.
const MODULES: &str = "/usr/lib/nginx/modules";

/// A separate HAProxy.
#[derive(Debug)]
pub struct Haproxy {
    _process: Process,
    ports: Vec<ReservedPort>,
    _dir: TempDir,
}

impl Haproxy {
    /// Starts HAProxy in TCP mode with one proxy for each of `servers`, which is the rest of its `server` line.
    ///
    /// # Panics
    /// If HAProxy is missing or refuses the lines.
    #[track_caller]
    pub fn start(servers: &[String]) -> Self {
        let proxies: String = (0..servers.len())
            .map(|at| {
                let server = &servers[at];
                format!("listen proxy-{at}\n  mode tcp\n  bind 127.0.0.1:{{port{at}}}\n  server node {server}\n")
            })
            .collect();
        Self::configured(servers.len(), &proxies)
    }

    /// Starts HAProxy with these sections, where `{port0}`, `{port1}`, … are its own ports. The mode is HTTP unless
    /// they set another one.
    ///
    /// # Panics
    /// If HAProxy is missing or refuses the lines.
    #[track_caller]
    pub fn configured(ports: usize, sections: &str) -> Self {
        require_tool("haproxy", "haproxy");
        let dir = tempfile::tempdir().expect("a temporary folder");
        let ports: Vec<_> = (0..ports).map(|_| crate::port::ReservedPort::new()).collect();
        let mut config = format!(
            "defaults\n  mode http\n  timeout connect 10s\n  timeout client 60s\n  timeout server 60s\n{sections}"
        );
        for (at, port) in ports.iter().enumerate() {
            config = config.replace(&format!("{{port{at}}}"), &port.addr().port().to_string());
        }
        let file = dir.path().join("haproxy.cfg");
        std::fs::write(&file, config).expect("write haproxy.cfg");
        let mut command = Command::new("sh");
        command.args(["-c", "PATH=$PATH:/usr/sbin exec haproxy -db -f \"$0\""]).arg(&file);
        let mut process = Process::spawn("haproxy", &mut command, &dir.path().join("haproxy.log"));
        eventually("HAProxy to listen", || {
            assert!(process.ended().is_none(), "HAProxy ended at its start");
            ports.iter().all(|port| TcpStream::connect(port.addr()).is_ok())
        });
        Self { _process: process, ports, _dir: dir }
    }

    /// The address of the port with this index; with [`Haproxy::start`], of the proxy for the server with this index.
    pub fn addr(&self, server: usize) -> SocketAddr {
        self.ports[server].addr()
    }
}

/// How long a script may take per line: it is interpreted, and does much in between.
const SCRIPT_PATIENCE: Duration = Duration::from_secs(900);

/// A Python script, run by the system's interpreter (which has Debian's `python3-h11`).
#[derive(Debug)]
pub struct Python {
    process: Process,
    _dir: TempDir,
}

impl Python {
    /// Starts `script` (its text) with `arguments`.
    ///
    /// # Panics
    /// If Python or h11 is missing.
    #[track_caller]
    pub fn start(script: &str, arguments: &[&str]) -> Self {
        let probe = Command::new("/usr/bin/python3").args(["-c", "import h11"]).output();
        assert!(
            probe.is_ok_and(|output| output.status.success()),
            "Python's h11 is missing; install the Debian package python3-h11 (`cargo xtask test` does it when root)"
        );
        let dir = tempfile::tempdir().expect("a temporary folder");
        let file = dir.path().join("script.py");
        std::fs::write(&file, script).expect("write the script");
        let mut command = Command::new("/usr/bin/python3");
        command.arg("-u").arg(&file).args(arguments);
        let process = Process::spawn("python3", &mut command, &dir.path().join("python.log"));
        Self { process, _dir: dir }
    }

    /// Its output so far.
    pub fn output(&self) -> String {
        self.process.log()
    }

    /// Waits for its first line that begins with `prefix` and returns the rest.
    ///
    /// # Panics
    /// If it ends or none comes.
    #[track_caller]
    pub fn announced(&mut self, prefix: &str) -> String {
        let mut found = None;
        eventually_within(SCRIPT_PATIENCE, &format!("a line {prefix:?} from the script"), || {
            let output = self.process.log();
            found = output.lines().find_map(|line| Some(line.strip_prefix(prefix)?.to_owned()));
            assert!(found.is_some() || self.process.ended().is_none(), "it ended:\n{output}");
            found.is_some()
        });
        found.expect("the loop above ends with a line")
    }

    /// Whether it has ended, and successfully.
    pub fn succeeded(&mut self) -> Option<bool> {
        self.process.ended().map(|status| status.success())
    }
}

/// The output of `-top` for a file.
///
/// # Panics
/// If it cannot read the file, or `go` is missing.
#[must_use]
#[track_caller]
pub fn go_top(file: &Path) -> String {
    let printed = Command::new("go").args(["tool", "pprof", "-nodefraction=0", "-top"]).arg(file).output();
    let printed = printed.expect("there is a `go`");
    let (text, error) = (String::from_utf8_lossy(&printed.stdout), String::from_utf8_lossy(&printed.stderr));
    assert!(printed.status.success(), "{}: {error}", file.display());
    text.into_owned()
}

/// Ends with its owner.
struct PprofServer(Child);

impl Drop for PprofServer {
    fn drop(&mut self) {
        // It may have ended by itself, which the test has then reported.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The pages `top` and `flamegraph` that `-http` serves for a file.
///
/// # Panics
/// If it serves none.
#[must_use]
#[track_caller]
pub fn go_pages(file: &Path) -> [String; 2] {
    // Without a port it chooses one. `go` finds the program, but does not run it: ending `go` would leave its child.
    let tool = Command::new("go").args(["tool", "-n", "pprof"]).output().expect("there is a `go`");
    let tool = String::from_utf8(tool.stdout).expect("a path");
    let mut command = Command::new(tool.trim());
    command.args(["-http=127.0.0.1:", "-no_browser"]).arg(file);
    command.env("PPROF_TMPDIR", file.parent().expect("in a folder")).stderr(Stdio::piped());
    let mut server = PprofServer(command.spawn().expect("it starts"));
    let lines = BufReader::new(server.0.stderr.take().expect("it is piped")).lines();
    let mut told = Vec::new();
    let address = lines.map_while(Result::ok).find_map(|line| {
        let address = line.split_once("http://").map(|(_, address)| address.trim_end_matches('/').to_owned());
        told.push(line);
        address
    });
    let address = address.unwrap_or_else(|| panic!("{}: {told:?}", file.display()));
    // It prints this before it listens.
    eventually("it to listen", || TcpStream::connect(&address).is_ok());
    ["top", "flamegraph"].map(|page| {
        let mut stream = TcpStream::connect(&address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        write!(stream, "GET /ui/{page} HTTP/1.0\r\nHost: {address}\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        assert!(answer.starts_with("HTTP/1.0 200"), "{}, {page}: {answer}", file.display());
        answer
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Client;

    #[test]
    fn nginx_answers() {
        let nginx = Nginx::start("server { listen 127.0.0.1:{port}; location / { return 200 'ok'; } }");
        assert_eq!(Client::connect(nginx.addr()).get("/").body, b"ok");
    }

    #[test]
    fn python_announces() {
        let mut python = Python::start("print('port', 7)", &[]);
        assert_eq!(python.announced("port "), "7");
    }
}
