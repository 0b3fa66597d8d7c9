//! Two answers beside each other: the first thing in which they differ.

use crate::order::Order;
use crate::shape::Shape;

/// What a server said to a case, ready to be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// The reply, and for a write all documents afterwards.
    Reply {
        reply: Shape,
        state: Option<Shape>,
    },
    Hung,
    Closed,
}

/// What a server finds fault with, by its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The command; there are replies without a code.
    Command(Option<i64>),
    /// The first statement that failed.
    Write(Option<i64>),
}

/// How one answer differs from the one that is expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The sort of difference: `code 2 -> ok`, `type int -> long`, `value double`, ...
    pub class: String,
    /// Where in the reply.
    pub path: String,
    pub expected: String,
    pub found: String,
}

impl Difference {
    /// The faults that the servers have named, if that is how they differ.
    pub fn faults(&self) -> Option<(Fault, Fault)> {
        let (codes, fault): (_, fn(Option<i64>) -> Fault) = match self.class.strip_prefix("write ")
        {
            Some(codes) => (codes, Fault::Write),
            None => (&*self.class, Fault::Command),
        };
        let (expected, found) = codes.strip_prefix("code ")?.split_once(" -> ")?;
        let read = |code: &str| match code {
            "no code" => Some(fault(None)),
            code => Some(fault(Some(code.parse().ok()?))),
        };
        Some((read(expected)?, read(found)?))
    }
}

impl Told {
    /// Whether it is an error, of the command or of one of its statements.
    pub fn is_error(&self) -> bool {
        match self {
            Told::Reply { reply, .. } => !is_ok(reply) || reply.get("writeErrors").is_some(),
            _ => false,
        }
    }

    /// The fault that an error names.
    pub fn fault(&self) -> Option<Fault> {
        let Told::Reply { reply, .. } = self else {
            return None;
        };
        if !is_ok(reply) {
            return Some(Fault::Command(reply.number("code")));
        }
        match reply.get("writeErrors")? {
            Shape::Array(errors) => Some(Fault::Write(errors.first()?.number("code"))),
            _ => None,
        }
    }

    /// The documents or values of a reply that has some.
    pub fn results(&self) -> Option<&[Shape]> {
        match self {
            Told::Reply { reply, .. } => results(reply),
            _ => None,
        }
    }

    /// A number of the reply.
    pub fn number(&self, name: &str) -> Option<i64> {
        match self {
            Told::Reply { reply, .. } => reply.number(name),
            _ => None,
        }
    }

    pub fn is_reply(&self) -> bool {
        matches!(self, Told::Reply { .. })
    }

    /// See [`Shape::unify_numbers`].
    pub fn unify_numbers(&mut self) {
        if let Told::Reply { reply, state } = self {
            reply.unify_numbers();
            state.iter_mut().for_each(Shape::unify_numbers);
        }
    }
}

/// The first difference, if there is one.
pub fn compare(expected: &Told, found: &Told, order: Order) -> Option<Difference> {
    let (expected, found) = match (expected, found) {
        (
            Told::Reply { reply, state },
            Told::Reply {
                reply: other,
                state: after,
            },
        ) => ((reply, state), (other, after)),
        (_, Told::Hung) => return Some(outcome("hang")),
        (_, Told::Closed) => return Some(outcome("connection closed")),
        (Told::Hung, _) => return Some(outcome("the reference hangs")),
        (Told::Closed, _) => return Some(outcome("the reference closes the connection")),
    };
    if order == Order::Undefined && is_ok(expected.0) && is_ok(found.0) {
        return None;
    }
    if !is_ok(expected.0) || !is_ok(found.0) {
        return errors(expected.0, found.0);
    }
    let found_in = replies(expected.0, found.0, order);
    found_in.or_else(|| match (expected.1, found.1) {
        (Some(before), Some(after)) => whole("state", before, after, order),
        _ => None,
    })
}

fn outcome(class: &str) -> Difference {
    Difference {
        class: class.to_owned(),
        path: String::new(),
        expected: String::new(),
        found: String::new(),
    }
}

pub fn is_ok(reply: &Shape) -> bool {
    reply.number("ok") == Some(1)
}

fn errors(expected: &Shape, found: &Shape) -> Option<Difference> {
    let code = |reply: &Shape| match reply.number("code") {
        _ if is_ok(reply) => "ok".to_owned(),
        Some(code) => code.to_string(),
        None => "no code".to_owned(),
    };
    let name = |reply: &Shape| reply.get("codeName").map(Shape::text).unwrap_or_default();
    let class = if code(expected) != code(found) {
        format!("code {} -> {}", code(expected), code(found))
    } else if name(expected) != name(found) {
        format!("code name of {}", code(expected))
    } else if expected.get("errInfo") != found.get("errInfo") {
        format!("details of {}", code(expected))
    } else {
        return None;
    };
    Some(Difference {
        class,
        path: String::new(),
        expected: expected.text(),
        found: found.text(),
    })
}

fn replies(expected: &Shape, found: &Shape, order: Order) -> Option<Difference> {
    let (Some(before), Some(after)) = (results(expected), results(found)) else {
        return whole("", expected, found, order);
    };
    let class = if let Order::Exact = order {
        return whole("", expected, found, order);
    } else if before.len() > after.len() {
        "fewer results"
    } else {
        "more results"
    };
    let (mut before, mut after) = (before.to_vec(), after.to_vec());
    if order == Order::LooseArrays {
        before.iter_mut().for_each(Shape::sort_arrays);
        after.iter_mut().for_each(Shape::sort_arrays);
    }
    // What both have falls out, however often.
    before.retain(|result| {
        let same = after.iter().position(|other| other == result);
        same.map(|at| after.swap_remove(at)).is_none()
    });
    match (before.first(), after.first()) {
        (None, None) => None,
        (Some(missing), Some(_)) if before.len() == after.len() => {
            // Rather one that is the same but for the order of its fields.
            let sorted = |shape: &Shape| match shape {
                Shape::Document(fields) => {
                    let mut fields = fields.clone();
                    fields.sort();
                    fields
                }
                _ => Vec::new(),
            };
            let same_fields = |other: &&Shape| sorted(other) == sorted(missing);
            let same_id = |other: &&Shape| other.get("_id") == missing.get("_id");
            let alike = after.iter().find(same_fields);
            let other = alike.or_else(|| after.iter().find(same_id));
            let other = other.unwrap_or(&after[0]);
            values("results", missing, other)
        }
        (missing, extra) => Some(Difference {
            class: class.to_owned(),
            path: "results".to_owned(),
            expected: missing.map(Shape::text).unwrap_or_default(),
            found: extra.map(Shape::text).unwrap_or_default(),
        }),
    }
}

/// The documents or values of a reply that has some.
fn results(reply: &Shape) -> Option<&[Shape]> {
    let results = match reply.get("cursor") {
        Some(cursor) => cursor.get("firstBatch")?,
        None => reply.get("values")?,
    };
    match results {
        Shape::Array(results) => Some(results),
        _ => None,
    }
}

fn whole(path: &str, expected: &Shape, found: &Shape, order: Order) -> Option<Difference> {
    if order != Order::LooseArrays {
        return values(path, expected, found);
    }
    let (mut expected, mut found) = (expected.clone(), found.clone());
    expected.sort_arrays();
    found.sort_arrays();
    values(path, &expected, &found)
}

/// The first difference of two values, depth first.
fn values(path: &str, expected: &Shape, found: &Shape) -> Option<Difference> {
    let differ = |class: String| {
        Some(Difference {
            class,
            path: path.to_owned(),
            expected: expected.text(),
            found: found.text(),
        })
    };
    match (expected, found) {
        (expected, found) if expected == found => None,
        (Shape::Document(left), Shape::Document(right)) => fields(path, left, right),
        (Shape::Array(left), Shape::Array(right)) => {
            if left.len() != right.len() {
                return differ(format!("length of {}", last_name(path)));
            }
            let mut pairs = left.iter().zip(right).enumerate();
            pairs.find_map(|(at, (left, right))| values(&format!("{path}.{at}"), left, right))
        }
        _ if last_name(path) == "code" && path.contains("writeErrors") => differ(format!(
            "write code {} -> {}",
            expected.text(),
            found.text()
        )),
        _ if expected.kind() != found.kind() => {
            differ(format!("type {} -> {}", expected.kind(), found.kind()))
        }
        _ => differ(format!("value {}", expected.kind())),
    }
}

type Fields = [(String, Shape)];

fn fields(path: &str, expected: &Fields, found: &Fields) -> Option<Difference> {
    let differ = |class: &str, name: &str, left: Option<&Shape>, right: Option<&Shape>| {
        Some(Difference {
            class: class.to_owned(),
            path: join(path, name),
            expected: left.map(Shape::text).unwrap_or_default(),
            found: right.map(Shape::text).unwrap_or_default(),
        })
    };
    let find =
        |fields: &'_ Fields, wanted: &str| fields.iter().position(|(name, _)| name == wanted);
    let errors = |fields: &Fields| Some(fields.get(find(fields, "writeErrors")?)?.1.clone());
    if let (expected, found) = (errors(expected), errors(found))
        && expected.is_some() != found.is_some()
    {
        let codes = |errors: &Option<Shape>| match errors {
            Some(Shape::Array(errors)) => errors[0].number("code").unwrap_or_default().to_string(),
            _ => "ok".to_owned(),
        };
        let class = format!("write code {} -> {}", codes(&expected), codes(&found));
        return differ(&class, "writeErrors", expected.as_ref(), found.as_ref());
    }
    for (name, value) in expected {
        match find(found, name) {
            None => return differ("field missing", name, Some(value), None),
            Some(at) => {
                if let Some(difference) = values(&join(path, name), value, &found[at].1) {
                    return Some(difference);
                }
            }
        }
    }
    if let Some((name, value)) = found
        .iter()
        .find(|(name, _)| find(expected, name).is_none())
    {
        return differ("field extra", name, None, Some(value));
    }
    let names = |fields: &Fields| {
        let names = fields.iter().map(|(name, _)| name.clone());
        Shape::Array(names.map(|name| Shape::Leaf("string", name)).collect())
    };
    let (left, right) = (names(expected), names(found));
    if left == right {
        return None;
    }
    differ("order of fields", "", Some(&left), Some(&right))
}

fn join(path: &str, name: &str) -> String {
    match (path, name) {
        ("", name) => name.to_owned(),
        (path, "") => path.to_owned(),
        (path, name) => format!("{path}.{name}"),
    }
}

fn last_name(path: &str) -> &str {
    match path.rsplit('.').next() {
        Some(name) if !matches!(path, "state" | "results") && !name.contains("Batch") => {
            if name.chars().all(|c| c.is_ascii_digit()) {
                "array"
            } else {
                short(name)
            }
        }
        _ => path,
    }
}

/// Names that the server gives; others come from the documents and say nothing.
fn short(name: &str) -> &str {
    match name {
        "code" | "writeErrors" | "upserted" => name,
        _ => "array",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notation::parse_document;

    fn told(text: &str) -> Told {
        let document = bson::RawDocumentBuf::try_from(&parse_document(text).unwrap()).unwrap();
        Told::Reply {
            reply: Shape::of_reply(&document),
            state: None,
        }
    }

    #[track_caller]
    fn class(expected: &str, found: &str, order: Order) -> String {
        let difference = compare(&told(expected), &told(found), order);
        difference
            .map(|d| format!("{} at {}", d.class, d.path))
            .unwrap_or_default()
    }

    #[test]
    fn values_without_their_types() {
        let class = |expected: &str, found: &str| {
            let (mut expected, mut found) = (told(expected), told(found));
            expected.unify_numbers();
            found.unify_numbers();
            let difference = compare(&expected, &found, Order::Exact);
            difference.map(|difference| difference.class)
        };
        assert_eq!(class("{ok: 1.0, n: 1}", "{ok: 1.0, n: 1.0}"), None);
        assert_eq!(
            class("{ok: 1.0, n: 1}", "{ok: 1.0, n: 2}").as_deref(),
            Some("value number")
        );
        assert_eq!(
            class("{ok: 1.0}", "{ok: 0.0, code: 2}").as_deref(),
            Some("code ok -> 2")
        );
    }

    #[test]
    fn values_with_their_types() {
        let class = |a, b| class(a, b, Order::Exact);
        assert_eq!(class("{ok: 1.0, n: 1}", "{ok: 1.0, n: 1}"), "");
        assert_eq!(class("{ok: 1.0, n: NaN}", "{ok: 1.0, n: NaN}"), "");
        assert_eq!(
            class("{ok: 1.0, n: 0.0}", "{ok: 1.0, n: -0.0}"),
            "value double at n"
        );
        assert_eq!(
            class("{ok: 1.0, n: 1}", "{ok: 1.0, n: 1.0}"),
            "type int -> double at n"
        );
        assert_eq!(class("{ok: 1.0, n: 1}", "{ok: 1.0}"), "field missing at n");
        assert_eq!(class("{ok: 1.0}", "{ok: 1.0, n: 1}"), "field extra at n");
        assert_eq!(
            class("{ok: 1.0, n: 1}", "{n: 1, ok: 1.0}"),
            "order of fields at "
        );
        assert_eq!(
            class("{ok: 1.0, n: [1]}", "{ok: 1.0, n: []}"),
            "length of array at n"
        );
    }

    #[test]
    fn errors_by_code_and_name() {
        let class = |a, b| class(a, b, Order::Exact);
        let bad = "{ok: 0.0, code: 2, codeName: \"BadValue\", errmsg: \"x\"}";
        assert_eq!(class(bad, "{ok: 1.0}"), "code 2 -> ok at ");
        assert_eq!(class(bad, "{ok: 0.0, code: 2, codeName: \"BadValue\"}"), "");
        assert_eq!(
            class(bad, "{ok: 0.0, code: 2, codeName: \"B\"}"),
            "code name of 2 at "
        );
        let write = "{n: 0, writeErrors: [{index: 0, code: 28}], ok: 1.0}";
        assert_eq!(
            class(write, "{n: 0, ok: 1.0}"),
            "write code 28 -> ok at writeErrors"
        );
    }

    #[test]
    fn the_faults_of_a_difference() {
        let faults = |class: &str| {
            let difference = outcome(class);
            difference.faults()
        };
        let (two, none) = (Fault::Command(Some(2)), Fault::Command(None));
        assert_eq!(faults("code no code -> 2"), Some((none, two)));
        let write = (Fault::Write(Some(28)), Fault::Write(Some(40)));
        assert_eq!(faults("write code 28 -> 40"), Some(write));
        assert_eq!(faults("code 2 -> ok"), None);
        assert_eq!(faults("value int"), None);
    }

    #[test]
    fn faults_of_commands_and_statements() {
        let bad = told("{ok: 0.0, code: 2, codeName: \"BadValue\"}");
        assert_eq!(bad.fault(), Some(Fault::Command(Some(2))));
        let write = told("{n: 0, writeErrors: [{index: 1, code: 28}], ok: 1.0}");
        assert_eq!(write.fault(), Some(Fault::Write(Some(28))));
        assert_eq!(told("{n: 0, ok: 1.0}").fault(), None);
        assert_eq!(Told::Hung.fault(), None);
    }

    #[test]
    fn fields_in_another_order_within_arrays_without_one() {
        let (one, two) = (
            told("{cursor: {firstBatch: [{g: [{b: true, a: 1}, {a: 1, b: 4}]}]}, ok: 1.0}"),
            told("{cursor: {firstBatch: [{g: [{b: true, a: 1}, {b: 4, a: 1}]}]}, ok: 1.0}"),
        );
        let difference = compare(&one, &two, Order::LooseArrays).unwrap();
        assert_eq!(difference.class, "order of fields");
    }

    #[test]
    fn order_where_it_is_defined() {
        let batch = |items: &str| format!("{{cursor: {{firstBatch: [{items}]}}, ok: 1.0}}");
        let (one, two) = (batch("{_id: 1}, {_id: 2}"), batch("{_id: 2}, {_id: 1}"));
        assert_eq!(class(&one, &two, Order::Multiset), "");
        let exact = class(&one, &two, Order::Exact);
        assert_eq!(exact, "value int at cursor.firstBatch.0._id");
        assert_eq!(
            class(&one, &batch("{_id: 2}"), Order::Multiset),
            "fewer results at results"
        );
        let (one, two) = (
            batch("{_id: 2, a: 1}, {_id: 1}"),
            batch("{_id: 1}, {_id: 2}"),
        );
        assert_eq!(
            class(&one, &two, Order::Multiset),
            "field missing at results.a"
        );
    }

    #[test]
    fn no_answer_is_a_class_of_its_own() {
        let difference = compare(&told("{ok: 1.0}"), &Told::Hung, Order::Exact);
        assert_eq!(difference.unwrap().class, "hang");
    }
}
