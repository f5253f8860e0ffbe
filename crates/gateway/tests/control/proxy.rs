//! `stillgate proxy` and `stillgate init`: a gateway without a configuration file, and a file to begin with.

use crate::shared::STILLGATE;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use stillgate_testkit::{END_PATIENCE, Process, Upstream, eventually, require_tool};

fn run(folder: &Path, words: &[&str]) -> Output {
    Command::new(STILLGATE).args(words).current_dir(folder).output().expect("run stillgate")
}

fn texts(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// `stillgate proxy`, once it has printed its page.
fn proxy(folder: &Path, words: &[&str]) -> Process {
    let mut command = Command::new(STILLGATE);
    let mut proxy = Process::spawn("stillgate proxy", command.arg("proxy").args(words), &folder.join("log"));
    eventually("the page to be printed", || {
        assert!(proxy.ended().is_none(), "the proxy ended: {}", proxy.log());
        proxy.log().contains("Ctrl-C ends it.\n")
    });
    proxy
}

#[test]
fn the_printed_commands_reach_the_node() {
    require_tool("curl", "curl");
    let node = Upstream::echo();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let to = node.addr().to_string();
    let mut proxy = proxy(folder.path(), &["--to", &to, "--listen", "127.0.0.1:0", "--host", "*.example"]);
    let log = proxy.log();
    assert!(log.contains(&format!("is forwarded to {to}.")) && log.contains("/ui/#"), "{log}");
    let commands: Vec<&str> = log.lines().filter_map(|line| Some(&line[line.find("curl ")?..])).collect();
    assert_eq!(commands.len(), 2, "{log}");
    for command in &commands {
        let output = Command::new("sh").args(["-c", command]).output().expect("run sh");
        let (code, shown, said) = texts(&output);
        assert!(code == Some(0) && !shown.contains("error_msg"), "{command}: {shown}{said}");
    }
    assert_eq!(node.requests(), 1);
    // Another host has no route.
    let other = commands[0].replace("www.example", "other");
    let output = Command::new("sh").args(["-c", &other]).output().expect("run sh");
    assert!(texts(&output).1.contains("404"), "{output:?}");
    proxy.signal("INT");
    assert!(proxy.wait_within(END_PATIENCE).success(), "Ctrl-C ends it cleanly");
}

#[test]
fn a_node_that_does_not_answer_is_named() {
    let node = Upstream::refusing();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let to = node.addr().to_string();
    let proxy = proxy(folder.path(), &["--to", &to, "--listen", "127.0.0.1:0"]);
    eventually("the warning", || proxy.log().contains(&format!("{to} cannot be connected to")));
}

#[test]
fn an_address_that_is_taken_is_an_error() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let taken = Upstream::bind();
    let listen = taken.addr().to_string();
    let (code, shown, said) = texts(&run(folder.path(), &["proxy", "--to", ":1", "--listen", &listen]));
    assert_eq!(code, Some(1), "{shown}{said}");
    assert!(said.contains(&listen) && shown.is_empty(), "{shown}{said}");
}

#[test]
fn wrong_arguments_are_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (words, reason) in [
        (&["proxy"][..], "--to"),
        (&["proxy", "--to", "shop"], "it has no port"),
        (&["proxy", "--to", "http://shop/api"], "it has a path"),
        (&["proxy", "--to", "https://a.example", "--to", "b.example:80"], "one scheme"),
        (&["proxy", "--to", ":1", "--listen", "8080"], "IP:PORT"),
        (&["proxy", "--to", ":1", "--host", "http://shop"], "host name"),
        (&["init", "--to", "shop"], "it has no port"),
    ] {
        let (code, shown, said) = texts(&run(folder.path(), words));
        assert!(code == Some(2) && said.contains(reason) && shown.is_empty(), "{words:?}: {code:?} {shown}{said}");
    }
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
}

#[test]
fn what_is_printed_and_written_passes_check() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (code, printed, said) = texts(&run(
        folder.path(),
        &["proxy", "--to", "https://a.example", "--to", "https://b.example", "--print-config"],
    ));
    assert_eq!((code, said.as_str()), (Some(0), ""), "{printed}");
    fs::write(folder.path().join("printed.yaml"), printed).expect("write a file");
    let (code, shown, said) = texts(&run(folder.path(), &["init"]));
    assert_eq!(code, Some(0), "{shown}{said}");
    assert!(shown.contains("stillgate run --config stillgate.yaml"), "{shown}");
    for file in ["printed.yaml", "stillgate.yaml"] {
        let (code, shown, said) = texts(&run(folder.path(), &["check", "--offline", file]));
        assert_eq!((code, shown.as_str()), (Some(0), format!("{file}: ok (1 route, 1 upstream)\n").as_str()), "{said}");
    }
}

#[test]
fn a_file_that_exists_is_left_as_it_is() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("stillgate.yaml"), "mine").expect("write a file");
    let (code, _, said) = texts(&run(folder.path(), &["init"]));
    assert!(code == Some(1) && said.contains("stillgate.yaml exists"), "{said}");
    assert_eq!(fs::read_to_string(folder.path().join("stillgate.yaml")).expect("the file"), "mine");
    let (code, _, said) = texts(&run(folder.path(), &["init", "missing/stillgate.yaml"]));
    assert!(code == Some(1) && said.contains("cannot write missing/stillgate.yaml"), "{said}");
    let (code, shown, _) = texts(&run(folder.path(), &["init", "-", "--to", "[::1]:8081"]));
    assert!(code == Some(0) && shown.contains("\"[::1]:8081\": 1"), "{shown}");
}
