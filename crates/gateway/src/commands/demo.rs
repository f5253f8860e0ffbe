//! `stillgate demo`: a gateway, two small upstreams and a little traffic in one process, so that a first look needs nothing else.
//!
//! Its resources are in a store of its own, in a folder that is removed with the process: the dashboard can change them, and
//! nothing of them stays.

use super::cli::EXIT_ERRORS;
use super::demo_resources::{self, Nodes};
use super::run::exit_code;
use super::stdout::show_or;
use super::{demo_traffic, demo_upstream};
use crate::configuration::source::ConfigSource;
use crate::control::start::{Up, serve};
use std::fs::DirBuilder;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use stillgate_door::Role;

/// Port of the demo, if it is free.
const PORT: u16 = 9080;

/// Port of its admin API, if it is free.
const ADMIN_PORT: u16 = 9180;

/// Port of its metrics, if it is free.
const METRICS_PORT: u16 = 9091;

/// The device API's port, unless something else uses it.
const DEVICES_PORT: u16 = 9190;

/// How long the link to the dashboard can be opened.
const LINK_AGE: Duration = Duration::from_secs(3600);

/// Author of changes by the link, as the history shows it.
const NAME: &str = "demo";

/// Runs the command; returns the exit code. `with_devices`: with a page of appliances that hold connections.
pub(crate) fn run(with_devices: bool) -> u8 {
    let folder = match Folder::new() {
        Ok(folder) => folder,
        Err(error) => return fail(&format!("cannot create a folder for the demo: {error}")),
    };
    let upstreams = demo_upstream::start("apple").and_then(|apple| Ok((apple, demo_upstream::start("pear")?)));
    let (apple, pear) = match upstreams {
        Ok(upstreams) => upstreams,
        Err(error) => return fail(&format!("cannot start the demo's upstreams: {error}")),
    };
    let store = folder.0.join("config.redb");
    if let Err(error) = demo_resources::fill(&store, &Nodes { apple, pear }, with_devices) {
        return fail(&format!("cannot fill the demo's store: {error}"));
    }
    let own = [PORT, ADMIN_PORT, METRICS_PORT].map(free_or_any);
    let devices = with_devices.then(|| certain(DEVICES_PORT));
    let text = config(own, devices, &store);
    let created = folder.0.clone();
    exit_code(serve(ConfigSource::Text(text), |up| {
        if let Some(gateway) = up.listeners.first()
            && let Err(error) = demo_traffic::start(*gateway)
        {
            eprintln!("stillgate: cannot start the demo's traffic: {error}");
        }
        show_or(invitation(up, devices), || drop(std::fs::remove_dir_all(&created)));
    }))
}

fn fail(message: &str) -> u8 {
    eprintln!("stillgate: {message}");
    EXIT_ERRORS
}

/// A folder for this process only, removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> io::Result<Folder> {
        let name = format!("stillgate-demo-{}-{:08x}", std::process::id(), rand::random::<u32>());
        let folder = std::env::temp_dir().join(name);
        DirBuilder::new().mode(0o700).create(&folder)?;
        Ok(Folder(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("stillgate: cannot remove {}: {error}", self.0.display());
        }
    }
}

/// A loopback address with this port, or with one of the system's choice where it is taken.
fn free_or_any(port: u16) -> SocketAddr {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    match TcpListener::bind(address) {
        Ok(_) => address,
        Err(_) => SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
    }
}

/// Like [`free_or_any`], with a port that is known before it is listened on.
fn certain(port: u16) -> SocketAddr {
    let address = free_or_any(port);
    let taken = TcpListener::bind(address).and_then(|listener| listener.local_addr());
    // If even that fails, the start reports the reason.
    taken.unwrap_or(address)
}

fn config([listen, admin, metrics]: [SocketAddr; 3], devices: Option<SocketAddr>, store: &Path) -> String {
    let store = store.display();
    let devices = devices.map(|address| format!("  devices: {{address: \"{address}\"}}\n")).unwrap_or_default();
    // The label `uri` is an intentional mistake: the dashboard shows its effect.
    format!(
        r#"gateway:
  config:
    source: store
    store: "{store}"
  listeners:
    - address: "{listen}"
  admin:
    address: "{admin}"
  metrics:
    address: "{metrics}"
    series_per_family: 200
    labels:
      http_requests_total: {{uri: $uri}}
  timeouts:
    drain: 5s
  log:
    level: error
{devices}"#
    )
}

fn invitation(up: &Up<'_>, devices: Option<SocketAddr>) -> String {
    let routes = demo_resources::ROUTES + usize::from(devices.is_some());
    let mut text =
        format!("A gateway with {routes} routes and two upstreams (apple, pear) is up, with a little traffic.");
    if let Some(admin) = up.admin {
        let token = up.guard.sign_in_token(NAME, Role::Admin, LINK_AGE);
        text.push_str(&format!(
            " Its dashboard:\n\n  http://{admin}/ui/#{token}\n\nThe link works once, within an hour. What you change there takes effect at once."
        ));
    }
    if let (Some(gateway), true) = (up.listeners.first(), devices.is_some()) {
        text.push_str(&format!(
            "\n\nTen appliances, each a device, as long as this page is open:\n\n  http://{gateway}/appliances\n\n"
        ));
    }
    text.push_str(" In another terminal:\n\n");
    let mut offer = |line: String, what: &str| text.push_str(&format!("  {line:<58} # {what}\n"));
    if let Some(gateway) = up.listeners.first() {
        offer(format!("curl http://{gateway}/"), "apple and pear in turn");
        offer(format!("curl http://{gateway}/hello/world"), "apple, by a path with a parameter");
        offer(format!("curl -H 'Host: pear.example.com' http://{gateway}/"), "pear, by its host");
        offer(format!("curl -d 'some text' http://{gateway}/echo"), "apple, for POST only");
        offer(format!("curl -H 'apikey: rose' http://{gateway}/orders/7"), "as the consumer rose, ten a second");
        offer(format!("curl http://{gateway}/slow"), "an answer that takes two seconds");
        offer(format!("curl -N http://{gateway}/stream"), "five lines, one every half second");
    }
    if let Some(admin) = up.admin {
        offer(format!("curl http://{admin}/v1/status"), "the state of the gateway");
    }
    if let Some(metrics) = up.metrics {
        offer(format!("curl http://{metrics}/metrics"), "its metrics");
    }
    if let Some(devices) = devices {
        text.push_str("\nWith the page of appliances open:\n\n");
        let json = "-H 'Content-Type: application/json'";
        let lamp = format!("'http://{devices}/v1/devices/lamp-1/messages?ack=reply'");
        for line in [
            format!("curl {json} -d '{{\"on\": true}}' {lamp}"),
            format!("curl http://{devices}/v1/devices/lamp-1"),
            format!("curl 'http://{devices}/v1/devices?prefix=lamp-'"),
            format!("curl {json} -d '{{\"match\": {{}}, \"body\": {{\"on\": true}}}}' http://{devices}/v1/broadcast"),
        ] {
            text.push_str(&format!("  {line}\n"));
        }
    }
    text.push_str("\nCtrl-C ends it.\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_valid_without_a_warning() {
        let local = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        for devices in [None, Some(local(9190))] {
            let text = config([local(0), local(9180), local(9091)], devices, Path::new("/tmp/x/config.redb"));
            let loaded =
                ConfigSource::Text(text.clone()).parse(text.as_bytes()).unwrap_or_else(|errors| panic!("{errors}"));
            assert_eq!(loaded.warnings, []);
        }
    }

    #[test]
    fn the_folder_goes_with_its_owner() {
        let folder = Folder::new().unwrap();
        let path = folder.0.clone();
        std::fs::write(path.join("file"), "x").unwrap();
        drop(folder);
        assert!(!path.exists());
    }
}
