//! Broadcasts while one process takes over from another: each device gets each message once, and each outcome is known.

use crate::shared::devices::{SCRIPT, finish, route, setup};
use crate::shared::upgrade::UpgradedGateway;
use std::time::Duration;
use stillgate_testkit::{Python, ReservedPort, eventually_within};

const BROADCASTS: &str = include_str!("../data/python/devices_broadcast.py");
const PLAY: &str = "asyncio.run(play())\n";
/// Hundreds of devices connect first.
const CONNECTING: Duration = Duration::from_secs(600);

/// A gateway that is upgraded, and the scenario that is played to it.
struct PlayedScenario {
    upgraded: UpgradedGateway,
    script: Python,
    _api: ReservedPort,
}

#[track_caller]
fn begin(scenario: &str) -> PlayedScenario {
    let api = ReservedPort::new();
    let upgraded = UpgradedGateway::start(&setup(&api, "", "workers: 2", &route(", labels: {model: $arg_model}")));
    let (gateway, port) = (upgraded.gateway.addr().port().to_string(), api.addr().port().to_string());
    let pid_file = upgraded.pid_file().display().to_string();
    let script = SCRIPT.strip_suffix(PLAY).expect("it plays at its end").to_owned() + BROADCASTS + PLAY;
    let script = Python::start(&script, &[scenario, &gateway, &port, &pid_file]);
    PlayedScenario { upgraded, script, _api: api }
}

#[track_caller]
fn await_line(script: &Python, line: &str) {
    eventually_within(CONNECTING, &format!("the line {line:?} from the script"), || {
        script.output().lines().any(|said| said == line)
    });
}

/// Plays a scenario with one upgrade, when the script requests it.
fn over_an_upgrade(scenario: &str) {
    let PlayedScenario { mut upgraded, mut script, _api } = begin(scenario);
    await_line(&script, "upgrade");
    upgraded.upgrade();
    finish(&mut script, scenario);
    upgraded.await_old();
}

#[test]
fn each_device_has_each_broadcast_once() {
    over_an_upgrade("broadcast_upgraded");
}

#[test]
fn a_device_that_comes_later_has_it_too() {
    over_an_upgrade("broadcast_late");
}

/// The second process has not sent anything yet when it is followed: it gives no device away before that.
#[test]
fn no_device_goes_before_it_has_what_was_begun() {
    let PlayedScenario { mut upgraded, mut script, _api } = begin("broadcast_held");
    await_line(&script, "first");
    let second = upgraded.upgrade();
    await_line(&script, "second");
    upgraded.upgrade();
    finish(&mut script, "broadcast_held");
    upgraded.await_old();
    upgraded.await_end(second);
}
