//! The compared servers, each set up as its manual advises for many idle connections: one worker, logs off.

use super::super::peers::{nginx, stillgate_command};
use super::super::{GATEWAY_CPU, LOOPBACK, start};
use super::client::Kind;
use super::{Address, origin};
use crate::Result;
use std::fs;
use std::path::Path;
use std::time::Duration;
use stillgate_rig::{Running, ports};

/// A server under measure.
pub(super) enum Server<'a> {
    /// Stillgate: bare frames, answered when they are written; or with an acknowledgement by the device.
    Stillgate {
        binary: &'a Path,
        is_acknowledged: bool,
    },
    Nchan,
    Pushpin,
    Mosquitto,
}

/// A running server with its addresses.
pub(super) struct Started {
    pub(super) running: Running,
    pub(super) address: Address,
}

/// Four programs that connect to each other.
const START_TIMEOUT: Duration = Duration::from_secs(30);

impl Server<'_> {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Server::Stillgate { is_acknowledged: false, .. } => "stillgate",
            Server::Stillgate { is_acknowledged: true, .. } => "stillgate, ack",
            Server::Nchan => "nchan",
            Server::Pushpin => "pushpin",
            Server::Mosquitto => "mosquitto",
        }
    }

    pub(super) fn start(&self, dir: &Path, connections: usize) -> Result<Started> {
        let ports = ports::free(LOOPBACK, 2)?;
        let (clients, back_ends) = (ports[0], ports[1]);
        let address = |kind| Address { kind, clients, back_ends };
        let (words, address) = match self {
            Server::Stillgate { binary, is_acknowledged } => {
                let config = dir.join("stillgate.yaml");
                let protocol = if *is_acknowledged { "json" } else { "raw" };
                fs::write(
                    &config,
                    format!(
                        "gateway:\n  workers: 1\n  listeners: [{{address: \"{clients}\"}}]\n  \
                         devices: {{node: a, address: \"{back_ends}\"}}\n  \
                         metrics: {{enabled: false}}\n  \
                         limits: {{connections_per_worker: {}}}\n\
                         routes:\n  - {{id: devices, uri: /sub/*, plugins: {{device-gateway: \
                         {{id: $arg_device, protocol: {protocol}}}}}}}\n",
                        connections + 1_000
                    ),
                )?;
                let kind = if *is_acknowledged { Kind::Acknowledged } else { Kind::Stillgate };
                (stillgate_command(binary, &config), address(kind))
            }
            Server::Nchan => {
                // Messages go to connected clients only, as with the others; nothing is kept for later.
                let locations = "location ~ ^/sub/(.+)$ { nchan_subscriber websocket; nchan_channel_id $1; \
                                 nchan_store_messages off; } \
                                 location ~ ^/pub/(.+)$ { nchan_publisher http; nchan_channel_id $1; \
                                 nchan_store_messages off; }";
                let server = format!("server {{ listen {clients}; listen {back_ends}; {locations} }}");
                (nginx(dir, "nginx", connections + 1_000, &server)?, address(Kind::Nchan))
            }
            Server::Pushpin => {
                let origin = origin::start()?;
                (pushpin(dir, (clients, back_ends), origin)?, address(Kind::Pushpin))
            }
            Server::Mosquitto => {
                let config = dir.join("mosquitto.conf");
                fs::write(
                    &config,
                    format!(
                        "listener {} 127.0.0.1\nallow_anonymous true\npersistence false\nlog_type none\nset_tcp_nodelay true\n",
                        clients.port()
                    ),
                )?;
                let words = ["mosquitto", "-c", &config.to_string_lossy()].map(str::to_owned).to_vec();
                (words, Address { kind: Kind::Mqtt, clients, back_ends: clients })
            }
        };
        let mut running = start(&words, &[GATEWAY_CPU], &dir.join("log"))?;
        running.wait_for(address.clients, START_TIMEOUT)?;
        running.wait_for(address.back_ends, START_TIMEOUT)?;
        Ok(Started { running, address })
    }
}

/// Pushpin asks an origin over HTTP how to handle each WebSocket; its programs communicate over sockets in its folder.
fn pushpin(
    dir: &Path,
    (clients, back_ends): (std::net::SocketAddr, std::net::SocketAddr),
    origin: std::net::SocketAddr,
) -> Result<Vec<String>> {
    let (routes, config, at) = (dir.join("routes"), dir.join("pushpin.conf"), dir.display());
    fs::write(&routes, format!("* {origin},over_http\n"))?;
    let ipc = |name: &str| format!("ipc://{at}/pp-{name}");
    let text = format!(
        "[global]\ninclude={{libdir}}/internal.conf\nrundir={at}\nipc_prefix=pp-\nport_offset=0\n\
         [runner]\nservices=condure,zurl,pushpin-proxy,pushpin-handler\nhttp_port={clients}\nlogdir={at}\nlog_level=0\n\
         client_buffer_size=8192\nclient_maxconn=50000\n\
         [proxy]\nroutesfile={}\nupdates_check=off\nsig_key=bench\n\
         zurl_out_specs={}\nzurl_out_stream_specs={}\nzurl_in_specs={}\n\
         [handler]\npush_in_spec={}\npush_in_sub_specs={}\ncommand_spec={}\nstats_spec={}\n\
         push_in_http_addr=127.0.0.1\npush_in_http_port={}\npush_in_http_max_headers_size=10000\n\
         push_in_http_max_body_size=1000000\nmessage_rate=1000000\nmessage_hwm=1000000\nid_cache_ttl=60\n\
         connection_subscription_max=20\n",
        routes.display(),
        ipc("zurl-in"),
        ipc("zurl-in-stream"),
        ipc("zurl-out"),
        ipc("push"),
        ipc("sub"),
        ipc("command"),
        ipc("stats"),
        back_ends.port()
    );
    fs::write(&config, text)?;
    Ok(vec!["pushpin".to_owned(), format!("--config={}", config.display())])
}
