//! $accumulator: a state that scripts make, change, merge and finish.

use bson::{RawArrayBuf, RawBson, RawBsonRef};

use super::count::Group;
use super::value::value_bytes;
use crate::error::QueryError;
use crate::expression::value::{Value, error, show};
use crate::expression::{Arena, Expression};
use crate::javascript::{self, Engine, Fold, From, Functions, Step, Steps};

/// What waits to be handed to the engine takes at most so much, and so many steps, except for one
/// that is larger alone.
const WAITING_BYTES_MAX: usize = 64 * 1024;
const WAITING_STEPS_MAX: usize = 1000;

/// What an `$accumulator` does, the same for all groups.
#[derive(Debug)]
pub(in crate::pipeline) struct Script {
    functions: Functions,
    /// What `init` is given of a group: an expression over the group's key.
    init_arguments: Option<Expression>,
    engine: Engine,
}

impl Script {
    pub(super) fn new(
        functions: Functions,
        init_arguments: Option<Expression>,
        engine: Engine,
    ) -> Script {
        Script {
            functions,
            init_arguments,
            engine,
        }
    }

    pub(in crate::pipeline) fn init_arguments(&self) -> Option<&Expression> {
        self.init_arguments.as_ref()
    }
}

/// What is remembered of one group: a state, and steps that it has not taken yet. Many steps are
/// handed to the engine at once.
#[derive(Clone, Debug)]
pub(in crate::pipeline) struct Scripted {
    state: State,
    step: Step,
    waiting: Vec<RawArrayBuf>,
    waiting_bytes: usize,
}

#[derive(Clone, Debug)]
enum State {
    /// `init` has yet to be called, with these arguments.
    New(RawArrayBuf),
    Value(RawBson),
}

impl Scripted {
    pub fn new(script: &Script, group: Group<'_>) -> Result<Scripted, QueryError> {
        let arguments = match &script.init_arguments {
            None => RawArrayBuf::new(),
            Some(arguments) => {
                let arena = Arena::new();
                let bound = arguments.bind(group.variables());
                match bound.evaluate(group.key(), &arena)? {
                    Some(RawBsonRef::Array(arguments)) => arguments.to_owned(),
                    other => return no_array(4_544_711, "initArgs", other),
                }
            }
        };
        Ok(Scripted {
            state: State::New(arguments),
            step: Step::Accumulate,
            waiting: Vec::new(),
            waiting_bytes: 0,
        })
    }

    /// Takes one document's arguments.
    pub fn add(&mut self, script: &Script, arguments: Value<'_>) -> Result<(), QueryError> {
        match arguments {
            Some(RawBsonRef::Array(arguments)) => {
                self.wait(script, Step::Accumulate, arguments.to_owned())
            }
            other => no_array(4_544_712, "accumulateArgs", other),
        }
    }

    /// Takes the state that other documents of the group have come to.
    pub fn merge(&mut self, script: &Script, other: RawBsonRef<'_>) -> Result<(), QueryError> {
        let mut row = RawArrayBuf::new();
        row.push(RawBson::from(other));
        self.wait(script, Step::Merge, row)
    }

    fn wait(&mut self, script: &Script, step: Step, row: RawArrayBuf) -> Result<(), QueryError> {
        if step != self.step {
            self.settle(script, false)?;
            self.step = step;
        }
        self.waiting_bytes += row.as_bytes().len() + size_of::<RawArrayBuf>();
        self.waiting.push(row);
        match self.waiting_bytes > WAITING_BYTES_MAX || self.waiting.len() >= WAITING_STEPS_MAX {
            true => self.settle(script, false),
            false => Ok(()),
        }
    }

    /// Takes all steps that wait; `finish`: and hands the state to `finalize`.
    fn settle(&mut self, script: &Script, finish: bool) -> Result<(), QueryError> {
        let finalize = finish && script.functions.finalize.is_some();
        if self.waiting.is_empty() && !finalize && matches!(self.state, State::Value(_)) {
            return Ok(());
        }
        let mut rows = RawArrayBuf::new();
        for row in self.waiting.drain(..) {
            rows.push(RawBson::Array(row));
        }
        self.waiting_bytes = 0;
        let from = match &self.state {
            State::New(arguments) => From::Init(arguments),
            State::Value(state) => From::State(state.as_raw_bson_ref()),
        };
        let step = self.step;
        let fold = Fold {
            functions: &script.functions,
            from,
            steps: Steps { step, rows: &rows },
            finalize,
        };
        let state = javascript::run_now(&script.engine, &fold.request())?;
        self.state = State::Value(state);
        Ok(())
    }

    /// The state, for others to go on from.
    pub fn partial(&mut self, script: &Script) -> Result<RawBson, QueryError> {
        self.settle(script, false)?;
        Ok(self.take())
    }

    /// What it has come to.
    pub fn finish(&mut self, script: &Script) -> Result<RawBson, QueryError> {
        self.settle(script, true)?;
        Ok(self.take())
    }

    fn take(&mut self) -> RawBson {
        let taken = std::mem::replace(&mut self.state, State::Value(RawBson::Null));
        match taken {
            State::Value(value) => value,
            State::New(_) => RawBson::Null,
        }
    }

    pub fn memory_bytes(&self) -> usize {
        let state = match &self.state {
            State::New(arguments) => arguments.as_bytes().len(),
            State::Value(value) => value_bytes(value),
        };
        state + self.waiting_bytes
    }
}

fn no_array<T>(code: u32, name: &str, found: Value<'_>) -> Result<T, QueryError> {
    let found = found.map_or("MISSING".into(), show);
    error(
        code,
        format!("$accumulator {name} must evaluate to an array: {found}"),
    )
}
