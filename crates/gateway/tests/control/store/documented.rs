//! The examples of docs/admin-api.md do what they say.
//!
//! Blocks marked `sh run` are one script. A command is followed by a comment with the status that it is answered with.

use super::stage::Stage;
use std::fmt::Write as _;
use std::process::Command;
use stillgate_testkit::require_tool;

const PAGE: &str = include_str!("../../../../../docs/admin-api.md");

/// `curl` with a status that the next line looks at.
const PRELUDE: &str = "
curl() { status=$(command curl -sS -o \"$OUT\" -w '%{http_code}' \"$@\"); }
answers() { [ \"$status\" = \"$2\" ] || { echo \"line $1: $status in place of $2\"; cat \"$OUT\"; exit 1; }; status=none; }
";

/// The script, and how many statuses it looks at.
fn script() -> (String, usize) {
    let (mut script, mut looked_at, mut is_run) = (PRELUDE.to_owned(), 0, false);
    for (index, line) in PAGE.lines().enumerate() {
        let status = line.strip_prefix("# ").filter(|status| status.len() == 3);
        match (line, status) {
            ("```sh run", _) => is_run = true,
            ("```", _) => is_run = false,
            (_, Some(status)) if is_run => {
                looked_at += 1;
                writeln!(script, "answers {} {status}", index + 1).expect("writing to a String cannot fail");
            }
            (line, _) if is_run => writeln!(script, "{line}").expect("writing to a String cannot fail"),
            _ => {}
        }
    }
    (script, looked_at)
}

#[test]
fn examples_of_the_admin_api() {
    require_tool("curl", "curl");
    let stage = Stage::start();
    let (script, looked_at) = script();
    let commands = script.lines().filter(|line| line.starts_with("curl \"")).count();
    assert!(looked_at == commands && commands > 15, "{commands} commands with {looked_at} statuses");
    let mut command = Command::new("sh");
    command.args(["-eu", "-c", &script]).env_remove("http_proxy").env_remove("ALL_PROXY");
    command.env("ADMIN", format!("http://{}", stage.admin.addr)).env("KEY", &stage.admin.key);
    let output = command.env("OUT", stage.gateway.dir().join("answer")).output().expect("run sh");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
}
