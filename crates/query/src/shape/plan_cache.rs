//! The shape by which the plan cache and index filters know a query. Queries of one shape differ in
//! constants only, so that what was learnt of one (the plan that won, how long it took) is worth
//! knowing for the others. As in MongoDB, values do not count, not even their types; operators,
//! paths, the options of patterns, the sort, the fields of an inclusion and the collation do.

use std::fmt::{self, Write as _};

use banyan_document::Collator;
use banyan_document::key::FieldOrder;

use banyan_geo::near::Unit;
use banyan_geo::parse::Relation;

use crate::canonical::{CanonicalQuery, Order};
use crate::filter::{BitTest, Comparison, Filter, MatchNode, Predicate};

/// Comparable as a whole; `hash` is for people and statistics.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PlanCacheShape {
    text: Box<str>,
}

impl CanonicalQuery {
    /// What it has in common with queries that differ only in their values.
    pub fn shape(&self) -> PlanCacheShape {
        let mut text = String::new();
        node(self.filter.root(), &mut text);
        if let Order::By(pattern) = &self.order {
            text.push('~');
            for (path, order) in pattern.fields() {
                text.push(match order {
                    FieldOrder::Descending => 'd',
                    FieldOrder::Ascending
                    | FieldOrder::Hashed
                    | FieldOrder::Sphere
                    | FieldOrder::Plane => 'a',
                });
                name(&path.to_string(), &mut text);
            }
        }
        let included = self.projection.as_ref().and_then(|p| p.included_paths());
        if let Some(mut paths) = included {
            paths.sort_unstable();
            text.push('|');
            paths.iter().for_each(|path| name(path, &mut text));
        }
        collation(self.collator(), &mut text);
        PlanCacheShape { text: text.into() }
    }
}

impl PlanCacheShape {
    pub fn of_filter(filter: &Filter) -> PlanCacheShape {
        let mut text = String::new();
        node(filter.root(), &mut text);
        collation(filter.collator(), &mut text);
        PlanCacheShape { text: text.into() }
    }

    /// The same in every process and release that has the same operators (32-bit FNV-1a).
    pub fn hash(&self) -> u32 {
        let mix = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        self.text.bytes().fold(0x811c_9dc5, mix)
    }
}

/// The hash as `queryHash` shows it: `D00757D1`.
impl fmt::Display for PlanCacheShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08X}", self.hash())
    }
}

fn collation(collator: Option<&Collator>, out: &mut String) {
    if let Some(collator) = collator {
        let shown = collator.collation().to_document();
        let shown = banyan_document::extjson::relaxed_text(&shown).unwrap_or_default();
        out.push('#');
        out.push_str(&shown);
    }
}

/// Names may hold anything, so they come with their length.
fn name(name: &str, out: &mut String) {
    // Writing to a string cannot fail.
    let _ = write!(out, "{}:{name}", name.len());
}

fn nodes(operator: &str, children: &[MatchNode], out: &mut String) {
    out.push_str(operator);
    out.push('[');
    for child in children {
        node(child, out);
        out.push(',');
    }
    out.push(']');
}

fn node(node: &MatchNode, out: &mut String) {
    match node {
        MatchNode::And(children) => nodes("and", children, out),
        MatchNode::Or(children) => nodes("or", children, out),
        MatchNode::Nor(children) => nodes("nor", children, out),
        MatchNode::Not(child) => nodes("not", std::slice::from_ref(child), out),
        MatchNode::Path { path, predicate } => {
            name(&path.to_string(), out);
            out.push(' ');
            self::predicate(predicate, out);
        }
        MatchNode::Expression { .. } => out.push_str("expr"),
        MatchNode::Where(_) => out.push_str("where"),
        MatchNode::Schema { .. } => out.push_str("schema"),
        MatchNode::Text(_) => out.push_str("text"),
        MatchNode::AlwaysTrue => out.push_str("true"),
        MatchNode::AlwaysFalse => out.push_str("false"),
    }
}

fn predicate(predicate: &Predicate, out: &mut String) {
    let operator = match predicate {
        Predicate::Compare(comparison, _) => match comparison {
            Comparison::Eq => "eq",
            Comparison::Lt => "lt",
            Comparison::Lte => "lte",
            Comparison::Gt => "gt",
            Comparison::Gte => "gte",
        },
        Predicate::ExprCompare(comparison, _) | Predicate::Extreme(comparison, _) => {
            match comparison {
                Comparison::Eq => "expr-eq",
                Comparison::Lt => "expr-lt",
                Comparison::Lte => "expr-lte",
                Comparison::Gt => "expr-gt",
                Comparison::Gte => "expr-gte",
            }
        }
        Predicate::In { patterns, .. } => {
            out.push_str("in");
            let mut options: Vec<_> = patterns.iter().map(|pattern| pattern.options()).collect();
            options.sort_unstable();
            options.dedup();
            for options in options {
                out.push('/');
                out.push_str(options);
            }
            return;
        }
        Predicate::Regex(pattern) => {
            out.push_str("regex/");
            pattern.options()
        }
        Predicate::Exists => "exists",
        Predicate::Type(_) => "type",
        Predicate::Mod { .. } => "mod",
        Predicate::Bits(bits) => match bits.test {
            BitTest::AllSet => "all-set",
            BitTest::AllClear => "all-clear",
            BitTest::AnySet => "any-set",
            BitTest::AnyClear => "any-clear",
        },
        Predicate::Geo(geo) => match geo.relation {
            Relation::Within => "within",
            Relation::Intersects => "intersects",
        },
        Predicate::InBucket(_) => "in-bucket",
        Predicate::Near(near) => match near.near.unit {
            Unit::Flat => "near",
            Unit::Radians | Unit::Meters => "near-sphere",
        },
        Predicate::Size(_) => "size",
        Predicate::ElemMatchObject(inner) => {
            return nodes("elem-object", std::slice::from_ref(inner), out);
        }
        Predicate::ElemMatchValue(inner) => {
            return nodes("elem-value", std::slice::from_ref(inner), out);
        }
    };
    out.push_str(operator);
}
