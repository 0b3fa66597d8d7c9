//! Whether all documents that match one filter match another one: a partial index can then be used.

use banyan_document::Collator;
use banyan_document::path::Path;

use super::interval::{KeyOrder, condition_intervals};
use super::{Condition, Conjunction};
use crate::filter::{Filter, MatchNode, Predicate};

/// Whether what meets the conjunction matches `needed`. `false` also where that is not known.
pub fn implies(conjunction: &Conjunction<'_>, needed: &Filter) -> bool {
    of_node(conjunction, needed.root(), needed.collator())
}

fn of_node(conjunction: &Conjunction<'_>, needed: &MatchNode, collator: Option<&Collator>) -> bool {
    if conjunction.never {
        return true;
    }
    let by_branches = || {
        let mut all = conjunction.disjunctions.iter();
        all.any(|disjunction| {
            let mut branches = disjunction.branches.iter();
            branches.all(|branch| of_node(branch, needed, collator))
        })
    };
    match needed {
        MatchNode::And(children) => {
            let mut children = children.iter();
            children.all(|child| of_node(conjunction, child, collator))
        }
        MatchNode::Or(children) => {
            let mut each = children.iter();
            each.any(|child| of_node(conjunction, child, collator)) || by_branches()
        }
        MatchNode::AlwaysTrue => true,
        MatchNode::Path { path, predicate } => {
            let mut conditions = conjunction.conditions.iter();
            let order = KeyOrder::new(collator, conjunction.collator);
            let implied = conditions
                .any(|condition| of_condition(condition, path, predicate, order, collator));
            implied || by_branches()
        }
        _ => false,
    }
}

fn of_condition(
    condition: &Condition<'_>,
    path: &Path,
    needed: &Predicate,
    order: KeyOrder<'_>,
    collator: Option<&Collator>,
) -> bool {
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
        conjunct: None,
    };
    let own = KeyOrder::new(collator, collator);
    match (
        condition_intervals(condition, false, order),
        condition_intervals(&needed, false, own),
    ) {
        (Some(have), Some(need)) => need.exact && have.is_within(&need),
        _ => false,
    }
}
