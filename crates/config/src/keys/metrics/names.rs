//! The families and labels that `gateway.metrics` names, looked up in their dialect's table.
//!
//! A name that is none is an error that says which one was probably meant. How the keys are read is in the parent module.

use super::FamilyLabels;
use crate::values::{Dialect, FamilySpec, Label, Measure};
use std::collections::{BTreeSet, HashSet};
use stillgate_metrics::Family;
use stillgate_route::Variable;
use stillgate_schema::kind::{At, alternatives};
use stillgate_schema::text::diagnostic::{Fault, Path, Position, Sink, shortened};

pub(super) fn disabled_families(
    dialect: Dialect,
    names: &[At<String>],
    path: &Path<'_>,
    sink: &mut Sink,
) -> Vec<Measure> {
    let mut disabled = Vec::new();
    for At { at, value: name } in names {
        let Some(spec) = find_family(dialect, name, *at, path, sink) else { continue };
        match disabled.contains(&spec.measure) {
            true => sink.error(*at, path, Fault::new(format!("{} is listed twice", spec.name)).hint("remove one")),
            false => disabled.push(spec.measure),
        }
    }
    disabled.sort_unstable();
    disabled
}

/// The family of a name, or an error that says which name was probably meant.
fn find_family(
    dialect: Dialect,
    name: &str,
    at: Position,
    path: &Path<'_>,
    sink: &mut Sink,
) -> Option<&'static FamilySpec> {
    if let Some(spec) = dialect.find(name) {
        return Some(spec);
    }
    let unknown = format!("the dialect {} has no family {:?}", dialect.word(), shortened(name));
    let fault = match Dialect::ALL.iter().find(|(_, other)| other.find(name).is_some()) {
        Some((other, _)) => Fault::new(unknown).hint(format!("remove it, or write `dialect: {other}`")),
        None => {
            let names: Vec<&str> = dialect.families().map(|spec| dialect.short(spec)).collect();
            let fault = Fault::new(unknown).hint(format!("write one of {}", names.join(", ")));
            sink.guess(fault, name, dialect.families().flat_map(|spec| [spec.name, dialect.short(spec)]))
        }
    };
    sink.error(at, path, fault);
    None
}

pub(super) fn enabled_labels(dialect: Dialect, names: &[At<String>], path: &Path<'_>, sink: &mut Sink) -> Vec<Label> {
    let optional = dialect.optional_labels();
    let mut enabled = Vec::new();
    for At { at, value: name } in names {
        match optional.iter().find(|label| label.name() == name) {
            Some(label) if enabled.contains(label) => {
                sink.error(*at, path, Fault::new(format!("{:?} is listed twice", shortened(name))).hint("remove one"));
            }
            Some(label) => enabled.push(*label),
            None => {
                let all = alternatives(optional.iter().map(|label| label.name()));
                let fault = Fault::new(format!("no label {:?} is off by default", shortened(name)));
                sink.error(
                    *at,
                    path,
                    fault.hint(format!("write {all}, or add one of your own in gateway.metrics.labels")),
                );
            }
        }
    }
    enabled.sort_unstable();
    enabled
}

/// What the names in `labels` are looked up in.
#[derive(Clone, Copy)]
pub(super) struct LabelNames<'a> {
    pub(super) dialect: Dialect,
    pub(super) disabled: &'a [Measure],
    pub(super) enabled: &'a [Label],
}

pub(super) fn extra_labels(
    LabelNames { dialect, disabled, enabled }: LabelNames<'_>,
    families: Vec<FamilyLabels>,
    path: &Path<'_>,
    sink: &mut Sink,
) -> Vec<(Measure, Vec<(String, Variable)>)> {
    let mut extra: Vec<(Measure, Vec<(String, Variable)>)> = Vec::new();
    for FamilyLabels { at, family, labels } in families {
        let path = path.key(&family);
        let Some(spec) = find_family(dialect, &family, at, &path, sink) else { continue };
        if extra.iter().any(|(measure, _)| *measure == spec.measure) {
            sink.error(at, &path, Fault::new(format!("{} is listed twice", spec.name)).hint("put the labels together"));
            continue;
        }
        if !spec.per_request {
            let names = dialect.families().filter(|spec| spec.per_request).map(|spec| dialect.short(spec));
            let hint = format!("remove it; these do: {}", names.collect::<Vec<_>>().join(", "));
            sink.error(at, &path, Fault::new(format!("{} does not count requests", spec.name)).hint(hint));
            continue;
        }
        if disabled.contains(&spec.measure) {
            sink.warning(at, &path, "the family is disabled; its labels are of no use");
        }
        let good = |(label, variable): (At<String>, Variable)| {
            let fault = label_fault(spec, enabled, &label.value);
            if let Some(warning) = fault.is_none().then(|| label_warning(&label.value)).flatten() {
                sink.warning(label.at, &path.key(&label.value), warning);
            }
            match fault {
                None => Some((label.value, variable)),
                Some(fault) => {
                    sink.error(label.at, &path.key(&label.value), fault);
                    None
                }
            }
        };
        let mut labels: Vec<(String, Variable)> = labels.into_iter().filter_map(good).collect();
        // A label set is one whatever the order its labels were written in; so a file that lists them otherwise is the same.
        labels.sort_by(|(a, _), (b, _)| a.cmp(b));
        extra.push((spec.measure, labels));
    }
    // Only now: a family that is written twice is so even where it has no series.
    extra.retain(|(_, labels)| !labels.is_empty());
    extra
}

/// What becomes of a label of this name at those who receive it, where that is not what it says.
fn label_warning(name: &str) -> Option<&'static str> {
    match name {
        "job" => Some("Prometheus sets this label itself and renames this one to exported_job; write another name"),
        "instance" => {
            Some("Prometheus sets this label itself and renames this one to exported_instance; write another name")
        }
        "quantile" => {
            Some("this label belongs to summaries, and receivers may drop or misread the series; write another name")
        }
        _ => None,
    }
}

/// What keeps a family from having a further label of this name.
fn label_fault(spec: &FamilySpec, enabled: &[Label], name: &str) -> Option<Fault> {
    let optional = spec.optional.iter().filter(|label| enabled.contains(label));
    if spec.labels.iter().chain(optional).any(|label| label.name() == name) {
        return Some(Fault::new(format!("{} has the label {name:?} already", spec.name)).hint("write another name"));
    }
    // The rule for names is the engine's; so its check is asked, with a family that has nothing else to be wrong.
    let family = Family {
        name: spec.name.to_owned(),
        help: String::new(),
        unit: String::new(),
        kind: stillgate_metrics::FamilyType::Counter,
        labels: vec![name.to_owned()],
        exemplars: false,
    };
    family.check().is_err().then(|| {
        Fault::new(format!("{:?} is not a label name", shortened(name)))
            .hint("write up to 255 letters, digits and \"_\", not \"le\", no digit and no \"__\" in front")
    })
}

pub(super) fn disabled_labels(
    dialect: Dialect,
    names: &[At<String>],
    extra: &[(Measure, Vec<(String, Variable)>)],
    path: &Path<'_>,
    sink: &mut Sink,
) -> Vec<Label> {
    let mut disabled = Vec::new();
    let mut seen = HashSet::with_capacity(names.len());
    for At { at, value: name } in names {
        if !seen.insert(name.as_str()) {
            let fault = Fault::new(format!("{:?} is listed twice", shortened(name))).hint("remove one");
            sink.error(*at, path, fault);
            continue;
        }
        match find_label(dialect, name, extra) {
            Ok(label) => disabled.push(label),
            Err(fault) => {
                // Where there is something better to say than a guess, it has been said.
                let fault = match fault.hint {
                    Some(_) => fault,
                    None => guess_label(dialect, fault, name, sink),
                };
                sink.error(*at, path, fault);
            }
        }
    }
    disabled.sort_unstable();
    disabled
}

/// The fault with the label that was probably meant, or with all there are.
fn guess_label(dialect: Dialect, fault: Fault, name: &str, sink: &mut Sink) -> Fault {
    let labels = dialect.families().filter(|spec| spec.per_request).flat_map(|spec| spec.labels);
    let labels: BTreeSet<&str> = labels.filter(|label| label.can_be_left_out()).map(|label| label.name()).collect();
    let all = alternatives(labels.iter().copied());
    sink.guess(fault.hint(format!("write {all}")), name, labels)
}

/// The label of a name, if requests may be counted without it.
fn find_label(dialect: Dialect, name: &str, extra: &[(Measure, Vec<(String, Variable)>)]) -> Result<Label, Fault> {
    let have = |per_request: bool| {
        let families = dialect.families().filter(move |spec| spec.per_request == per_request);
        families.flat_map(|spec| spec.labels.iter().map(move |label| (spec, *label)))
    };
    let named = |(_, label): &(&FamilySpec, Label)| label.name() == name;
    if let Some((_, label)) = have(true).find(named) {
        return match label.can_be_left_out() {
            true => Ok(label),
            false => Err(Fault::new(format!("the label {name:?} separates values that cannot be added up"))
                .hint("disable the families that have it")),
        };
    }
    if extra.iter().any(|(_, labels)| labels.iter().any(|(label, _)| label == name)) {
        let fault = Fault::new(format!("the label {name:?} is there only because of gateway.metrics.labels"));
        return Err(fault.hint("remove it there"));
    }
    if dialect.optional_labels().iter().any(|label| label.name() == name) {
        let fault = Fault::new(format!("the label {name:?} is off unless gateway.metrics.enable names it"));
        return Err(fault.hint("remove it here, and there"));
    }
    if let Some((spec, _)) = have(false).find(named) {
        let fault = Fault::new(format!("the label {name:?} is what {} is about", spec.name));
        return Err(fault.hint("disable the family"));
    }
    Err(Fault::new(format!("no family of the dialect {} has a label {:?}", dialect.word(), shortened(name))))
}
