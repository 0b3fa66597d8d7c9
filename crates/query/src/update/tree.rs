//! The paths of an update as a tree, so that one walk over the document meets each of them, and
//! paths that would get into each other's way are found.

use std::cmp::Ordering;

use banyan_document::path::position;

use super::modifier::Modifier;
use crate::error::{ErrorKind, QueryError};
use crate::names::Named;

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
    pub children: Named<Tree>,
}

/// `$[identifier]` below an array; the identifier of `$[]` is empty.
#[derive(Clone, Debug, Default)]
pub(super) struct Items {
    pub children: Named<Tree>,
}

/// The identifier of `$[identifier]`.
pub(super) fn identifier(part: &str) -> Option<&str> {
    part.strip_prefix("$[")?.strip_suffix(']')
}

/// Takes note that a path names an array filter; it has to be there.
pub(super) type UseFilter<'f> = dyn FnMut(&str) -> Result<(), QueryError> + 'f;

impl Fields {
    /// Adds a path; `path` is how messages call it. Once all are there, `sort` brings the names
    /// into order.
    pub fn insert(
        &mut self,
        parts: &[&str],
        path: &str,
        modifier: Modifier,
        use_filter: &mut UseFilter<'_>,
    ) -> Result<(), QueryError> {
        let leaf = Tree::Leaf(Box::new(Leaf {
            modifier,
            path: path.to_string(),
        }));
        insert(&mut self.children, parts, 0, path, leaf, use_filter)
    }

    pub fn sort(&mut self) {
        sort(&mut self.children);
    }

    /// The first path of the update at or below a name.
    pub fn path_below(&self, name: &str) -> String {
        self.get(name)
            .map_or_else(|| name.to_string(), |tree| tree.first_path().to_string())
    }

    pub fn first_path(&self) -> Option<&str> {
        self.children
            .iter()
            .next()
            .map(|(_, tree)| tree.first_path())
    }

    pub fn get(&self, name: &str) -> Option<&Tree> {
        self.children.get(name)
    }

    pub fn position(&self, name: &str) -> Option<usize> {
        self.children.place(name)
    }

    /// Each path by itself, in their order. Those into the items of one array are not taken apart.
    pub fn paths(&self) -> Vec<Fields> {
        let alone = |children| Fields { children };
        paths(&self.children).map(alone).collect()
    }

    /// These fields with `$` resolved to a position.
    pub fn resolved(&self, index: usize, path: &str) -> Result<Fields, QueryError> {
        let Some(tree) = self.children.get("$") else {
            return Ok(self.clone());
        };
        let mut others = self.children.clone();
        others.retain(|name, _| name != "$");
        let mut resolved = Named::default();
        resolved.push(index.to_string().into_boxed_str(), tree.clone());
        let children = merge_children(&[&others, &resolved], path)?;
        Ok(Fields { children })
    }
}

fn paths(children: &Named<Tree>) -> impl Iterator<Item = Named<Tree>> {
    children.iter().flat_map(move |(name, tree)| {
        tree.paths().into_iter().map(|tree| {
            let mut alone = Named::default();
            alone.push(name.clone(), tree);
            alone
        })
    })
}

fn insert(
    children: &mut Named<Tree>,
    parts: &[&str],
    depth: usize,
    path: &str,
    leaf: Tree,
    use_filter: &mut UseFilter<'_>,
) -> Result<(), QueryError> {
    if let Some(identifier) = identifier(parts[depth]) {
        use_filter(identifier)?;
    }
    let conflict = |depth: usize| {
        let at = parts[..depth].join(".");
        let message = format!("Updating the path '{path}' would create a conflict at '{at}'");
        Err(QueryError::new(
            ErrorKind::ConflictingUpdateOperators,
            message,
        ))
    };
    let name = identifier(parts[depth]).unwrap_or(parts[depth]);
    let found = children.place(name);
    let Some(next) = parts.get(depth + 1) else {
        if found.is_some() {
            return conflict(depth + 1);
        }
        children.push(name.into(), leaf);
        return Ok(());
    };
    let into_items = identifier(next).is_some();
    let at = found.unwrap_or_else(|| {
        let empty = if into_items {
            Tree::Items(Items::default())
        } else {
            Tree::Fields(Fields::default())
        };
        children.push(name.into(), empty)
    });
    match children.value_mut(at) {
        Tree::Fields(fields) if !into_items => {
            let children = &mut fields.children;
            insert(children, parts, depth + 1, path, leaf, use_filter)
        }
        Tree::Items(items) if into_items => {
            let children = &mut items.children;
            insert(children, parts, depth + 1, path, leaf, use_filter)
        }
        _ => conflict(depth + 1),
    }
}

fn sort(children: &mut Named<Tree>) {
    children.sort_by(compare_names);
    for child in children.values_mut() {
        match child {
            Tree::Leaf(_) => {}
            Tree::Fields(Fields { children }) | Tree::Items(Items { children }) => sort(children),
        }
    }
}

/// Positions first, by number; other names by their bytes.
pub(crate) fn compare_names(a: &str, b: &str) -> Ordering {
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
                let first = children.iter().next();
                first.map_or("", |(_, tree)| tree.first_path())
            }
        }
    }

    /// All trees on one value. Two operators on the same path are a conflict that only shows
    /// once positions are known.
    pub fn merge(trees: &[&Tree], path: &str) -> Result<Tree, QueryError> {
        if let [only] = trees {
            return Ok((*only).clone());
        }
        let (mut fields, mut items) = (Vec::new(), Vec::new());
        for tree in trees {
            match tree {
                Tree::Leaf(_) => {}
                Tree::Fields(below) => fields.push(&below.children),
                Tree::Items(below) => items.push(&below.children),
            }
        }
        if fields.len() == trees.len() {
            let children = merge_children(&fields, path)?;
            Ok(Tree::Fields(Fields { children }))
        } else if items.len() == trees.len() {
            let children = merge_children(&items, path)?;
            Ok(Tree::Items(Items { children }))
        } else {
            let message = format!("Update created a conflict at '{path}'");
            Err(QueryError::new(
                ErrorKind::ConflictingUpdateOperators,
                message,
            ))
        }
    }

    /// Each path by itself, in their order; see [`Fields::paths`].
    pub fn paths(&self) -> Vec<Tree> {
        match self {
            Tree::Leaf(_) | Tree::Items(_) => vec![self.clone()],
            Tree::Fields(fields) => fields.paths().into_iter().map(Tree::Fields).collect(),
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

fn merge_children(all: &[&Named<Tree>], path: &str) -> Result<Named<Tree>, QueryError> {
    let mut groups: Named<Vec<&Tree>> = Named::default();
    for (name, tree) in all.iter().flat_map(|children| children.iter()) {
        match groups.place(name) {
            Some(at) => groups.value_mut(at).push(tree),
            None => {
                groups.push(name.clone(), vec![tree]);
            }
        }
    }
    groups.sort_by(compare_names);
    let mut merged = Named::default();
    for (name, trees) in groups {
        let tree = Tree::merge(&trees, &join(path, &name))?;
        merged.push(name, tree);
    }
    Ok(merged)
}
