//! What a query is parsed in: the clock, the command's variables, the JavaScript engine, and what
//! parsing and running it may use.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use banyan_document::Collator;
use bson::{DateTime, RawBson, Timestamp};

use crate::budget::Budget;
use crate::error::QueryError;
use crate::javascript::JavaScript;
use crate::metadata::AskedMetadata;
use crate::text::TextContext;
use crate::variables::{Scope, Variables};

/// What the folding of constants may cost in one request, in units of work: about a millisecond.
const FOLDING_UNITS: u32 = 128 * 1024;
/// What the folding of one constant may cost.
const FOLD_UNITS: u32 = 16 * 1024;

/// Parsing needs it once per command; nothing here changes while the command runs.
#[derive(Clone, Debug)]
pub struct Context {
    /// `$$NOW`: one time for the whole command.
    pub now: DateTime,
    /// The command's database, where it may write results to it.
    pub database: Option<Arc<str>>,
    /// `$$CLUSTER_TIME`, where the deployment keeps one.
    pub cluster_time: Option<Timestamp>,
    /// The command's `let`: names and their values; `None`: nothing.
    pub variables: Vec<(String, Option<RawBson>)>,
    /// The variables of the `$lookup` stages around what is parsed.
    pub scope: Scope,
    /// How strings are compared; without one, by their bytes.
    pub collator: Option<Collator>,
    /// Runs scripts, where there is an engine.
    pub javascript: Option<Arc<dyn JavaScript>>,
    /// What running it may use. Everything that is parsed in this context keeps to it.
    pub budget: Budget,
    /// What folding its constants may cost.
    pub folding: Folding,
    /// What may be searched in with `$text`; `None`: nothing.
    pub text: Option<TextContext>,
    /// What has been asked to be known of documents beside their fields.
    pub metadata: AskedMetadata,
    /// Whether anything may ask for that.
    pub names_metadata: bool,
    /// What is parsed is only read here: whoever runs it has the variables and the engine.
    pub runs_elsewhere: bool,
    /// MongoDB optimizes nothing of what is parsed.
    pub is_as_written: bool,
    /// Documents may lack what is asked of them beside their fields: whoever reads a view is told,
    /// whoever defines it is not, and to an update it is missing.
    pub metadata_may_be_missing: bool,
    /// An upsert may insert what a filter says it is equal to, which an `$expr` does not tell.
    pub is_upsert: bool,
    /// What is parsed is a pipeline of a `$facet`. Its documents come from the pipeline around, which
    /// brings what is asked of them, and drops it.
    pub in_facet: bool,
}

/// What folding constants while parsing may still cost, and what has failed. What is left unfolded
/// is evaluated when it is needed.
#[derive(Clone, Debug, Default)]
pub struct Folding(Arc<FoldingState>);

#[derive(Debug)]
struct FoldingState {
    left: AtomicU32,
    failures: Mutex<Failures>,
}

/// MongoDB evaluates constants once all is parsed, so their errors come after all others.
#[derive(Debug, Default)]
struct Failures {
    /// How many parsers are inside each other.
    parsers: usize,
    /// Where what is parsed now stands among what MongoDB evaluates one after the other.
    place: Vec<usize>,
    /// That of the least place, and that place.
    first: Option<(Vec<usize>, QueryError)>,
    /// What is to be worked out for each binding of variables; `None`: nobody asks.
    bound: Option<Vec<Placed>>,
}

/// What is worked out for each binding of variables, with its place.
type Placed = (Vec<usize>, Arc<dyn BoundConstant>);

/// What constants have failed with that may turn out never to be evaluated.
#[derive(Debug)]
pub(crate) struct Aside {
    first: Option<(Vec<usize>, QueryError)>,
    bound: Vec<Placed>,
}

impl Aside {
    /// Fails as the first of these constants does.
    pub(crate) fn check(&self, variables: &Variables) -> Result<(), QueryError> {
        if let Some((_, error)) = &self.first {
            return Err(error.clone());
        }
        let mut bound = self.bound.iter();
        bound.try_for_each(|(_, constant)| constant.check(variables))
    }
}

/// A constant once the variables around it are known.
pub(crate) trait BoundConstant: Debug + Send + Sync {
    /// Fails as working it out does.
    fn check(&self, variables: &Variables) -> Result<(), QueryError>;
}

/// A constant that fails whatever the variables are.
impl BoundConstant for QueryError {
    fn check(&self, _: &Variables) -> Result<(), QueryError> {
        Err(self.clone())
    }
}

impl Failures {
    /// The error comes back if no parser is there to tell it later.
    fn add(&mut self, place: Vec<usize>, error: QueryError) -> Result<(), QueryError> {
        if self.parsers == 0 {
            return Err(error);
        }
        let first = self.first.as_ref();
        if first.is_none_or(|(known, _)| place < *known) {
            self.first = Some((place, error));
        }
        Ok(())
    }
}

impl Default for FoldingState {
    fn default() -> FoldingState {
        FoldingState {
            left: AtomicU32::new(FOLDING_UNITS),
            failures: Mutex::default(),
        }
    }
}

impl Folding {
    /// For one constant; `None` when nothing is left. Tell [`Folding::settle`] afterwards.
    pub(crate) fn allowance(&self) -> Option<Budget> {
        match self.0.left.load(Ordering::Relaxed) {
            0 => None,
            left => Some(Budget::allowance(left.min(FOLD_UNITS))),
        }
    }

    pub(crate) fn settle(&self, allowance: &Budget) {
        let left = self.0.left.load(Ordering::Relaxed);
        self.0
            .left
            .store(left.saturating_sub(allowance.spent()), Ordering::Relaxed);
    }

    /// Parses; what a constant fails with is the error only if nothing else is wrong.
    pub(crate) fn after_parsing<T>(
        &self,
        parse: impl FnOnce() -> Result<T, QueryError>,
    ) -> Result<T, QueryError> {
        self.failures().parsers += 1;
        let parsed = parse();
        let mut failures = self.failures();
        failures.parsers -= 1;
        if failures.parsers > 0 {
            return parsed;
        }
        match (parsed, failures.first.take()) {
            (Ok(_), Some((_, error))) => Err(error),
            (parsed, _) => parsed,
        }
    }

    /// Parses; a constant that fails does so once it is needed.
    pub(crate) fn ignoring_failures<T>(
        &self,
        parse: impl FnOnce() -> Result<T, QueryError>,
    ) -> Result<T, QueryError> {
        self.keeping_failure(parse).map(|(parsed, _)| parsed)
    }

    /// Parses; what a constant fails with is handed on, for who tells it later.
    pub(crate) fn keeping_failure<T>(
        &self,
        parse: impl FnOnce() -> Result<T, QueryError>,
    ) -> Result<(T, Option<QueryError>), QueryError> {
        let (first, bound) = {
            let mut failures = self.failures();
            failures.parsers += 1;
            (failures.first.take(), failures.bound.take())
        };
        let parsed = parse();
        let mut failures = self.failures();
        failures.parsers -= 1;
        failures.bound = bound;
        let failure = std::mem::replace(&mut failures.first, first);
        Ok((parsed?, failure.map(|(_, error)| error)))
    }

    /// Parses; what its constants fail with counts only if it is put back.
    pub(crate) fn set_aside<T>(
        &self,
        parse: impl FnOnce() -> Result<T, QueryError>,
    ) -> Result<(T, Aside), QueryError> {
        let (first, bound) = {
            let mut failures = self.failures();
            failures.parsers += 1;
            let bound = failures.bound.as_mut().map(std::mem::take);
            (failures.first.take(), bound)
        };
        let parsed = parse();
        let mut failures = self.failures();
        failures.parsers -= 1;
        let mut aside = Aside {
            first: std::mem::replace(&mut failures.first, first),
            bound: std::mem::replace(&mut failures.bound, bound).unwrap_or_default(),
        };
        aside.bound.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok((parsed?, aside))
    }

    /// What was set aside counts after all, behind what has failed before.
    pub(crate) fn put_back(&self, aside: Aside) -> Result<(), QueryError> {
        let mut failures = self.failures();
        if let Some(bound) = &mut failures.bound {
            bound.extend(aside.bound);
        }
        match aside.first {
            Some((place, error)) => failures.add(place, error),
            None => Ok(()),
        }
    }

    /// Parses what runs once for each binding of variables. MongoDB works its constants out each
    /// time, and the variables are constants then: those that may fail, in that order.
    pub(crate) fn for_bindings<T>(
        &self,
        parse: impl FnOnce() -> Result<T, QueryError>,
    ) -> Result<(T, Vec<Arc<dyn BoundConstant>>), QueryError> {
        let before = {
            let mut failures = self.failures();
            failures.parsers += 1;
            failures.bound.replace(Vec::new())
        };
        let parsed = parse();
        let mut failures = self.failures();
        failures.parsers -= 1;
        let bound = std::mem::replace(&mut failures.bound, before);
        let mut bound = bound.unwrap_or_default();
        bound.sort_by(|(a, _), (b, _)| a.cmp(b));
        let constants = bound.into_iter().map(|(_, constant)| constant);
        Ok((parsed?, constants.collect()))
    }

    /// Whether somebody asks for what is worked out for each binding of variables.
    pub(crate) fn is_for_bindings(&self) -> bool {
        self.failures().bound.is_some()
    }

    /// Takes note of what is a constant once the variables around it are known.
    pub(crate) fn note_bound(&self, constant: impl FnOnce() -> Arc<dyn BoundConstant>) {
        let mut failures = self.failures();
        let place = failures.place.clone();
        if let Some(bound) = &mut failures.bound {
            bound.push((place, constant()));
        }
    }

    /// Parses what stands at this place among its neighbours. Of several constants that fail, that
    /// of the least place is told.
    pub(crate) fn at_place<T>(&self, place: usize, parse: impl FnOnce() -> T) -> T {
        self.failures().place.push(place);
        let parsed = parse();
        self.failures().place.pop();
        parsed
    }

    /// Parses; a constant that fails is told of at once, whoever parses around.
    pub(crate) fn at_once<T>(
        &self,
        parse: impl FnOnce() -> Result<T, QueryError>,
    ) -> Result<T, QueryError> {
        let before = std::mem::take(&mut *self.failures());
        let parsed = parse();
        *self.failures() = before;
        parsed
    }

    /// A constant has failed; the error comes back if no parser is there to tell it later.
    pub(crate) fn failed(&self, error: QueryError) -> Result<(), QueryError> {
        let mut failures = self.failures();
        let place = failures.place.clone();
        if failures.parsers > 0
            && let Some(bound) = &mut failures.bound
        {
            bound.push((place, Arc::new(error)));
            return Ok(());
        }
        failures.add(place, error)
    }

    fn failures(&self) -> MutexGuard<'_, Failures> {
        // Nothing that holds it can panic.
        self.0
            .failures
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Context {
    /// Parses what MongoDB does not optimize: a constant that fails does so where it is evaluated, if
    /// it is.
    pub(crate) fn as_written<T>(
        &self,
        parse: impl FnOnce(&Context) -> Result<T, QueryError>,
    ) -> Result<T, QueryError> {
        let as_written = Context {
            is_as_written: true,
            ..self.clone()
        };
        self.folding.ignoring_failures(|| parse(&as_written))
    }
}

impl Default for Context {
    fn default() -> Context {
        Context {
            now: DateTime::now(),
            database: None,
            cluster_time: None,
            variables: Vec::new(),
            scope: Scope::default(),
            collator: None,
            javascript: None,
            budget: Budget::unlimited(),
            folding: Folding::default(),
            text: None,
            metadata: AskedMetadata::default(),
            names_metadata: false,
            runs_elsewhere: false,
            is_as_written: false,
            metadata_may_be_missing: false,
            is_upsert: false,
            in_facet: false,
        }
    }
}
