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
        self.get(name)
            .map_or_else(|| name.to_string(), |tree| tree.first_path().to_string())
    }

    pub fn get(&self, name: &str) -> Option<&Tree> {
        self.position(name).map(|at| &self.children[at].1)
    }

    pub fn position(&self, name: &str) -> Option<usize> {
        find(&self.children, name).ok()
    }

    /// These fields with `$` resolved to a position.
    pub fn resolved(&self, index: usize, path: &str) -> Result<Fields, QueryError> {
        let mut children = self.children.clone();
        if let Ok(at) = find(&children, "$") {
            let (_, tree) = children.remove(at);
            let resolved = (index.to_string().into_boxed_str(), tree);
            children = merge_children(&children, &[resolved], path)?;
        }
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
    let found = find(children, name);
    let Some(next) = parts.get(depth + 1) else {
        let Err(at) = found else {
            return conflict(depth + 1);
        };
        children.insert(at, (name.into(), leaf));
        return Ok(());
    };
    let into_items = identifier(next).is_some();
    let at = found.unwrap_or_else(|at| {
        let empty = if into_items {
            Tree::Items(Items::default())
        } else {
            Tree::Fields(Fields::default())
        };
        children.insert(at, (name.into(), empty));
        at
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

/// Where a name is among children, or where it belongs.
fn find(children: &[(Box<str>, Tree)], name: &str) -> Result<usize, usize> {
    children.binary_search_by(|(n, _)| compare_names(n, name))
}

/// Positions first, by number; other names by their bytes.
fn compare_names(a: &str, b: &str) -> Ordering {
    match (position(a), position(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
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
        match find(&merged, name) {
            Ok(at) => merged[at].1 = merged[at].1.merge(tree, &join(path, name))?,
            Err(at) => merged.insert(at, (name.clone(), tree.clone())),
        }
    }
    Ok(merged)
}
