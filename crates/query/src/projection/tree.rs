//! A projection, parsed: a tree of the paths that it names.

use std::collections::BTreeSet;

use crate::expression::Expression;
use crate::filter::ItemFilter;
use crate::names::Named;

#[derive(Clone, Debug)]
pub struct Projection {
    pub(super) fields: Fields,
    pub(super) mode: Mode,
    pub(super) positional: bool,
    /// Nothing but whole fields are named, which stay.
    pub(super) keeps_fields: bool,
    /// The same of fields within documents, too.
    pub(super) keeps_paths: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Inclusion,
    Exclusion,
}

/// The names below one document, in the order of the projection.
#[derive(Clone, Debug, Default)]
pub(super) struct Fields {
    pub(super) rules: Named<Rule>,
    /// Whether something below is computed, and so appears even where nothing was.
    pub(super) computes: bool,
    /// Whether something here or below does not come where it lies in the document.
    pub(super) adds: bool,
    /// A `path.$` lies below: the first array on the way is cut to the item that matched.
    pub(super) positional: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Rule {
    Include,
    Exclude,
    Fields(Fields),
    Expression(Box<Expression>),
    /// `{$meta: ...}`, which says nothing of the other fields.
    Meta(Box<Expression>),
    Slice(Slice),
    ElemMatch(Box<ItemFilter>),
    Positional,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slice {
    /// From the end where negative.
    pub(super) skip: i64,
    /// `None`: `skip` is a plain count, from the end where negative.
    pub(super) limit: Option<i64>,
}

impl Projection {
    /// Whether documents come back as they are.
    pub fn is_identity(&self) -> bool {
        self.mode == Mode::Exclusion && self.fields.rules.is_empty()
    }

    /// Whether `apply` needs the position that the filter matched at (`path.$`).
    pub fn needs_position(&self) -> bool {
        self.positional
    }

    /// Whether all it does is name whole fields that stay.
    pub fn names_fields(&self) -> bool {
        self.keeps_fields
    }

    /// The dotted paths that an inclusion reads, if that is all it needs: enough to tell whether
    /// an index covers it.
    pub fn included_paths(&self) -> Option<Vec<String>> {
        if !self.keeps_paths {
            return None;
        }
        let mut paths = Vec::new();
        collect_paths(&self.fields, "", &mut paths);
        Some(paths)
    }

    /// Whether it calls a script.
    pub fn calls_script(&self) -> bool {
        calls_script(&self.fields)
    }

    /// Adds the dotted paths that it reads; false if it may read anything.
    pub fn dependencies(&self, paths: &mut BTreeSet<String>) -> bool {
        self.mode == Mode::Inclusion && dependencies(&self.fields, "", paths)
    }
}

pub(super) fn is_simple(fields: &Fields) -> bool {
    fields.rules.iter().all(|(_, rule)| match rule {
        Rule::Include | Rule::Exclude => true,
        Rule::Fields(inner) => is_simple(inner),
        Rule::Expression(_)
        | Rule::Meta(_)
        | Rule::Slice(_)
        | Rule::ElemMatch(_)
        | Rule::Positional => false,
    })
}

fn calls_script(fields: &Fields) -> bool {
    fields.rules.iter().any(|(_, rule)| match rule {
        Rule::Fields(inner) => calls_script(inner),
        Rule::Expression(expression) => expression.calls_script(),
        Rule::Include
        | Rule::Exclude
        | Rule::Meta(_)
        | Rule::Slice(_)
        | Rule::ElemMatch(_)
        | Rule::Positional => false,
    })
}

fn dependencies(fields: &Fields, above: &str, paths: &mut BTreeSet<String>) -> bool {
    fields.rules.iter().all(|(name, rule)| {
        let path = match above {
            "" => name.to_string(),
            above => format!("{above}.{name}"),
        };
        match rule {
            Rule::Include => {
                paths.insert(path);
                true
            }
            Rule::Exclude => true,
            Rule::Fields(inner) => {
                // What is computed below an array comes once for each of its items.
                if inner.computes {
                    paths.insert(path.clone());
                }
                dependencies(inner, &path, paths)
            }
            Rule::Expression(expression) | Rule::Meta(expression) => expression.dependencies(paths),
            Rule::Slice(_) | Rule::ElemMatch(_) | Rule::Positional => false,
        }
    })
}

fn collect_paths(fields: &Fields, above: &str, paths: &mut Vec<String>) {
    for (name, rule) in fields.rules.iter() {
        let path = if above.is_empty() {
            name.to_string()
        } else {
            format!("{above}.{name}")
        };
        match rule {
            Rule::Fields(inner) => collect_paths(inner, &path, paths),
            Rule::Include => paths.push(path),
            _ => {}
        }
    }
}

impl Fields {
    pub(super) fn rule(&self, name: &str) -> Option<&Rule> {
        self.rules.get(name)
    }

    /// The same for a name as it lies in a document.
    pub(super) fn rule_of(&self, name: &[u8]) -> Option<&Rule> {
        self.entry_of(name).map(|(_, rule)| rule)
    }

    pub(super) fn entry_of(&self, name: &[u8]) -> Option<&(Box<str>, Rule)> {
        self.rules.place_of(name).map(|at| self.rules.at(at))
    }
}
