//! What a query is parsed in: the clock, the command's variables, the JavaScript engine, and what
//! parsing and running it may use.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use banyan_document::Collator;
use bson::{DateTime, RawBson, Timestamp};

use crate::budget::Budget;
use crate::javascript::JavaScript;
use crate::variables::Scope;

/// What the folding of constants may cost in one request, in units of work: about a millisecond.
const FOLDING_UNITS: u32 = 128 * 1024;
/// What the folding of one constant may cost.
const FOLD_UNITS: u32 = 16 * 1024;

/// Parsing needs it once per command; nothing here changes while the command runs.
#[derive(Clone, Debug)]
pub struct Context {
    /// `$$NOW`: one time for the whole command.
    pub now: DateTime,
    /// `$$CLUSTER_TIME`, where the deployment keeps one.
    pub cluster_time: Option<Timestamp>,
    /// The command's `let`: names and their values.
    pub variables: Vec<(String, RawBson)>,
    /// The variables of the `$lookup` stages around what is parsed.
    pub scope: Scope,
    /// How strings are compared; without one, by their bytes.
    pub collator: Option<Collator>,
    /// Runs `$where`, where there is an engine.
    pub javascript: Option<Arc<dyn JavaScript>>,
    /// What running it may use. Everything that is parsed in this context keeps to it.
    pub budget: Budget,
    /// What folding its constants may cost.
    pub folding: Folding,
    /// What is parsed is only read here: whoever runs it has the variables and the engine.
    pub runs_elsewhere: bool,
}

/// What folding constants while parsing may still cost. What is left unfolded is evaluated when it
/// is needed.
#[derive(Clone, Debug)]
pub struct Folding(Arc<AtomicU32>);

impl Default for Folding {
    fn default() -> Folding {
        Folding(Arc::new(AtomicU32::new(FOLDING_UNITS)))
    }
}

impl Folding {
    /// For one constant; `None` when nothing is left. Tell [`Folding::settle`] afterwards.
    pub(crate) fn allowance(&self) -> Option<Budget> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            left => Some(Budget::allowance(left.min(FOLD_UNITS))),
        }
    }

    pub(crate) fn settle(&self, allowance: &Budget) {
        let left = self.0.load(Ordering::Relaxed);
        self.0
            .store(left.saturating_sub(allowance.spent()), Ordering::Relaxed);
    }
}

impl Default for Context {
    fn default() -> Context {
        Context {
            now: DateTime::now(),
            cluster_time: None,
            variables: Vec::new(),
            scope: Scope::default(),
            collator: None,
            javascript: None,
            budget: Budget::unlimited(),
            folding: Folding::default(),
            runs_elsewhere: false,
        }
    }
}
