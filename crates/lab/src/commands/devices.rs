//! `stillgate-lab devices`: mock devices against a gateway, or against two in alternation.

use crate::command_line::{self, Header, own_arguments, seed_of_clock};
use crate::devices::plan::{Ack, Api, Door, GatewayNode, Plan, Via};
use crate::devices::{self, analysis};
use crate::display::Progress;
use crate::environment;
use crate::error::{EXIT_INTERRUPTED, Error, Result, stop_flag};
use crate::output::show;
use crate::result::devices::{DevicesDecision, DevicesDesign, DevicesResult};
use crate::result::file::ResultWriter;
use crate::result::{Experiment, ResultFile};
use clap::Args;
use std::path::{Path, PathBuf};
use std::time::Duration;
use stillgate_load::Trust;

/// Exit code if the gateway broke its guarantees, or B is worse.
const EXIT_WORSE: u8 = 1;
/// Exit code of a comparison that could not be decided.
const EXIT_UNDECIDED: u8 = 2;
/// Exit code of a run that is void.
const EXIT_VOID: u8 = 3;

/// A larger number of rounds is a typing error.
const ROUNDS_MAX: usize = 1_000;
/// An id has no room for more digits, and a machine has no room for more connections.
const DEVICES_MAX: usize = 10_000_000;
const BACK_ENDS_MAX: usize = 10_000;
const PADDING_MAX: usize = 60_000;
const BROADCASTS_MAX: usize = 1_000;

/// `stillgate-lab devices`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Devices connect on a schedule, each with an id of its own in place of {id}, and answer what they are sent. With --message-rate a \
back-end sends to random ones on another schedule; latency counts from the moment a message was due. What devices received is checked against the answers that the back-end got:

  lost                    acknowledged (200; 202, with the connection still there) and never received
  refused but delivered   answered 404, 409, 410, 413 or 429, and received
  reordered               received after one that was sent when this one was already done
  duplicated              received more than once, which a reconnecting device may expect

CPU time and memory are those of the processes that listen on the ports of URL and --node, if they are on this machine.

With --compare, rounds connect --count new devices to both gateways, one after the other in random order, and B is judged by CPU \
time per connect and per message (Wilcoxon's signed-rank test, Holm's correction). Give both gateways the same CPUs.

Exit codes: 0 done, or B is not worse; 1 a guarantee was broken, or B is worse; 2 an error, or undecided; 3 the run is \
void: it measured this program more than the gateway; 130 interrupted before anything was measured. Ctrl-C ends a run early, with \
the figures so far; a second one ends it at once.

Examples:
  10,000 devices, 500 messages per second for 30 s, 1% of the devices drop each second:
    stillgate-lab devices 'ws://127.0.0.1:9080/connect?device={id}' --count 10k --api http://127.0.0.1:9190 \\
      --message-rate 500 --duration 30s --churn 1%
  All drop at once, while messages continue:
    stillgate-lab devices 'ws://127.0.0.1:9080/connect?device={id}' --count 10k --api http://127.0.0.1:9190 \\
      --message-rate 500 --storm
  The same over TLS, where reconnecting devices resume their TLS session by a ticket:
    stillgate-lab devices 'wss://127.0.0.1:9443/connect?device={id}' --insecure --count 10k --storm
  Half of the devices on each of two nodes, and each message to the node that does not have its device:
    stillgate-lab devices 'ws://127.0.0.1:9080/connect?device={id}' --api http://127.0.0.1:9190 --count 10k --message-rate 500 \\
      --node 'ws://127.0.0.1:9081/connect?device={id}' --node-api http://127.0.0.1:9191 --via other
  Two builds, A on port 9080 and B on 9081:
    stillgate-lab devices 'ws://127.0.0.1:9080/connect?device={id}' --api http://127.0.0.1:9190 --count 2k --message-rate 500 \\
      --duration 3s --compare 'ws://127.0.0.1:9081/connect?device={id}' --compare-api http://127.0.0.1:9191")]
pub(crate) struct DevicesArguments {
    /// URL at which devices connect, with {id} in the place of the id, e.g. 'ws://127.0.0.1:9080/connect?device={id}'
    #[arg(value_name = "URL")]
    url: String,
    /// Number of devices
    #[arg(long, value_name = "N", default_value = "1000", value_parser = command_line::positive)]
    count: usize,
    /// Connects per second
    #[arg(long, value_name = "RATE", default_value = "1000", value_parser = command_line::rate)]
    connect_rate: f64,
    /// Messages per second, to random devices; by default none are sent
    #[arg(long, value_name = "RATE", value_parser = command_line::rate, requires = "api")]
    message_rate: Option<f64>,
    /// URL of the device API, e.g. http://127.0.0.1:9190
    #[arg(long, value_name = "URL")]
    api: Option<String>,
    /// Its X-API-KEY
    #[arg(long, value_name = "KEY", requires = "api")]
    key: Option<String>,
    /// The event that the device API waits for before it answers
    #[arg(long, value_enum, default_value = "device")]
    ack: Ack,
    /// How long the gateway waits for an acknowledgement
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = command_line::duration)]
    timeout: Duration,
    /// How long messages are sent
    #[arg(long, short, value_name = "TIME", default_value = "10s", value_parser = command_line::duration)]
    duration: Duration,
    /// Time without messages before the first one
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = command_line::duration)]
    idle: Duration,
    /// Share of the devices that drop each second while messages are sent, and reconnect within a second
    #[arg(long, value_name = "SHARE", default_value = "0%", value_parser = command_line::percent)]
    churn: f64,
    /// Reconnecting devices resume their session, and get the messages that they have not acknowledged
    #[arg(long)]
    resume: bool,
    /// At the end, drop all devices at once and measure the time until all are back
    #[arg(long)]
    storm: bool,
    /// Send a message to all, N times one after the other, and measure the time until the last device has it; with
    /// --message-rate, messages to random devices continue at the same time
    #[arg(long, value_name = "N", requires = "api", num_args = 0..=1, default_missing_value = "1", value_parser = command_line::positive)]
    broadcast: Option<usize>,
    /// Bytes added to each message
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = command_line::count)]
    padding: u64,
    /// Connections of the back-end
    #[arg(long, value_name = "N", default_value = "32", value_parser = command_line::positive)]
    api_connections: usize,
    /// For wss: trust the certificate authorities in this file (PEM) instead of the system's
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    cacert: Option<PathBuf>,
    /// For wss: accept any certificate
    #[arg(long, short = 'k')]
    insecure: bool,
    /// A header field of the handshake, perhaps with {id}; may be given several times
    #[arg(long = "header", short = 'H', value_name = "NAME: VALUE", value_parser = command_line::header)]
    headers: Vec<Header>,
    /// Prefix of the ids
    #[arg(long, value_name = "TEXT", default_value = "lab-")]
    prefix: String,
    /// The gateway's process id, instead of that of the process listening on the URL's port
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Another node of the same devices, which then spread over all; may be given several times
    #[arg(long = "node", value_name = "URL", conflicts_with_all = ["compare", "pid"])]
    nodes: Vec<String>,
    /// The device API of each --node, in the same order
    #[arg(long = "node-api", value_name = "URL", requires = "nodes", requires = "api")]
    node_apis: Vec<String>,
    /// The node whose device API a message is sent to
    #[arg(long, value_enum, default_value = "any", requires = "nodes")]
    via: Via,
    /// A second gateway: B of a comparison
    #[arg(long, value_name = "URL", conflicts_with_all = ["storm", "broadcast", "pid"])]
    compare: Option<String>,
    /// The device API of the second
    #[arg(long, value_name = "URL", requires = "compare")]
    compare_api: Option<String>,
    /// Rounds of a comparison
    #[arg(long, value_name = "N", default_value = "10", value_parser = command_line::positive)]
    rounds: usize,
    /// Probability of any false alarm of a comparison
    #[arg(long, value_name = "P", value_parser = command_line::probability, default_value = "0.01")]
    alpha: f64,
    /// A comparison is undecided if B may cost this much more
    #[arg(long, value_name = "SHARE", value_parser = command_line::percent, default_value = "10%")]
    margin: f64,
    /// Seed of everything random [default: from the clock]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Write the result as JSON; - or no value is standard output, and then no text is written there
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

pub(crate) fn run(arguments: &DevicesArguments) -> Result<u8> {
    let plan = arguments.plan()?;
    let places = arguments.places()?;
    let writer = arguments.json.as_deref().map(ResultWriter::open).transpose()?;
    let design = arguments.design(&plan);
    let stop = stop_flag()?;
    let make = |result: DevicesResult| {
        ResultFile::new(own_arguments(), environment::gather(), Experiment::Devices(Box::new(result)))
    };
    let result = match &arguments.compare {
        None => {
            let mut progress = Progress::new("devices", devices::steps(&plan));
            let found = devices::run(&plan, &places, &stop, "", &mut progress)?;
            progress.finish();
            DevicesResult { design, run: Some(found), ..DevicesResult::default() }
        }
        Some(other) => {
            let other = [arguments.place(other, arguments.compare_api.as_deref(), None)?];
            let of = |rounds: &[_]| DevicesResult {
                design: design.clone(),
                run: None,
                rounds: rounds.to_vec(),
                analysis: Some(analysis::analyse(&design, rounds)),
            };
            let rounds = devices::run_rounds(&plan, (&places, &other), arguments.rounds, &stop, |rounds| {
                writer.as_ref().map_or(Ok(()), |writer| writer.save(&make(of(rounds))))
            })?;
            of(&rounds)
        }
    };
    let text = analysis::result_text(&result);
    let code = exit_code(&result);
    let on_stdout = writer.as_ref().is_some_and(|writer| writer.path() == Path::new("-"));
    if let Some(writer) = writer {
        writer.finish(&make(result))?;
    }
    if on_stdout {
        eprint!("{text}")
    } else {
        show(text)?
    }
    Ok(code)
}

impl DevicesArguments {
    fn plan(&self) -> Result<Plan> {
        let bounds = [
            ("--count", self.count, DEVICES_MAX),
            ("--rounds", self.rounds, ROUNDS_MAX),
            ("--api-connections", self.api_connections, BACK_ENDS_MAX),
            ("--broadcast", self.broadcast.unwrap_or(0), BROADCASTS_MAX),
            ("--padding", usize::try_from(self.padding).unwrap_or(usize::MAX), PADDING_MAX),
        ];
        if let Some((name, value, most)) = bounds.into_iter().find(|(_, value, most)| value > most) {
            return Err(Error::new(format!("{name} {value}: at most {most}")));
        }
        if self.compare.is_some() && self.rounds < analysis::rounds_min(self.alpha) {
            return Err(Error::new(format!(
                "--rounds {}: too few to show any difference with --alpha {}; at least {} are needed",
                self.rounds,
                self.alpha,
                analysis::rounds_min(self.alpha)
            )));
        }
        if self.compare.is_some() && self.message_rate.is_some() && self.compare_api.is_none() {
            return Err("--compare-api URL is missing: the device API for messages to B's devices".into());
        }
        if self.churn > 0.0 && self.message_rate.is_none() {
            return Err("--churn goes with --message-rate: devices drop while messages are sent".into());
        }
        let plan = Plan {
            devices: self.count,
            connect_rate: self.connect_rate,
            message_rate: self.message_rate,
            padding: self.padding as usize,
            ack: self.ack,
            timeout: self.timeout,
            duration: self.duration,
            idle: self.idle,
            churn: self.churn,
            resume: self.resume,
            storm: self.storm,
            broadcasts: self.broadcast.unwrap_or(0),
            nodes: 1 + self.nodes.len(),
            via: self.via,
            back_ends: self.api_connections,
            prefix: self.prefix.clone(),
            seed: self.seed.unwrap_or_else(seed_of_clock),
        };
        plan.check()?;
        Ok(plan)
    }

    /// The gateway, or the nodes of a cluster.
    fn places(&self) -> Result<Vec<GatewayNode>> {
        if self.api.is_some() && self.node_apis.len() != self.nodes.len() {
            return Err(Error::new(format!(
                "{} --node and {} --node-api: each node needs its device API, in the same order",
                self.nodes.len(),
                self.node_apis.len()
            )));
        }
        let further = self.nodes.iter().enumerate().map(|(at, url)| {
            let api = self.node_apis.get(at).map(String::as_str);
            self.place(url, api, None)
        });
        std::iter::once(self.place(&self.url, self.api.as_deref(), self.pid)).chain(further).collect()
    }

    fn place(&self, url: &str, api: Option<&str>, pid: Option<u32>) -> Result<GatewayNode> {
        let trust = match (&self.cacert, self.insecure) {
            (Some(path), _) => Trust::Authorities(path.clone()),
            (None, true) => Trust::Anyone,
            (None, false) => Trust::System,
        };
        let door = Door::read(url, &self.headers, self.count.div_ceil(1 + self.nodes.len()), &trust)?;
        if trust != Trust::System && !door.is_secure() {
            return Err(Error::new(format!("--cacert and --insecure need TLS; {url:?} is not wss://")));
        }
        let api = api.map(|api| Api::read(api, self.key.as_deref())).transpose()?;
        Ok(GatewayNode { door, api, pid })
    }

    fn design(&self, plan: &Plan) -> DevicesDesign {
        DevicesDesign {
            url: self.url.clone(),
            api: self.api.clone(),
            nodes: self.nodes.clone(),
            via: if self.nodes.is_empty() { String::new() } else { self.via.name().to_owned() },
            other_url: self.compare.clone(),
            other_api: self.compare_api.clone(),
            devices: self.count,
            connect_rate: self.connect_rate,
            message_rate: self.message_rate,
            ack: self.ack.name().to_owned(),
            duration_s: self.duration.as_secs_f64(),
            churn: self.churn,
            rounds: if self.compare.is_some() { self.rounds } else { 0 },
            alpha: self.alpha,
            margin: self.margin,
            seed: plan.seed,
        }
    }
}

fn exit_code(result: &DevicesResult) -> u8 {
    match (&result.run, &result.analysis) {
        (Some(run), _) if run.broken_promises() > 0 => EXIT_WORSE,
        (Some(run), _) if !run.void.is_empty() => EXIT_VOID,
        (Some(_), _) => 0,
        (None, Some(analysis)) => match analysis.decision {
            _ if result.rounds.is_empty() => EXIT_INTERRUPTED,
            DevicesDecision::NotWorse => 0,
            DevicesDecision::Worse => EXIT_WORSE,
            DevicesDecision::Undecided => EXIT_UNDECIDED,
            DevicesDecision::Void => EXIT_VOID,
        },
        (None, None) => EXIT_VOID,
    }
}
