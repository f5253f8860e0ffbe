//! Turns in a simulated world, whose time passes at once: servers that answer, are slow or silent, and the resolver.

use super::*;

const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
const TTL: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// What a server does with the queries for a name.
#[derive(Debug, Clone, Copy)]
enum Server {
    /// It answers after this time.
    Answers(Duration),
    Refuses,
    Silent,
}

const AT_ONCE: Server = Server::Answers(Duration::from_millis(1));
/// One family takes as long as it may, or its answer was lost.
const LATE: Server = Server::Answers(Duration::from_millis(251));

/// Names, their servers, and what the resolver does: it begins lookups and handles their ends.
#[derive(Debug)]
struct World {
    turns: LookupQueue,
    began: Instant,
    now: Instant,
    /// The server of a name by the name's first letter, which is its zone.
    servers: HashMap<char, Server>,
    histories: HashMap<Arc<str>, LookupHistory>,
    /// When the lookups under way began.
    under_way: HashMap<Arc<str>, Instant>,
    ends: BTreeSet<(Instant, Arc<str>)>,
    /// The times at which each name's lookups began, and ended with an answer.
    begins: HashMap<Arc<str>, Vec<Duration>>,
    answers: HashMap<Arc<str>, Vec<Duration>>,
    calls: usize,
    given_up: usize,
}

impl World {
    /// Zones with counts of names, all due now, in the order of their names.
    fn new(zones: &[(char, usize, Server)]) -> Self {
        let now = Instant::now();
        let mut world = Self {
            turns: LookupQueue::default(),
            began: now,
            now,
            servers: zones.iter().map(|&(zone, _, server)| (zone, server)).collect(),
            histories: HashMap::new(),
            under_way: HashMap::new(),
            ends: BTreeSet::new(),
            begins: HashMap::new(),
            answers: HashMap::new(),
            calls: 0,
            given_up: 0,
        };
        for &(zone, count, _) in zones {
            for n in 0..count {
                world.turns.queue(format!("{zone}{n}").into(), Pace::Quick, now);
            }
        }
        world
    }

    fn server(&self, name: &str) -> Server {
        self.servers[&name.chars().next().unwrap()]
    }

    /// Lets the time pass.
    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            self.calls += 1;
            match self.turns.next(self.now) {
                NextLookup::Begin { name, instead_of } => {
                    if let Some(other) = instead_of {
                        self.given_up += 1;
                        self.under_way.remove(&other).expect("it was under way");
                        self.ends.retain(|(_, name)| *name != other);
                    }
                    self.begins.entry(name.clone()).or_default().push(self.now - self.began);
                    assert!(self.under_way.insert(name.clone(), self.now).is_none(), "{name} is under way already");
                    assert!(self.under_way.len() <= PLACES_MAX);
                    self.ends.insert((self.end(&name, self.now), name));
                }
                NextLookup::Wait(wake) => {
                    let end = self.ends.first().map(|(end, _)| *end);
                    let next = end.into_iter().chain(wake).min().expect("there are names");
                    if next > until {
                        self.now = until;
                        return;
                    }
                    self.now = next;
                    while let Some((_, name)) = self.ends.first().filter(|(end, _)| *end <= next).cloned() {
                        self.end_lookup(&name);
                    }
                }
            }
        }
    }

    /// When a lookup ends that began then.
    fn end(&self, name: &str, began: Instant) -> Instant {
        match self.server(name) {
            Server::Answers(after) => began + after,
            Server::Refuses => began + Duration::from_millis(1),
            Server::Silent => began + LOOKUP_TIMEOUT,
        }
    }

    fn end_lookup(&mut self, name: &Arc<str>) {
        let (end, name) = self.ends.pop_first().filter(|(_, first)| first == name).unwrap();
        let began = self.under_way.remove(&name).unwrap();
        let is_answered = matches!(self.server(&name), Server::Answers(_));
        let history = self.histories.entry(name.clone()).or_default();
        let (pace, pause) = if is_answered {
            self.answers.entry(name.clone()).or_default().push(end - self.began);
            (history.answered(end - began), TTL)
        } else {
            history.failed(TTL, RETRY_MAX)
        };
        self.turns.end(name, pace, self.now + pause, self.now);
    }

    /// A zone's server changes. Lookups under way are asked again, as if a packet was sent again.
    fn change(&mut self, zone: char, server: Server) {
        self.servers.insert(zone, server);
        let under_way: Vec<_> = self.under_way.iter().map(|(name, began)| (name.clone(), *began)).collect();
        self.ends = under_way.into_iter().map(|(name, began)| (self.end(&name, began).max(self.now), name)).collect();
    }

    fn first_begin(&self, name: &str) -> Duration {
        self.begins.get(name).map_or(Duration::MAX, |begins| begins[0])
    }

    /// The longest time from an answer for the name to the next one, since this time.
    fn longest_gap(&self, name: &str, since: Duration) -> Duration {
        let answers = &self.answers[name];
        let end = self.now - self.began;
        let all: Vec<_> = answers.iter().copied().filter(|answer| *answer >= since).chain([end]).collect();
        all.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(Duration::MAX)
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn many_quick_names_cost_one_turn_each() {
    let mut world = World::new(&[('a', 4000, AT_ONCE)]);
    world.run(ms(100));
    assert_eq!(world.answers.len(), 4000);
    // Each lookup is a begin, and at most one wait for its end.
    assert!(world.calls <= 2 * 4000 + 2, "{} calls", world.calls);
    assert_eq!(world.given_up, 0);
    let calls = world.calls;
    world.run(ms(10_000));
    let begins: usize = world.begins.values().map(Vec::len).sum();
    assert!(world.calls - calls <= 2 * begins, "{} calls for {begins} lookups", world.calls - calls);
    // It is bounded, too, what they cost in a second, and each name has its share.
    assert!((29_000..=31_000).contains(&begins), "{begins}");
    world.run(ms(10_000));
    let longest = (0..4000).map(|n| world.longest_gap(&format!("a{n}"), ms(10_000))).max().unwrap();
    assert!(longest <= ms(2100), "{longest:?}");
    assert_eq!(world.given_up, 0);
}

#[test]
fn no_pace_starves_beside_too_many_quick_names() {
    let mut world = World::new(&[('a', 6000, AT_ONCE), ('r', 100, Server::Refuses), ('s', 10, LATE)]);
    world.run(ms(30_000));
    world.change('r', AT_ONCE);
    world.run(RETRY_MAX);
    for (zone, count) in [('a', 6000), ('r', 100), ('s', 10)] {
        let longest = (0..count).map(|n| world.longest_gap(&format!("{zone}{n}"), ms(80_000))).max().unwrap();
        assert!(longest <= ms(4000), "{longest:?} in {zone}");
    }
}

#[test]
fn the_ttl_is_honoured_for_a_thousand_names() {
    let mut world = World::new(&[('a', 1000, AT_ONCE)]);
    world.run(ms(10_000));
    let longest = (0..1000).map(|n| world.longest_gap(&format!("a{n}"), Duration::ZERO)).max().unwrap();
    assert!(longest <= TTL + ms(10), "{longest:?}");
}

#[test]
fn a_loaded_machine_gives_no_lookup_up() {
    // Answers take longer than a turn if none ends, as all names began at once; but some end all the time.
    let zones: Vec<_> = ('a'..='z').zip(5..).map(|(zone, n)| (zone, 100, Server::Answers(ms(n * 12)))).collect();
    let mut world = World::new(&zones);
    world.run(ms(5000));
    assert_eq!(world.answers.len(), 2600);
    assert_eq!(world.given_up, 0);
}

#[test]
fn silent_names_at_a_start_do_not_keep_others_waiting() {
    for (silent, bound_ms) in [(300, 100), (1000, 400), (2000, 800), (4000, 1600)] {
        let mut world = World::new(&[('s', silent, Server::Silent), ('z', 1, AT_ONCE)]);
        world.run(ms(60_000));
        let first = world.first_begin("z0");
        assert!(first <= ms(bound_ms), "{first:?} beside {silent}");
        let gap = world.longest_gap("z0", first);
        assert!(gap <= TTL + ms(bound_ms), "{gap:?} beside {silent}");
        // Once it is known that they are silent, nobody waits for them at all.
        let gap = world.longest_gap("z0", ms(5000));
        assert!(gap <= TTL + ms(10), "{gap:?} beside {silent}");
    }
}

#[test]
fn names_that_fall_silent_do_not_keep_others_waiting() {
    for (count, bound_ms) in [(300, 110), (1000, 400), (4000, 1700)] {
        let mut world = World::new(&[('s', count, AT_ONCE), ('z', 1, AT_ONCE)]);
        world.run(ms(5000));
        world.change('s', Server::Silent);
        world.run(ms(60_000));
        let gap = world.longest_gap("z0", ms(4000));
        assert!(gap <= TTL + ms(bound_ms), "{gap:?} beside {count}");
        // They answer again: all are used soon, whatever the queues are.
        world.change('s', AT_ONCE);
        let back = world.now - world.began;
        world.run(RETRY_MAX + ms(1000));
        assert!(world.answers.values().all(|answers| *answers.last().unwrap() > back), "tried again");
    }
}

#[test]
fn late_answers_do_not_keep_others_waiting() {
    for (count, bound_ms) in [(300, 160), (1000, 400), (4000, 1600)] {
        let mut world = World::new(&[('s', count, LATE), ('z', 1, AT_ONCE)]);
        world.run(ms(60_000));
        assert!(world.first_begin("z0") <= ms(bound_ms), "{:?} beside {count}", world.first_begin("z0"));
        let gap = world.longest_gap("z0", Duration::ZERO);
        assert!(gap <= TTL + ms(bound_ms), "{gap:?} beside {count}");
        let gap = world.longest_gap("z0", ms(15_000));
        assert!(gap <= TTL + ms(10), "{gap:?} beside {count}");
        // They share their own places, and none of them starves.
        let bound = TTL + ms(251) * (2 + count as u32 / 64);
        let longest = (0..count).map(|n| world.longest_gap(&format!("s{n}"), ms(30_000))).max().unwrap();
        assert!(longest <= bound, "{longest:?} beside {count}");
    }
}

#[test]
fn a_slow_answer_is_waited_for_beside_silent_names() {
    for (silent, bound_ms) in [(300, 1000), (1000, 8000), (4000, 35_000)] {
        let mut world = World::new(&[('s', silent, Server::Silent), ('z', 1, Server::Answers(ms(400)))]);
        world.run(ms(120_000));
        let first = world.answers["z0"][0];
        assert!(first <= ms(bound_ms), "{first:?} beside {silent}");
        // The silent ones are known by then.
        let gap = world.longest_gap("z0", ms(60_000));
        assert!(gap <= TTL + ms(410), "{gap:?} beside {silent}");
    }
}

#[test]
fn one_lost_packet_is_not_held_against_a_name() {
    for (bad, lost) in [(LATE, Server::Answers(ms(600))), (Server::Silent, Server::Silent)] {
        let mut world = World::new(&[('s', 2000, bad), ('z', 1, AT_ONCE)]);
        world.run(ms(90_000));
        world.change('z', lost);
        world.run(ms(1010));
        world.change('z', AT_ONCE);
        world.run(ms(20_000));
        let gap = world.longest_gap("z0", ms(80_000));
        assert!(gap <= TTL * 3, "{gap:?} beside {bad:?}");
    }
}

#[test]
fn failing_names_are_tried_in_turn() {
    let mut world = World::new(&[('r', 1, Server::Refuses), ('s', 1000, Server::Silent)]);
    world.run(ms(60_000));
    world.change('r', AT_ONCE);
    let back = world.now - world.began;
    world.run(ms(120_000));
    let again = world.answers["r0"][0] - back;
    assert!(again <= LOOKUP_TIMEOUT * (1000 / 64 + 1) + RETRY_MAX, "{again:?}");
    world.run(ms(600_000));
    let counts: Vec<_> = (0..1000).map(|n| world.begins[&*format!("s{n}")].len()).collect();
    let (fewest, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
    assert!(*fewest >= 8 && most - fewest <= 3, "{fewest} to {most}");
}

#[test]
fn a_hastened_name_is_next_and_a_removed_one_is_gone() {
    let mut world = World::new(&[('r', 2, Server::Refuses)]);
    world.run(ms(100));
    world.turns.hasten(&"r0".into(), world.now);
    assert!(matches!(world.turns.next(world.now), NextLookup::Begin { name, instead_of: None } if &*name == "r0"));
    world.turns.remove("r0");
    world.turns.remove("r1");
    assert_eq!(world.turns.next(world.now + RETRY_MAX), NextLookup::Wait(None));
}
