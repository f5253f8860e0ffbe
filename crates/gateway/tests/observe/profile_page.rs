//! The page of `stillgate profile` in Chromium: shares that filter, folding, zoom, search, the difference of two profiles in both
//! directions.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::shared::dashboard;
use crate::shared::dashboard::chromium::{DESK, Page};
use serde_json::json;
use std::sync::atomic::{AtomicBool, Ordering};
use stillgate_profiler::output::html::write;
use stillgate_profiler::profile::{Function, Label, Line, Location, Profile, Sample, THREAD, ValueType};
use stillgate_testkit::Upstream;

/// Texts that become elements where they are not shown as texts.
const HOSTILE: &str = "</script><img src=x onerror=window.broken=1>";

/// A profile of stacks, outermost first, with the thread and the milliseconds of each.
fn profile(stacks: &[(&str, i64, &[&str])]) -> Profile {
    let mut names: Vec<&str> = stacks.iter().flat_map(|(_, _, stack)| stack.iter().copied()).collect();
    names.sort_unstable();
    names.dedup();
    let place = |name: &&str| names.iter().position(|known| known == name).unwrap();
    let samples = stacks.iter().map(|(thread, ms, stack)| Sample {
        stack: stack.iter().rev().map(place).collect(),
        values: vec![ms * 1_000_000],
        labels: vec![(THREAD.to_owned(), Label::Text((*thread).to_owned()))],
    });
    let mut profile = Profile {
        values: vec![ValueType::new("cpu", "nanoseconds")],
        main: 0,
        period: (ValueType::new("cpu", "nanoseconds"), 1_000_000),
        time_ns: 0,
        duration_ns: 1_000_000_000,
        notes: vec!["made up".to_owned()],
        mappings: Vec::new(),
        functions: names.iter().map(|name| Function { name: (*name).to_owned(), file: "a.rs".to_owned() }).collect(),
        locations: (0..names.len())
            .map(|function| Location { address: 0, mapping: None, lines: vec![Line { function, line: 1 }] })
            .collect(),
        samples: samples.collect(),
    };
    profile.name_phases(&[("routing", "route::"), ("plugins", "plugin::")]);
    profile
}

fn open(profile: &Profile, base: Option<&Profile>) -> (Page, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("page.html");
    std::fs::write(&file, write(profile, 0, base)).unwrap();
    let mut page = Page::open(DESK);
    page.send("Page.navigate", json!({ "url": format!("file://{}", file.display()) }));
    page.until("document.querySelector('[data-part=graph] button')");
    (page, folder)
}

/// What the page of the dashboard shows of two profiles of a gateway under load.
#[test]
fn the_dashboard_takes_two_and_compares_them() {
    let gateway = dashboard::gateway();
    let node = Upstream::echo();
    dashboard::put(
        &gateway,
        "routes/r",
        &json!({ "uri": "/*", "upstream": { "nodes": { node.addr().to_string(): 1 } } }),
    );
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = gateway.client();
            while !is_over.load(Ordering::Relaxed) {
                client.get("/");
            }
        });
        let ending = LoadGuard(&is_over);
        let mut page = Page::open(DESK);
        dashboard::sign_in(&mut page, &gateway);
        page.visit("/profiles");
        page.until("document.querySelector('main').innerText.includes('gateway.debug.profiles: {')");
        page.fill("[name=seconds]", "1");
        for taken in 1..=2 {
            page.click("form button", "Take profile");
            page.until(&format!(
                "document.querySelectorAll('.profile-form option[value=\"{}\"]').length > 0",
                taken - 1
            ));
            page.until("document.querySelectorAll('[data-part=graph] button').length > 5");
            page.until("!document.querySelector('form button[type=submit]').disabled");
        }
        let shown = |page: &mut Page, part: &str| text(page, &format!("[data-part={part}]"));
        assert!(shown(&mut page, "threads").starts_with("ThreadShareworker-0"), "{}", shown(&mut page, "threads"));
        // The phases with samples depend on how much of the machine the gateway gets in a second.
        let phases = shown(&mut page, "phases");
        assert!(phases.starts_with("PhaseShare") && phases.contains('%'), "{phases}");
        assert!(shown(&mut page, "title").starts_with("cpu: "));
        page.fill("[data-part=search]", "stillgate_proxy");
        page.until("/matched: [1-9]/.test(document.querySelector('[data-part=matches]').textContent)");
        let choose = "(() => { const s = document.querySelectorAll('.profile-form select'); const last = s[s.length - 1]; last.value = '1'; last.dispatchEvent(new Event('change')); })()";
        page.eval(choose);
        page.until("document.querySelector('[data-part=title]').textContent.includes('; base: cpu: ')");
        page.until("document.querySelector('[data-part=functions]').textContent.includes('change')");
        page.picture("profiles-compared");
        page.assert_calm("the page of profiles");
        drop(ending);
    });
}

/// Ends the load, also where the test fails: a scope waits for its threads.
struct LoadGuard<'a>(&'a AtomicBool);

impl Drop for LoadGuard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn text(page: &mut Page, selector: &str) -> String {
    let told = page.eval(&format!("document.querySelector('{selector}').textContent"));
    told.as_str().unwrap().to_owned()
}

fn shown(page: &mut Page, name: &str) -> bool {
    page.eval(&format!(
        "[...document.querySelectorAll('[data-part=graph] button')].some((of) => of.title.startsWith('{name}: '))"
    )) == json!(true)
}

#[test]
fn one_profile_is_searched_and_zoomed() {
    let profile = profile(&[
        ("worker-0", 600, &["main", "route::find", "memcpy"]),
        ("worker-0", 100, &["main", "plugin::run", "route::find"]),
        ("worker-1", 300, &["main", HOSTILE]),
    ]);
    let (mut page, _folder) = open(&profile, None);
    assert_eq!(text(&mut page, "[data-part=title]"), "cpu: 1.00 s in 1.0 s");
    assert!(shown(&mut page, "route::find") && shown(&mut page, HOSTILE));
    page.fill("[data-part=search]", "route");
    page.until("document.querySelector('[data-part=matches]').textContent === 'matched: 70 %'");
    page.fill("[data-part=search]", "/^mem.*y$/");
    page.until("document.querySelector('[data-part=matches]').textContent === 'matched: 60 %'");
    page.fill("[data-part=search]", "");
    page.click("[data-part=graph] button", "run");
    page.until("![...document.querySelectorAll('[data-part=graph] button')].some((of) => of.textContent === 'memcpy')");
    page.click("[data-part=reset]", "Reset zoom");
    page.until("[...document.querySelectorAll('[data-part=graph] button')].some((of) => of.textContent === 'memcpy')");
    let functions = text(&mut page, "[data-part=functions]");
    assert!(functions.contains("memcpy a.rs60 %60 %") && functions.contains("main a.rs0 %100 %"), "{functions}");
    assert_eq!(text(&mut page, "[data-part=threads]"), "ThreadShareworker-070 %worker-130 %");
    assert_eq!(text(&mut page, "[data-part=phases]"), "PhaseSharerouting70 %other30 %");
    page.click("[data-part=threads] button", "worker-1");
    page.until("![...document.querySelectorAll('[data-part=graph] button')].some((of) => of.textContent === 'memcpy')");
    assert_eq!(page.eval("window.broken === undefined"), json!(true));
    page.assert_calm("the page of a profile");
}

#[test]
fn the_difference_of_two_is_seen_in_both_directions() {
    let before = profile(&[("worker-0", 900, &["main", "work"]), ("worker-0", 100, &["main", "vanished"])]);
    let after = profile(&[("worker-0", 400, &["main", "work"]), ("worker-0", 100, &["main", "appeared"])]);
    let (mut page, _folder) = open(&after, Some(&before));
    assert!(shown(&mut page, "appeared") && !shown(&mut page, "vanished"));
    page.fill("[data-part=search]", "appeared");
    page.until("document.querySelector('[data-part=matches]').textContent === 'matched: 20 %, base: 0 %'");
    page.fill("[data-part=search]", "");
    let functions = text(&mut page, "[data-part=functions]");
    assert!(functions.contains("appeared a.rs20 %20 %+20.0new"), "{functions}");
    assert!(functions.contains("vanished a.rs0 %0 %-10.00.00×"), "{functions}");
    assert!(functions.contains("work a.rs80 %80 %-10.00.89×"), "{functions}");
    page.eval("document.querySelector('[data-part=reversed]').click()");
    page.until(
        "[...document.querySelectorAll('[data-part=graph] button')].some((of) => of.textContent === 'vanished')",
    );
    assert!(!shown(&mut page, "appeared"));
    page.assert_calm("the page of a difference");
}

/// A route is chosen by its row; frames of the runtime are one until they are unfolded; arrow keys move in the graph.
#[test]
fn a_route_is_chosen_and_the_runtime_is_unfolded() {
    let runtime = ["tokio::runtime::run", "tokio::task::poll", "std::thread::local::LocalKey<T>::with"];
    let stack = |last| [&["main"], &runtime[..], &[last]].concat();
    let (own, lua) = (stack("<shop::Cart as shop::Plugin>::access::{{closure}}"), stack("lua access (auth.lua:12)"));
    let mut profile = profile(&[("worker-0", 600, &own[..]), ("worker-0", 400, &lua[..])]);
    for (sample, route) in profile.samples.iter_mut().zip(["shop", HOSTILE]) {
        sample.labels.push(("route".to_owned(), Label::Text(route.to_owned())));
    }
    let (mut page, _folder) = open(&profile, None);
    let graph = text(&mut page, "[data-part=graph]");
    assert!(graph.contains("tokio, 3 frames") && graph.contains("Cart::access shop"), "{graph}");
    assert_eq!(text(&mut page, "[data-part=routes]"), format!("RouteShareshop60 %{HOSTILE}40 %"));
    page.click("[data-part=routes] button", HOSTILE);
    page.until("!document.querySelector('[data-part=graph]').textContent.includes('Cart::access')");
    page.until("document.querySelector('[data-part=graph] .is-lua').textContent === 'lua access (auth.lua:12)'");
    page.click("[data-part=clear]", "Clear filters");
    page.until("document.querySelector('[data-part=graph]').textContent.includes('Cart::access')");
    page.eval("document.querySelector('[data-part=graph] [tabindex=\"0\"]').focus()");
    for key in ["ArrowDown", "ArrowDown", "Enter"] {
        page.press(key);
    }
    page.until("document.activeElement.title.startsWith('tokio::runtime::run: ')");
    page.press("ArrowDown");
    page.until("document.activeElement.title.startsWith('tokio::task::poll: ')");
    page.click("[data-part=refold]", "Fold again");
    page.until("document.querySelector('[data-part=graph]').textContent.includes('tokio, 3 frames')");
    page.assert_named("the page of a profile with routes");
    assert_eq!(page.eval("window.broken === undefined"), json!(true));
    page.assert_calm("the page of a profile with routes");
}
