//! Measures how long reading a changed file takes, as a whole and by its differences. `cargo run --release -p stillgate-config
//! --example reread [ROUTES]`

use std::fmt::Write;
use std::time::{Duration, Instant};
use stillgate_config::{DigestedText, IncrementalReader, digest, load};

const ROUNDS: usize = 21;

fn main() {
    let routes = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(50_000);
    for (name, kind) in [
        ("URI routes, one upstream", Kind::Shared),
        ("URI routes, each with its upstream", Kind::Inline),
        ("expressions", Kind::Expression),
        ("URI routes without ids", Kind::Unnamed),
    ] {
        let before = file(routes, kind, None);
        println!("{name}: {routes} routes, {:.1} MB", before.len() as f64 / 1e6);
        report("digest alone", || drop(digest(before.as_bytes())));
        report("load", || drop(load(&before, &|_| None).expect("the file is valid")));
        let mut reader = IncrementalReader::default();
        report("first load of a reader", || {
            reader = IncrementalReader::default();
            reader.load(DigestedText::new(before.clone().into()), &|_| None).expect("the file is valid");
        });
        assert!(reader.is_incremental());
        for (what, edit) in [
            ("one route changed", Edit::Change),
            ("a line put in before all", Edit::Line),
            ("a route put in before all", Edit::Insert),
            ("first and last route changed", Edit::Both),
        ] {
            let texts: Vec<Vec<u8>> = (0..=ROUNDS).map(|n| file(routes, kind, Some((edit, n))).into_bytes()).collect();
            let mut texts = texts.into_iter();
            let mut served =
                reader.load(DigestedText::new(texts.next().expect("there is one")), &|_| None).expect("it is valid");
            report(what, || {
                let text = texts.next().expect("as many as there are rounds");
                served = reader.load(DigestedText::new(text), &|_| None).expect("the file is valid");
            });
            assert!(served.config.routes.len() >= routes);
        }
    }
}

/// Runs it several times; prints the median and the worst.
fn report(what: &str, mut run: impl FnMut()) {
    let rounds = if what.contains("load") { 5 } else { ROUNDS };
    let mut times: Vec<Duration> = (0..rounds)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed()
        })
        .collect();
    times.sort();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    println!("  {what:30} {:8.2} ms, at worst {:8.2} ms", ms(times[times.len() / 2]), ms(times[times.len() - 1]));
}

#[derive(Clone, Copy)]
enum Kind {
    Shared,
    Inline,
    Expression,
    Unnamed,
}

#[derive(Clone, Copy)]
enum Edit {
    Change,
    Line,
    Insert,
    Both,
}

fn file(routes: usize, kind: Kind, edit: Option<(Edit, usize)>) -> String {
    let mut text = "gateway: {}\nupstreams:\n  - {id: u, nodes: {\"10.0.0.1:80\": 1}}\nroutes:\n".to_owned();
    match edit {
        Some((Edit::Insert, n)) if n % 2 == 1 => push(&mut text, kind, &format!("first-{n}"), n),
        Some((Edit::Line, n)) => text.extend(std::iter::repeat_n("# line\n", n % 2)),
        _ => {}
    }
    for route in 0..routes {
        let path = match edit {
            Some((Edit::Change, n)) if route == (n * 7919) % routes => route + routes,
            Some((Edit::Both, n)) if route == 0 || route == routes - 1 => route + routes * (n + 1),
            _ => route,
        };
        push(&mut text, kind, &format!("route-{route}"), path);
    }
    text
}

fn push(text: &mut String, kind: Kind, id: &str, path: usize) {
    let name = match kind {
        Kind::Unnamed => String::new(),
        _ => format!("id: {id}\n    "),
    };
    let takes = match kind {
        Kind::Expression => format!("expression: http.path ^= \"/v1/things/{path}/\" && http.method == \"GET\""),
        _ => format!("uri: /v1/things/{path}/*\n    methods: [GET, POST]"),
    };
    let upstream = match kind {
        Kind::Inline => format!("upstream: {{nodes: {{\"10.0.0.{}:80\": 1}}}}", path % 250 + 1),
        _ => "upstream_id: u".to_owned(),
    };
    let priority = path % 7;
    write!(
        text,
        "  - {name}desc: a route of which somebody wrote what it is for\n    {takes}\n    {upstream}\n    priority: {priority}\n",
    )
    .expect("a String takes everything");
}
