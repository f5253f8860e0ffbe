//! `opa` with a real Open Policy Agent: allowed, denied, undefined, a policy that changes, an agent that is killed.

use crate::shared::reflect::{ask, asked, gateway, reflecting, route};
use std::path::{Path, PathBuf};
use std::process::Command;
use stillgate_testkit::{Client, Message, Process, ReservedPort, eventually};

/// Where `cargo xtask test` installs it, below cargo's folder.
const OPA: &str = "peers/opa-1.22.3/opa";
const POLICY: &str = r#"package http.authz

default allow := false
allow if input.request.headers["x-token"] == "good"
allow if input.request.query.free == true
allow if {
	input.request.method == "POST"
	input.request.path == "/form"
}

headers := {"X-User": "jack", "X-Port": input.request.port} if allow
headers := {"X-Why": "no token"} if not allow

status_code := 401 if not input.request.headers["x-token"]
reason := "a token, please" if not input.request.headers["x-token"]
reason := {"code": 7} if input.request.headers["x-token"] == "bad"
"#;

struct Agent {
    port: ReservedPort,
    folder: tempfile::TempDir,
    process: Option<Process>,
}

impl Agent {
    fn start() -> Agent {
        let mut agent = Agent {
            port: ReservedPort::new(),
            folder: tempfile::tempdir().expect("a temporary folder"),
            process: None,
        };
        std::fs::write(agent.policy(), POLICY).expect("write the policy");
        agent.restart();
        agent
    }

    fn policy(&self) -> PathBuf {
        self.folder.path().join("policy.rego")
    }

    fn restart(&mut self) {
        let target =
            Path::new(crate::shared::STILLGATE).ancestors().nth(2).expect("the folder of the profile's folder");
        let program = target.join(OPA);
        assert!(program.is_file(), "{} is missing; `cargo xtask test` builds it", program.display());
        let mut command = Command::new(program);
        command.args(["run", "-s", "--disable-telemetry", "--addr", &self.port.addr().to_string()]).arg(self.policy());
        self.process = Some(Process::spawn("opa", &mut command, &self.folder.path().join("log")));
        let addr = self.port.addr();
        eventually("the agent to listen", || std::net::TcpStream::connect(addr).is_ok());
        eventually("the policy", || Client::connect(addr).get("/health").head.status() == 200);
    }

    /// Replaces the policy in the running agent.
    fn put(&self, policy: &str) {
        let id = self.policy().display().to_string();
        let answer = Client::connect(self.port.addr()).request(
            "PUT",
            &format!("/v1/policies/{}", id.trim_start_matches('/')),
            policy.as_bytes(),
        );
        assert_eq!(answer.head.status(), 200, "{}", String::from_utf8_lossy(&answer.body));
    }
}

fn text(response: &Message) -> (u16, &str) {
    (response.head.status(), std::str::from_utf8(&response.body).expect("text"))
}

#[test]
fn a_real_agent_decides() {
    let (node, mut agent) = (reflecting(), Agent::start());
    let plugin = |policy: &str| {
        let host = agent.port.addr();
        format!(
            r#"{{"opa": {{"host": "http://{host}", "policy": "{policy}", "send_headers_upstream": ["X-User", "X-Port", "X-Gone"]}}}}"#
        )
    };
    let routes = [("/*", "http/authz"), ("/undefined", "no/such"), ("/rule", "http/authz/allow")];
    let routes: String = routes.iter().map(|(uri, policy)| route(uri, &plugin(policy))).collect();
    let mut gateway = gateway(node.addr(), &format!("routes:\n{routes}"));
    let port = gateway.addr().port();
    let mut client = gateway.client();

    let allowed = asked(&ask(&mut client, "GET /a", &["X-Token: good", "X-User: root", "X-Gone: forged"]));
    assert_eq!((allowed.all("x-user"), allowed.get("x-gone")), (vec!["jack"], None));
    // The agent sees the port that was connected to where the host names none.
    assert_eq!(allowed.get("x-port"), Some(&*port.to_string()));
    assert_eq!(asked(&ask(&mut client, "GET /a?free", &[])).get("x-user"), Some("jack"));
    let form = client.request("POST", "/form?x=1", b"a=b");
    assert!(form.head.status() == 200 && form.body.ends_with(b"\n\na=b"), "{form:?}");

    let denied = ask(&mut client, "GET /a?free=no", &[]);
    assert_eq!(text(&denied), (401, "a token, please"));
    assert_eq!(denied.head.get("x-why"), Some("no token"));
    assert_eq!(text(&ask(&mut client, "GET /a", &["X-Token: bad"])), (403, "{\"code\":7}"));
    // Undefined: the agent's answer has no result, as APISIX says with 503. A rule by itself is not a decision.
    assert_eq!(client.get("/undefined").head.status(), 503);
    assert_eq!(ask(&mut client, "GET /rule", &["X-Token: good"]).head.status(), 403);

    // Another policy, at once.
    agent.put(&POLICY.replace("== \"good\"", "== \"better\""));
    assert_eq!(ask(&mut client, "GET /a", &["X-Token: good"]).head.status(), 403);
    assert_eq!(ask(&mut client, "GET /a", &["X-Token: better"]).head.status(), 200);

    // The agent was killed: no request is let through; started again, it decides again.
    agent.process = None;
    for _ in 0..10 {
        assert_eq!(ask(&mut client, "GET /a", &["X-Token: better"]).head.status(), 403);
    }
    agent.restart();
    eventually("the agent to be asked again", || ask(&mut client, "GET /a", &["X-Token: good"]).head.status() == 200);
    assert_eq!(node.faults(), [""; 0]);
    gateway.assert_healthy();
}
