//! The paths of an update as a tree, so that one walk over the document meets each of them, and
//! paths that would get into each other's way are found.

use std::cmp::Ordering;

use banyan_document::path::position;

use super::modifier::Modifier;
use crate::error::{ErrorKind, QueryError};

#[derive(Clone, Debug)]
pub(super) enum Tree {
    Leaf(Box<Leaf>),
    Fields(Fields),
    Items(Items),
}

#[derive(Clone, Debug)]
pub(super) struct Leaf {
    pub modifier: Modifier,
    pub path: String,
}

/// Names below a document or positions in an array; `$` is one of them until it is resolved.
#[derive(Clone, Debug, Default)]
pub(super) struct Fields {
    pub children: Vec<(Box<str>, Tree)>,
}

/// `$[identifier]` below an array; the identifier of `$[]` is empty.
#[derive(Clone, Debug, Default)]
pub(super) struct Items {
    pub children: Vec<(Box<str>, Tree)>,
}

/// The identifier of `$[identifier]`.
pub(super) fn identifier(part: &str) -> Option<&str> {
    part.strip_prefix("$[")?.strip_suffix(']')
}

impl Fields {
    /// Adds a path; `path` is how messages call it.
    pub fn insert(
        &mut self,
        parts: &[&str],
        path: &str,
        modifier: Modifier,
    ) -> Result<(), QueryError> {
        let leaf = Tree::Leaf(Box::new(Leaf {
            modifier,
            path: path.to_string(),
        }));
        insert(&mut self.children, parts, 0, path, leaf)
    }

    /// The first path of the update at or below a name.
    pub fn path_below(&self, name: &str) -> String {
        let child = self.children.iter().find(|(n, _)| **n == *name);
        child.map_or_else(
            || name.to_string(),
            |(_, tree)| tree.first_path().to_string(),
        )
    }

    pub fn get(&self, name: &str) -> Option<&Tree> {
        self.children
            .iter()
            .find(|(n, _)| **n == *name)
            .map(|(_, tree)| tree)
    }

    /// These fields with `$` resolved to a position.
    pub fn resolved(&self, index: usize, path: &str) -> Result<Fields, QueryError> {
        let mut children: Vec<(Box<str>, Tree)> = Vec::with_capacity(self.children.len());
        for (name, tree) in &self.children {
            let name: Box<str> = if &**name == "$" {
                index.to_string().into()
            } else {
                name.clone()
            };
            match children.iter_mut().find(|(n, _)| *n == name) {
                Some((name, known)) => *known = known.merge(tree, &join(path, name))?,
                None => children.push((name, tree.clone())),
            }
        }
        children.sort_by(|(a, _), (b, _)| compare_names(a, b));
        Ok(Fields { children })
    }
}

fn insert(
    children: &mut Vec<(Box<str>, Tree)>,
    parts: &[&str],
    depth: usize,
    path: &str,
    leaf: Tree,
) -> Result<(), QueryError> {
    let conflict = |depth: usize| {
        let at = parts[..depth].join(".");
        let message = format!("Updating the path '{path}' would create a conflict at '{at}'");
        Err(QueryError::new(
            ErrorKind::ConflictingUpdateOperators,
            message,
        ))
    };
    let name = identifier(parts[depth]).unwrap_or(parts[depth]);
    let found = children.iter().position(|(n, _)| **n == *name);
    let Some(next) = parts.get(depth + 1) else {
        if found.is_some() {
            return conflict(depth + 1);
        }
        add(children, name, leaf);
        return Ok(());
    };
    let into_items = identifier(next).is_some();
    let at = found.unwrap_or_else(|| {
        let empty = if into_items {
            Tree::Items(Items::default())
        } else {
            Tree::Fields(Fields::default())
        };
        add(children, name, empty)
    });
    match &mut children[at].1 {
        Tree::Fields(fields) if !into_items => {
            insert(&mut fields.children, parts, depth + 1, path, leaf)
        }
        Tree::Items(items) if into_items => {
            insert(&mut items.children, parts, depth + 1, path, leaf)
        }
        _ => conflict(depth + 1),
    }
}

/// Adds a child in its place in the order; says where.
fn add(children: &mut Vec<(Box<str>, Tree)>, name: &str, tree: Tree) -> usize {
    let at = children.partition_point(|(n, _)| compare_names(n, name) == Ordering::Less);
    children.insert(at, (name.into(), tree));
    at
}

/// Positions by number, other names by their bytes.
fn compare_names(a: &str, b: &str) -> Ordering {
    match (position(a), position(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        _ => a.cmp(b),
    }
}

pub(super) fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_string()
    } else {
        format!("{path}.{name}")
    }
}

impl Tree {
    pub fn first_path(&self) -> &str {
        match self {
            Tree::Leaf(leaf) => &leaf.path,
            Tree::Fields(Fields { children }) | Tree::Items(Items { children }) => {
                children.first().map_or("", |(_, tree)| tree.first_path())
            }
        }
    }

    /// Both trees on one value. Two operators on the same path are a conflict that only shows
    /// once positions are known.
    pub fn merge(&self, other: &Tree, path: &str) -> Result<Tree, QueryError> {
        match (self, other) {
            (Tree::Fields(a), Tree::Fields(b)) => {
                let children = merge_children(&a.children, &b.children, path)?;
                Ok(Tree::Fields(Fields { children }))
            }
            (Tree::Items(a), Tree::Items(b)) => {
                let children = merge_children(&a.children, &b.children, path)?;
                Ok(Tree::Items(Items { children }))
            }
            _ => {
                let message = format!("Update created a conflict at '{path}'");
                Err(QueryError::new(
                    ErrorKind::ConflictingUpdateOperators,
                    message,
                ))
            }
        }
    }

    /// The path, from here, of the first array whose items are updated by `$[]`.
    pub fn path_of_items(&self) -> Option<String> {
        match self {
            Tree::Leaf(_) => None,
            Tree::Items(_) => Some(String::new()),
            Tree::Fields(fields) => fields.children.iter().find_map(|(name, tree)| {
                let below = tree.path_of_items()?;
                Some(if below.is_empty() {
                    name.to_string()
                } else {
                    join(name, &below)
                })
            }),
        }
    }

    pub fn any_leaf(&self, f: &mut impl FnMut(&Leaf) -> bool) -> bool {
        match self {
            Tree::Leaf(leaf) => f(leaf),
            Tree::Fields(Fields { children }) | Tree::Items(Items { children }) => {
                children.iter().any(|(_, child)| child.any_leaf(f))
            }
        }
    }
}

fn merge_children(
    a: &[(Box<str>, Tree)],
    b: &[(Box<str>, Tree)],
    path: &str,
) -> Result<Vec<(Box<str>, Tree)>, QueryError> {
    let mut merged = a.to_vec();
    for (name, tree) in b {
        match merged.iter_mut().find(|(n, _)| n == name) {
            Some((_, known)) => *known = known.merge(tree, &join(path, name))?,
            None => {
                add(&mut merged, name, tree.clone());
            }
        }
    }
    Ok(merged)
}
