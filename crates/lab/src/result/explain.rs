//! The result of `stillgate-lab explain`: two programs' profiles of time and of instructions, and what differs.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Design, raw data, analysis.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ExplainResult {
    /// What was decided before the first profile.
    pub(crate) design: ExplainDesign,
    /// Samples of CPU time, in nanoseconds.
    pub(crate) cpu: Sides,
    /// Instructions counted; none where they were not.
    pub(crate) instructions: Option<Sides>,
    /// Why there are none.
    pub(crate) instructions_missing: Option<String>,
    /// Parts that were measured by themselves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) isolated: Vec<Isolated>,
    /// Functions in Lua, where both programs show them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lua: Option<LuaSides>,
    /// Why there are none though they should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lua_missing: Option<String>,
    /// The user ended it before all was taken.
    #[serde(default, skip_serializing_if = "is_not")]
    pub(crate) interrupted: bool,
    /// A function of all the above.
    pub(crate) analysis: ExplainAnalysis,
}

/// For serde, which gives a reference.
fn is_not(flag: &bool) -> bool {
    !flag
}

/// What was decided before the first profile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ExplainDesign {
    /// As typed.
    pub(crate) a: String,
    /// As typed.
    pub(crate) b: String,
    /// What one unit of work is: `request` or `run`.
    pub(crate) work: String,
    /// The command that is run, with `{}` for the program; none where the programs are servers under load.
    pub(crate) command: Option<Vec<String>>,
    /// A file with requests; none: `GET /`.
    pub(crate) mix: Option<PathBuf>,
    /// Profiles of CPU time of each, each of a new start.
    pub(crate) slices: usize,
    /// Of a server, how long each.
    pub(crate) slice_s: u64,
    /// Samples a second.
    pub(crate) hz: u32,
    /// Of the order within pairs, and of the bootstrap.
    pub(crate) seed: u64,
    /// That nothing is called a change that is none.
    pub(crate) confidence: f64,
}

/// Both programs' profiles of a kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sides {
    /// The baseline.
    pub(crate) a: Profiled,
    /// What is compared with it.
    pub(crate) b: Profiled,
}

/// Both programs' functions in Lua, by their own stacks; in nanoseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct LuaSides {
    /// All CPU time of their runs.
    pub(crate) cpu: Sides,
    /// That of the interpreter only: what executes bytecode.
    pub(crate) bytecode: Sides,
}

/// The profiles of one program, each a slice.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Profiled {
    /// Of each slice, the work that was done in it.
    pub(crate) work: Vec<f64>,
    /// Names.
    pub(crate) functions: Vec<String>,
    /// What each stack cost, slice by slice.
    pub(crate) stacks: Vec<Stack>,
    /// What the tools had to say.
    pub(crate) notes: Vec<String>,
}

/// A stack.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Stack {
    /// In [`Profiled::functions`], the outermost first.
    pub(crate) functions: Vec<usize>,
    /// By slice.
    pub(crate) spent: Vec<i64>,
}

/// What differs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ExplainAnalysis {
    /// What a unit of work costs B more than A.
    pub(crate) cpu: Change,
    /// See `cpu`.
    pub(crate) instructions: Option<Change>,
    /// Functions, those that changed most first.
    pub(crate) functions: Vec<FunctionChange>,
    /// Of the parts that were measured by themselves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) isolated: Vec<IsolatedChange>,
    /// Of functions in Lua; instructions are time in the interpreter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) lua: Vec<FunctionChange>,
    /// What the profiles lack.
    pub(crate) missing: Vec<String>,
    /// Profiles of CPU time of each until the user ended it; none if it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) interrupted_after: Option<usize>,
    /// In words.
    pub(crate) sentence: String,
}

impl ExplainAnalysis {
    /// Of nothing.
    pub(crate) fn empty() -> ExplainAnalysis {
        ExplainAnalysis {
            cpu: Change { value: 0.0, low: 0.0, high: 0.0, is_certain: false },
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

/// A difference, as a share of what A costs as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Change {
    /// 0.03 is 3% of A more for each unit of work.
    pub(crate) value: f64,
    /// Lower end of the interval; those of all functions hold together.
    pub(crate) low: f64,
    /// Upper end.
    pub(crate) high: f64,
    /// Whether it is no noise.
    pub(crate) is_certain: bool,
}

/// A function in both programs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct FunctionChange {
    /// Its name.
    pub(crate) function: String,
    /// Share of the CPU time that is spent in itself, of A and of B.
    pub(crate) cpu_share: [f64; 2],
    /// Of the instructions.
    pub(crate) instruction_share: Option<[f64; 2]>,
    /// Share of the time of all functions with instructions, over share of instructions; above 1 its instructions are slower than
    /// others. None without instructions.
    pub(crate) ratio: [Option<f64>; 2],
    /// Of CPU time.
    pub(crate) cpu: Change,
    /// Of instructions.
    pub(crate) instructions: Option<Change>,
}

/// A part measured by itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Isolated {
    /// Part of the names of its functions.
    pub(crate) name: String,
    /// The command, with `{}` for the program.
    pub(crate) command: String,
    /// Measurements of A, in turn with those of B.
    pub(crate) a: Vec<f64>,
    /// See `a`.
    pub(crate) b: Vec<f64>,
}

/// What a part became, by itself and inside the programs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct IsolatedChange {
    /// See [`Isolated`].
    pub(crate) name: String,
    /// By itself.
    pub(crate) isolated: Option<Range>,
    /// Its CPU time inside; none where some profile does not have it.
    pub(crate) inside: Option<Range>,
    /// That both are the same.
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
