//! `stillgate-lab report` as its reader sees it: the page in Chromium, light and dark, wide and narrow, from honest and
//! from hostile result files.

mod browser;
mod dom;
mod fixture;

use browser::Browser;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::LazyLock;
use std::thread;
use tempfile::TempDir;

/// Largest size of a page of a sweep of 24 cells.
const PAGE_BYTES_MAX: usize = 1_600_000;

/// Screens, the narrowest common ones last.
const WIDTHS: [u32; 3] = [1280, 400, 390];

/// A folder with result files in it.
struct Lab {
    dir: TempDir,
}

impl Lab {
    fn new(results: &[(&str, Value)]) -> Lab {
        let dir = tempfile::tempdir().unwrap();
        for (name, result) in results {
            fs::write(dir.path().join(name), result.to_string()).unwrap();
        }
        Lab { dir }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stillgate-lab"));
        command.current_dir(self.dir.path()).arg("report").args(arguments).output().unwrap()
    }

    /// Makes `report.html` from these files.
    #[track_caller]
    fn report(&self, files: &[&str]) -> (PathBuf, String) {
        let output = self.run(files);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "report.html\n");
        let page = self.dir.path().join("report.html");
        let html = fs::read_to_string(&page).unwrap();
        (page, html)
    }
}

/// A report and its elements in Chromium, for tests of the elements only.
struct Page {
    html: String,
    dom: String,
}

/// Results under a name for tests.
type Results = (&'static str, Vec<(&'static str, Value)>);

/// All such reports, loaded at once.
static PAGES: LazyLock<HashMap<&str, Page>> = LazyLock::new(|| {
    let (names, results): (Vec<&str>, Vec<_>) = reported().into_iter().unzip();
    let labs: Vec<Lab> = results.iter().map(|results| Lab::new(results)).collect();
    let made: Vec<(PathBuf, String)> = thread::scope(|scope| {
        let running: Vec<_> = labs
            .iter()
            .zip(&results)
            .map(|(lab, results)| {
                let files: Vec<&str> = results.iter().map(|(file, _)| *file).collect();
                scope.spawn(move || lab.report(&files))
            })
            .collect();
        running.into_iter().map(|running| running.join().unwrap()).collect()
    });
    let (_, large, large_html) = &*LARGE;
    let all = names.into_iter().zip(made).chain([("large", (large.clone(), large_html.clone()))]);
    let (names, made): (Vec<&str>, Vec<_>) = all.unzip();
    let (pages, htmls): (Vec<PathBuf>, Vec<String>) = made.into_iter().unzip();
    let pages = htmls.into_iter().zip(Browser::doms(&pages)).map(|(html, dom)| Page { html, dom });
    names.into_iter().zip(pages).collect()
});

fn reported() -> Vec<Results> {
    let tail = || fixture::reference_tail();
    let compare = || fixture::compare(8, 0.05);
    let mut touched = fixture::load();
    touched["corrected"]["p99"] = json!(1.0);
    vec![
        ("tail", vec![("one.json", tail())]),
        ("compare", vec![("c.json", fixture::compare(16, 0.05))]),
        ("bisect", vec![("bisect.json", fixture::bisect())]),
        ("outlier", vec![("outlier.json", outlier())]),
        ("load", vec![("whole.json", fixture::load())]),
        ("touched", vec![("touched.json", touched)]),
        (
            "several",
            vec![("load.json", fixture::load()), ("same.json", fixture::compare(8, 0.0)), ("tail.json", tail())],
        ),
        ("effects", vec![("a.json", tail()), ("b.json", compare())]),
        ("odd", odd()),
        ("void tail", vec![("void.json", void_tail())]),
        ("void compare", vec![("void.json", void_compare())]),
    ]
}

/// Checks that a page is sound and contains these words.
#[track_caller]
fn check_page(name: &str, told: &[&str]) {
    let Page { html, dom } = &PAGES[name];
    assert!(html.len() < PAGE_BYTES_MAX, "{} bytes", html.len());
    dom::check(dom);
    for words in told {
        assert!(dom.contains(words), "the page does not contain {words:?}");
    }
}

/// A page of the other kinds of result next to the large one.
const OTHERS: &str = "others.html";

/// A page of the largest usual size, with [`OTHERS`] in its folder.
static LARGE: LazyLock<(Lab, PathBuf, String)> = LazyLock::new(|| {
    let results = [
        ("sweep.json", fixture::tail(&fixture::sweep())),
        ("a.json", fixture::reference_tail()),
        ("b.json", fixture::compare(8, 0.05)),
        ("c.json", fixture::load()),
        ("d.json", fixture::bisect()),
    ];
    let lab = Lab::new(&results);
    assert!(lab.run(&["a.json", "b.json", "c.json", "d.json", "-o", OTHERS]).status.success());
    let (page, html) = lab.report(&["sweep.json"]);
    (lab, page, html)
});

/// The observations of a script that has the large page in a frame, then the other one: the ground by system and by
/// each choice, the cells that a link unfolds, and with all parts unfolded the page's width and each table that is
/// wider than its place, by width of the frame.
static ASKED: LazyLock<Vec<String>> = LazyLock::new(|| {
    let folder = LARGE.0.dir.path();
    let asking = folder.join("asking.html");
    let html = ASKING.replace("WIDTHS", &format!("{WIDTHS:?}")).replace("OTHERS", OTHERS);
    fs::write(&asking, html).unwrap();
    let dom = Browser { width: 1600, dark: false, page: &asking }.dom();
    let said = dom.split_once("<p id=\"said\">").unwrap().1.split_once("</p>").unwrap().0;
    said.split('|').map(str::to_owned).collect()
});

const ASKING: &str = r#"<!DOCTYPE html><html lang="en"><body><p id="said"></p>
<iframe id="frame" width="1280" height="900"></iframe><script>
const frame = document.getElementById('frame'), all = [];
const inner = () => frame.contentDocument;
const ground = () => frame.contentWindow.getComputedStyle(inner().body).backgroundColor;
const grounds = () => {
    const seen = [ground()];
    for (const choice of ['dark', 'light', 'auto']) {
        inner().getElementById('theme-' + choice).click();
        seen.push(ground());
    }
    return seen.map(colour => parseInt(colour.slice(4)) > 127 ? 'light' : 'dark').join(' ');
};
const width = () => {
    const wide = [...inner().querySelectorAll('.scrolled, pre')].filter(part => part.scrollWidth > part.clientWidth);
    return inner().documentElement.scrollWidth + wide.map(part => ': ' + part.textContent.slice(0, 40)).join('');
};
const wait = time => new Promise(done => setTimeout(done, time));
const load = page => new Promise(done => { frame.onload = done; frame.src = page; });
const widths = async () => {
    inner().querySelectorAll('details').forEach(part => part.open = true);
    for (frame.width of WIDTHS) {
        await wait(200);
        all.push(width());
    }
};
const ask = async () => {
    await load('report.html');
    all.push(grounds());
    frame.contentWindow.location.hash = '#f1-c20';
    await wait(500);
    all.push([...inner().querySelectorAll('details.cell')].map(cell => +cell.open).join(''));
    await widths();
    await load('OTHERS');
    await widths();
    document.getElementById('said').textContent = all.join('|');
};
ask();
</script></body></html>"#;
/// The checks of the pages, each with its name.
const CHECKS: &[(&str, fn())] = &[
    ("a_tail_result_is_shown_from_verdict_to_machine", a_tail_result_is_shown_from_verdict_to_machine),
    ("a_comparison_shows_ratios_detectable_effects_and_pairs", a_comparison_shows_ratios_detectable_effects_and_pairs),
    ("a_bisection_shows_its_measurements_and_names_the_step", a_bisection_shows_its_measurements_and_names_the_step),
    ("an_outlier_does_not_hide_the_change", an_outlier_does_not_hide_the_change),
    (
        "a_load_result_shows_what_correction_adds_and_what_failed",
        a_load_result_shows_what_correction_adds_and_what_failed,
    ),
    ("a_page_says_whether_its_verdict_follows_from_the_data", a_page_says_whether_its_verdict_follows_from_the_data),
    ("several_results_share_a_page", several_results_share_a_page),
    ("a_large_sweep_stays_small_and_its_links_unfold_cells", a_large_sweep_stays_small_and_its_links_unfold_cells),
    ("tables_fit_wide_and_narrow_screens", tables_fit_wide_and_narrow_screens),
    (
        "effects_say_that_they_are_not_differences_of_the_columns",
        effects_say_that_they_are_not_differences_of_the_columns,
    ),
    ("light_and_dark_follow_the_system_and_the_choice", light_and_dark_follow_the_system_and_the_choice),
    (
        "a_printed_page_has_all_that_is_folded_and_nothing_to_click",
        a_printed_page_has_all_that_is_folded_and_nothing_to_click,
    ),
    ("what_is_void_does_not_look_like_a_finding", what_is_void_does_not_look_like_a_finding),
    ("a_hostile_result_file_stays_text", a_hostile_result_file_stays_text),
    ("odd_results_make_a_page_too", odd_results_make_a_page_too),
    ("what_cannot_be_read_is_named", what_cannot_be_read_is_named),
    (
        "a_page_shows_what_the_data_say_and_not_what_was_typed_into_the_file",
        a_page_shows_what_the_data_say_and_not_what_was_typed_into_the_file,
    ),
];

/// One test, since the pages are made and loaded once in a process, which takes longer than all checks.
#[test]
fn the_pages_are_as_their_readers_need_them() {
    for (name, check) in CHECKS {
        // The last printed name is that of the failed check.
        println!("{name}");
        check();
    }
}

fn a_tail_result_is_shown_from_verdict_to_machine() {
    let told = [
        "made the slowest requests of nginx-lua slower: p99.9 from",
        "Latency by percentile",
        "What scrapes change: paired differences, with less without",
        "Latency over time",
        "<th scope=\"row\">99.999%</th>",
        "<th scope=\"row\">100%</th>",
        "AMD EPYC 9B14",
        "20230131",
        "stillgate-lab verify one.json",
        "stillgate-lab tail stillgate nginx-lua haproxy --series 1k,10k,100k,1M",
    ];
    check_page("tail", &told);
}

fn a_comparison_shows_ratios_detectable_effects_and_pairs() {
    let told = [
        "B is worse than A",
        "How much more or less of it B has than A",
        "detectable",
        "A went first",
        "valgrind is not installed",
    ];
    check_page("compare", &told);
}

fn a_bisection_shows_its_measurements_and_names_the_step() {
    let told = [
        "44 measurements of 5 of 24 commits (2 measurements beyond the axis)",
        // The label at the step, and its description.
        ">0f0000000000: +",
        ">probability over 99.9%</text>",
        "Step at 0f0000000000: +",
        // What is under the pointer or the focus, and the table.
        "aria-label=\"0f0000000000 Copy &lt;b&gt;each&lt;/b&gt; header: median 10.7 µs, +",
        "Change 12: cannot be measured; changed it: ",
        "<td role=\"cell\" data-head=\"measurements\">",
    ];
    check_page("bisect", &told);
    let picture = PAGES["bisect"].html.split_once("<figure").unwrap().1.split_once("</figure>").unwrap().0;
    let (picture, _) = picture.split_once("class=\"probes\"").unwrap();
    let count = |part: &str| picture.split_once("class=\"stage\"").unwrap().1.matches(part).count();
    assert_eq!(count("href=\"#m0\"") + count("href=\"#m1\""), 42, "a dot for each measurement but two");
    assert_eq!((count("href=\"#m3\""), count("class=\"median\""), count("✕")), (2, 5, 1));
}

/// A comparison in which one pair is far from the others.
fn outlier() -> Value {
    let mut compare = fixture::compare(16, 0.05);
    let cpu = &mut compare["pairs"][3]["b"]["cpu_us_per_request"];
    *cpu = json!(cpu.as_f64().unwrap() * 40.0);
    compare
}

fn an_outlier_does_not_hide_the_change() {
    check_page("outlier", &["CPU per request (1 pair beyond the axis)"]);
    let html = &PAGES["outlier"].html;
    let verdict = html.split_once("<p class=\"sentence").unwrap().1.split_once("</p>").unwrap().0;
    for part in ["B is worse than A: ", "throughput -", "cpu +", "% (+", "% to +", "(16 pairs)."] {
        assert!(verdict.contains(part), "{part}: {verdict}");
    }
    let facet = html.split("<figure").find(|figure| figure.contains("CPU per request (1 pair")).unwrap();
    assert_eq!(facet.matches("href=\"#m3\"").count(), 1, "an arrow in place of the marker");
    let labels: Vec<&str> =
        facet.split("<text class=\"end\"").skip(1).map(|text| &text[..text.find("</text>").unwrap()]).collect();
    assert!(labels.iter().any(|label| label.ends_with(">+4%")), "{labels:?}");
    assert!(!labels.iter().any(|label| label.contains("00%") || label.contains('×')), "{labels:?}");
}

fn a_load_result_shows_what_correction_adds_and_what_failed() {
    let told = [
        "good answers/s, half came within",
        "from the intended start",
        "from the send",
        "no answer within 400 ms",
        "timeout",
    ];
    check_page("load", &told);
}

fn a_page_says_whether_its_verdict_follows_from_the_data() {
    check_page("load", &["Recomputed from the raw data when this page was made: same result."]);
    check_page("touched", &["One figure in the file is not what its raw data and its design give"]);
}

fn several_results_share_a_page() {
    check_page("several", &["3 results of stillgate-lab", "valgrind is not installed", "href=\"#f3\""]);
}

fn a_large_sweep_stays_small_and_its_links_unfold_cells() {
    check_page("large", &[]);
    assert_eq!(ASKED[1], format!("{}1{}", "0".repeat(20), "0".repeat(3)));
}

/// Neither the page nor a table in it is wider than the screen, with all parts unfolded: a phone scrolls in one
/// direction only.
fn tables_fit_wide_and_narrow_screens() {
    let expected: Vec<String> = [WIDTHS, WIDTHS].concat().iter().map(u32::to_string).collect();
    assert_eq!(ASKED[2..], expected);
}

fn effects_say_that_they_are_not_differences_of_the_columns() {
    let told = [
        "Each effect is the median of the differences within pairs of blocks (Hodges-Lehmann).",
        "Each change is the median of the ratios within pairs (Hodges-Lehmann), less one.",
        // One sentence first, then the rest.
        ">Scrapes made the slowest requests of nginx-lua slower.</p><p class=\"details\">",
    ];
    check_page("effects", &told);
}

fn light_and_dark_follow_the_system_and_the_choice() {
    let page = LARGE.0.dir.path().join(OTHERS);
    for (dark, lightness) in [(false, 0.85..1.0), (true, 0.02..0.25)] {
        let picture = Browser { width: 1280, dark, page: &page }.screenshot();
        assert_eq!(picture.width, 1280);
        assert!(lightness.contains(&picture.lightness()), "dark: {dark}, lightness {}", picture.lightness());
        assert!(picture.colours() > 100, "only {} colours: the page is blank", picture.colours());
    }
    assert_eq!(ASKED[0], "light dark light light");
}

fn a_printed_page_has_all_that_is_folded_and_nothing_to_click() {
    let results = [
        ("a.json", fixture::tail(&fixture::small_sweep())),
        ("b.json", fixture::compare(8, 0.05)),
        ("c.json", fixture::load()),
    ];
    let lab = Lab::new(&results);
    let (page, html) = lab.report(&["a.json", "b.json", "c.json"]);
    let paper = Browser { width: 1280, dark: false, page: &page }.printed();
    let cells = html.matches("<details class=\"cell").count();
    assert!(cells == 4 && paper.pages() > cells, "{} pages, {cells} cells begin one each", paper.pages());
    assert_eq!(paper.elements("Table"), html.matches("<table").count(), "tables, folded ones too");
    assert_eq!(paper.elements("Form"), 0, "paper has no choice of light and dark");
    // On a busy machine Chromium may write the same paper in another order.
    let is_same = || Browser { width: 1280, dark: true, page: &page }.printed().timeless == paper.timeless;
    assert!((0..3).any(|_| is_same()), "paper is light regardless of the screen");
    // The result without rules for paper, so that the figures above can differ; the page's policy knows its style by a
    // hash.
    let unruled = html.replace("@media print", "@media not all").replace("Content-Security-Policy", "");
    fs::write(&page, unruled).unwrap();
    let as_on_screen = Browser { width: 1280, dark: false, page: &page }.printed();
    assert!(as_on_screen.elements("Table") < paper.elements("Table") && as_on_screen.elements("Form") > 0);
}

/// Too many blocks are void: there is raw data, but nothing follows from it.
fn void_tail() -> Value {
    let mut tail = fixture::reference_tail();
    for block in [0, 2, 4] {
        tail["cells"][0]["blocks"][block]["run"]["void"] = json!(["the generator was late"]);
    }
    tail
}

/// A comparison in which too many pairs are void.
fn void_compare() -> Value {
    let mut compare = fixture::compare(16, 0.05);
    for pair in 0..5 {
        compare["pairs"][pair]["b"]["saturation"]["void"] = json!(["the generator was late"]);
    }
    compare
}

fn what_is_void_does_not_look_like_a_finding() {
    let check = |name: &str, told: &[&str]| {
        check_page(name, told);
        let body = PAGES[name].html.split_once("<main").unwrap().1;
        for finding in ["class=\"forest\"", "estimate", "chip worse", "chip better", "All tests"] {
            assert!(!body.contains(finding), "a finding: {finding}");
        }
        // Pictures of both sides have it in their titles.
        for picture in body.split("<figure").skip(1).filter(|picture| !picture.contains("block after block")) {
            assert!(picture.contains("(void: no finding)"), "{}", &picture[..picture.len().min(300)]);
        }
    };
    check("void tail", &["The cell is void, so no effect is drawn.", "3 of 8 pairs of blocks are void"]);
    check(
        "void compare",
        &["The comparison is void, so no effect is drawn and no measure judged.", "5 of 16 pairs cannot be used"],
    );
}

fn a_hostile_result_file_stays_text() {
    let trap = TcpListener::bind("127.0.0.1:0").unwrap();
    trap.set_nonblocking(true).unwrap();
    let address = trap.local_addr().unwrap();
    let hostile = format!(
        "</title></style></pre><script>console.error('run')</script><img src=http://{address}/ onerror=console.error(1)>\
         \" onfocus=\"console.error(2)\" style=\"background:url(http://{address}/)\" ' &lt;svg/onload=console.error(3)> \u{202e}"
    );
    let mut results = [fixture::reference_tail(), fixture::compare(4, 0.05), fixture::load(), fixture::bisect()];
    results.iter_mut().for_each(|result| poison(result, &hostile));
    let [tail, compare, load, bisect] = results;
    let lab = Lab::new(&[("<b>&'.json", tail), ("b.json", compare), ("c.json", load), ("d.json", bisect)]);
    let (page, html) = lab.report(&["<b>&'.json", "b.json", "c.json", "d.json"]);
    assert!(!html.contains("<script") && !html.contains("<img"), "markup of a result file is in the page");
    dom::check(&Browser { width: 1280, dark: false, page: &page }.dom());
    assert!(trap.accept().is_err(), "the page used the network");
}

/// Impossible numbers, and results without content.
fn odd() -> Vec<(&'static str, Value)> {
    let mut odd = fixture::reference_tail();
    let blocks = odd["cells"][0]["blocks"].as_array_mut().unwrap();
    blocks.truncate(4);
    for (at, block) in blocks.iter_mut().enumerate() {
        block["cpu_us_per_request"] = json!([0.0, 1e300, 1e-300, -0.0][at]);
        block["stolen_ms"] = json!(1e300);
    }
    let mut empty = fixture::reference_tail();
    empty["cells"][0]["blocks"] = json!([]);
    empty["cells"][0]["series_shown"] = json!(0);
    empty["analysis"]["cells"][0]["effects"] = json!([]);
    empty["failures"] = json!(["envoy: not found on PATH"]);
    let mut none = empty.clone();
    none["cells"] = json!([]);
    none["analysis"]["cells"] = json!([]);
    let mut void = fixture::load();
    void["run"]["void"] = json!(["the generator had no CPU for 31% of the time"]);
    // Two pairs have intervals without an end.
    let few = fixture::compare(2, 0.05);
    let mut unmeasured = fixture::bisect();
    unmeasured["tries"] = json!([]);
    let mut once = fixture::bisect();
    once["tries"].as_array_mut().unwrap().truncate(2);
    once["tries"][1]["value"] = json!(1e-300);
    vec![
        ("odd.json", odd),
        ("empty.json", empty),
        ("none.json", none),
        ("void.json", void),
        ("few.json", few),
        ("unmeasured.json", unmeasured),
        ("once.json", once),
    ]
}

fn odd_results_make_a_page_too() {
    let told = [
        "∞",
        "No request was answered",
        "The cell is void, so no effect is drawn. No verdict on",
        "envoy: not found on PATH",
        "is void and shows nothing about the target",
    ];
    check_page("odd", &told);
}

fn what_cannot_be_read_is_named() {
    let mut damaged = fixture::reference_tail();
    damaged["cells"][0]["blocks"][3]["run"]["corrected"] = json!("AAAA");
    let lab = Lab::new(&[("damaged.json", damaged), ("good.json", fixture::load())]);
    let check = |arguments: &[&str], message: &[&str]| {
        let output = lab.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        message.iter().for_each(|part| assert!(said.contains(part), "{said}"));
        assert!(!lab.dir.path().join("report.html").exists(), "a page must be complete or absent");
    };
    check(&["missing.json"], &["missing.json", "No such file"]);
    check(&["good.json", "damaged.json"], &["damaged.json", "nginx-lua", "pair 1", "histogram"]);
    check(&["good.json", "-o", "no/such/folder.html"], &["no/such/folder.html", "its folder does not exist"]);
    check(&["good.json", "-o", "good.json"], &["good.json", "contains a result"]);
    check(&[], &["FILE"]);
}

fn a_page_shows_what_the_data_say_and_not_what_was_typed_into_the_file() {
    let mut rewritten = fixture::reference_tail();
    rewritten["lab_version"] = json!("0.0.1");
    rewritten["analysis"]["sentence"] = json!("All is well.");
    rewritten["analysis"]["cells"][0]["sentence"] = json!("All is well.");
    rewritten["analysis"]["cells"][0]["verdict"] = json!("no_difference");
    let lab = Lab::new(&[("r.json", rewritten)]);
    let (_, html) = lab.report(&["r.json"]);
    assert!(!html.contains("All is well."));
    assert!(html.contains("made the slowest requests of nginx-lua slower: p99.9 from"));
}

/// Puts `text` in the place of every free string.
fn poison(value: &mut Value, text: &str) {
    const CLOSED: [&str; 11] = [
        "kind",
        "arm",
        "verdict",
        "decision",
        "first",
        "corrected",
        "uncorrected",
        "lateness",
        "line",
        "outcome",
        "ended",
    ];
    match value {
        Value::String(string) => text.clone_into(string),
        Value::Array(values) => values.iter_mut().for_each(|value| poison(value, text)),
        Value::Object(members) => {
            for (_, value) in members.iter_mut().filter(|(key, _)| !CLOSED.contains(&key.as_str())) {
                poison(value, text);
            }
        }
        _ => {}
    }
}
