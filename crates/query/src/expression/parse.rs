//! From BSON to a tree of nodes.
//!
//! Variables are resolved to slots here, user variables given with the command become constants,
//! and an operator whose arguments are all constant is evaluated at once: its error, if any, is
//! an error of the pipeline, as in MongoDB, and comes after those of parsing. A constant that costs
//! much is evaluated when it is first needed. What operators there are is not known here: whoever makes a parser hands in how
//! one is read.

use std::cell::{Cell, OnceCell};
use std::collections::HashMap;
use std::sync::Arc;

use banyan_document::Collator;
use bson::{RawArray, RawBson, RawBsonRef, RawDocument};

use super::arena::Arena;
use super::env::Env;
use super::field::{FieldPath, check_name};
use super::node::ExpressionNode;
use super::value::{Value, error, items, show_document};
use crate::budget::Budget;
use crate::context::{BoundConstant, Context};
use crate::error::{ErrorKind, QueryError};
use crate::variables::Variables;

/// Deeper nesting than BSON allows cannot arrive, but expressions nest cheaply in arrays.
const DEPTH_MAX: usize = 200;

/// As the limit of a number of arguments: there is none.
pub(super) const NO_LIMIT: usize = usize::MAX;

/// Reads `{$name: value}`, or refuses a name that is not an operator's.
pub(super) type ReadOperator = fn(
    name: &str,
    value: RawBsonRef<'_>,
    parser: &mut Parser<'_>,
) -> Result<ExpressionNode, QueryError>;

pub(crate) struct Parser<'c> {
    pub(super) context: &'c Context,
    read_operator: ReadOperator,
    /// The slots of each name, the innermost last.
    scope: HashMap<Box<str>, Vec<usize>>,
    slots: usize,
    depth: usize,
    /// How many paths into the document were parsed.
    paths: Cell<u32>,
    leaves: Cell<Leaves>,
    /// What is parsed is run as it is written: MongoDB makes nothing better of it before.
    is_as_written: bool,
    /// MongoDB writes what it has made better anew before it runs it.
    is_rewritten: bool,
    /// The command's variables by name, where they are many.
    variables: OnceCell<HashMap<&'c str, &'c Option<RawBson>>>,
}

/// How many of what is no constant were parsed.
#[derive(Clone, Copy, Default)]
struct Leaves {
    /// Variables of the `$lookup` stages around.
    outer: usize,
    /// What depends on a document, or is worked out anew each time.
    others: usize,
}

/// An operator that depends on no document, but on the variables of the `$lookup` stages around.
#[derive(Debug)]
pub(super) struct OuterConstant {
    node: ExpressionNode,
    budget: Budget,
    collator: Option<Collator>,
}

impl OuterConstant {
    /// What `look` makes of its value.
    pub(super) fn look<T>(
        &self,
        variables: &Variables,
        look: impl FnOnce(Value<'_>) -> T,
    ) -> Result<T, QueryError> {
        let (root, arena) = (bson::rawdoc! {}, Arena::new());
        let env = Env::new(arena.root(&root), &self.budget)
            .with_collator(self.collator.as_ref())
            .with_outer(variables);
        self.node.evaluate(&env).map(look)
    }
}

impl BoundConstant for OuterConstant {
    fn check(&self, variables: &Variables) -> Result<(), QueryError> {
        self.look(variables, |_| ())
    }
}

impl<'c> Parser<'c> {
    pub(super) fn new(context: &'c Context, read_operator: ReadOperator) -> Parser<'c> {
        Parser {
            context,
            read_operator,
            scope: HashMap::new(),
            slots: 0,
            depth: 0,
            paths: Cell::new(0),
            leaves: Cell::default(),
            is_as_written: context.is_as_written,
            is_rewritten: false,
            variables: OnceCell::new(),
        }
    }

    /// Any operand: a `$path`, a `$$variable`, an object, an array or a literal.
    pub(crate) fn operand(&mut self, value: RawBsonRef<'_>) -> Result<ExpressionNode, QueryError> {
        self.context.budget.spend_part()?;
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(QueryError::new(
                ErrorKind::Overflow,
                format!("expressions may nest at most {DEPTH_MAX} deep"),
            ));
        }
        let node = match value {
            RawBsonRef::String(text) if text.starts_with('$') => self.path(text),
            RawBsonRef::Document(document) => self.object(document),
            RawBsonRef::Array(array) => self.array(array),
            other => Ok(ExpressionNode::constant(other.into())),
        };
        self.depth -= 1;
        node
    }

    /// An operator or an object of expressions.
    pub(crate) fn object(&mut self, document: &RawDocument) -> Result<ExpressionNode, QueryError> {
        let mut fields = Vec::new();
        for element in document.iter() {
            let (name, value) = element.map_err(malformed)?;
            let name = name.as_str();
            if name.starts_with('$') && fields.is_empty() {
                if document.iter().count() != 1 {
                    let shown = show_document(document);
                    return error(
                        15983,
                        format!(
                            "An object representing an expression must have exactly one \
                             field: {shown}"
                        ),
                    );
                }
                return self.operator(name, value);
            }
            check_name(name)?;
            fields.push((Box::from(name), self.operand(value)?));
        }
        self.fold(ExpressionNode::Document(fields.into()))
    }

    pub(crate) fn array(&mut self, array: &RawArray) -> Result<ExpressionNode, QueryError> {
        let nodes = self.operands(array)?;
        self.fold(ExpressionNode::Array(nodes.into()))
    }

    pub(super) fn operands(&mut self, array: &RawArray) -> Result<Vec<ExpressionNode>, QueryError> {
        items(array).map(|item| self.operand(item)).collect()
    }

    /// The operand list of a positional operator: an array's elements or the one value.
    pub(super) fn arguments(
        &mut self,
        operator: &str,
        min: usize,
        max: usize,
        value: RawBsonRef<'_>,
    ) -> Result<Vec<ExpressionNode>, QueryError> {
        let arguments = match value {
            RawBsonRef::Array(array) => self.operands(array)?,
            other => vec![self.operand(other)?],
        };
        let count = arguments.len();
        if min == max && count != min {
            return error(
                16020,
                format!(
                    "Expression {operator} takes exactly {min} arguments. {count} were passed in."
                ),
            );
        }
        if count < min || (max != NO_LIMIT && count > max) {
            return error(
                28667,
                format!(
                    "Expression {operator} takes at least {min} arguments, and at most {max}, \
                     but {count} were passed in."
                ),
            );
        }
        Ok(arguments)
    }

    fn operator(
        &mut self,
        name: &str,
        value: RawBsonRef<'_>,
    ) -> Result<ExpressionNode, QueryError> {
        let before = self.leaves.get();
        let node = (self.read_operator)(name, value, self)?;
        let folds = match &node {
            ExpressionNode::Call(call) => call.folds,
            ExpressionNode::Special(special) => special.folds(),
            _ => return Ok(node),
        };
        let Leaves { outer, others } = self.leaves.get();
        if !folds {
            self.note_leaf(|leaves| leaves.others += 1);
            return Ok(node);
        }
        if others == before.others && outer > before.outer {
            self.note_bound(|| node.clone());
            return Ok(node);
        }
        self.fold(node)
    }

    /// What is worked out once the variables around it are known.
    pub(super) fn note_bound(&self, node: impl FnOnce() -> ExpressionNode) {
        let constant = || -> Arc<dyn BoundConstant> { Arc::new(self.outer_constant(node())) };
        self.context.folding.note_bound(constant);
    }

    pub(super) fn outer_constant(&self, node: ExpressionNode) -> OuterConstant {
        OuterConstant {
            node,
            budget: self.context.budget.clone(),
            collator: self.context.collator.clone(),
        }
    }

    fn note_leaf(&self, note: impl FnOnce(&mut Leaves)) {
        let mut leaves = self.leaves.get();
        note(&mut leaves);
        self.leaves.set(leaves);
    }

    fn path(&mut self, text: &str) -> Result<ExpressionNode, QueryError> {
        let Some(variable) = text.strip_prefix("$$") else {
            let path = &text[1..];
            if path.is_empty() {
                return error(16872, "'$' by itself is not a valid FieldPath");
            }
            let path = FieldPath::parse(path)?;
            return Ok(self
                .variable("CURRENT", Some(path.clone()))
                .unwrap_or_else(|| self.field(path)));
        };
        let (name, rest) = match variable.split_once('.') {
            Some((name, rest)) => (name, Some(rest)),
            None => (variable, None),
        };
        check_variable_name(name, false)?;
        let path = rest.map(FieldPath::parse).transpose()?;
        match self.variable(name, path.clone()) {
            Some(node) => Ok(node),
            None => self.system_variable(name, path),
        }
    }

    fn field(&self, path: FieldPath) -> ExpressionNode {
        self.paths.set(self.paths.get().saturating_add(1));
        self.note_leaf(|leaves| leaves.others += 1);
        ExpressionNode::Field(path)
    }

    /// How many reads of the document's fields what was parsed so far may take.
    pub(crate) fn reads(&self) -> u32 {
        self.paths.get()
    }

    /// A variable that the expression binds itself, or a `$lookup` around it.
    fn variable(&self, name: &str, path: Option<FieldPath>) -> Option<ExpressionNode> {
        if let Some(slot) = self.lookup(name) {
            self.note_leaf(|leaves| leaves.others += 1);
            return Some(ExpressionNode::Variable { slot, path });
        }
        let slot = self.context.scope.slot(name)?;
        self.note_leaf(|leaves| leaves.outer += 1);
        Some(ExpressionNode::Outer { slot, path })
    }

    fn system_variable(
        &self,
        name: &str,
        path: Option<FieldPath>,
    ) -> Result<ExpressionNode, QueryError> {
        let constant = match name {
            "ROOT" | "CURRENT" => {
                self.note_leaf(|leaves| leaves.others += 1);
                return Ok(path.map_or(ExpressionNode::Root, |path| self.field(path)));
            }
            "REMOVE" => return Ok(ExpressionNode::Missing),
            "NOW" => RawBson::DateTime(self.context.now),
            "DESCEND" | "PRUNE" | "KEEP" => RawBson::String(name.to_ascii_lowercase()),
            "CLUSTER_TIME" => match self.context.cluster_time {
                Some(time) => RawBson::Timestamp(time),
                None if self.context.runs_elsewhere => return Ok(ExpressionNode::unbound(path)),
                None => {
                    return error(51144, "Builtin variable '$$CLUSTER_TIME' is not available");
                }
            },
            _ => match self.user_variable(name) {
                Some(Some(value)) => value.clone(),
                Some(None) => return Ok(ExpressionNode::Missing),
                None if self.context.runs_elsewhere => return Ok(ExpressionNode::unbound(path)),
                None => {
                    return error(17276, format!("Use of undefined variable: {name}"));
                }
            },
        };
        match path {
            None => Ok(ExpressionNode::constant(constant)),
            Some(path) => {
                let arena = Arena::new();
                let value = path.read_from(Some(constant.as_raw_bson_ref()), &arena)?;
                Ok(value.map_or(ExpressionNode::Missing, |v| {
                    ExpressionNode::constant(v.into())
                }))
            }
        }
    }

    fn user_variable(&self, name: &str) -> Option<&Option<RawBson>> {
        let given = &self.context.variables;
        if given.len() <= 16 {
            let found = given.iter().find(|(known, _)| known == name);
            return found.map(|(_, value)| value);
        }
        let variables = self.variables.get_or_init(|| {
            let pairs = given.iter().rev();
            pairs.map(|(name, value)| (name.as_str(), value)).collect()
        });
        variables.get(name).copied()
    }

    fn lookup(&self, name: &str) -> Option<usize> {
        self.scope.get(name)?.last().copied()
    }

    /// Evaluates a node that depends on no document, unless that costs too much for now.
    pub(super) fn fold(&self, node: ExpressionNode) -> Result<ExpressionNode, QueryError> {
        let (mut constant, mut fixed) = (true, true);
        node.operands(&mut |operand| {
            constant &= operand.is_constant();
            fixed &= operand.is_fixed();
        });
        if !fixed {
            return Ok(node);
        }
        let Some(allowance) = self.context.folding.allowance().filter(|_| constant) else {
            return Ok(ExpressionNode::deferred(node));
        };
        let (root, arena) = (bson::rawdoc! {}, Arena::new());
        let folded = node
            .evaluate(
                &Env::new(arena.root(&root), &allowance)
                    .with_collator(self.context.collator.as_ref()),
            )
            .map(|value| {
                value.map_or(ExpressionNode::Missing, |value| {
                    ExpressionNode::constant(value.into())
                })
            });
        self.context.folding.settle(&allowance);
        match folded {
            Err(_) if allowance.is_exhausted() => Ok(ExpressionNode::deferred(node)),
            Err(error) => {
                self.context.folding.failed(error)?;
                Ok(ExpressionNode::deferred(node))
            }
            folded => folded,
        }
    }

    /// What is computed of a field so many levels down: MongoDB evaluates the constants of a level
    /// before those below it.
    pub(crate) fn operand_at(
        &mut self,
        level: usize,
        value: RawBsonRef<'_>,
    ) -> Result<ExpressionNode, QueryError> {
        let folding = self.context.folding.clone();
        folding.at_place(level, || self.operand(value))
    }

    /// An operand whose constants fail where they are needed, and not before.
    pub(super) fn operand_as_it_is(
        &mut self,
        value: RawBsonRef<'_>,
    ) -> Result<ExpressionNode, QueryError> {
        let folding = self.context.folding.clone();
        let around = std::mem::replace(&mut self.is_as_written, true);
        let operand = folding.ignoring_failures(|| self.operand(value));
        self.is_as_written = around;
        operand
    }

    /// Whether strings are compared by a collation.
    pub(super) fn collates(&self) -> bool {
        self.context.collator.is_some()
    }

    pub(super) fn is_as_written(&self) -> bool {
        self.is_as_written
    }

    /// Whether an operator that knows its constants is run like any other one of its name.
    pub(super) fn forgets_constants(&self) -> bool {
        self.is_as_written || self.is_rewritten
    }

    pub(super) fn rewritten(self) -> Parser<'c> {
        Parser {
            is_rewritten: true,
            ..self
        }
    }

    /// Takes note of an error that is met although no document has been.
    pub(super) fn failed(&self, error: QueryError) -> Result<(), QueryError> {
        self.context.folding.failed(error)
    }

    /// A slot for a new variable that is not in scope yet.
    pub(super) fn new_slot(&mut self) -> usize {
        self.slots += 1;
        self.slots
    }

    /// Parses `body` with the named slots in scope.
    pub(super) fn scoped(
        &mut self,
        variables: &[(&str, usize)],
        body: RawBsonRef<'_>,
    ) -> Result<ExpressionNode, QueryError> {
        for (name, slot) in variables {
            self.scope.entry(Box::from(*name)).or_default().push(*slot);
        }
        let node = self.operand(body);
        for (name, _) in variables {
            if let Some(slots) = self.scope.get_mut(*name) {
                slots.pop();
            }
        }
        node
    }
}

/// User variables begin with a lower-case letter, system ones with an upper-case letter.
pub(crate) fn check_variable_name(name: &str, defining: bool) -> Result<(), QueryError> {
    let failed = |message: String| Err(QueryError::new(ErrorKind::FailedToParse, message));
    let Some(first) = name.bytes().next() else {
        return failed("empty variable names are not allowed".into());
    };
    if defining && name == "CURRENT" {
        return Ok(());
    }
    let start = first.is_ascii_lowercase() || !first.is_ascii();
    if !(start || (!defining && first.is_ascii_uppercase())) {
        return failed(format!(
            "'{name}' starts with an invalid character for a user variable name"
        ));
    }
    let odd = name
        .chars()
        .find(|c| c.is_ascii() && !c.is_ascii_alphanumeric() && *c != '_');
    match odd {
        Some(odd) => failed(format!(
            "'{name}' contains an invalid character for a variable name: '{odd}'"
        )),
        None => Ok(()),
    }
}

pub(crate) fn malformed(error: bson::error::Error) -> QueryError {
    QueryError::new(ErrorKind::InvalidBson, error.to_string())
}
