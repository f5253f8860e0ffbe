//! A gateway that ends the connections of devices, and scenarios that a Python script plays against it: devices by the package
//! `websockets` or by bare sockets, back-ends by `urllib`.

use crate::shared::STILLGATE;
use std::time::Duration;
use stillgate_testkit::{Gateway, Python, ReservedPort, Setup, eventually_within};

pub(crate) const SCRIPT: &str = include_str!("../../data/python/devices.py");
/// The script is interpreted, and some scenarios wait for pings.
const PATIENCE: Duration = Duration::from_secs(900);

/// A gateway with an API of devices.
pub(crate) struct Node {
    pub(crate) gateway: Gateway,
    pub(crate) api: ReservedPort,
}

impl Node {
    /// `keys` are further keys of `gateway.devices`, `resources` those of the file.
    pub(crate) fn start(keys: &str, gateway: &str, resources: &str) -> Node {
        let api = ReservedPort::new();
        let setup = setup(&api, keys, gateway, resources);
        Node { gateway: Gateway::start(STILLGATE, &setup), api }
    }

    /// Plays a scenario to its end.
    #[track_caller]
    pub(crate) fn play(&self, scenario: &str, further: &[&str]) {
        let mut script = self.begin(scenario, further);
        finish(&mut script, scenario);
    }

    /// Begins a scenario.
    #[track_caller]
    pub(crate) fn begin(&self, scenario: &str, further: &[&str]) -> Python {
        let (gateway, api) = (self.gateway.addr().port().to_string(), self.api.addr().port().to_string());
        Python::start(SCRIPT, &[&[scenario, &gateway, &api], further].concat())
    }
}

/// The configuration of a node.
pub(crate) fn setup(api: &ReservedPort, keys: &str, gateway: &str, resources: &str) -> Setup {
    let address = api.addr();
    Setup::resources(resources).gateway(&format!("devices: {{node: a, address: \"{address}\"{keys}}}\n{gateway}"))
}

/// Waits for the end of a scenario.
#[track_caller]
pub(crate) fn finish(script: &mut Python, scenario: &str) {
    let mut succeeded = None;
    eventually_within(PATIENCE, &format!("the scenario {scenario} to end"), || {
        succeeded = script.succeeded();
        succeeded.is_some()
    });
    assert_eq!(succeeded, Some(true), "{scenario}:\n{}", script.output());
    assert!(script.output().ends_with("done\n"), "{scenario}:\n{}", script.output());
}

/// Routes for devices that send their names in the query, or in a header field.
pub(crate) fn route(further: &str) -> String {
    format!(
        "routes:\n  - {{id: devices, uri: /connect, plugins: {{device-gateway: {{id: $arg_device{further}}}}}}}\n  \
         - {{id: by-header, uri: /by-header, plugins: {{device-gateway: {{id: $http_x_device{further}}}}}}}\n"
    )
}
