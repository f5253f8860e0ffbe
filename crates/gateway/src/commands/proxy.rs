//! `stillgate proxy`: a gateway without a file, in front of one server.

use super::cli::{EXIT_GOOD, EXIT_UNUSABLE, Proxy};
use super::invitation::{Invitation, dashboard_link, free_or_any};
use super::run::exit_code;
use super::starter::{ADMIN, Starter, UpstreamNodeArgument};
use super::stdout::show;
use crate::configuration::source::ConfigSource;
use crate::control::start::{Up, serve};
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::thread;
use std::time::Duration;

/// Author of changes by the link, as the log shows it.
const NAME: &str = "proxy";

/// Timeout of the first look at a node.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs the command; returns the exit code.
pub(crate) fn run(arguments: Proxy) -> u8 {
    let Proxy { to, listen, host, print_config } = arguments;
    let admin = if print_config { ADMIN } else { free_or_any(ADMIN.port()) };
    let starter = match Starter::new(to, listen, host, admin) {
        Ok(starter) => starter,
        Err(error) => {
            eprintln!("stillgate: {error}");
            return EXIT_UNUSABLE;
        }
    };
    let text = starter.yaml(true);
    if print_config {
        show(text);
        return EXIT_GOOD;
    }
    let nodes = starter.nodes.clone();
    exit_code(serve(ConfigSource::Text(text), |up| {
        show(invitation(up, &starter));
        warn_of_silent_nodes(nodes);
    }))
}

fn invitation(up: &Up<'_>, starter: &Starter) -> String {
    let Some(&gateway) = up.listeners.first() else { return String::new() };
    let mut page = Invitation::new(format!("http://{gateway} is forwarded to {}.", starter.node_list()));
    if let Some(link) = dashboard_link(up, NAME) {
        page.paragraph(&format!("Its dashboard:\n\n  {link}\n\nThe link works once, within an hour."));
    }
    page.list("In another terminal:");
    page.offer(&starter.curl(gateway), "a request");
    if let Some(admin) = up.admin {
        page.offer(&format!("curl http://{admin}/metrics"), "its metrics");
    }
    page.paragraph("With --print-config it prints its configuration instead, for a file to extend.");
    page.end()
}

/// Says which nodes cannot be connected to: a mistyped port would otherwise show itself as 502 only.
fn warn_of_silent_nodes(nodes: Vec<UpstreamNodeArgument>) {
    let warn = move || {
        for node in nodes {
            let (host, port) = (node.host.trim_matches(['[', ']']), node.port);
            let addresses = (host, port).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
            let connected = addresses.and_then(|addresses| connect_to_any(&addresses));
            if let Err(error) = connected {
                eprintln!("stillgate: {node} cannot be connected to: {error}. Requests get 502 until it can.");
            }
        }
    };
    // Without the thread there is no warning, and all else works.
    drop(thread::Builder::new().name("first-look".to_owned()).spawn(warn));
}

fn connect_to_any(addresses: &[SocketAddr]) -> io::Result<()> {
    let mut result = Err(io::Error::other("its name has no address"));
    for address in addresses {
        result = TcpStream::connect_timeout(address, CONNECT_TIMEOUT).map(drop);
        if result.is_ok() {
            break;
        }
    }
    result
}
