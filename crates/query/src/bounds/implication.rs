//! Whether all documents that match one filter match another one: a partial index can then be used.

use banyan_document::path::Path;

use super::interval::confine;
use super::{Condition, Conjunction};
use crate::filter::{Filter, Node, Predicate};

/// Whether what meets the conjunction matches `needed`. `false` also where that is not known.
pub fn implies(conjunction: &Conjunction<'_>, needed: &Filter) -> bool {
    of_node(conjunction, needed.root())
}

fn of_node(conjunction: &Conjunction<'_>, needed: &Node) -> bool {
    if conjunction.never {
        return true;
    }
    let by_branches = || {
        let mut all = conjunction.disjunctions.iter();
        all.any(|branches| branches.iter().all(|branch| of_node(branch, needed)))
    };
    match needed {
        Node::And(children) => children.iter().all(|child| of_node(conjunction, child)),
        Node::Or(children) => {
            children.iter().any(|child| of_node(conjunction, child)) || by_branches()
        }
        Node::AlwaysTrue => true,
        Node::Path { path, predicate } => {
            let mut conditions = conjunction.conditions.iter();
            conditions.any(|condition| of_condition(condition, path, predicate)) || by_branches()
        }
        _ => false,
    }
}

fn of_condition(condition: &Condition<'_>, path: &Path, needed: &Predicate) -> bool {
    if *condition.path != *path {
        return false;
    }
    if matches!(needed, Predicate::Exists) {
        return condition.excludes_missing(true);
    }
    if condition.negated {
        return false;
    }
    if let (Predicate::Type(have), Predicate::Type(need)) = (condition.predicate, needed) {
        return have.is_within(need);
    }
    let needed = Condition {
        path: condition.path.clone(),
        predicate: needed,
        negated: false,
        item: None,
    };
    match (confine(condition, false), confine(&needed, false)) {
        (Some(have), Some(need)) => need.exact && have.is_within(&need),
        _ => false,
    }
}
