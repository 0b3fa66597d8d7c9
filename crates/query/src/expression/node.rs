//! The tree of a parsed expression and its evaluation.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::{Arc, OnceLock};

use bson::{RawBson, RawBsonRef, RawDocumentBuf};

use banyan_document::{Collator, DocumentWriter};
use smallvec::{SmallVec, smallvec};

use super::arena::{Arena, ArrayBuilder, byte_len, check_size};
use super::env::Env;
use super::field::FieldPath;
use super::value::{Value, is_nullish};
use crate::budget::Budget;
use crate::error::QueryError;

#[derive(Clone, Debug)]
pub(crate) enum ExpressionNode {
    Constant(Arc<RawBson>),
    /// `$$REMOVE`, and an optional argument that was not given.
    Missing,
    /// `$$ROOT`.
    Root,
    /// `$a.b`: a path from the root.
    Field(FieldPath),
    /// `$$name` or `$$name.a.b`, the name resolved to a slot.
    Variable {
        slot: usize,
        path: Option<FieldPath>,
    },
    /// A variable of a `$lookup` around, which the run binds.
    Outer {
        slot: usize,
        path: Option<FieldPath>,
    },
    Document(Arc<[(Box<str>, ExpressionNode)]>),
    Array(Arc<[ExpressionNode]>),
    Call(Arc<Call>),
    Special(Arc<dyn Special>),
    /// A constant that costs too much to be evaluated while parsing.
    Deferred(Arc<Deferred>),
}

/// Evaluated when it is first needed, and kept unless it is large.
#[derive(Debug)]
pub(crate) struct Deferred {
    node: ExpressionNode,
    kept: OnceLock<Kept>,
}

#[derive(Debug)]
enum Kept {
    Value(Option<RawBson>),
    TooLarge,
}

/// A deferred constant of more bytes is evaluated each time.
const DEFERRED_BYTES_MAX: usize = 1024 * 1024;

/// An operator that runs over its evaluated arguments.
#[derive(Debug)]
pub(crate) struct Call {
    pub(super) operator: &'static str,
    pub(super) run: Run,
    pub(super) arguments: Vec<ExpressionNode>,
    pub(super) given: u32,
    taking: Taking,
    /// Bit `i` is set if argument `i` is evaluated only where the operator asks for it.
    fallbacks: u32,
    /// Evaluated while parsing, if its arguments are constants.
    pub(super) folds: bool,
}

/// When the arguments of a call are evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taking {
    /// All before any is looked at.
    Together,
    /// All, the last first.
    Backward,
    /// Each is looked at before the next one is evaluated, and null ends it.
    InTurn,
    /// Each where the operator asks for it.
    Asked,
}

pub(super) type Run = for<'a> fn(&Arguments<'a>, &Env<'a>) -> Result<Value<'a>, QueryError>;

/// So many arguments need no memory of their own.
const FEW: usize = 5;

/// Evaluated arguments; those of named forms in the order of their parameters.
pub(super) struct Arguments<'a> {
    pub operator: &'static str,
    pub values: SmallVec<[Value<'a>; FEW]>,
    /// Bit `i` is set if argument `i` was written at all.
    pub given: u32,
    nodes: &'a [ExpressionNode],
}

impl<'a> Arguments<'a> {
    /// An argument that no operator but this one evaluates, and only now; `None` if it was not
    /// written.
    pub fn fallback(&self, index: usize, env: &Env<'a>) -> Option<Result<Value<'a>, QueryError>> {
        let node = self.nodes.get(index).filter(|_| self.is_given(index))?;
        Some(node.evaluate(env))
    }

    /// An argument that is evaluated now.
    pub fn ask(&self, index: usize, env: &Env<'a>) -> Result<Value<'a>, QueryError> {
        let value = match self.nodes.get(index) {
            Some(node) => node.evaluate(env)?,
            None => None,
        };
        env.budget.spend_bytes(value.map_or(0, byte_len))?;
        Ok(value)
    }

    /// These and one more, which is evaluated now.
    pub fn with(&self, index: usize, env: &Env<'a>) -> Result<Arguments<'a>, QueryError> {
        let mut values = self.values.clone();
        if let (Some(value), Some(place)) = (self.fallback(index, env), values.get_mut(index)) {
            *place = value?;
            env.budget.spend_bytes(place.map_or(0, byte_len))?;
        }
        Ok(Arguments { values, ..*self })
    }

    /// These and more, evaluated in this order; `None` as soon as one that was written is null.
    pub fn until_null(
        &self,
        order: &[usize],
        env: &Env<'a>,
    ) -> Result<Option<Arguments<'a>>, QueryError> {
        let mut values = self.values.clone();
        for &index in order {
            let (Some(value), Some(place)) = (self.fallback(index, env), values.get_mut(index))
            else {
                continue;
            };
            *place = value?;
            env.budget.spend_bytes(place.map_or(0, byte_len))?;
            if is_nullish(*place) {
                return Ok(None);
            }
        }
        Ok(Some(Arguments { values, ..*self }))
    }

    pub fn get(&self, index: usize) -> Value<'a> {
        self.values.get(index).copied().flatten()
    }

    pub fn is_given(&self, index: usize) -> bool {
        self.given >> index & 1 == 1
    }

    pub fn any_nullish(&self) -> bool {
        self.values.iter().any(|value| is_nullish(*value))
    }
}

/// An operator that decides itself what to evaluate, and when.
pub(crate) trait Special: Debug + Send + Sync {
    fn evaluate<'a>(&'a self, env: &Env<'a>) -> Result<Value<'a>, QueryError>;

    /// Calls `visit` for every operand, for the analysis of what fields are read.
    fn operands(&self, visit: &mut dyn FnMut(&ExpressionNode));

    /// The operands of `$and` (false) or `$or` (true): the value that decides.
    fn junction(&self) -> Option<(&[ExpressionNode], bool)> {
        None
    }

    /// Whether it calls a script itself.
    fn calls_script(&self) -> bool {
        false
    }

    /// Whether it is drawn anew for every document.
    fn is_random(&self) -> bool {
        false
    }

    /// Whether equal operands always give equal results.
    fn deterministic(&self) -> bool {
        true
    }

    /// Whether it is evaluated while parsing where all of its operands are constants.
    fn folds(&self) -> bool {
        self.deterministic()
    }
}

impl ExpressionNode {
    pub(crate) fn constant(value: RawBson) -> ExpressionNode {
        ExpressionNode::Constant(Arc::new(value))
    }

    /// A variable whose value is not known here.
    pub(super) fn unbound(path: Option<FieldPath>) -> ExpressionNode {
        ExpressionNode::Variable {
            slot: usize::MAX,
            path,
        }
    }

    pub(super) fn special(special: impl Special + 'static) -> ExpressionNode {
        ExpressionNode::Special(Arc::new(special))
    }

    pub(super) fn call(
        operator: &'static str,
        run: Run,
        arguments: Vec<ExpressionNode>,
        given: u32,
    ) -> ExpressionNode {
        ExpressionNode::Call(Arc::new(Call {
            operator,
            run,
            arguments,
            given,
            taking: Taking::Together,
            fallbacks: 0,
            folds: true,
        }))
    }

    /// This call, not evaluated while parsing.
    pub(super) fn not_folded(mut self) -> ExpressionNode {
        if let ExpressionNode::Call(call) = &mut self
            && let Some(call) = Arc::get_mut(call)
        {
            call.folds = false;
        }
        self
    }

    /// This call, its arguments taken so.
    pub(super) fn taken(mut self, taking: Taking) -> ExpressionNode {
        if let ExpressionNode::Call(call) = &mut self
            && let Some(call) = Arc::get_mut(call)
        {
            call.taking = taking;
        }
        self
    }

    /// This call, with arguments that are evaluated where it asks for them.
    pub(super) fn with_fallbacks(mut self, fallbacks: u32) -> ExpressionNode {
        if let ExpressionNode::Call(call) = &mut self
            && let Some(call) = Arc::get_mut(call)
        {
            call.fallbacks = fallbacks;
        }
        self
    }

    pub(super) fn is_constant(&self) -> bool {
        matches!(self, ExpressionNode::Constant(_) | ExpressionNode::Missing)
    }

    /// Whether it depends on no document, though it may not have been evaluated yet.
    pub(super) fn is_fixed(&self) -> bool {
        self.is_constant() || matches!(self, ExpressionNode::Deferred(_))
    }

    /// Whether it is a constant once the variables of the `$lookup` stages around are known.
    pub(super) fn is_bound(&self) -> bool {
        let folds = match self {
            ExpressionNode::Root | ExpressionNode::Field(_) | ExpressionNode::Variable { .. } => {
                false
            }
            ExpressionNode::Call(call) => call.folds,
            ExpressionNode::Special(special) => special.folds(),
            ExpressionNode::Constant(_)
            | ExpressionNode::Missing
            | ExpressionNode::Outer { .. }
            | ExpressionNode::Document(_)
            | ExpressionNode::Array(_)
            | ExpressionNode::Deferred(_) => true,
        };
        let mut is_bound = folds;
        self.operands(&mut |operand| is_bound = is_bound && operand.is_bound());
        is_bound
    }

    pub(super) fn deferred(node: ExpressionNode) -> ExpressionNode {
        ExpressionNode::Deferred(Arc::new(Deferred {
            node,
            kept: OnceLock::new(),
        }))
    }

    /// The value of a constant, evaluated if it has to be.
    pub(crate) fn as_constant(
        &self,
        budget: &Budget,
        collator: Option<&Collator>,
    ) -> Option<RawBsonRef<'_>> {
        match self {
            ExpressionNode::Constant(value) => Some(value.as_raw_bson_ref()),
            ExpressionNode::Deferred(deferred) => {
                let (root, arena) = (RawDocumentBuf::new(), Arena::new());
                deferred
                    .kept(&Env::new(arena.root(&root), budget).with_collator(collator))
                    .ok()
                    .flatten()
                    .flatten()
            }
            _ => None,
        }
    }

    pub(crate) fn evaluate<'a>(&'a self, env: &Env<'a>) -> Result<Value<'a>, QueryError> {
        match self {
            ExpressionNode::Constant(value) => {
                env.budget.spend(1)?;
                Ok(Some(value.as_raw_bson_ref()))
            }
            ExpressionNode::Missing => Ok(None),
            ExpressionNode::Root => Ok(Some(RawBsonRef::Document(env.root()))),
            ExpressionNode::Field(path) => {
                let first = env.field(path.first())?;
                path.read_below(first, env.arena)
            }
            ExpressionNode::Variable { slot, path: None } => {
                env.budget.spend(1)?;
                Ok(env.variable(*slot))
            }
            ExpressionNode::Variable {
                slot,
                path: Some(path),
            } => {
                let value = env.variable(*slot);
                env.budget.spend_bytes(value.map_or(0, byte_len))?;
                path.read_from(value, env.arena)
            }
            ExpressionNode::Outer { slot, path: None } => {
                env.budget.spend(1)?;
                env.outer(*slot)
            }
            ExpressionNode::Outer {
                slot,
                path: Some(path),
            } => {
                let value = env.outer(*slot)?;
                env.budget.spend_bytes(value.map_or(0, byte_len))?;
                path.read_from(value, env.arena)
            }
            ExpressionNode::Document(fields) => {
                let mut writer = DocumentWriter::new();
                for (name, node) in fields.iter() {
                    if let Some(value) = node.evaluate(env)? {
                        env.budget.spend_bytes(byte_len(value))?;
                        writer.append(name, value);
                        check_size(writer.len())?;
                    }
                }
                env.document(writer)
            }
            ExpressionNode::Array(nodes) => {
                let mut builder = ArrayBuilder::new();
                for node in nodes.iter() {
                    let value = node.evaluate(env)?.unwrap_or(RawBsonRef::Null);
                    env.budget.spend_bytes(byte_len(value))?;
                    builder.push(value);
                }
                env.array(builder)
            }
            ExpressionNode::Call(call) => call.evaluate(env),
            ExpressionNode::Special(special) => {
                env.budget.spend(1)?;
                special.evaluate(env)
            }
            ExpressionNode::Deferred(deferred) => deferred.evaluate(env),
        }
    }

    pub(super) fn operands(&self, visit: &mut dyn FnMut(&ExpressionNode)) {
        match self {
            ExpressionNode::Constant(_)
            | ExpressionNode::Missing
            | ExpressionNode::Root
            | ExpressionNode::Field(_) => {}
            ExpressionNode::Variable { .. }
            | ExpressionNode::Outer { .. }
            | ExpressionNode::Deferred(_) => {}
            ExpressionNode::Document(fields) => fields.iter().for_each(|(_, node)| visit(node)),
            ExpressionNode::Array(nodes) => nodes.iter().for_each(visit),
            ExpressionNode::Call(call) => call.arguments.iter().for_each(visit),
            ExpressionNode::Special(special) => special.operands(visit),
        }
    }

    /// Whether the value depends on the document.
    pub(super) fn reads_root(&self) -> bool {
        let mut reads = matches!(self, ExpressionNode::Root | ExpressionNode::Field(_));
        self.operands(&mut |node| reads |= node.reads_root());
        reads
    }

    /// Whether a script is called in it.
    pub(crate) fn calls_script(&self) -> bool {
        let mut calls = matches!(self, ExpressionNode::Special(special) if special.calls_script());
        self.operands(&mut |node| calls |= node.calls_script());
        calls
    }

    /// Whether something in it is drawn anew for every document.
    pub(crate) fn is_random(&self) -> bool {
        let mut random = matches!(self, ExpressionNode::Special(special) if special.is_random());
        self.operands(&mut |node| random |= node.is_random());
        random
    }

    /// Adds the paths read from the root; false if the whole document is needed.
    pub(crate) fn dependencies(&self, paths: &mut BTreeSet<String>) -> bool {
        match self {
            ExpressionNode::Root => return false,
            ExpressionNode::Field(path) => {
                paths.insert(path.to_string());
            }
            _ => {}
        }
        let mut bounded = true;
        self.operands(&mut |node| bounded &= node.dependencies(paths));
        bounded
    }
}

impl Call {
    /// Whether only the operator evaluates it. Only named forms, which have few arguments, have
    /// fallbacks.
    fn is_fallback(&self, index: usize) -> bool {
        if self.taking == Taking::Asked {
            return true;
        }
        let bit = u32::try_from(index)
            .ok()
            .and_then(|at| 1_u32.checked_shl(at));
        bit.is_some_and(|bit| self.fallbacks & bit != 0)
    }

    fn evaluate<'a>(&'a self, env: &Env<'a>) -> Result<Value<'a>, QueryError> {
        if self.taking == Taking::Backward {
            return self.evaluate_backward(env);
        }
        let mut values = SmallVec::with_capacity(self.arguments.len());
        let mut bytes = 0;
        for (index, argument) in self.arguments.iter().enumerate() {
            if self.is_fallback(index) {
                values.push(None);
                continue;
            }
            let value = match argument.evaluate(env) {
                Ok(value) => value,
                Err(error) if self.taking == Taking::InTurn => {
                    return self.stopped(values, error, env);
                }
                Err(error) => return Err(error),
            };
            bytes += value.map_or(0, byte_len);
            values.push(value);
        }
        // Most operators go over their arguments once.
        env.budget.spend_bytes(bytes)?;
        (self.run)(
            &Arguments {
                operator: self.operator,
                values,
                given: self.given,
                nodes: &self.arguments,
            },
            env,
        )
    }
}

impl Call {
    fn evaluate_backward<'a>(&'a self, env: &Env<'a>) -> Result<Value<'a>, QueryError> {
        let mut values: SmallVec<[Value<'a>; FEW]> = smallvec![None; self.arguments.len()];
        let mut bytes = 0;
        let places = self.arguments.iter().zip(values.iter_mut()).enumerate();
        for (index, (argument, place)) in places.rev() {
            if !self.is_fallback(index) {
                *place = argument.evaluate(env)?;
                bytes += place.map_or(0, byte_len);
            }
        }
        env.budget.spend_bytes(bytes)?;
        let arguments = Arguments {
            operator: self.operator,
            values,
            given: self.given,
            nodes: &self.arguments,
        };
        (self.run)(&arguments, env)
    }

    /// What comes of arguments that were taken in turn up to one that has failed: those before it
    /// may be wrong themselves, or null, behind which none is evaluated.
    #[cold]
    fn stopped<'a>(
        &'a self,
        values: SmallVec<[Value<'a>; FEW]>,
        error: QueryError,
        env: &Env<'a>,
    ) -> Result<Value<'a>, QueryError> {
        let before = Arguments {
            operator: self.operator,
            values,
            given: self.given,
            nodes: &self.arguments,
        };
        let value = (self.run)(&before, env)?;
        // What was not written at all ends nothing.
        let is_written = |index: usize| {
            let bits = u32::try_from(index)
                .ok()
                .and_then(|at| self.given.checked_shr(at));
            bits.is_none_or(|bits| bits & 1 == 1)
        };
        let mut values = before.values.iter().enumerate();
        match values.any(|(index, value)| is_written(index) && is_nullish(*value)) {
            true => Ok(value),
            false => Err(error),
        }
    }
}

impl Deferred {
    fn evaluate<'a>(&'a self, env: &Env<'a>) -> Result<Value<'a>, QueryError> {
        // Of a constant within a constant only the result is needed, and once.
        if env.is_in_constant() {
            return self.compute(env);
        }
        if let Some(kept) = self.kept(env)? {
            return Ok(kept);
        }
        self.compute(env)
    }

    /// The value that is kept; `None` if it is too large for that.
    fn kept(&self, env: &Env<'_>) -> Result<Option<Value<'_>>, QueryError> {
        if self.kept.get().is_none() {
            let (root, arena) = (RawDocumentBuf::new(), Arena::new());
            let inner = Env::new(arena.root(&root), env.budget).with_collator(env.collator);
            let value = self.compute(&inner)?;
            let kept = match value.map_or(0, byte_len) {
                0..=DEFERRED_BYTES_MAX => Kept::Value(value.map(Into::into)),
                _ => Kept::TooLarge,
            };
            // Another thread was first, with the same value.
            let _ = self.kept.set(kept);
        }
        Ok(match self.kept.get() {
            Some(Kept::Value(value)) => Some(value.as_ref().map(RawBson::as_raw_bson_ref)),
            Some(Kept::TooLarge) | None => None,
        })
    }

    /// Works it out; only the result stays in the arena.
    fn compute<'a>(&'a self, env: &Env<'a>) -> Result<Value<'a>, QueryError> {
        let arena = env.arena.beside();
        let value = self.node.evaluate(&env.with_arena(&arena).in_constant())?;
        env.arena.copy(value)
    }
}
