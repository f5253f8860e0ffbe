//! The order of functions in the gateway that is shipped: those that run between its start and a served request come first.
//!
//! The system reads code in pages, and maps those around each page that a program touches. The functions that an idle gateway has
//! run are a tenth of its code; scattered over all of it, they keep more than half of it in memory.

use crate::Result;
use crate::packages::{self, VALGRIND};
use crate::step::{self, target_dir};
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;
use stillgate_rig::{Running, Signal, callgrind, ports};

/// How long the gateway may take to start under callgrind.
const START_MAX: Duration = Duration::from_secs(180);
/// How long it is idle there.
const IDLE: Duration = Duration::from_secs(5);

/// Builds a program of a package in the profile `dist`, and links it once more with its functions in order; returns its path.
pub(crate) fn build(package: &str, name: &str) -> Result<PathBuf> {
    packages::ensure(&[VALGRIND])?;
    let mut build = step::cargo(["rustc", "--profile", "dist", "--package", package, "--bin", name]);
    // The second link needs what the first one got.
    build.args(["--", "-C", "save-temps", "--print", "link-args"]).stderr(Stdio::inherit());
    let printed = step::output(&mut build)?;
    let built = target_dir().join("dist").join(name);
    let folder = target_dir().join("dist/ordered");
    let program = folder.join(name);
    fs::create_dir_all(&folder)?;
    let last_link = folder.join("link.txt");
    let modified = |path: &Path| fs::metadata(path).and_then(|found| found.modified()).ok();
    match printed.lines().find(|line| line.contains("\"-o\" \"")) {
        Some(link) => fs::write(&last_link, link)?,
        // Cargo had nothing to do. With the file, the second link was interrupted.
        None if !last_link.is_file() && modified(&program) >= modified(&built) => return Ok(program),
        None => {}
    }
    let link = fs::read_to_string(&last_link).map_err(|_| {
        format!("{}: how it was linked is not known; `cargo clean --profile dist -p {package}`", built.display())
    })?;
    let profile = folder.join("callgrind.out");
    run_for_profile(&built, &folder, &profile)?;
    let (counted, order) = (fs::read_to_string(&profile)?, folder.join("functions.txt"));
    let functions = callgrind::functions_run(&counted);
    println!("{} functions run between the start and a served request", functions.len());
    fs::write(&order, functions.join("\n"))?;
    relink(&link, &order, &program)?;
    remove_temporary(&link)?;
    fs::remove_file(last_link)?;
    Ok(program)
}

/// Starts the gateway under callgrind, lets it serve and idle, and ends it.
fn run_for_profile(program: &Path, folder: &Path, profile: &Path) -> Result {
    let node = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = ports::free(IpAddr::V4(Ipv4Addr::LOCALHOST), 1)?[0];
    let (profile, program, to) = (profile.display(), program.display(), node.local_addr()?);
    let command = format!(
        "valgrind\n--tool=callgrind\n--demangle=no\n--callgrind-out-file={profile}\n{program}\n\
         proxy\n--to\n{to}\n--listen\n{address}"
    );
    thread::spawn(move || node.incoming().flatten().for_each(|connection| drop(thread::spawn(|| serve(connection)))));
    let words: Vec<String> = command.lines().map(str::to_owned).collect();
    let mut running = Running::spawn("callgrind", &words, &[], &folder.join("callgrind.log"), Stdio::null())?;
    running.wait_for(address, START_MAX).map_err(|error| format!("the gateway under callgrind: {error}"))?;
    ask(address).map_err(|error| format!("a request to the gateway under callgrind: {error}"))?;
    thread::sleep(IDLE);
    running.signal(Signal::INT)?;
    while !running.has_ended()? {
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na";

/// Answers each request, as they come one after the other.
fn serve(mut connection: TcpStream) {
    let mut buffer = [0; 4096];
    while connection.read(&mut buffer).is_ok_and(|read| read > 0) && connection.write_all(ANSWER).is_ok() {}
}

/// Makes a few hundred requests, one after the other.
fn ask(address: SocketAddr) -> std::io::Result<()> {
    let (mut connection, mut buffer) = (TcpStream::connect(address)?, [0; 4096]);
    for _ in 0..200 {
        connection.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nUser-Agent: a\r\nAccept: */*\r\n\r\n")?;
        let read = connection.read(&mut buffer)?;
        if !buffer[..read].starts_with(b"HTTP/1.1 200 ") {
            return Err(std::io::Error::other(String::from_utf8_lossy(&buffer[..read]).into_owned()));
        }
    }
    Ok(())
}

/// Links again, as `link` did, with functions in the order of a file.
fn relink(link: &str, order: &Path, program: &Path) -> Result {
    let (before, from_path) = link.split_once("\"-o\" \"").ok_or("the linker's command names no program")?;
    let (_, after) = from_path.split_once('"').ok_or("the linker's command has no end")?;
    let unfinished = program.with_extension("unfinished");
    let command = format!(
        "{before}\"-o\" \"{}\"{after} \"-Wl,--symbol-ordering-file={}\" -Wl,--no-warn-symbol-ordering",
        unfinished.display(),
        order.display()
    );
    step::output(Command::new("sh").args(["-c", &command]).current_dir(step::root()))?;
    fs::rename(unfinished, program)?;
    Ok(())
}

/// Removes what rustc has kept for the second link: a gigabyte.
fn remove_temporary(link: &str) -> Result {
    let object =
        link.split('"').find(|word| word.ends_with(".rcgu.o")).ok_or("the linker's command names no object")?;
    let folder = Path::new(object).parent().ok_or("the object is in no folder")?;
    for entry in fs::read_dir(folder)?.flatten().map(|entry| entry.path()) {
        let is_folder =
            entry.is_dir() && entry.file_name().is_some_and(|name| name.to_string_lossy().starts_with("rustc"));
        match entry.to_string_lossy().starts_with(object.trim_end_matches(".rcgu.o")) {
            true => fs::remove_file(entry)?,
            false if is_folder => fs::remove_dir_all(entry)?,
            false => {}
        }
    }
    Ok(())
}
