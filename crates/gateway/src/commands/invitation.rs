//! The page that a command prints once its gateway is up: what it listens on, what to try, how to end it.

use crate::control::start::Up;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;
use stillgate_door::Role;

/// How long the link to the dashboard can be opened.
const LINK_AGE: Duration = Duration::from_secs(3600);

/// Width of the column with commands.
const COMMAND_COLUMNS: usize = 58;

/// The page, as far as it is written.
pub(super) struct Invitation(String);

impl Invitation {
    /// Begins with a paragraph.
    pub(super) fn new(first: String) -> Invitation {
        Invitation(format!("{first}\n"))
    }

    /// Adds a paragraph.
    pub(super) fn paragraph(&mut self, text: &str) {
        self.0.push_str(&format!("\n{text}\n"));
    }

    /// Begins a list of commands.
    pub(super) fn list(&mut self, title: &str) {
        self.0.push_str(&format!("\n{title}\n\n"));
    }

    /// Adds a command to the list, and what it shows.
    pub(super) fn offer(&mut self, command: &str, what: &str) {
        self.0.push_str(format!("  {command:<COMMAND_COLUMNS$} # {what}").trim_end_matches([' ', '#']));
        self.0.push('\n');
    }

    /// The page.
    pub(super) fn end(self) -> String {
        self.0 + "\nCtrl-C ends it.\n"
    }
}

/// A link that opens the dashboard; `None`: there is no admin address. `name`: the author of changes, as the history shows it.
pub(super) fn dashboard_link(up: &Up<'_>, name: &str) -> Option<String> {
    let token = up.guard.sign_in_token(name, Role::Admin, LINK_AGE);
    up.admin.map(|admin| format!("http://{admin}/ui/#{token}"))
}

/// A loopback address with this port, or with one of the system's choice where it is taken.
pub(super) fn free_or_any(port: u16) -> SocketAddr {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    match TcpListener::bind(address) {
        Ok(_) => address,
        Err(_) => SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
    }
}
