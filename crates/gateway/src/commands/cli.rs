//! What can be typed: the commands and options of `stillgate`, defined once.
//!
//! Parsing only. Exit codes are the contract of scripts outside the project: 0 good, 1 the work found errors,
//! 2 the arguments cannot be used (clap's own code for that too), 3 `diff` found differences, `lua check` no proof.

use super::starter::{ListenArgument, UpstreamNodeArgument, parse_host};
use super::stdout::show;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::{Shell, generate};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use stillgate_replay::explain::request_head::{ClientAddress, HeaderArgument, RequestLine};

/// Everything was right.
pub(crate) const EXIT_GOOD: u8 = 0;
/// The configuration has errors, or the gateway could not run.
pub(crate) const EXIT_ERRORS: u8 = 1;
/// The arguments cannot be used, or the file they name cannot be read.
pub(crate) const EXIT_UNUSABLE: u8 = 2;
/// `diff` has found differences.
pub(crate) const EXIT_DIFFERS: u8 = 3;
/// `lua check` has nothing that it could prove: no code was compiled.
pub(crate) const EXIT_UNPROVEN: u8 = 3;

/// Where a gateway's Admin API is asked unless another address is given, as in the documentation of APISIX.
const ADMIN_URL: &str = "http://127.0.0.1:9180";

/// An API gateway whose metrics and reloads never slow down a request.
#[derive(Debug, Parser)]
#[command(name = "stillgate", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// What was typed; ends the process where it cannot be used.
    pub(crate) fn read() -> Cli {
        Cli::from_arg_matches(&Cli::definition().get_matches()).unwrap_or_else(|error| error.exit())
    }

    /// With all usage lines as the help has them. After an error clap shows the options that were typed or guessed, as if they
    /// were required.
    fn definition() -> clap::Command {
        let mut command = Cli::command();
        command.build();
        with_own_usage(command)
    }
}

fn with_own_usage(command: clap::Command) -> clap::Command {
    command.mut_subcommands(|mut command| {
        let usage = command.render_usage().to_string();
        let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage).to_owned();
        with_own_usage(command).override_usage(usage)
    })
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the gateway until SIGTERM; SIGHUP and file changes reload the configuration, SIGUSR2 upgrades
    Run(RunArguments),
    /// Validate a configuration file and list everything that is wrong with it
    Check(Check),
    /// Show which route a request takes, and why each better-placed one does not match
    Explain(Explain),
    /// Start a gateway with two upstreams, a little traffic and a dashboard, and print what to try
    Demo(Demo),
    /// Start a gateway in front of a server, without a configuration file
    Proxy(Proxy),
    /// Write a configuration file to begin with
    Init(Init),
    /// Replace a running gateway with a new process of its binary, without losing a connection
    Upgrade(Upgrade),
    /// Expose the metrics that gateways write to a shared folder, from a separate process
    Exporter(Exporter),
    /// Print Kong's declarative configuration as one of Stillgate, and everything that is lost
    Import(Import),
    /// Print the resources of a running gateway, an APISIX or a store as a configuration file
    Export(Export),
    /// List the differences between a file and the resources of a running gateway
    Diff(Diff),
    /// Make the resources of a running gateway the same as those in a file
    Apply(Apply),
    /// Take a profile of a running gateway, or show one that was taken
    Profile(Profile),
    /// Show the state of a running gateway, and what needs attention: exit code 0 is nothing, 1 something, 2 unknown
    Status(GatewayStatus),
    /// List the slowest requests of the last 15 minutes
    Slow(Slow),
    /// Watch the routes of a running gateway: rates, errors, latencies
    Top(Top),
    /// Check functions in Lua
    #[command(subcommand)]
    Lua(LuaCommand),
    /// Back up a store
    #[command(subcommand)]
    Store(StoreCommand),
    /// Print completion of commands and options for a shell
    Completions {
        /// The shell
        #[arg(value_name = "SHELL")]
        shell: clap_complete::Shell,
    },
    /// Write a man page of each command into a folder
    #[command(hide = true)]
    ManPages {
        /// An existing folder
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
}

/// `stillgate run`.
#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// The configuration; by default ./stillgate.yaml, then /etc/stillgate/stillgate.yaml
    #[arg(long, short, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// `stillgate demo`.
#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// With ten appliances, in a page, that are devices of the gateway
    #[arg(long)]
    pub(crate) devices: bool,
}

/// `stillgate proxy`.
#[derive(Debug, Args)]
pub(crate) struct Proxy {
    /// The server: HOST:PORT, :PORT on this machine, or a URL with http:// or https:// and no path; given several times, servers
    /// take turns
    #[arg(long, value_name = "HOST:PORT", required = true)]
    pub(crate) to: Vec<UpstreamNodeArgument>,
    /// Where to listen; :PORT for all addresses of this machine
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8080")]
    pub(crate) listen: ListenArgument,
    /// Forward requests for this host only, such as shop.example or *.example; others get 404
    #[arg(long, value_name = "NAME", value_parser = parse_host)]
    pub(crate) host: Option<String>,
    /// Print the configuration instead, for `stillgate run`
    #[arg(long)]
    pub(crate) print_config: bool,
}

/// `stillgate init`.
#[derive(Debug, Args)]
pub(crate) struct Init {
    /// The file to write; - is standard output. A file that exists is left as it is
    #[arg(value_name = "FILE", default_value = "stillgate.yaml")]
    pub(crate) file: PathBuf,
    /// The server, as for `stillgate proxy`
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:3000")]
    pub(crate) to: Vec<UpstreamNodeArgument>,
    /// Where to listen; :PORT for all addresses of this machine
    #[arg(long, value_name = "IP:PORT", default_value = "0.0.0.0:9080")]
    pub(crate) listen: ListenArgument,
    /// Forward requests for this host only; others get 404
    #[arg(long, value_name = "NAME", value_parser = parse_host)]
    pub(crate) host: Option<String>,
}

/// `stillgate upgrade`.
#[derive(Debug, Args)]
pub(crate) struct Upgrade {
    /// The configuration that the gateway was started with, to find its gateway.pid_file; by default the file that `run`
    /// would find. Not needed with --pid or --pid-file
    #[arg(long, short, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The process ID; by default the one in gateway.pid_file
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Option<u32>,
    /// The file with the process ID
    #[arg(long, value_name = "FILE", conflicts_with = "pid")]
    pub(crate) pid_file: Option<PathBuf>,
}

/// `stillgate check`.
#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The configuration
    #[arg(value_name = "FILE", required_unless_present = "schema")]
    pub(crate) file: Option<PathBuf>,
    /// How findings are printed
    #[arg(long, value_enum, default_value_t = OutputFormat::Text)]
    pub(crate) format: OutputFormat,
    /// Check only the file, not the certificates, folders and addresses it needs on this machine; for CI
    #[arg(long)]
    pub(crate) offline: bool,
    /// The current configuration: list which of the --requests would take another route
    #[arg(long, value_name = "OLD", requires = "requests")]
    pub(crate) against: Option<PathBuf>,
    /// Recorded requests, one JSON object per line, as in an access log with `format: json`; - reads standard input
    #[arg(long, value_name = "LOG", requires = "against")]
    pub(crate) requests: Option<PathBuf>,
    /// Print the JSON Schema of the configuration instead
    #[arg(long, conflicts_with_all = ["file", "offline", "against", "requests"])]
    pub(crate) schema: bool,
}

/// `stillgate explain`.
#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// The configuration
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The request line, e.g. "GET http://host/path"
    #[arg(long, value_name = "REQUEST")]
    pub(crate) request: RequestLine,
    /// A header field of the request; may be given several times
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    pub(crate) headers: Vec<HeaderArgument>,
    /// The client's address; with its port for routes that read net.src.port
    #[arg(long, value_name = "IP[:PORT]", default_value = "127.0.0.1")]
    pub(crate) client: ClientAddress,
    /// The address that the client connected to, for routes that read net.dst.ip or net.dst.port
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) server: Option<SocketAddr>,
    /// The server name of the TLS handshake (SNI) of an https:// URL, by default its host; empty: the client sends none
    #[arg(long, value_name = "NAME")]
    pub(crate) sni: Option<String>,
    /// A route to explain even if it does not take the request
    #[arg(long, value_name = "ID")]
    pub(crate) route: Option<String>,
    /// The consumer that sends the request; its plugins are added to the route's
    #[arg(long, value_name = "USERNAME")]
    pub(crate) consumer: Option<String>,
    /// How the answer is printed
    #[arg(long, value_enum, default_value_t = OutputFormat::Text)]
    pub(crate) format: OutputFormat,
}

/// `stillgate exporter`.
#[derive(Debug, Args)]
pub(crate) struct Exporter {
    /// The folder that gateway.metrics.shared names
    #[arg(long, value_name = "DIR")]
    pub(crate) metrics_dir: PathBuf,
    /// Where to listen, e.g. 127.0.0.1:9091
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: SocketAddr,
    /// The exposition's path
    #[arg(long, value_name = "PATH", default_value = "/metrics", value_parser = parse_path)]
    pub(crate) path: String,
    /// A host name to accept on a loopback ADDR, in addition to localhost, IP addresses and the machine's own name; may be
    /// given several times
    #[arg(long = "host", value_name = "NAME")]
    pub(crate) hosts: Vec<String>,
}

/// `stillgate lua`.
#[derive(Debug, Subcommand)]
pub(crate) enum LuaCommand {
    /// Run a function with many requests, and report what LuaJIT does not compile
    Check(LuaCheck),
}

/// `stillgate lua check`.
#[derive(Debug, Args)]
pub(crate) struct LuaCheck {
    /// Lua source that returns a function, as in serverless-pre-function, or a plugin's file
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Recorded requests, one JSON object per line, as in an access log with `format: json`
    #[arg(long, value_name = "LOG", required_unless_present = "requests", conflicts_with = "requests")]
    pub(crate) replay: Option<PathBuf>,
    /// Requests, one `METHOD URL` per line; lines that begin with # are comments
    #[arg(long, value_name = "FILE")]
    pub(crate) requests: Option<PathBuf>,
    /// What functions get as `conf`; by default {}. That of a plugin is checked by its schema
    #[arg(long, value_name = "JSON")]
    pub(crate) conf: Option<String>,
    /// Also write the findings to this file, as JSON
    #[arg(long, value_name = "OUT")]
    pub(crate) json: Option<PathBuf>,
    /// Also count instructions of the CPU, and fail if a request takes more than so many
    #[arg(long, value_name = "MAX")]
    pub(crate) instructions: Option<u64>,
    /// Runs in single steps, for the process that counts them
    #[arg(long, hide = true, conflicts_with = "instructions")]
    pub(crate) stepped: bool,
}

/// How the Admin API is asked.
#[derive(Debug, Clone, Args)]
pub(crate) struct AdminApiArguments {
    /// The admin key; by default the environment variable STILLGATE_ADMIN_KEY, which other users cannot see
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// The CA certificates to trust in place of the system's: a PEM file
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// The client certificate to present to the gateway: a PEM file
    #[arg(long, value_name = "FILE", requires = "client_key")]
    pub(crate) client_cert: Option<PathBuf>,
    /// The private key of the client certificate: a PEM file
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    pub(crate) client_key: Option<PathBuf>,
}

/// `stillgate import`.
#[derive(Debug, Args)]
pub(crate) struct Import {
    /// The configuration of Kong, YAML or JSON, as `deck gateway dump` writes it; - reads standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

/// `stillgate export`.
#[derive(Debug, Args)]
pub(crate) struct Export {
    /// The admin address of a running gateway, or the file of a store that no gateway has open
    #[arg(long, value_name = "URL|FILE", default_value = ADMIN_URL)]
    pub(crate) from: String,
    /// Write secrets instead of masks
    #[arg(long)]
    pub(crate) secrets: bool,
    /// For the file of a store: the configuration whose gateway.data_encryption.keyring decrypts its secrets
    #[arg(long, short, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) asking: AdminApiArguments,
}

/// `stillgate diff`.
#[derive(Debug, Args)]
pub(crate) struct Diff {
    /// The resources, as in a configuration file; its gateway section is ignored
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The admin address of the gateway
    #[arg(long, value_name = "URL", default_value = ADMIN_URL)]
    pub(crate) to: String,
    #[command(flatten)]
    pub(crate) asking: AdminApiArguments,
}

/// `stillgate apply`.
#[derive(Debug, Args)]
pub(crate) struct Apply {
    /// The resources, as in a configuration file; its gateway section is ignored
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The admin address of the gateway
    #[arg(long, value_name = "URL", default_value = ADMIN_URL)]
    pub(crate) to: String,
    /// Delete resources that are not in the file
    #[arg(long)]
    pub(crate) prune: bool,
    /// Print what would change, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) asking: AdminApiArguments,
}

/// `stillgate profile`.
#[derive(Debug, Args)]
pub(crate) struct Profile {
    /// The admin address of the gateway, which needs gateway.debug.pprof
    #[arg(long, value_name = "URL", default_value = ADMIN_URL)]
    pub(crate) admin: String,
    /// What to take a profile of
    #[arg(long, value_enum, default_value_t = ProfileKind::Cpu)]
    pub(crate) kind: ProfileKind,
    /// How long, for all but heap and allocs
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) seconds: u64,
    /// Samples for each second of CPU time, for cpu, lua-cpu and lua-bytecode
    #[arg(long, value_name = "N", default_value_t = 99)]
    pub(crate) hz: u32,
    /// Which threads, for cpu
    #[arg(long, value_enum, default_value_t = ProfileThreads::Workers)]
    pub(crate) threads: ProfileThreads,
    /// Which turns of an event loop are long, for stalls: a time such as 10ms or 1s
    #[arg(long, value_name = "TIME", default_value = "10ms")]
    pub(crate) over: String,
    /// Show this profile, a .pb.gz file, instead of taking one
    #[arg(long, value_name = "FILE", conflicts_with_all = ["admin", "kind", "seconds", "hz", "threads", "over"])]
    pub(crate) from: Option<PathBuf>,
    /// Another profile, a .pb.gz file, that an .html page compares with
    #[arg(long, value_name = "FILE")]
    pub(crate) base: Option<PathBuf>,
    /// Where it is written; the name says the form: .html, .svg, .pb.gz (pprof), .folded, .speedscope.json, .trace.json
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) asking: AdminApiArguments,
}

/// `stillgate status`.
#[derive(Debug, Args)]
pub(crate) struct GatewayStatus {
    /// The admin address of the gateway
    #[arg(long, value_name = "URL", default_value = ADMIN_URL)]
    pub(crate) admin: String,
    #[command(flatten)]
    pub(crate) asking: AdminApiArguments,
}

/// `stillgate slow`.
#[derive(Debug, Args)]
pub(crate) struct Slow {
    /// The admin address of the gateway, which needs gateway.debug.slow
    #[arg(long, value_name = "URL", default_value = ADMIN_URL)]
    pub(crate) admin: String,
    /// How many at most
    #[arg(long, short = 'n', value_name = "N", default_value_t = 20)]
    pub(crate) count: usize,
    #[command(flatten)]
    pub(crate) asking: AdminApiArguments,
}

/// `stillgate top`.
#[derive(Debug, Args)]
pub(crate) struct Top {
    /// The admin address of the gateway
    #[arg(long, value_name = "URL", default_value = ADMIN_URL)]
    pub(crate) admin: String,
    /// What comes first
    #[arg(long, value_enum, default_value_t = TopSort::Requests)]
    pub(crate) sort: TopSort,
    /// Seconds between two screens
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) every: u64,
    /// Print one screen and end, as where the output is not a terminal
    #[arg(long)]
    pub(crate) once: bool,
    #[command(flatten)]
    pub(crate) asking: AdminApiArguments,
}

/// What `top` sorts routes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TopSort {
    /// Requests per second
    Requests,
    /// 99th percentile of the latency
    P99,
    /// 5xx responses per second
    Errors,
    /// 4xx responses per second
    ClientErrors,
    /// Share of the summed time of all requests
    Time,
}

impl TopSort {
    /// The name at the admin address.
    pub(crate) fn name(self) -> &'static str {
        match self {
            TopSort::Requests => "requests",
            TopSort::P99 => "p99",
            TopSort::Errors => "errors",
            TopSort::ClientErrors => "client_errors",
            TopSort::Time => "time",
        }
    }
}

/// What a profile is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProfileKind {
    /// Where workers spend their CPU time
    Cpu,
    /// What is allocated and not freed
    Heap,
    /// All that was allocated
    Allocs,
    /// What stops event loops
    Stalls,
    /// Where functions in Lua spend CPU time, by their own stacks
    LuaCpu,
    /// Only the interpreter's share of it: machine code counts nothing
    LuaBytecode,
}

/// Which threads a profile is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProfileThreads {
    /// The threads that serve requests
    Workers,
    /// The control thread, the exporter and those that write logs, too
    All,
}

/// `stillgate store`.
#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Copy a store, history included; a gateway that has it open keeps running
    Backup(Backup),
}

/// `stillgate store backup`.
#[derive(Debug, Args)]
pub(crate) struct Backup {
    /// Where to write the copy; an existing file is replaced once the copy is complete
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The store; if a gateway has it open, the gateway at --to makes the copy
    #[arg(long, value_name = "PATH")]
    pub(crate) store: Option<PathBuf>,
    /// The admin address of the gateway that has the store open
    #[arg(long, value_name = "URL", default_value = ADMIN_URL)]
    pub(crate) to: String,
    #[command(flatten)]
    pub(crate) asking: AdminApiArguments,
}

/// How a command prints its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// For people
    Text,
    /// For programs
    Json,
}

/// A path that can be sent in a request, such as gateway.metrics.path.
fn parse_path(text: &str) -> Result<String, String> {
    let is_good = text.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#".contains(&byte));
    match text.starts_with('/') && is_good {
        true => Ok(text.to_owned()),
        false => {
            Err("write a slash and printable ASCII without spaces, \"?\" and \"#\", as in \"/metrics\"".to_owned())
        }
    }
}

// What packages bring along, made of the definition of the commands: `stillgate completions` and `stillgate man-pages`.

/// Prints completion of commands and options for a shell; returns the exit code.
pub(crate) fn completions(shell: Shell) -> u8 {
    let mut text = Vec::new();
    generate(shell, &mut Cli::command(), "stillgate", &mut text);
    show(String::from_utf8_lossy(&text));
    EXIT_GOOD
}

/// Writes a page of each command into a folder; returns the exit code.
pub(crate) fn man_pages(folder: &Path) -> u8 {
    match clap_mangen::generate_to(Cli::command(), folder) {
        Ok(()) => EXIT_GOOD,
        Err(error) => {
            eprintln!("stillgate: cannot write into {}: {error}", folder.display());
            EXIT_ERRORS
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_usage_line_has_only_what_is_required() {
        let check = |line: &str, expected: &str| {
            let error = Cli::definition().try_get_matches_from(line.split(' ')).unwrap_err().to_string();
            assert!(error.contains(&format!("\nUsage: {expected}\n")), "{error}");
        };
        check("stillgate run --confg f.yaml", "stillgate run [OPTIONS]");
        check("stillgate check --ofline", "stillgate check [OPTIONS] [FILE]");
        check("stillgate apply f.yaml --prun", "stillgate apply [OPTIONS] <FILE>");
        check("stillgate store backup --stor s.redb", "stillgate store backup [OPTIONS] <FILE>");
    }

    #[test]
    fn arguments() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' '));
        assert!(parse("stillgate check").is_err());
        assert!(parse("stillgate check --schema").is_ok());
        assert!(parse("stillgate check --schema f.yaml").is_err());
        assert!(parse("stillgate check f.yaml --format json --offline").is_ok());
        assert!(parse("stillgate check --schema --offline").is_err());
        assert!(parse("stillgate check f.yaml --against g.yaml --requests l.json").is_ok());
        assert!(parse("stillgate check f.yaml --against g.yaml").is_err());
        assert!(parse("stillgate check f.yaml --requests l.json").is_err());
        assert!(parse("stillgate check --against g.yaml --requests l.json").is_err());
        assert!(parse("stillgate check --schema --against g.yaml --requests l.json").is_err());
        assert!(parse("stillgate explain f.yaml").is_err());
        assert!(parse("stillgate run --config f.yaml").is_ok());
        assert!(parse("stillgate upgrade").is_ok());
        assert!(parse("stillgate upgrade --config f.yaml --pid 7").is_ok());
        assert!(parse("stillgate upgrade --pid seven").is_err());
        assert!(parse("stillgate upgrade --pid 7 --pid-file p").is_err());
        assert!(parse("stillgate import").is_err());
        assert!(parse("stillgate import kong.yml").is_ok());
        assert!(parse("stillgate import -").is_ok());
        assert!(parse("stillgate export").is_ok());
        assert!(parse("stillgate export --from store.redb --secrets --config f.yaml").is_ok());
        assert!(parse("stillgate diff").is_err());
        assert!(parse("stillgate apply f.yaml --to https://a:1 --ca ca.pem --prune --dry-run --key k").is_ok());
        assert!(parse("stillgate apply f.yaml --client-cert c.pem").is_err());
        assert!(parse("stillgate profile").is_err());
        assert!(parse("stillgate profile -o p.html --kind stalls --over 5ms --seconds 3 --base q.pb.gz").is_ok());
        assert!(parse("stillgate profile -o p.html --from p.pb.gz --seconds 3").is_err());
        assert!(parse("stillgate lua check f.lua").is_err());
        assert!(parse("stillgate lua check f.lua --requests r.txt --json o.json --conf {}").is_ok());
        assert!(parse("stillgate lua check f.lua --replay l.json").is_ok());
        assert!(parse("stillgate lua check f.lua --replay l.json --requests r.txt").is_err());
        assert!(parse("stillgate store").is_err());
        assert!(parse("stillgate store backup copy.redb --store s.redb").is_ok());
        assert!(parse("stillgate exporter").is_err());
        assert!(parse("stillgate exporter --metrics-dir d").is_err());
        assert!(parse("stillgate exporter --metrics-dir d --listen 9091").is_err());
        assert!(parse("stillgate exporter --metrics-dir d --listen [::1]:9091").is_ok());
        assert!(parse("stillgate exporter --metrics-dir d --listen 127.0.0.1:0 --path /m").is_ok());
        assert!(parse("stillgate exporter --metrics-dir d --listen 127.0.0.1:0 --path m").is_err());
        assert!(parse("stillgate exporter --metrics-dir d --listen 127.0.0.1:0 --path /m?x").is_err());
    }
}
