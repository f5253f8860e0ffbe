//! The allowed dependencies between the rooms of a crate: tables, checked against the sources.
//!
//! A room is a folder directly below `src/`, or a single file there. The files of a room may use each other and the rooms below.
//! Code that needs a room above must move, or take it as an argument. The crate's root (`lib.rs`, `main.rs`) is above all rooms,
//! and tests may use any name.

use crate::Result;
use crate::arrows::is_of_tests;
use crate::names::{self, NameUse};
use crate::tree::{self, RepositoryFile};
use std::collections::BTreeSet;

/// The rooms of one crate.
struct Rooms {
    /// Its folder below `crates/`.
    folder: &'static str,
    /// From top to bottom.
    order: &'static [&'static str],
    /// Files below `src/`, with the rooms above theirs that they still use. This list only gets shorter.
    upward: &'static [(&'static str, &'static [&'static str])],
}

const CRATES: &[Rooms] = &[
    Rooms { folder: "gateway", order: &["commands", "control", "admin", "configuration", "upgrade"], upward: &[] },
    Rooms {
        folder: "proxy",
        order: &[
            "fleet",
            "client",
            "stream_proxy",
            "devices",
            "tunnel",
            "listen",
            "exchange",
            "node",
            "worker",
            "calls",
            "device_link",
            "handover",
            "telemetry",
            "plan",
            "connection",
            "sockets",
            "basics",
            "random",
        ],
        upward: &[],
    },
    Rooms {
        folder: "config",
        order: &["schemas", "file", "store", "chain_lint", "resources", "model", "keys", "values", "secret_fields"],
        upward: &[],
    },
];

/// Checks every file of these crates; reports violations.
pub(crate) fn check() -> Result {
    let files = tree::files()?;
    let mut wrong = Vec::new();
    for rooms in CRATES {
        rooms.check(&files, &mut wrong)?;
    }
    if wrong.is_empty() {
        let upward: usize = CRATES.iter().map(|rooms| rooms.allowed().count()).sum();
        println!("arrows between rooms point down in {} crates, but for {upward}", CRATES.len());
        return Ok(());
    }
    Err(wrong.join("\n").into())
}

impl Rooms {
    fn check(&self, files: &[RepositoryFile], wrong: &mut Vec<String>) -> Result {
        let source = format!("crates/{}/src/", self.folder);
        let (mut empty, mut unused) = (BTreeSet::from_iter(self.order), BTreeSet::from_iter(self.allowed()));
        for file in files.iter().filter(|file| file.is_rust()) {
            let Some(path) = file.path.strip_prefix(&source).filter(|path| !is_root(path)) else { continue };
            let room = room(path);
            empty.remove(&room);
            if !self.order.contains(&room) {
                let place = "is not in the table of xtask/src/rooms.rs; give it its place";
                wrong.push(format!("{}: the room \"{room}\" {place}", file.path));
                continue;
            }
            for NameUse { line, name } in self.upward_names(path, file)? {
                let arrow = self.allowed().find(|(from, to)| *from == path && *to == name);
                match arrow {
                    Some(arrow) => drop(unused.remove(&arrow)),
                    None => wrong.push(format!("{}:{line}: {}", file.path, self.reason(room, &name))),
                }
            }
        }
        for room in empty {
            wrong.push(format!("{source}: has no room \"{room}\"; take it out of xtask/src/rooms.rs"));
        }
        for (from, to) in unused {
            wrong.push(format!("{source}{from}: does not know \"{to}\"; take the arrow out of xtask/src/rooms.rs"));
        }
        Ok(())
    }

    /// The arrows that may still lead up: from a file, to a room.
    fn allowed(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.upward.iter().flat_map(|(from, to)| to.iter().map(move |to| (*from, *to)))
    }

    /// The names in a file at this path that are not from rooms below it.
    fn upward_names(&self, path: &str, file: &RepositoryFile) -> Result<Vec<NameUse>> {
        if is_of_tests(path) {
            return Ok(Vec::new());
        }
        let names = names::below_root(path, file.text().unwrap_or_default());
        let names = names.map_err(|error| format!("{}: {error}", file.path))?;
        let place = |name: &str| self.order.iter().position(|have| *have == name);
        let own = place(room(path));
        Ok(names.into_iter().filter(|named| place(&named.name) < own).collect())
    }

    /// Why a room may not use a name below the crate's root.
    fn reason(&self, room: &str, name: &str) -> String {
        if self.order.contains(&name) {
            return format!(
                "the room \"{room}\" may not know \"{name}\": arrows point down; move the item or pass it as an argument"
            );
        }
        format!(
            "the room \"{room}\" may not know the crate's root: name the room that `crate::{name}` is from, or move it to one"
        )
    }
}

/// Whether a file is the root of a library or program.
fn is_root(path: &str) -> bool {
    matches!(path, "lib.rs" | "main.rs") || path.starts_with("bin/")
}

/// The room of a file below `src/`.
fn room(path: &str) -> &str {
    path.split('/').next().unwrap_or(path).trim_end_matches(".rs")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOMS: Rooms =
        Rooms { folder: "a", order: &["top", "middle", "bottom"], upward: &[("bottom/old.rs", &["middle"])] };
    /// Checks the table and its list for errors.
    const OTHERS: &[(&str, &str)] = &[
        ("lib.rs", "mod bottom; mod middle; mod top; use bottom::B; use crate::top::A;"),
        ("top/mod.rs", "use crate::middle::M; use crate::bottom::B;"),
        ("middle.rs", "use crate::bottom::B;"),
        ("bottom/old.rs", "use crate::middle::M;"),
    ];

    fn check(files: &[(&str, &str)]) -> Vec<String> {
        let file = |(path, text): &(&str, &str)| RepositoryFile {
            path: format!("crates/a/src/{path}"),
            bytes: text.as_bytes().to_vec(),
        };
        let files: Vec<RepositoryFile> = files.iter().map(file).collect();
        let mut wrong = Vec::new();
        ROOMS.check(&files, &mut wrong).unwrap();
        wrong
    }

    fn check_beside(path: &str, text: &str) -> Vec<String> {
        check(&[OTHERS, &[(path, text)]].concat())
    }

    #[test]
    fn down_and_within_is_fine() {
        assert_eq!(check(OTHERS), [""; 0]);
        assert_eq!(check_beside("bottom/new.rs", "use super::old::O; use crate::bottom::old;"), [""; 0]);
        assert_eq!(check_beside("bottom/tests.rs", "use crate::top::A;"), [""; 0]);
    }

    #[test]
    fn up_is_refused_with_its_line() {
        assert_eq!(
            check_beside("middle/reply.rs", "\nuse crate::{bottom::B, top};"),
            [
                "crates/a/src/middle/reply.rs:2: the room \"middle\" may not know \"top\": arrows point down; move the item or \
              pass it as an argument"
            ]
        );
        assert!(check_beside("bottom/new.rs", "use crate::middle::M;")[0].contains("new.rs:1: the room \"bottom\""));
        assert!(check_beside("bottom/new.rs", "use crate::Config;")[0].contains("the crate's root"));
    }

    #[test]
    fn tables_follow_the_sources() {
        assert!(check_beside("other/mod.rs", "")[0].contains("the room \"other\" is not in the table"));
        assert!(check(&OTHERS[..2])[0].contains("has no room \"bottom\""));
        let without = [OTHERS[1], OTHERS[2], ("bottom/old.rs", "use crate::bottom::B;")];
        assert!(check(&without)[0].contains("bottom/old.rs: does not know \"middle\""));
    }
}
