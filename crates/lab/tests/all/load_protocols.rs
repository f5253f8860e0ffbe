//! `stillgate-lab load` over TLS and HTTP/2: against nginx, and against misbehaving targets.

use crate::processes::{FinishedCommand, Loading, load, load_json, load_json_or_void, number, run};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use stillgate_testkit::http2::{END_STREAM, Frame, Http2, code, kind};
use stillgate_testkit::{Nginx, ReservedPort, attempt};
use tempfile::TempDir;

/// On a busy machine every run is late; the tests are not about the machine.
const ANY_LATENESS: [&str; 2] = ["--late-share", "100%"];

/// nginx with a listener of each kind; its certificate is for `a.example`, localhost and 127.0.0.1.
struct Peer {
    nginx: Nginx,
    ports: [ReservedPort; 3],
    folder: TempDir,
}

impl Peer {
    fn start(more: &str) -> Peer {
        let folder = TempDir::new().unwrap();
        fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
        let names = ["a.example", "localhost", "127.0.0.1"].map(ToOwned::to_owned);
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &authority).unwrap();
        let files = [("ca.pem", authority.pem()), ("cert.pem", certificate.pem()), ("key.pem", key.serialize_pem())];
        for (name, pem) in files {
            fs::write(folder.path().join(name), pem).unwrap();
        }
        let ports = [(); 3].map(|()| ReservedPort::new());
        let [h2c, h2, tls] = ports.each_ref().map(ReservedPort::addr);
        let at = folder.path().display();
        let nginx = Nginx::start(&format!(
            "server {{ listen 127.0.0.1:{{port}}; listen {h2c} http2; listen {h2} ssl http2; listen {tls} ssl; {more}\n\
             ssl_certificate {at}/cert.pem; ssl_certificate_key {at}/key.pem; client_max_body_size 8m;\n\
             location / {{ return 200 \"hello $server_protocol\\n\"; }}\n\
             location /status {{ return 503; }} location /long {{ root {at}; }} }}"
        ));
        Peer { nginx, ports, folder }
    }

    fn authority(&self) -> String {
        self.folder.path().join("ca.pem").to_str().unwrap().to_owned()
    }

    fn plain(&self) -> String {
        format!("http://{}/", self.nginx.addr())
    }

    fn h2c(&self) -> String {
        format!("http://{}/", self.ports[0].addr())
    }

    fn h2(&self) -> String {
        format!("https://{}/", self.ports[1].addr())
    }

    fn tls(&self) -> String {
        format!("https://{}/", self.ports[2].addr())
    }
}

#[test]
fn nginx_answers_over_tls_and_http2_in_both_loops() {
    let peer = Peer::start("");
    let (authority, [h2c, h2, tls]) = (peer.authority(), [peer.h2c(), peer.h2(), peer.tls()]);
    let of_http2 = ["--http2", "--streams", "5", "--expect-body-contains", "HTTP/2.0"];
    let trusting = ["--cacert", authority.as_str()];
    let forms = [
        [&[tls.as_str(), "--expect-body-contains", "HTTP/1.1"], &trusting[..]].concat(),
        [&[tls.as_str(), "--insecure"][..], &["--expect-body-contains", "HTTP/1.1"]].concat(),
        [&[h2.as_str()], &of_http2[..], &trusting].concat(),
        [&[h2c.as_str()], &of_http2[..]].concat(),
    ];
    for form in &forms {
        for pace in [
            &["--requests", "400"][..],
            &["--requests", "200", "--rate", "1k"],
            &["--rate", "1k", "--duration", "200ms"],
        ] {
            let arguments = [form, pace, &["--connections", "4", "--threads", "2"], &ANY_LATENESS].concat();
            let json = load_json_or_void(&arguments);
            let asked = if pace == ["--requests", "400"] { 400.0 } else { 200.0 };
            assert_eq!(
                (number(&json, &["requests"]), number(&json, &["errors"])),
                (asked, 0.0),
                "{arguments:?} {json}"
            );
            assert!(number(&json, &["connect", "p50"]) > 0.0 && number(&json, &["first_byte", "p50"]) > 0.0, "{json}");
            // Figures that HTTP/2 does not give are null, not zero.
            assert_eq!(json["send"]["p50"].is_null(), form.contains(&"--http2"), "{json}");
        }
    }
}

#[test]
fn long_answers_and_bodies_come_whole() {
    let peer = Peer::start("");
    let long = peer.folder.path().join("long");
    fs::write(&long, vec![b'x'; 3_000_000]).unwrap();
    let body = format!("@{}", long.display());
    for (url, http2) in [(peer.tls(), &[][..]), (peer.h2(), &["--http2", "--streams", "4"]), (peer.h2c(), &["--http2"])]
    {
        let trust: &[&str] = if url.starts_with("https") { &["--insecure"] } else { &[] };
        let get = format!("{url}long");
        let json = load_json_or_void(&[&[get.as_str(), "-n", "40", "-c", "4"], http2, trust, &ANY_LATENESS].concat());
        assert_eq!((number(&json, &["requests"]), number(&json, &["errors"])), (40.0, 0.0), "{json}");
        assert!(number(&json, &["bytes_received"]) >= 40.0 * 3e6, "{json}");
        let post = [&[url.as_str(), "-X", "POST", "--body", &body, "-n", "40", "-c", "4"], http2, trust, &ANY_LATENESS];
        let json = load_json_or_void(&post.concat());
        assert_eq!((number(&json, &["requests"]), number(&json, &["errors"])), (40.0, 0.0), "{json}");
    }
}

/// nginx ends a connection after a number of requests and does not process those that are under way then.
#[test]
fn what_a_goaway_left_unseen_is_sent_again() {
    let peer = Peer::start("keepalive_requests 40;");
    let url = peer.h2c();
    let http2 = ["--http2", "--streams", "8", "--connections", "2", "--requests", "2k"];
    for pace in [&[][..], &["--rate", "10k"]] {
        let json = load_json_or_void(&[&[url.as_str()], &http2[..], pace, &ANY_LATENESS].concat());
        assert_eq!((number(&json, &["requests"]), number(&json, &["errors"])), (2000.0, 0.0), "{json}");
        assert!(number(&json, &["connect", "p50"]) > 0.0, "{json}");
        let said = json["notes"].to_string().contains("GOAWAY");
        assert_eq!(said, number(&json, &["sent_again"]) > 0.0, "{json}");
    }
}

#[test]
fn a_certificate_that_is_not_trusted_ends_the_run() {
    let peer = Peer::start("");
    let (tls, h2, plain, authority) = (peer.tls(), peer.h2(), peer.plain(), peer.authority());
    let check = |arguments: &[&str], words: &[&str]| {
        let FinishedCommand { code, stdout, stderr } = load(&[arguments, &["-n", "10"]].concat());
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{arguments:?}: {stderr}");
        words.iter().for_each(|word| assert!(stderr.contains(word), "{arguments:?}: no {word:?} in {stderr}"));
    };
    check(&[&tls], &["invalid peer certificate: UnknownIssuer", "issued by an authority that is trusted here?"]);
    check(&[&h2, "--http2"], &["UnknownIssuer"]);
    check(&[&tls, "--cacert", &authority, "--sni", "b.example"], &["not valid for name \"b.example\""]);
    let other = Peer::start("");
    check(&[&tls, "--cacert", &other.authority()], &["invalid peer certificate"]);
    check(&[&tls, "--cacert", "missing.pem"], &["--cacert missing.pem: No such file"]);
    check(&[&tls, "--insecure", "--sni", "a b"], &["--sni \"a b\" is not a server name"]);
    // Another protocol than the requested one.
    check(
        &[&tls, "--insecure", "--http2"],
        &["NoApplicationProtocol", "does the target speak this protocol on this port?"],
    );
    check(
        &[&plain.replace("http:", "https:"), "--insecure"],
        &["corrupt message", "does the target speak this protocol"],
    );
    check(&[&plain, "--http2"], &["not HTTP/2", "does the target speak this protocol"]);
    // The right name lets it in.
    let named = load(&[&tls, "--cacert", &authority, "--sni", "a.example", "-n", "10", "--late-share", "100%"]);
    assert_eq!(named.code, Some(0), "{}", named.stderr);
}

#[test]
fn what_does_not_go_together_is_refused_by_name() {
    let check = |arguments: &[&str], words: &[&str]| {
        let FinishedCommand { code, stderr, .. } = load(arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {stderr}");
        words.iter().for_each(|word| assert!(stderr.contains(word), "{arguments:?}: no {word:?} in {stderr}"));
    };
    let (plain, secure) = ("http://127.0.0.1:1/", "https://127.0.0.1:1/");
    check(&[plain, "--requests", "0"], &["--requests", "at least 1"]);
    check(&[plain, "--requests", "-5"], &["-5"]);
    check(&[plain, "--requests", "1.5"], &["--requests", "whole number"]);
    check(&[plain, "--streams", "4"], &["--http2"]);
    check(&[plain, "--http2", "--streams", "0"], &["--streams", "at least 1"]);
    check(&[plain, "--insecure"], &["--insecure needs TLS", "https://"]);
    check(&[plain, "--sni", "a.example"], &["--sni needs TLS"]);
    check(&[plain, "--cacert", "ca.pem"], &["--cacert needs TLS"]);
    check(&[secure, "--cacert", "ca.pem", "--insecure"], &["cannot be used with"]);
    check(
        &[plain, "--rate", "10", "--rate-end", "20", "--requests", "9"],
        &["--rate-end with --requests", "--duration"],
    );
    check(&[plain, "--http2", "--header", "Upgrade: websocket"], &["GET /", "the field Upgrade", "HTTP/2 forbids it"]);
    check(&[plain, "--fail-if", "p99"], &["--fail-if", "METRIC>VALUE"]);
    check(&[plain, "--fail-if", "p99>20"], &["--fail-if", "a number and its unit"]);
    check(&[plain, "--fail-if", "errors>1%,mean>1s"], &["\"mean\" is not a metric", "p99.9"]);
}

#[test]
fn as_many_requests_as_given() {
    attempt(count_requests);
}

fn count_requests() {
    let peer = Peer::start("");
    let url = peer.plain();
    let check = |options: &[&str], asked: f64| {
        let arguments = [&[url.as_str(), "--connections", "5", "--threads", "3"], options, &ANY_LATENESS].concat();
        let json = load_json(&arguments, 0);
        assert_eq!((number(&json, &["requests"]), number(&json, &["errors"])), (asked, 0.0), "{arguments:?} {json}");
        // With a rate, answers of a machine that stalls come after the last request was due.
        let answered = number(&json, &["answered_in_time"]);
        assert!(answered == asked || options.contains(&"--rate") && (1.0..asked).contains(&answered), "{json}");
        assert_eq!((json["interrupted"].as_bool(), json["void"].as_bool()), (Some(false), Some(false)), "{json}");
        json
    };
    check(&["--requests", "1"], 1.0);
    check(&["--requests", "1001"], 1001.0);
    check(&["--requests", "100", "--warm-up", "50ms"], 100.0);
    check(&["--requests", "100", "--rate", "500", "--warm-up", "50ms"], 100.0);
    check(&["--requests", "100", "--rate", "500", "--poisson"], 100.0);
    check(&["--requests", "50", "--rate", "100", "--rate-end", "900", "--duration", "10s"], 50.0);
    // An even schedule ends when the next request would be due.
    let json = check(&["--requests", "100", "--rate", "500"], 100.0);
    assert_eq!((number(&json, &["duration_s"]), number(&json, &["rate_intended"])), (0.2, 500.0), "{json}");
    // Time is the limit if it comes first.
    let arguments = [&[url.as_str(), "--requests", "1M", "--rate", "500", "--duration", "200ms"], &ANY_LATENESS[..]];
    let json = load_json(&arguments.concat(), 0);
    assert_eq!(number(&json, &["requests"]), 100.0, "{json}");
    assert!(json["notes"].to_string().contains("only 100 of 1000000 requests were made"), "{json}");
}

#[test]
fn a_result_of_counted_requests_verifies() {
    let peer = Peer::start("");
    let json = peer.folder.path().join("run.json").to_str().unwrap().to_owned();
    let url = peer.h2c();
    let done = load(
        &[
            &[
                &url,
                "--http2",
                "--streams",
                "3",
                "--requests",
                "90",
                "--json",
                &json,
                "--fail-if",
                "errors>1%,p99.9>1h",
            ],
            &ANY_LATENESS[..],
        ]
        .concat(),
    );
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert!(done.stdout.contains("Running 90 requests") && done.stdout.contains("HTTP/2 with 3 streams each"));
    let verify = || run(&["verify"], &[&json]);
    let verified = verify();
    assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
    // Conditions are judged again.
    let text = fs::read_to_string(&json).unwrap();
    let changed =
        text.replacen("\"holds\": false", "\"holds\": true", 1).replacen("\"holds\":false", "\"holds\":true", 1);
    assert_ne!(changed, text);
    fs::write(&json, changed).unwrap();
    assert_eq!(verify().code, Some(1));
}

#[test]
fn a_condition_that_holds_has_an_exit_code_of_its_own() {
    let peer = Peer::start("");
    let (url, failing) = (peer.plain(), format!("{}status", peer.plain()));
    let check = |url: &str, conditions: &[&str], code: i32, words: &str| {
        let options: Vec<&str> = conditions.iter().flat_map(|condition| ["--fail-if", condition]).collect();
        let done = load(&[&[url, "-n", "50", "--quiet"], &options[..], &ANY_LATENESS].concat());
        assert_eq!(done.code, Some(code), "{conditions:?}: {}{}", done.stdout, done.stderr);
        assert!(done.stderr.contains(words) && done.stderr.is_empty() == words.is_empty(), "{}", done.stderr);
        assert!(done.stdout.contains("Requests/sec:"));
    };
    check(&url, &["errors>0", "p99>1m", "max>1m", "rate<0.001", "requests<50"], 0, "");
    check(&url, &["errors>0", "p99.9>1ns"], 4, "--fail-if p99.9>1ns: measured ");
    check(&url, &["errors>0,requests<=50"], 4, "--fail-if requests<=50: measured 50");
    check(&failing, &["errors>1%"], 4, "--fail-if errors>1%: measured 100.000% (50 of 50)");
    // Conditions of a void run are not judged.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}/", nobody.local_addr().unwrap());
    let arguments = [silent.as_str(), "-n", "5", "--timeout", "200ms", "--quiet", "--fail-if", "errors>0"];
    let done = load(&arguments);
    assert_eq!((done.code, done.stderr.as_str()), (Some(3), ""), "{}", done.stdout);
    assert!(done.stdout.contains("VOID") && !done.stdout.contains("goes on"), "{}", done.stdout);
}

/// Three of four answers are fast refusals; the good ones take 30 ms.
#[test]
fn fast_refusals_make_no_figure_look_good() {
    let answered = Arc::new(AtomicU64::new(0));
    let url = served(move |mut stream| {
        let mut head = [0; 4096];
        while matches!(stream.read(&mut head), Ok(1..)) {
            let answer = match answered.fetch_add(1, Ordering::SeqCst) % 4 {
                0 => {
                    thread::sleep(Duration::from_millis(30));
                    "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
                }
                _ => "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n",
            };
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    let arguments = [url.as_str(), "--rate", "200", "--duration", "1s", "-c", "40"];
    let check = |condition: &str, code: i32| {
        let json = load_json(&[&arguments[..], &["--fail-if", condition], &ANY_LATENESS].concat(), code);
        let [requests, good, errors] = ["requests", "good", "errors"].map(|name| number(&json, &[name]));
        assert_eq!((requests, good, errors), (200.0, 50.0, 150.0), "{json}");
        let rate = number(&json, &["rate_achieved"]);
        assert!(rate > 10.0 && rate <= 50.0, "{rate}");
        assert!(number(&json, &["corrected", "p50"]) >= 30_000.0, "{json}");
        assert!(number(&json, &["refused", "p50"]) < number(&json, &["uncorrected", "p50"]), "{json}");
        assert!(json["notes"].to_string().contains("150 of 200 answers were refused by a check"), "{json}");
    };
    // Failures must not be hidden by sentences about good answers only.
    check("p50>10s", 4);
    check("p50>10s,errors>80%", 0);
    check("p50>20ms,errors>80%", 4);
    check("rate<100,errors>80%", 4);
    check("requests<51,errors>80%", 4);
    check("requests<50,errors>80%", 0);
}

#[test]
fn a_target_that_answers_no_more_ends_a_counted_run() {
    // Ten answers, then none; connections stay open.
    let answered = Arc::new(AtomicU64::new(0));
    let url = served(move |mut stream| {
        let mut head = [0; 4096];
        while matches!(stream.read(&mut head), Ok(1..)) {
            if answered.fetch_add(1, Ordering::SeqCst) < 10 {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            }
        }
    });
    let arguments = [url.as_str(), "-n", "10k", "-c", "2", "--timeout", "3s", "--fail-if", "requests<10k"];
    let json = load_json(&[&arguments[..], &ANY_LATENESS].concat(), 4);
    assert_eq!(number(&json, &["requests"]), 10.0, "{json}");
    assert!(json["notes"].to_string().contains("of 10000 requests were made"), "{json}");
}

/// The generator watches itself with every protocol: stopped for half a second, it reports that, and so does a run of
/// counted requests.
#[test]
fn a_generator_that_stood_still_over_tls_and_http2_is_void() {
    const STOP: Duration = Duration::from_millis(500);
    let peer = Peer::start("");
    let url = peer.h2();
    for (pace, reason) in [(&["--rate", "1k", "--duration", "3s"][..], "late"), (&["--requests", "1M"], "stood still")]
    {
        let common = [url.as_str(), "--insecure", "--http2", "--streams", "2", "-c", "4", "--interval", "200ms"];
        // A busy machine is late, too, but not as much as the stop makes it.
        let run = Loading::start(&[&common[..], pace, &["--late-share", "10%"]].concat());
        run.stretches(2);
        run.process.signal("STOP");
        thread::sleep(STOP);
        run.process.signal("CONT");
        if pace.contains(&"--requests") {
            run.process.signal("INT");
        }
        let (code, json, log) = run.finish();
        let reasons = json.unwrap()["void_reasons"].to_string();
        assert!(code == Some(3) && reasons.contains(reason), "{reasons}\n{log}");
    }
}

/// In both loops, whatever an HTTP/2 target does with the first request of a connection, the run ends and reports it.
fn check_misbehaving(serve: fn(Http2, Frame), kind: &str, words: &str) {
    // A run that ends by itself does so long before the timeout. If a stream is wrong, the others of its connection
    // wait for it.
    let timeout = match kind {
        "closed" | "receive" => "5s",
        "malformed" => "1s",
        _ => "500ms",
    };
    for pace in [&["-n", "12"][..], &["--rate", "50", "--duration", "200ms"]] {
        let url = served(move |stream| {
            let mut http2 = Http2::accept(stream, &[]);
            while let Some(frame) = http2.next_frame() {
                if frame.kind == kind::HEADERS {
                    return serve(http2, frame);
                }
            }
        });
        let common = [url.as_str(), "--http2", "--streams", "3", "-c", "1", "--timeout", timeout, "--quiet"];
        let done = load(&[&common[..], pace, &["--json", "-"], &ANY_LATENESS].concat());
        assert_eq!(done.code, Some(3), "{}{}", done.stdout, done.stderr);
        let json: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
        assert!(number(&json, &["errors_by_kind", kind]) > 0.0, "{kind}: {json}");
        assert!(json["run"]["error_examples"].to_string().contains(words), "{words}: {json}");
    }
}

/// Reads until the client has gone.
fn listen(mut http2: Http2) {
    while http2.next_frame().is_some() {}
}

#[test]
fn http2_connections_that_end_are_in_the_figures() {
    let check = check_misbehaving;
    check(|_, _| {}, "closed", "before an answer");
    let in_the_middle = |mut http2: Http2, asked: Frame| {
        http2.send_head(asked.stream, &[(":status", "200")], 0);
        http2.send(kind::DATA, 0, asked.stream, b"some");
    };
    check(in_the_middle, "closed", "in the middle of the answer");
    // In order, but no request is processed on any connection.
    let refused_in_order = |mut http2: Http2, _| {
        http2.send(kind::GOAWAY, 0, 0, &[0; 8]);
        listen(http2);
    };
    check(refused_in_order, "timeout", "no complete answer in 500 ms");
    let sent_away = |mut http2: Http2, _| {
        http2.send(kind::GOAWAY, 0, 0, &[&[0; 4][..], &code::ENHANCE_YOUR_CALM.to_be_bytes()].concat());
        listen(http2);
    };
    check(sent_away, "closed", "the target ended the connection");
}

#[test]
fn http2_streams_that_end_or_do_not_are_in_the_figures() {
    let check = check_misbehaving;
    let refused = |mut http2: Http2, asked: Frame| {
        let mut stream = asked.stream;
        loop {
            http2.send(kind::RST_STREAM, 0, stream, &code::REFUSED_STREAM.to_be_bytes());
            match http2.next_frame() {
                Some(frame) if frame.kind == kind::HEADERS => stream = frame.stream,
                Some(_) => {}
                None => return,
            }
        }
    };
    check(refused, "receive", "the target ended the stream");
    let without_a_head = |mut http2: Http2, asked: Frame| {
        http2.send(kind::DATA, END_STREAM, asked.stream, b"without a head");
        listen(http2);
    };
    check(without_a_head, "malformed", "error");
    check(|http2, _| listen(http2), "timeout", "no complete answer in 500 ms");
}

/// A server that handles each connection in a thread of its own.
fn served(serve: impl Fn(TcpStream) + Clone + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, serve) = (stream.unwrap(), serve.clone());
            thread::spawn(move || serve(stream));
        }
    });
    format!("http://{address}/")
}
