//! Several nodes of devices with a Redis: messages from one to another, and failures of either.

use crate::shared::STILLGATE;
use crate::shared::authority::Authority;
use crate::shared::devices::{SCRIPT, finish, route};
use crate::shared::upgrade::UpgradedGateway;
use std::process::Command;
use stillgate_testkit::{Gateway, Python, Redis, ReservedPort, Setup, run_tool};

const CLUSTER: &str = include_str!("../data/python/devices_cluster.py");
const PLAY: &str = "asyncio.run(play())\n";

/// Where a node is reached.
struct Ports {
    api: ReservedPort,
    peer: ReservedPort,
    metrics: ReservedPort,
}

/// Nodes of one directory.
struct Nodes {
    redis: Redis,
    nodes: Vec<(Gateway, Ports)>,
}

impl Ports {
    fn new() -> Ports {
        Ports { api: ReservedPort::new(), peer: ReservedPort::new(), metrics: ReservedPort::new() }
    }

    /// The configuration of a node of this name; `peer` are further keys of its peer.
    fn setup(&self, name: &str, redis: &Redis, peer: &str) -> Setup {
        let Ports { api, peer: peers, metrics } = self;
        let refused =
            "  - {id: refused, uri: /refused, plugins: {device-gateway: {id: $arg_device, duplicate: refuse}}}\n";
        Setup::resources(route(", labels: {model: $arg_model}") + refused).gateway(&format!(
            "workers: 2\nmetrics: {{address: \"{}\"}}\ndevices: {{node: {name}, address: \"{}\", \
             peer: {{address: \"{}\"{peer}}}, registry: {{redis: {{url: \"{}\"}}}}}}",
            metrics.addr(),
            api.addr(),
            peers.addr(),
            redis.url(0)
        ))
    }
}

impl Nodes {
    /// `peer`: further keys of the peer of a name.
    fn start(names: &[&str], peer: impl Fn(&str) -> String) -> Nodes {
        let redis = Redis::start();
        let start = |name: &&str| {
            let ports = Ports::new();
            (Gateway::start(STILLGATE, &ports.setup(name, &redis, &peer(name))), ports)
        };
        let nodes = names.iter().map(start).collect();
        Nodes { redis, nodes }
    }

    #[track_caller]
    fn begin(&self, scenario: &str) -> Python {
        let nodes = self.nodes.iter().map(|(gateway, ports)| {
            let [api, metrics] = [&ports.api, &ports.metrics].map(|port| port.addr().port());
            format!("{}:{api}:{metrics}:{}", gateway.addr().port(), gateway.pid())
        });
        let nodes: Vec<String> = nodes.collect();
        let arguments: Vec<&str> = [scenario, "0", "0"].into_iter().chain(nodes.iter().map(String::as_str)).collect();
        let script = SCRIPT.strip_suffix(PLAY).expect("it plays at its end").to_owned() + CLUSTER + PLAY;
        Python::start(&script, &arguments)
    }

    #[track_caller]
    fn play(&self, scenario: &str) {
        finish(&mut self.begin(scenario), scenario);
    }
}

#[test]
fn what_is_asked_of_one_node_is_answered_by_the_one_that_has_the_device() {
    let mut nodes = Nodes::start(&["a", "b"], |_| String::new());
    nodes.play("crossed");
    nodes.nodes.iter_mut().for_each(|(gateway, _)| gateway.assert_healthy());
}

#[test]
fn a_device_goes_on_with_its_session_on_another_node() {
    Nodes::start(&["a", "b"], |_| String::new()).play("resumed");
}

#[test]
fn the_devices_of_a_node_that_is_killed_are_offline_when_its_lease_ends() {
    Nodes::start(&["a", "b"], |_| String::new()).play("killed");
}

#[test]
fn a_node_that_ends_says_that_its_devices_are_gone() {
    let mut nodes = Nodes::start(&["a", "b"], |_| String::new());
    nodes.play("terminated");
    assert!(nodes.nodes[1].0.wait().success());
}

#[test]
fn a_directory_that_comes_back_empty_is_filled_again() {
    let mut nodes = Nodes::start(&["a", "b"], |_| String::new());
    let mut script = nodes.begin("forgotten");
    script.announced("kill");
    nodes.redis.kill();
    script.announced("start");
    nodes.redis.start_again();
    finish(&mut script, "forgotten");
}

#[test]
fn a_directory_or_a_node_that_stalls_costs_no_connection() {
    let nodes = Nodes::start(&["a", "b"], |_| String::new());
    let mut script = nodes.begin("stopped");
    script.announced("stop");
    nodes.redis.process(0).signal("STOP");
    script.announced("continue");
    nodes.redis.process(0).signal("CONT");
    finish(&mut script, "stopped");
}

#[test]
fn an_upgrade_of_a_node_is_not_noticed_on_another() {
    let redis = Redis::start();
    let ports = [Ports::new(), Ports::new()];
    let mut upgraded = UpgradedGateway::start(&ports[0].setup("a", &redis, ""));
    let _other = Gateway::start(STILLGATE, &ports[1].setup("b", &redis, ""));
    // Devices are connected to one node, back-ends send their requests to the other.
    let (gateway, api) = (upgraded.gateway.addr().port().to_string(), ports[1].api.addr().port().to_string());
    let mut script = Python::start(SCRIPT, &["upgraded", &gateway, &api]);
    for round in 0..3 {
        script.announced(&format!("round {round}"));
        upgraded.upgrade();
        upgraded.await_old();
    }
    std::fs::write(upgraded.gateway.dir().join("enough"), "").expect("a file");
    script.announced("asks");
    finish(&mut script, "upgraded");
}

fn tls(authority: &Authority, file: &str) -> String {
    let path = |end: &str| authority.path(&format!("{file}.{end}"));
    let (cert, key, ca) = (path("pem"), path("key"), authority.path("ca.pem"));
    format!(", tls: {{cert: \"{cert}\", key: \"{key}\", client_ca: \"{ca}\"}}")
}

#[test]
fn nodes_know_each_other_by_certificates_with_their_names() {
    let authority = Authority::new();
    ["a", "b", "c", "stranger"].iter().for_each(|name| authority.issue(name, &[name]));
    let nodes = Nodes::start(&["a", "b", "c"], |name| tls(&authority, name));
    nodes.play("among_three");

    // A certificate of the same authority with another name is not enough, and neither is a missing one.
    let at = nodes.nodes[0].1.peer.addr();
    let address = format!("https://a:{}/message", at.port());
    let resolve = format!("a:{}:{}", at.port(), at.ip());
    let ca = authority.path("ca.pem");
    let asked = |more: &[&str]| {
        let mut arguments = vec!["--silent", "--show-error", "--http2", "--resolve", &resolve, "--cacert", &ca];
        arguments.extend(["--data", "x", "--write-out", "%{http_code}", "--header", "stillgate-node: b", &address]);
        arguments.extend(more);
        let output = run_tool("curl", "curl", &arguments);
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
    };
    let with = |name: &str| ["pem", "key"].map(|end| authority.path(&format!("{name}.{end}")));
    let [cert, key] = with("stranger");
    let answer = asked(&["--cert", &cert, "--key", &key]);
    assert!(answer.ends_with("403") && answer.contains("does not carry"), "{answer}");
    let [cert, key] = with("b");
    assert!(asked(&["--cert", &cert, "--key", &key]).ends_with("200"), "its own name is");
    let none = asked(&[]);
    assert!(none.ends_with("000"), "{none}");

    // Nor does a node start with one.
    let ports = Ports::new();
    let setup = ports.setup("d", &nodes.redis, &tls(&authority, "stranger"));
    nodes.nodes[0].0.write_config(&setup);
    let check = Command::new(STILLGATE).arg("check").arg(nodes.nodes[0].0.config_path()).output();
    let check = check.expect("run the command");
    let said = String::from_utf8_lossy(&check.stderr).into_owned() + &String::from_utf8_lossy(&check.stdout);
    assert!(!check.status.success() && said.contains("does not carry the node's name"), "{said}");
}
