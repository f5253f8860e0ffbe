//! Packages of the programs as they are built for tests: installed into an empty root, used, upgraded and removed.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;
use stillgate_packaging::{Programs, Release, archive, container, deb, wheel};
use stillgate_testkit::{END_PATIENCE, Process, ReservedPort, eventually};
use tempfile::TempDir;

/// The programs, without the debugging information that nobody installs. Each process of a run uses those of the first.
static PROGRAMS: LazyLock<Programs> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs");
    fs::create_dir_all(&folder).expect("a folder");
    let test = std::env::current_exe().expect("the path of the test");
    let built = test.ancestors().nth(2).expect("the folder of the programs").to_owned();
    let changed = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
    let stripped = |name: &str| {
        let (from, to) = (built.join(name), folder.join(name));
        let changed_at = changed(&from);
        assert!(changed_at.is_some(), "{} is missing; `cargo xtask test` builds it", from.display());
        if changed(&to) <= changed_at {
            // Another process may do it at the same time.
            let own = tempfile::Builder::new().tempfile_in(&folder).expect("a temporary file").into_temp_path();
            done(Command::new("objcopy").arg("--strip-all").arg(from).arg(&own));
            own.persist(&to).expect("a file in the place of the older one");
        }
        to
    };
    Programs { gateway: stripped("stillgate"), lab: stripped("stillgate-lab") }
});

fn release(version: &str) -> Release {
    let repository = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let release = Release::of(repository, PROGRAMS.clone()).expect("a release");
    Release { version: version.to_owned(), compression: 0, ..release }
}

/// Runs a command that must succeed.
fn done(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}{}", String::from_utf8_lossy(&output.stdout));
    output
}

/// A root without anything but the database of packages.
struct EmptyRoot(TempDir);

impl EmptyRoot {
    fn new() -> EmptyRoot {
        let root = tempfile::tempdir().expect("a temporary folder");
        for folder in ["info", "updates", "triggers"] {
            fs::create_dir_all(root.path().join("var/lib/dpkg").join(folder)).expect("a folder");
        }
        fs::write(root.path().join("var/lib/dpkg/status"), "").expect("a file");
        EmptyRoot(root)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    /// Scripts run outside of the root, which has no shell; the C library is not installed there.
    fn dpkg(&self, action: &str, what: &Path) {
        let mut dpkg = Command::new("dpkg");
        dpkg.arg(format!("--root={}", self.0.path().display())).args(["--force-script-chrootless", "--force-depends"]);
        done(dpkg.args(["--force-not-root", action]).arg(what).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"));
    }

    /// What is there but the database.
    fn files(&self) -> Vec<String> {
        let mut found = Command::new("find");
        found.arg(".").args(["-path", "./var/lib/dpkg", "-prune", "-o", "-not", "-type", "d", "-print"]);
        let found = done(found.current_dir(self.0.path())).stdout;
        let mut files: Vec<String> = String::from_utf8_lossy(&found).lines().map(str::to_owned).collect();
        files.sort();
        files
    }
}

/// Accepts one connection, switches protocols and sends back what comes.
fn echo_after_switching() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("an address");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("a head");
            head.push(byte[0]);
        }
        // The example of RFC 6455 section 1.3.
        let answer = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                      Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
        stream.write_all(answer.as_bytes()).expect("an answer");
        let mut buffer = [0; 1024];
        while let Ok(n @ 1..) = stream.read(&mut buffer) {
            stream.write_all(&buffer[..n]).expect("the same again");
        }
    });
    address
}

/// A WebSocket through the gateway.
struct Socket(TcpStream);

impl Socket {
    fn open(gateway: SocketAddr) -> Socket {
        let mut stream = TcpStream::connect(gateway).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
        let request = "GET /chat HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                       Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        stream.write_all(request.as_bytes()).expect("a request");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("a head");
            head.push(byte[0]);
        }
        assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
        Socket(stream)
    }

    /// Sends a masked text frame, which comes back.
    fn echo(&mut self, text: &[u8; 4]) {
        let mut frame = vec![0x81, 0x84, 0, 0, 0, 0];
        frame.extend_from_slice(text);
        self.0.write_all(&frame).expect("a frame");
        let mut back = vec![0; frame.len()];
        self.0.read_exact(&mut back).expect("the frame");
        assert_eq!(back, frame);
    }
}

#[test]
fn a_debian_package_is_installed_upgraded_and_removed() {
    let out = tempfile::tempdir().expect("a temporary folder");
    let first = deb::gateway(&release("0.1.0"), out.path()).expect("a package");
    let second = deb::gateway(&release("0.1.1"), out.path()).expect("a package");
    let lab = deb::lab(&release("0.1.0"), out.path()).expect("a package");
    let root = EmptyRoot::new();
    root.dpkg("--install", &first);
    root.dpkg("--install", &lab);
    let program = root.path("usr/bin/stillgate");
    for file in [
        "usr/bin/stillgate-lab",
        "usr/lib/systemd/system/stillgate.service",
        "etc/logrotate.d/stillgate",
        "usr/share/man/man1/stillgate.1",
        "usr/share/man/man1/stillgate-proxy.1",
        "usr/share/man/man1/stillgate-lab-compare.1",
        "usr/share/bash-completion/completions/stillgate",
    ] {
        assert!(root.path(file).is_file(), "{file} is missing");
    }
    done(Command::new(&program).args(["check", "--offline"]).arg(root.path("etc/stillgate/stillgate.yaml")));
    let passwd = fs::read_to_string(root.path("etc/passwd")).expect("users");
    assert!(passwd.contains("stillgate:"), "{passwd}");

    let folder = tempfile::tempdir().expect("a temporary folder");
    let port = ReservedPort::new();
    let (config, pid_file) = (folder.path().join("stillgate.yaml"), folder.path().join("pid"));
    let text = format!(
        "gateway:\n  listeners: [{{address: \"{}\"}}]\n  pid_file: {}\n\
         upstreams: [{{id: chat, nodes: {{\"{}\": 1}}}}]\n\
         routes: [{{id: chat, uri: /chat, upstream_id: chat, enable_websocket: true}}]\n",
        port.addr(),
        pid_file.display(),
        echo_after_switching()
    );
    fs::write(&config, text).expect("write the configuration");
    let mut command = Command::new(&program);
    command.arg("run").arg("--config").arg(&config);
    let mut gateway = Process::spawn("the installed stillgate", &mut command, &folder.path().join("log"));
    let pid = || fs::read_to_string(&pid_file).unwrap_or_default().trim().to_owned();
    eventually("the gateway to serve", || !pid().is_empty());
    let mut socket = Socket::open(port.addr());
    socket.echo(b"one.");
    let before = pid();

    root.dpkg("--install", &second);
    done(Command::new(&program).arg("upgrade").arg("--pid-file").arg(&pid_file));
    assert_ne!(pid(), before, "another process serves");
    socket.echo(b"two.");
    drop(socket);
    done(Command::new("kill").arg(pid()));
    assert!(gateway.wait_within(END_PATIENCE).success(), "{}", gateway.log());
    eventually("the second process to end", || pid().is_empty());

    let mut command = Command::new(&program);
    let mut demo = Process::spawn("the installed demo", command.arg("demo"), &folder.path().join("demo"));
    eventually("the demo", || demo.log().contains("Ctrl-C ends it."));
    demo.signal("INT");
    assert!(demo.wait_within(END_PATIENCE).success(), "{}", demo.log());

    root.dpkg("--purge", Path::new("stillgate"));
    root.dpkg("--purge", Path::new("stillgate-lab"));
    // The user stays, so that its number is not given to another.
    let users = ["./etc/.pwd.lock", "./etc/group", "./etc/gshadow", "./etc/passwd", "./etc/shadow"];
    let rest: Vec<String> = root.files().into_iter().filter(|file| !users.contains(&file.as_str())).collect();
    assert_eq!(rest, [] as [String; 0]);
}

#[test]
fn an_archive_is_whole_and_runs_where_it_is_unpacked() {
    let out = tempfile::tempdir().expect("a temporary folder");
    let path = archive::archive(&release("0.1.0"), out.path()).expect("an archive");
    let name = path.file_name().expect("a name").to_str().expect("text").to_owned();
    done(Command::new("sha256sum").arg("--check").arg(format!("{name}.sha256")).current_dir(out.path()));
    done(Command::new("tar").args(["--extract", "--file", &name]).current_dir(out.path()));
    let folder = out.path().join(name.trim_end_matches(".tar.gz"));
    for program in ["stillgate", "stillgate-lab"] {
        done(Command::new(folder.join("bin").join(program)).arg("--version"));
    }
    assert!(folder.join("lib/systemd/system/stillgate.service").is_file() && folder.join("LICENSE").is_file());
}

#[test]
fn a_wheel_is_installed_into_an_empty_environment() {
    let out = tempfile::tempdir().expect("a temporary folder");
    let path = wheel::wheel(&release("0.1.0"), out.path()).expect("a wheel");
    let environment = out.path().join("environment");
    done(Command::new("python3").args(["-m", "venv"]).arg(&environment));
    done(Command::new(environment.join("bin/pip")).args(["install", "--quiet", "--no-index"]).arg(&path));
    let mut command = Command::new(environment.join("bin/stillgate"));
    let mut demo = Process::spawn("the demo of the wheel", command.arg("demo"), &out.path().join("log"));
    eventually("the demo", || demo.log().contains("Ctrl-C ends it."));
    demo.signal("INT");
    assert!(demo.wait_within(END_PATIENCE).success(), "{}", demo.log());
    done(Command::new(environment.join("bin/stillgate-lab")).arg("--version"));
    done(Command::new(environment.join("bin/pip")).args(["uninstall", "--quiet", "--yes", "stillgate"]));
    assert!(!environment.join("bin/stillgate").exists());
}

#[test]
fn the_files_of_a_container_are_enough_to_run() {
    let out = tempfile::tempdir().expect("a temporary folder");
    let folder = container::container(&release("0.1.0"), out.path()).expect("the files of a container");
    let root = folder.join("root");
    // As a runtime mounts it.
    fs::create_dir(root.join("proc")).expect("a folder");
    let mut inside = Command::new("unshare");
    inside.args(["--map-root-user", "--pid", "--fork"]).arg(format!("--mount-proc={}", root.join("proc").display()));
    inside.arg("chroot").arg(&root);
    done(inside.args(["/usr/bin/stillgate", "check", "/etc/stillgate/stillgate.yaml"]));
}

#[test]
fn the_service_may_do_little() {
    let unit = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../packaging/stillgate.service");
    let output = done(Command::new("systemd-analyze").args(["security", "--offline=true", "--no-pager"]).arg(unit));
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let exposure = shown.lines().find_map(|line| line.split_once("exposure level for stillgate.service:"));
    let exposure: f64 = exposure.and_then(|(_, level)| level.split_whitespace().next()?.parse().ok()).expect("a level");
    assert!(exposure <= 2.0, "{shown}");
}
