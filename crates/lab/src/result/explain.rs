//! The result of `stillgate-lab explain`: two programs' profiles of time and of instructions, and their differences.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Design, raw data, analysis.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ExplainResult {
    /// Fixed before the first profile.
    pub(crate) design: ExplainDesign,
    /// Samples of CPU time, in nanoseconds.
    pub(crate) cpu: Sides,
    /// Instructions; `None` if they were not counted.
    pub(crate) instructions: Option<Sides>,
    /// The reason why there are none.
    pub(crate) instructions_missing: Option<String>,
    /// Parts that were measured by themselves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) isolated: Vec<IsolatedPart>,
    /// Functions in Lua, if both programs report them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lua: Option<LuaSides>,
    /// The reason why they are missing although they should be there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lua_missing: Option<String>,
    /// The user ended it before all profiles were taken.
    #[serde(default, skip_serializing_if = "is_not")]
    pub(crate) interrupted: bool,
    /// A function of all the above.
    pub(crate) analysis: ExplainAnalysis,
}

/// For serde, which gives a reference.
fn is_not(flag: &bool) -> bool {
    !flag
}

/// The settings fixed before the first profile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ExplainDesign {
    /// As typed.
    pub(crate) a: String,
    /// As typed.
    pub(crate) b: String,
    /// The unit of work: `request` or `run`.
    pub(crate) work: String,
    /// The command that is run, with `{}` for the program; `None` if the programs are servers under load.
    pub(crate) command: Option<Vec<String>>,
    /// A file with requests; `None`: `GET /`.
    pub(crate) mix: Option<PathBuf>,
    /// Profiles of CPU time of each, each from a new start.
    pub(crate) slices: usize,
    /// Duration of each, for a server.
    pub(crate) slice_s: u64,
    /// Samples per second.
    pub(crate) hz: u32,
    /// Seed of the order within pairs, and of the bootstrap.
    pub(crate) seed: u64,
    /// Probability that no unchanged function is reported as changed.
    pub(crate) confidence: f64,
}

/// Both programs' profiles of a kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sides {
    /// The baseline.
    pub(crate) a: ProgramProfile,
    /// The build that is compared with it.
    pub(crate) b: ProgramProfile,
}

/// Both programs' functions in Lua, by their own stacks; in nanoseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct LuaSides {
    /// All CPU time of their runs.
    pub(crate) cpu: Sides,
    /// CPU time of the interpreter only, which executes bytecode.
    pub(crate) bytecode: Sides,
}

/// The profiles of one program, each a slice.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProgramProfile {
    /// The work done in each slice.
    pub(crate) work: Vec<f64>,
    /// Names of functions.
    pub(crate) functions: Vec<String>,
    /// The cost of each stack, slice by slice.
    pub(crate) stacks: Vec<Stack>,
    /// Messages of the tools.
    pub(crate) notes: Vec<String>,
}

/// A stack.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Stack {
    /// Indices into [`ProgramProfile::functions`], the outermost first.
    pub(crate) functions: Vec<usize>,
    /// By slice.
    pub(crate) spent: Vec<i64>,
}

/// The differences.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ExplainAnalysis {
    /// How much more a unit of work costs in B than in A.
    pub(crate) cpu: CostChange,
    /// See `cpu`.
    pub(crate) instructions: Option<CostChange>,
    /// Functions, the largest changes first.
    pub(crate) functions: Vec<FunctionChange>,
    /// The parts that were measured by themselves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) isolated: Vec<IsolatedChange>,
    /// Functions in Lua; instructions are time in the interpreter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) lua: Vec<FunctionChange>,
    /// Remarks on what the profiles lack.
    pub(crate) missing: Vec<String>,
    /// Profiles of CPU time of each when the user ended it; `None` if it was not ended early.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) interrupted_after: Option<usize>,
    /// The result as a sentence.
    pub(crate) sentence: String,
}

impl ExplainAnalysis {
    /// An analysis without data.
    pub(crate) fn empty() -> ExplainAnalysis {
        ExplainAnalysis {
            cpu: CostChange { value: 0.0, low: 0.0, high: 0.0, is_certain: false },
            instructions: None,
            functions: Vec::new(),
            isolated: Vec::new(),
            lua: Vec::new(),
            missing: Vec::new(),
            interrupted_after: None,
            sentence: String::new(),
        }
    }
}

/// A difference, as a share of the total cost of A.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct CostChange {
    /// 0.03 is 3% of A more per unit of work.
    pub(crate) value: f64,
    /// Lower end of the interval; those of all functions hold together.
    pub(crate) low: f64,
    /// Upper end.
    pub(crate) high: f64,
    /// Whether it is more than noise.
    pub(crate) is_certain: bool,
}

/// A function in both programs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct FunctionChange {
    /// Its name.
    pub(crate) function: String,
    /// Share of the CPU time that is spent in the function itself, for A and for B.
    pub(crate) cpu_share: [f64; 2],
    /// Likewise for instructions.
    pub(crate) instruction_share: Option<[f64; 2]>,
    /// Share of the time of all functions with instructions, over share of instructions; above 1 its instructions are
    /// slower than others. `None` without instructions.
    pub(crate) ratio: [Option<f64>; 2],
    /// Change of CPU time.
    pub(crate) cpu: CostChange,
    /// Change of instructions.
    pub(crate) instructions: Option<CostChange>,
}

/// A part measured by itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct IsolatedPart {
    /// Part of the names of its functions.
    pub(crate) name: String,
    /// The command, with `{}` for the program.
    pub(crate) command: String,
    /// Measurements of A, in alternation with those of B.
    pub(crate) a: Vec<f64>,
    /// See `a`.
    pub(crate) b: Vec<f64>,
}

/// The change of a part, by itself and inside the programs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct IsolatedChange {
    /// See [`IsolatedPart`].
    pub(crate) name: String,
    /// By itself.
    pub(crate) isolated: Option<Range>,
    /// Its CPU time inside; `None` if one of the profiles does not have it.
    pub(crate) inside: Option<Range>,
    /// P-value of the hypothesis that both are equal.
    pub(crate) p_value: Option<f64>,
    /// Whether they are not.
    pub(crate) disagree: bool,
}

/// A relative change with its interval at 95%.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Range {
    /// 0.03 is 3% more.
    pub(crate) value: f64,
    /// Lower end.
    pub(crate) low: f64,
    /// Upper end.
    pub(crate) high: f64,
}
