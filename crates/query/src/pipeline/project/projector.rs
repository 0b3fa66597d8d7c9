//! A document as a tree of actions makes it.

use std::collections::BTreeSet;

use bson::{RawBsonRef, RawDocument};

use banyan_document::{Collator, DocumentWriter, Element, element, elements, items};

use super::tree::{Action, Tree};
use crate::budget::Budget;
use crate::error::QueryError;
use crate::expression::value::check_depth;
use crate::expression::{Arena, Env, check_size};
use crate::javascript::ahead;
use crate::pipeline::dependencies::Needed;
use crate::variables::Variables;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Inclusion,
    Exclusion,
    /// All fields stay; some are set.
    Addition,
}

/// What `$project` or `$addFields` does to a document.
#[derive(Debug)]
pub struct Projector {
    /// As the user wrote it.
    pub(super) name: &'static str,
    pub(super) mode: Mode,
    pub(super) tree: Tree,
    /// How many fields of a document it reads to compute others.
    pub(super) reads: u32,
    /// What computing its fields may use.
    pub(super) budget: Budget,
    /// How strings are compared; without one, by their bytes.
    pub(super) collator: Option<Collator>,
}

impl Projector {
    /// Adds the paths that are read; false if the whole document is.
    pub(super) fn dependencies(&self, paths: &mut BTreeSet<String>) -> bool {
        let mut bounded = true;
        let mut visit = |action: &Action, path: &str| match action {
            Action::Compute(node, _) => bounded &= node.dependencies(paths),
            Action::Include => {
                paths.insert(path.to_string());
            }
            Action::Exclude | Action::Nested(_) => {}
        };
        self.tree.visit(&mut visit, "");
        if self.mode == Mode::Inclusion {
            // A computed field below another keeps what surrounds it.
            for (name, action) in self.tree.fields.iter() {
                if matches!(action, Action::Nested(_)) {
                    paths.insert(name.to_string());
                }
            }
        }
        bounded
    }

    pub(in crate::pipeline) fn apply(
        &self,
        document: &RawDocument,
        arena: &Arena,
        variables: &Variables,
        needed: &Needed,
        writer: &mut DocumentWriter,
    ) -> Result<(), QueryError> {
        let root = arena.root(document).expecting(self.reads);
        let env = Env::new(root, &self.budget)
            .with_collator(self.collator.as_ref())
            .with_outer(variables);
        let made = self.fields(&self.tree, document, &env, needed, writer);
        made.map_err(|error| match ahead::is_waiting() {
            true => error,
            false => first_error(&self.tree, Some(document), &env).unwrap_or(error),
        })
    }

    /// Works out what is computed, for the scripts that are called for it.
    pub(super) fn compute(
        &self,
        document: &RawDocument,
        arena: &Arena,
        variables: &Variables,
    ) -> Result<(), QueryError> {
        let root = arena.root(document).expecting(self.reads);
        let env = Env::new(root, &self.budget)
            .with_collator(self.collator.as_ref())
            .with_outer(variables);
        first_error(&self.tree, Some(document), &env).map_or(Ok(()), Err)
    }

    fn fields(
        &self,
        tree: &Tree,
        document: &RawDocument,
        env: &Env<'_>,
        needed: &Needed,
        writer: &mut DocumentWriter,
    ) -> Result<(), QueryError> {
        let mut present = Places::default();
        let is_inclusion = self.mode == Mode::Inclusion;
        let mut unread = tree.read;
        for element in elements(document) {
            // Nothing behind the last field that is included is of interest.
            if is_inclusion && unread == 0 {
                break;
            }
            let Some(place) = tree.fields.place_of(element.name_bytes()) else {
                if !is_inclusion && needed.includes(element.name_bytes()) {
                    writer.append_element(&element);
                }
                continue;
            };
            present.add(place);
            if !matches!(tree.fields.at(place).1, Action::Compute(..)) {
                unread = unread.saturating_sub(1);
            }
            match &tree.fields.at(place).1 {
                Action::Include => writer.append_element(&element),
                Action::Exclude => {}
                Action::Compute(node, _) => {
                    // $addFields sets a field where it stands; $project moves it to the end.
                    if self.mode == Mode::Addition
                        && let Some(value) = node.evaluate(env)?
                    {
                        append(writer, element.name(), value)?;
                    }
                }
                Action::Nested(inner) => {
                    self.nested(inner, &element, Some(element.name()), env, writer)?;
                }
            }
        }
        if tree.computes {
            self.missing_fields(tree, &present, env, writer)?;
        }
        Ok(())
    }

    /// Computed fields that the document does not have, in the order of the specification.
    fn missing_fields(
        &self,
        tree: &Tree,
        present: &Places,
        env: &Env<'_>,
        writer: &mut DocumentWriter,
    ) -> Result<(), QueryError> {
        for (place, (name, action)) in tree.fields.iter().enumerate() {
            match action {
                Action::Compute(node, _) => {
                    let in_place = self.mode == Mode::Addition && present.has(place);
                    if !in_place && let Some(value) = node.evaluate(env)? {
                        append(writer, name, value)?;
                    }
                }
                Action::Nested(inner) if inner.computes && !present.has(place) => {
                    writer.begin_document(name);
                    self.computed_only(inner, env, writer)?;
                    writer.end();
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A field that the tree goes below of. `name` is none for items of the open array.
    fn nested(
        &self,
        tree: &Tree,
        element: &Element<'_>,
        name: Option<&str>,
        env: &Env<'_>,
        writer: &mut DocumentWriter,
    ) -> Result<(), QueryError> {
        match element.value() {
            RawBsonRef::Document(document) => {
                match name {
                    Some(name) => writer.begin_document(name),
                    None => writer.push_document(),
                }
                self.fields(tree, document, env, &Needed::All, writer)?;
                writer.end();
            }
            RawBsonRef::Array(array) => {
                match name {
                    Some(name) => writer.begin_array(name),
                    None => writer.push_array(),
                }
                for item in items(array) {
                    self.nested(tree, &item, None, env, writer)?;
                }
                writer.end();
            }
            _ if tree.computes => {
                match name {
                    Some(name) => writer.begin_document(name),
                    None => writer.push_document(),
                }
                self.computed_only(tree, env, writer)?;
                writer.end();
            }
            _ if self.mode == Mode::Inclusion => {}
            _ => match name {
                Some(_) => writer.append_element(element),
                None => writer.push_element(element),
            },
        }
        Ok(())
    }

    fn computed_only(
        &self,
        tree: &Tree,
        env: &Env<'_>,
        writer: &mut DocumentWriter,
    ) -> Result<(), QueryError> {
        for (name, action) in tree.fields.iter() {
            match action {
                Action::Compute(node, _) => {
                    if let Some(value) = node.evaluate(env)? {
                        append(writer, name, value)?;
                    }
                }
                Action::Nested(inner) if inner.computes => {
                    writer.begin_document(name);
                    self.computed_only(inner, env, writer)?;
                    writer.end();
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// A computed value, unless it is too deep or the document becomes too large.
fn append(
    writer: &mut DocumentWriter,
    name: &str,
    value: RawBsonRef<'_>,
) -> Result<(), QueryError> {
    check_depth(value)?;
    writer.append(name, value);
    check_size(writer.len())
}

/// MongoDB works out what is computed in the order in which it is written.
fn first_error(tree: &Tree, document: Option<&RawDocument>, env: &Env<'_>) -> Option<QueryError> {
    tree.fields.iter().find_map(|(name, action)| match action {
        Action::Compute(node, _) => node.evaluate(env).err(),
        Action::Nested(below) if below.computes => {
            let value = document.and_then(|document| element::field(document, name));
            first_error_below(below, value, env)
        }
        Action::Nested(_) | Action::Include | Action::Exclude => None,
    })
}

/// The same below a field: within an array for each of its items.
fn first_error_below(
    tree: &Tree,
    value: Option<RawBsonRef<'_>>,
    env: &Env<'_>,
) -> Option<QueryError> {
    match value {
        Some(RawBsonRef::Document(document)) => first_error(tree, Some(document), env),
        Some(RawBsonRef::Array(array)) => {
            items(array).find_map(|item| first_error_below(tree, Some(item.value()), env))
        }
        _ => first_error(tree, None, env),
    }
}

/// Fields of the tree that a document has, by their places.
#[derive(Default)]
struct Places {
    first: u64,
    rest: BTreeSet<usize>,
}

impl Places {
    fn add(&mut self, place: usize) {
        match 1u64.checked_shl(u32::try_from(place).unwrap_or(u32::MAX)) {
            Some(bit) => self.first |= bit,
            None => {
                self.rest.insert(place);
            }
        }
    }

    fn has(&self, place: usize) -> bool {
        match 1u64.checked_shl(u32::try_from(place).unwrap_or(u32::MAX)) {
            Some(bit) => self.first & bit != 0,
            None => self.rest.contains(&place),
        }
    }
}
