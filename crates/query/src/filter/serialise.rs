//! A filter as MongoDB's `explain` writes it.

use banyan_document::DocumentWriter;
use banyan_document::element::elements;
use banyan_document::kind;
use bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use super::bits::BitTest;
use super::buckets;
use super::tree::{MatchNode, Predicate};
use crate::comparison::Comparison;
use crate::pattern::Pattern;

pub(super) fn node(node: &MatchNode) -> RawDocumentBuf {
    let mut writer = DocumentWriter::new();
    write(node, &mut writer);
    writer.finish()
}

/// Appends the fields of a node to the document that is open.
fn write(node: &MatchNode, out: &mut DocumentWriter) {
    match node {
        MatchNode::And(children) if children.is_empty() => {}
        MatchNode::And(children) => branches("$and", children, out),
        MatchNode::Or(children) => branches("$or", children, out),
        MatchNode::Nor(children) => branches("$nor", children, out),
        MatchNode::Not(child) => match &**child {
            MatchNode::Path {
                predicate: Predicate::InBucket(_),
                ..
            } => branches("$nor", std::slice::from_ref(child), out),
            MatchNode::Path { path, predicate } => {
                out.begin_document(&path.to_string());
                out.begin_document("$not");
                test(predicate, out);
                out.end();
                out.end();
            }
            MatchNode::And(children) if children.is_empty() => out.append_i32("$alwaysFalse", 1),
            other => branches("$nor", std::slice::from_ref(other), out),
        },
        MatchNode::Path {
            path,
            predicate: Predicate::InBucket(geo),
        } => buckets::write_within(path, geo, out),
        MatchNode::Path { path, predicate } => {
            out.begin_document(&path.to_string());
            test(predicate, out);
            out.end();
        }
        MatchNode::Expression { source, .. } => out.append("$expr", source.as_raw_bson_ref()),
        MatchNode::Where(code) => {
            out.append("$where", RawBsonRef::JavaScriptCode(code.0.source()));
        }
        MatchNode::Schema { source, .. } => out.append_doc("$jsonSchema", source),
        MatchNode::Text(query) => out.append_doc("$text", &query.source),
        MatchNode::AlwaysTrue => out.append_i32("$alwaysTrue", 1),
        MatchNode::AlwaysFalse => out.append_i32("$alwaysFalse", 1),
    }
}

fn branches(name: &str, children: &[MatchNode], out: &mut DocumentWriter) {
    out.begin_array(name);
    for child in children {
        out.push_document();
        write(child, out);
        out.end();
    }
    out.end();
}

/// Appends what is asked of a value: `$gt: 5`.
fn test(predicate: &Predicate, out: &mut DocumentWriter) {
    match predicate {
        Predicate::Compare(comparison, value) => {
            out.append(comparison_name(*comparison), value.as_raw_bson_ref());
        }
        Predicate::ExprCompare(comparison, value) | Predicate::Extreme(comparison, value) => {
            out.append(implied_name(*comparison), value.as_raw_bson_ref());
        }
        Predicate::In { values, patterns } => {
            out.begin_array("$in");
            for value in values {
                out.push(value.as_raw_bson_ref());
            }
            for pattern in patterns {
                if let Some(regex) = pattern.to_bson() {
                    out.push(RawBson::RegularExpression(regex).as_raw_bson_ref());
                }
            }
            out.end();
        }
        Predicate::Regex(pattern) => write_pattern(pattern, out),
        Predicate::Exists => out.append_bool("$exists", true),
        Predicate::Type(set) => {
            out.begin_array("$type");
            if set.numbers {
                out.push(RawBsonRef::String("number"));
            }
            for kind in &set.types {
                out.push(RawBsonRef::Int32(kind::number(*kind)));
            }
            out.end();
        }
        Predicate::Mod { divisor, remainder } => {
            out.begin_array("$mod");
            out.push(RawBsonRef::Int64(*divisor));
            out.push(RawBsonRef::Int64(*remainder));
            out.end();
        }
        Predicate::Bits(bits) => {
            out.begin_array(match bits.test {
                BitTest::AllSet => "$bitsAllSet",
                BitTest::AllClear => "$bitsAllClear",
                BitTest::AnySet => "$bitsAnySet",
                BitTest::AnyClear => "$bitsAnyClear",
            });
            for position in &bits.positions {
                out.push(RawBsonRef::Int32(
                    i32::try_from(*position).unwrap_or(i32::MAX),
                ));
            }
            out.end();
        }
        Predicate::Geo(geo) => write_fields(&geo.source, out),
        // Written with its path.
        Predicate::InBucket(_) => {}
        Predicate::Near(near) => write_fields(&near.source, out),
        Predicate::Size(size) => out.append_i32("$size", i32::try_from(*size).unwrap_or(i32::MAX)),
        Predicate::ElemMatchObject(inner) => {
            out.begin_document("$elemMatch");
            write(inner, out);
            out.end();
        }
        Predicate::ElemMatchValue(inner) => {
            out.begin_document("$elemMatch");
            item_tests(inner, out);
            out.end();
        }
    }
}

/// What is asked of one item of an array, side by side: `$gt: 1, $lt: 5`.
fn item_tests(node: &MatchNode, out: &mut DocumentWriter) {
    match node {
        MatchNode::And(children) => children.iter().for_each(|child| item_tests(child, out)),
        MatchNode::Path { predicate, .. } => test(predicate, out),
        MatchNode::Not(child) => {
            out.begin_document("$not");
            item_tests(child, out);
            out.end();
        }
        other => write(other, out),
    }
}

fn write_pattern(pattern: &Pattern, out: &mut DocumentWriter) {
    out.append_str("$regex", pattern.source());
    if !pattern.options().is_empty() {
        out.append_str("$options", pattern.options());
    }
}

fn write_fields(source: &RawDocument, out: &mut DocumentWriter) {
    for element in elements(source) {
        out.append(element.name(), element.value());
    }
}

fn comparison_name(comparison: Comparison) -> &'static str {
    match comparison {
        Comparison::Eq => "$eq",
        Comparison::Lt => "$lt",
        Comparison::Lte => "$lte",
        Comparison::Gt => "$gt",
        Comparison::Gte => "$gte",
    }
}

fn implied_name(comparison: Comparison) -> &'static str {
    match comparison {
        Comparison::Eq => "$_internalExprEq",
        Comparison::Lt => "$_internalExprLt",
        Comparison::Lte => "$_internalExprLte",
        Comparison::Gt => "$_internalExprGt",
        Comparison::Gte => "$_internalExprGte",
    }
}
