//! The ratio of each pair in the order the pairs were run: drift, outliers and the effect of the order within pairs
//! show here.
//!
//! It takes no part in the decision.

use super::axis::Axis;
use super::markup::{self, Key, LegendSymbol, Plot, Probe};
use super::number;
use crate::result::compare::{BuildPair, Side};

/// Styles by which of the two went first.
const A_FIRST: usize = 0;
const B_FIRST: usize = 1;

/// Pairs with a read-out each.
const PROBES_MAX: usize = 64;

/// One pair.
pub(crate) struct Dot {
    pub(crate) first: Side,
    /// B to A, less one.
    pub(crate) ratio: f64,
    /// Left out of the analysis.
    pub(crate) void: bool,
}

/// One measure.
pub(crate) struct Measure<'a> {
    pub(crate) id: &'a str,
    pub(crate) between: BuildPair,
    pub(crate) name: String,
    pub(crate) dots: &'a [Dot],
    /// The estimate of all pairs together; `None` if there is none.
    pub(crate) estimate: Option<Estimate>,
    /// Numbers of pairs at which a look was taken.
    pub(crate) looks: &'a [usize],
}

/// An estimate with its interval.
#[derive(Clone, Copy)]
pub(crate) struct Estimate {
    pub(crate) effect: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Measure<'_> {
    pub(crate) fn draw(&self) -> String {
        let x = Axis::ordinal(self.dots.len());
        let at = |pair: usize| x.place((pair + 1) as f64);
        let estimated = self.estimate.iter().flat_map(|of| [of.effect, of.low, of.high]);
        let y = Axis::ratio(self.dots.iter().map(|dot| dot.ratio).chain(estimated));
        let mut curves = markup::line("zero", &[(0.0, y.place(0.0)), (1.0, y.place(0.0))]);
        if let Some(Estimate { effect, low, high }) = self.estimate {
            curves.insert_str(0, &markup::band("interval", y.place(low), y.place(high)));
            curves.push_str(&markup::line("estimate", &[(0.0, y.place(effect)), (1.0, y.place(effect))]));
        }
        let mut marks = String::new();
        for look in self.looks.iter().filter(|look| **look < self.dots.len()) {
            let between = x.place(*look as f64 + 0.5);
            marks.push_str(&markup::straight("few", (between, 0.0), (between, 1.0)));
        }
        for (pair, dot) in self.dots.iter().enumerate() {
            let (left, height) = (at(pair), y.place(dot.ratio));
            if dot.void {
                marks.push_str(&markup::text("mid void", (left, height), (0, 5), "✕"));
            } else {
                marks.push_str(&markup::marker(self.style(dot), left, height));
            }
        }
        Plot {
            id: self.id,
            kind: "ratios",
            title: self.name.clone(),
            description: self.description(),
            x: &x,
            x_name: "pair",
            y: &y,
            y_name: &format!("difference of {:?}", self.between.other),
            legend: Vec::new(),
            curves,
            marks,
            probes: self.probes(at, &y),
        }
        .draw()
    }

    fn description(&self) -> String {
        let said = self.dots.iter().enumerate().map(|(pair, dot)| {
            format!("{} {}{}", pair + 1, number::percent_difference(dot.ratio), if dot.void { " void" } else { "" })
        });
        format!("Pairs: {}.", said.collect::<Vec<_>>().join(", "))
    }

    fn probes(&self, at: impl Fn(usize) -> f64, y: &Axis) -> Vec<Probe> {
        let half = 0.5 / self.dots.len().max(1) as f64;
        let all = self.dots.iter().enumerate().take(PROBES_MAX).map(|(pair, dot)| {
            let style = self.style(dot);
            let first = format!("{:?} went first", dot.first);
            let mut lines = vec![(Some(style), number::percent_difference(dot.ratio)), (None, first)];
            if dot.void {
                lines.push((None, "void, left out".to_owned()));
            }
            let left = at(pair);
            Probe {
                at: left,
                from: left - half,
                to: left + half,
                head: format!("pair {}", pair + 1),
                lines,
                dots: vec![(style, y.place(dot.ratio))],
            }
        });
        all.collect()
    }

    fn style(&self, dot: &Dot) -> usize {
        if dot.first == self.between.one { A_FIRST } else { B_FIRST }
    }
}

/// For all measures' pictures.
pub(crate) fn legend(between: BuildPair, estimated: bool, looks: bool, void: bool) -> String {
    let mut keys = vec![
        Key { name: format!("{:?} went first", between.one), look: LegendSymbol::Marker(A_FIRST) },
        Key { name: format!("{:?} went first", between.other), look: LegendSymbol::Marker(B_FIRST) },
    ];
    if estimated {
        keys.push(Key { name: "estimate".to_owned(), look: LegendSymbol::Line("estimate") });
        keys.push(Key { name: "its interval".to_owned(), look: LegendSymbol::Area("interval") });
    }
    if looks {
        keys.push(Key { name: "a look".to_owned(), look: LegendSymbol::Line("few") });
    }
    if void {
        keys.push(Key { name: "void, left out".to_owned(), look: LegendSymbol::Word("void", "✕") });
    }
    markup::legend(&keys)
}
