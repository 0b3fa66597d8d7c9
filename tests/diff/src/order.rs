//! Whether the order of a command's results is defined.

use bson::{Bson, Document};

/// The size of samples: more than there are documents.
pub const SAMPLE_SIZE: i32 = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Sorted by something unique: result by result.
    Exact,
    /// The same results in any order.
    Multiset,
    /// Arrays within the results have no order either.
    LooseArrays,
    /// Which results there are depends on an order that nothing defines.
    Undefined,
}

pub fn of(command: &Document) -> Order {
    let empty = Document::new();
    match command.keys().next().map(String::as_str) {
        Some("find") => {
            let cut = ["limit", "skip"]
                .iter()
                .any(|name| command.contains_key(*name));
            match command.get_document("sort") {
                Ok(sort) if is_total(sort) => Order::Exact,
                Err(_) if is_by_distance(command) => Order::Exact,
                _ if cut => Order::Undefined,
                _ => Order::Multiset,
            }
        }
        Some("findAndModify") => match command.get_document("sort") {
            Ok(sort) if is_total(sort) => Order::Exact,
            _ if command
                .get_document("query")
                .unwrap_or(&empty)
                .contains_key("_id") =>
            {
                Order::Exact
            }
            _ => Order::Undefined,
        },
        Some("aggregate") => match command.get("pipeline") {
            Some(Bson::Array(stages)) => Walk::default().pipeline(stages),
            _ => Order::Exact,
        },
        Some("distinct" | "listCollections") => Order::Multiset,
        Some("update") => of_update(command),
        Some("delete") => of_delete(command),
        Some("count") if command.contains_key("limit") || command.contains_key("skip") => {
            Order::Exact
        }
        _ => Order::Exact,
    }
}

/// One of several documents is chosen by no order, unless the id names it.
fn of_update(command: &Document) -> Order {
    let chosen =
        |statement: &Document| statement.get_bool("multi").unwrap_or(false) || names_one(statement);
    all_statements(command, "updates", chosen)
}

fn of_delete(command: &Document) -> Order {
    let one = |limit: &Bson| crate::notation::print_value(limit).contains('1');
    let chosen =
        |statement: &Document| !statement.get("limit").is_some_and(one) || names_one(statement);
    all_statements(command, "deletes", chosen)
}

fn all_statements(command: &Document, field: &str, holds: impl Fn(&Document) -> bool) -> Order {
    let Some(Bson::Array(statements)) = command.get(field) else {
        return Order::Exact;
    };
    let holds = |statement: &Bson| statement.as_document().is_none_or(&holds);
    if statements.iter().all(holds) {
        Order::Exact
    } else {
        Order::Undefined
    }
}

fn names_one(statement: &Document) -> bool {
    let id = statement.get_document("q").ok().and_then(|q| q.get("_id"));
    id.is_some_and(|id| !matches!(id, Bson::Document(_) | Bson::RegularExpression(_)))
}

/// The closest come first; no two of those that are generated are as far away.
fn is_by_distance(find: &Document) -> bool {
    let filter = find.get_document("filter");
    filter.is_ok_and(|filter| crate::notation::print_document(filter).contains("$near"))
}

/// A sort ends with the id, which no two documents share.
fn is_total(sort: &Document) -> bool {
    sort.keys().any(|name| name == "_id")
}

/// What is known of the stream between two stages.
struct Walk {
    sorted: bool,
    unique_id: bool,
    loose: bool,
    /// There may be more documents than a sample is of.
    many: bool,
    /// The stage before made `n` and `t` of the id, which no two documents share either.
    along: bool,
}

impl Default for Walk {
    fn default() -> Self {
        Self {
            sorted: false,
            unique_id: true,
            loose: false,
            many: false,
            along: false,
        }
    }
}

impl Walk {
    fn pipeline(mut self, stages: &[Bson]) -> Order {
        for stage in stages {
            let Some((name, argument)) = stage.as_document().and_then(|s| s.iter().next()) else {
                return Order::Exact;
            };
            if !self.stage(name, argument) {
                return Order::Undefined;
            }
            self.along = name == "$addFields" && is_along(argument);
        }
        match (self.loose, self.sorted) {
            (true, _) => Order::LooseArrays,
            (false, true) => Order::Exact,
            (false, false) => Order::Multiset,
        }
    }

    /// `false` if what comes out depends on an order that nothing defines.
    fn stage(&mut self, name: &str, argument: &Bson) -> bool {
        match name {
            "$sort" => {
                let total = argument.as_document().is_some_and(is_total);
                self.sorted = total && self.unique_id;
            }
            "$limit" | "$skip" => return self.sorted,
            "$group" | "$bucket" | "$bucketAuto" | "$sortByCount" => {
                self.notes_order_of_accumulators(argument);
                if !self.sorted && chooses_by_order(argument) {
                    return false;
                }
                self.sorted = false;
                self.unique_id = true;
            }
            "$project" | "$addFields" | "$set" | "$unset" | "$replaceRoot" | "$replaceWith" => {
                let touches = match argument {
                    Bson::Document(fields) => fields.keys().any(|n| n.starts_with("_id")),
                    _ => true,
                };
                self.unique_id &= !touches && !name.starts_with("$replace");
            }
            "$unwind" => self.unique_id = false,
            "$unionWith" => {
                self.unique_id = false;
                self.sorted = false;
                self.loose |= makes_loose_arrays(argument);
            }
            "$lookup" | "$graphLookup" => self.loose = true,
            "$facet" => {
                self.loose = true;
                let sub = |pipeline: &Bson| {
                    let stages = pipeline.as_array().map_or(&[][..], Vec::as_slice);
                    let inner = Walk {
                        sorted: self.sorted,
                        unique_id: self.unique_id,
                        loose: false,
                        many: self.many,
                        along: false,
                    };
                    inner.pipeline(stages) != Order::Undefined
                };
                let facets = argument.as_document();
                return facets.is_none_or(|facets| facets.values().all(sub));
            }
            "$sample" => {
                self.sorted = false;
                return draws_all(argument) && !self.many;
            }
            "$setWindowFields" | "$fill" => {
                self.notes_order_of_accumulators(argument);
                if !self.decides(argument) && !is_independent(argument) {
                    return false;
                }
                self.sorted = false;
                let output = argument
                    .as_document()
                    .and_then(|a| a.get_document("output").ok());
                self.unique_id &= output.is_none_or(|output| !output.contains_key("_id"));
            }
            "$densify" => {
                self.sorted = false;
                self.unique_id = false;
                self.many = true;
            }
            _ => {}
        }
        true
    }

    /// Whether the stage's own order is one of all documents.
    fn decides(&self, argument: &Bson) -> bool {
        let sort = argument
            .as_document()
            .and_then(|a| a.get_document("sortBy").ok());
        let by = |name: &str| sort.is_some_and(|sort| sort.contains_key(name));
        self.unique_id && (by("_id") || self.along && (by("n") || by("t")))
    }

    fn notes_order_of_accumulators(&mut self, argument: &Bson) {
        let text = crate::notation::print_value(argument);
        self.loose |= text.contains("$addToSet");
        self.loose |= !self.sorted && text.contains("$push");
    }
}

/// Whether the pipeline of a stage makes arrays without an order.
fn makes_loose_arrays(argument: &Bson) -> bool {
    let stages = argument
        .as_document()
        .and_then(|argument| argument.get_array("pipeline").ok());
    let mut inner = Walk::default();
    for stage in stages.into_iter().flatten() {
        if let Some((name, argument)) = stage.as_document().and_then(|s| s.iter().next()) {
            inner.stage(name, argument);
        }
    }
    inner.loose
}

fn is_along(fields: &Bson) -> bool {
    let names: Vec<&str> = match fields {
        Bson::Document(fields) => fields.keys().map(String::as_str).collect(),
        _ => Vec::new(),
    };
    let text = crate::notation::print_value(fields);
    names == ["n", "t"]
        && text.contains("{n: {$multiply: [\"$_id\"")
        && text.contains("amount: {$multiply: [\"$_id\"")
}

/// Whether no value that a stage over an order computes depends on how equal documents are ordered.
fn is_independent(argument: &Bson) -> bool {
    let free = [
        "$sum",
        "$avg",
        "$min",
        "$max",
        "$count",
        "$addToSet",
        "$rank",
        "$denseRank",
        "value",
    ];
    let Some(output) = argument
        .as_document()
        .and_then(|a| a.get_document("output").ok())
    else {
        return true;
    };
    output.values().all(|function| {
        let Some(function) = function.as_document() else {
            return true;
        };
        let by_place = function
            .get_document("window")
            .is_ok_and(|window| window.contains_key("documents"));
        !by_place
            && function
                .keys()
                .all(|name| name == "window" || free.contains(&name.as_str()))
    })
}

/// Whether a sample is of so many that nothing is left out.
fn draws_all(sample: &Bson) -> bool {
    let size = sample.as_document().and_then(|sample| sample.get("size"));
    let size = size.and_then(|size| match size {
        Bson::Int32(size) => Some(i64::from(*size)),
        Bson::Int64(size) => Some(*size),
        _ => None,
    });
    // What is no size is refused.
    size.is_none_or(|size| size >= i64::from(SAMPLE_SIZE))
}

/// Accumulators whose result is decided by which document comes first or last.
fn chooses_by_order(group: &Bson) -> bool {
    let by_order = [
        "$first",
        "$last",
        "$mergeObjects",
        "$top",
        "$bottom",
        "$firstN",
        "$lastN",
    ];
    let Some(fields) = group.as_document() else {
        return false;
    };
    let fields = match fields.get_document("output") {
        Ok(output) => output,
        Err(_) => fields,
    };
    let chooses = |value: &Bson| {
        let names = value.as_document().and_then(|d| d.keys().next());
        names.is_some_and(|name| by_order.iter().any(|o| name.starts_with(o)))
    };
    fields
        .iter()
        .any(|(name, value)| name != "_id" && chooses(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn holds(text: &str, order: Order) {
        assert_eq!(
            of(&crate::notation::parse_document(text).unwrap()),
            order,
            "{text}"
        );
    }

    #[test]
    fn of_finds() {
        holds("{find: \"c\"}", Order::Multiset);
        holds(
            "{find: \"c\", sort: {a: 1, _id: 1}, limit: 1}",
            Order::Exact,
        );
        holds("{find: \"c\", sort: {a: 1}, limit: 1}", Order::Undefined);
    }

    #[test]
    fn of_pipelines() {
        let pipeline = |stages: &str| format!("{{aggregate: \"c\", pipeline: [{stages}]}}");
        holds(&pipeline("{$sort: {_id: 1}}, {$limit: 1}"), Order::Exact);
        holds(&pipeline("{$limit: 1}"), Order::Undefined);
        holds(&pipeline("{$sample: {size: 1000}}"), Order::Multiset);
        holds(&pipeline("{$sample: {size: 1}}"), Order::Undefined);
        holds(
            &pipeline("{$densify: {}}, {$sample: {size: 1000}}"),
            Order::Undefined,
        );
        holds(
            &pipeline("{$unwind: \"$a\"}, {$sort: {_id: 1}}"),
            Order::Multiset,
        );
        holds(
            &pipeline("{$group: {_id: 1, a: {$push: 1}}}"),
            Order::LooseArrays,
        );
        holds(
            &pipeline("{$unionWith: {coll: \"d\", pipeline: [{$lookup: {}}]}}"),
            Order::LooseArrays,
        );
        holds(
            &pipeline("{$unionWith: {coll: \"d\", pipeline: [{$match: {}}]}}"),
            Order::Multiset,
        );
        holds(
            &pipeline("{$group: {_id: 1, a: {$first: \"$a\"}}}"),
            Order::Undefined,
        );
        holds(
            &pipeline("{$sort: {_id: 1}}, {$group: {_id: 1, a: {$first: 1}}}"),
            Order::Multiset,
        );
    }

    #[test]
    fn of_writes() {
        holds(
            "{update: \"c\", updates: [{q: {a: 1}, u: {}}]}",
            Order::Undefined,
        );
        holds(
            "{update: \"c\", updates: [{q: {_id: 1}, u: {}}]}",
            Order::Exact,
        );
        holds(
            "{update: \"c\", updates: [{q: {a: 1}, u: {}, multi: true}]}",
            Order::Exact,
        );
    }
}
