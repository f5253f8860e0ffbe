//! Tests of the circuit breaker alone; those of a balancer with several are in `tests/all/health.rs`.

use super::*;
use stillgate_config::{PassiveHealthy, PassiveUnhealthy};

const REFUSED: TryReport = TryReport::Failed(Failure::Connect);

fn rules() -> PassiveCheck {
    PassiveCheck {
        r#type: CheckType::Http,
        healthy: PassiveHealthy { http_statuses: vec![200], successes: 2 },
        unhealthy: PassiveUnhealthy { http_statuses: vec![500], http_failures: 3, tcp_failures: 2, timeouts: 1 },
    }
}

/// Applies `reports` to a closed endpoint; returns whether the last of them, and none before, ejects it.
fn ejects(rules: &PassiveCheck, reports: &[TryReport]) -> bool {
    let mut health = Health::default();
    let steps: Vec<Step> = reports.iter().map(|report| health.report(*report, rules, 5)).collect();
    let early = steps.iter().rev().skip(1).any(|step| *step != Step::Stay);
    assert!(!early, "{steps:?}");
    steps.last() == Some(&Step::Eject)
}

#[test]
fn a_probe_that_shows_nothing_leaves_room_for_the_next() {
    let mut health = Health::default();
    assert_eq!(health.report_connection(REFUSED, 0), Some(News::SetAside { period_ms: SET_ASIDE_FIRST_MS }));
    // It stays set aside for the period.
    assert_eq!(health.report_connection(TryReport::Inconclusive, 10), None);
    assert!(!health.usable(SET_ASIDE_FIRST_MS - 1) && health.usable(SET_ASIDE_FIRST_MS));
    health.chosen(SET_ASIDE_FIRST_MS);
    assert!(!health.usable(SET_ASIDE_FIRST_MS + 1), "one probe at a time");
    assert_eq!(health.report_connection(TryReport::Inconclusive, SET_ASIDE_FIRST_MS + 2), None);
    assert!(health.usable(SET_ASIDE_FIRST_MS + 2));
    assert_eq!(health.circuit(SET_ASIDE_FIRST_MS + 2), Circuit::HalfOpen);
    assert_eq!(health.report_connection(TryReport::Connected, SET_ASIDE_FIRST_MS + 3), Some(News::Recovered));
}

#[test]
fn without_rules_it_grows_to_the_bound_and_resets() {
    let mut health = Health::default();
    let mut now_ms = 10;
    for expected_ms in [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000] {
        assert!(health.usable(now_ms));
        health.chosen(now_ms);
        assert_eq!(health.report_connection(REFUSED, now_ms), Some(News::SetAside { period_ms: expected_ms }));
        assert_eq!(health.circuit(now_ms), Circuit::Open);
        assert_eq!(health.set_aside_ms(now_ms), expected_ms);
        assert!(!health.usable(now_ms + expected_ms - 1));
        now_ms += expected_ms;
    }
    assert_eq!(health.circuit(now_ms), Circuit::HalfOpen);
    assert_eq!(health.report_connection(TryReport::Connected, now_ms), Some(News::Recovered));
    assert_eq!(health.report_connection(TryReport::Status(500), now_ms), None);
    assert_eq!(health.circuit(now_ms), Circuit::Closed);
    health.failed(now_ms);
    assert_eq!(health.set_aside_ms(now_ms), SET_ASIDE_FIRST_MS);
}

#[test]
fn without_rules_only_connections_count() {
    let mut health = Health::default();
    for failure in
        [Failure::Reset, Failure::SendTimeout, Failure::ReadTimeout, Failure::TryTimeout, Failure::BadResponse]
    {
        assert_eq!(health.report_connection(TryReport::Failed(failure), 1), None, "{failure:?}");
    }
    assert!(health.report_connection(TryReport::Failed(Failure::ConnectTimeout), 1).is_some());
}

#[test]
fn failures_under_way_together_count_once() {
    let mut health = Health::default();
    for _ in 0..50 {
        health.failed(100);
    }
    assert_eq!(health.set_aside_ms(100), SET_ASIDE_FIRST_MS);
}

#[test]
fn one_probe_a_period() {
    let mut health = Health::default();
    health.failed(0);
    assert!(health.usable(1_000));
    health.chosen(1_000);
    assert!(!health.usable(1_001), "others keep away from the probe");
    assert!(health.usable(2_000), "a probe that never ends is not waited for");
    health.failed(1_500);
    assert_eq!(health.set_aside_ms(1_500), 2_000, "the probe's failure counts");
}

#[test]
fn last_failure_is_kept_while_set_aside() {
    let mut health = Health::default();
    health.failed(0);
    health.failed(500);
    assert_eq!(health.last_failed_ms, 500);
    assert_eq!(health.set_aside_ms(500), 500);
}

#[test]
fn each_kind_is_counted_by_itself_until_a_success() {
    let (ok, bad, odd) = (TryReport::Status(200), TryReport::Status(500), TryReport::Status(404));
    let (reset, slow) = (TryReport::Failed(Failure::Reset), TryReport::Failed(Failure::ReadTimeout));
    let garbage = TryReport::Failed(Failure::BadResponse);
    let rules = rules();
    assert!(!ejects(&rules, &[bad, bad]));
    assert!(ejects(&rules, &[bad, bad, bad]));
    assert!(ejects(&rules, &[bad, garbage, bad]));
    assert!(!ejects(&rules, &[bad, bad, ok, bad]));
    assert!(ejects(&rules, &[bad, bad, odd, bad]), "a status in neither list counts as nothing");
    assert!(!ejects(&rules, &[REFUSED]));
    assert!(ejects(&rules, &[REFUSED, reset]));
    assert!(ejects(&rules, &[REFUSED, TryReport::Connected, reset]), "to connect is not a good answer");
    assert!(!ejects(&rules, &[REFUSED, TryReport::Opened, reset]), "of a stream it is");
    assert!(!ejects(&rules, &[bad, bad, reset]));
    for failure in [Failure::ConnectTimeout, Failure::SendTimeout, Failure::TryTimeout] {
        assert!(ejects(&rules, &[TryReport::Failed(failure)]), "{failure:?}");
    }
    assert!(ejects(&rules, &[slow]));
    let mut never = rules;
    never.unhealthy.timeouts = 0;
    assert!(!ejects(&never, &[slow; 50]));
    never.r#type = CheckType::Tcp;
    assert!(!ejects(&never, &[bad; 50]), "of a connection the status says nothing");
    assert!(ejects(&never, &[reset, reset]));
}

#[test]
fn half_open_it_takes_one_at_a_time_until_enough_were_good() {
    let rules = rules();
    let mut health = Health::default();
    health.failed(0);
    assert_eq!(health.report(TryReport::Status(200), &rules, 10), Step::Stay, "it was under way when it opened");
    health.chosen(1_000);
    assert_eq!(health.report(TryReport::Connected, &rules, 1_010), Step::Stay);
    assert!(!health.usable(1_010), "the probe is not over");
    assert_eq!(health.report(TryReport::Status(200), &rules, 1_020), Step::Stay);
    assert!(health.usable(1_020), "the next may come at once");
    health.chosen(1_020);
    assert!(!health.usable(1_020));
    assert_eq!(health.report(TryReport::Status(404), &rules, 1_030), Step::Stay);
    assert!(health.usable(1_030), "neither good nor bad: another one");
    health.chosen(1_030);
    assert_eq!(health.report(TryReport::Status(200), &rules, 1_040), Step::Recovered);
    assert_eq!(health.circuit(1_040), Circuit::Closed);

    health.failed(2_000);
    health.chosen(3_000);
    assert_eq!(health.report(TryReport::Status(200), &rules, 3_000), Step::Stay);
    health.chosen(3_000);
    assert_eq!(health.report(TryReport::Status(500), &rules, 3_000), Step::SetAside(2_000), "one failure is enough");
    health.chosen(5_000);
    assert_eq!(health.report(TryReport::Status(200), &rules, 5_000), Step::Stay, "it begins again");
}

#[test]
fn a_good_answer_to_a_last_resort_counts() {
    let rules = rules();
    let mut health = Health::default();
    health.failed(0);
    health.chosen_as_last_resort();
    assert_eq!(health.report(TryReport::Status(200), &rules, 10), Step::Stay);
    assert_eq!(health.circuit(10), Circuit::HalfOpen);
    health.failed(20);
    health.chosen_as_last_resort();
    let before = health.set_aside_ms(30);
    assert_eq!(health.report(REFUSED, &rules, 30), Step::Stay);
    assert_eq!(health.set_aside_ms(30), before, "its failure is already known");
}
